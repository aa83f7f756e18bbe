"""How long a translation may become."""

from __future__ import annotations

from collections.abc import Mapping

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf


class LengthLimit:
    """So many tokens at most: source tokens * factor + constant, EOS counted on both sides, and 1 at least."""

    def __init__(self, factor: float, constant: int) -> None:
        """
        Args:
            factor: 0 or more.
            constant: 0 or more.
        """
        self._factor, self._constant = factor, constant

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The limit of each sentence, int32 `[batch]`."""
        longest = tf.cast(inputs["source_length"], tf.float32) * self._factor
        return tf.maximum(tf.cast(tf.floor(longest), tf.int32) + self._constant, 1)
