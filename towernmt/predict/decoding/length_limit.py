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


class LimitBehindPrefix(LengthLimit):
    """Another limit, but for a forced beginning, behind which there is always room for some tokens."""

    def __init__(self, limit: LengthLimit, room: int) -> None:
        """
        Args:
            limit: that of sentences without a prefix.
            room: so many tokens at least may follow the prefix; one for EOS is among them.
        """
        self._limit, self._room = limit, max(room, 1)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        prefix = tf.math.count_nonzero(inputs["prefix"], axis=1, dtype=tf.int32)
        return tf.where(prefix > 0, tf.maximum(self._limit(inputs), prefix + self._room), self._limit(inputs))
