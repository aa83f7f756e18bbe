"""How long a translation may become."""

from __future__ import annotations

from collections.abc import Mapping

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf


class LengthLimit:
    """So many tokens at most: source tokens * factor + constant, EOS counted on both sides, and 1 at least."""

    def __init__(self, factor: float, constant: int, most: int = 0) -> None:
        """
        Args:
            factor: 0 or more.
            constant: 0 or more.
            most: never more tokens than these, however long the source is; 0 is no such limit.
        """
        self._factor, self._constant, self._most = factor, constant, most

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The limit of each sentence, int32 `[batch]`."""
        longest = tf.cast(inputs["source_length"], tf.float32) * self._factor
        limit = tf.maximum(tf.cast(tf.floor(longest), tf.int32) + self._constant, 1)
        return tf.minimum(limit, self._most) if self._most else limit


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
