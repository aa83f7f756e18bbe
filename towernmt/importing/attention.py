"""Attention with a bias on every map, as other systems have it, as ours, which has biases on queries and output alone.

A bias on the keys adds one number to all logits of a query, which the softmax does not see: it is dropped. One on the
values adds a constant to their mean, since weights sum to 1: what the output's kernel makes of it joins its bias.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class AttentionMaps(NamedTuple):
    """The maps of an attention.

    Attributes:
        query, key, value, output: kernels `[input depth, output depth]`.
        query_bias, value_bias, output_bias: `[output depth]`; zeros where there are none.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    query_bias: np.ndarray
    value_bias: np.ndarray
    output_bias: np.ndarray

    def self_attention(self, place: str) -> dict[str, np.ndarray]:
        """The variables of a `SelfAttention` under that name."""
        return {f"{place}/qkv/kernel": np.concatenate([self.query, self.key, self.value], 1),
                f"{place}/query_bias": self.query_bias, **self._end(place)}

    def cross_attention(self, place: str) -> dict[str, np.ndarray]:
        """The variables of a `CrossAttention` under that name."""
        return {f"{place}/query/kernel": self.query, f"{place}/query/bias": self.query_bias,
                f"{place}/kv/kernel": np.concatenate([self.key, self.value], 1), **self._end(place)}

    def _end(self, place: str) -> dict[str, np.ndarray]:
        return {f"{place}/output/kernel": self.output,
                f"{place}/output/bias": self.output_bias + self.value_bias @ self.output}
