"""Phrases that must occur: how far each hypothesis has come with them, for all hypotheses of a batch at once.

For each phrase all beginnings are followed at a time, as the shift-and algorithm does it (Baeza-Yates & Gonnet 1992, "A
New Approach to Text Searching"): so no occurrence is missed, also where one begins inside another. Different phrases
may share tokens. A phrase that is given twice must occur twice, and the two do not overlap.
"""

from __future__ import annotations

from typing import NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf


class Progress(NamedTuple):
    """What hypotheses have of their sentence's phrases.

    Attributes:
        begun: bool `[batch, n, phrases, longest + 1]`: at k, whether the last k tokens are its first k; at
            0, whether an occurrence may begin with the next token.
        met: bool `[batch, n, phrases]`, whether the phrase has occurred.
    """

    begun: Tensor
    met: Tensor

    def selected(self, place: Tensor) -> Progress:
        """Of the hypotheses at `place`, int32 `[batch, m]`."""
        return Progress(*(tf.gather(tensor, place, batch_dims=1) for tensor in self))


class Phrases(NamedTuple):
    """The phrases of the sentences of a batch. One of no tokens stands for none: it is met from the beginning.

    Attributes:
        tokens: int32 `[batch, phrases, longest]`, padded with PAD.
        length: int32 `[batch, phrases]`.
        repeats: bool `[batch, phrases, phrases]`, whether a phrase is the same as an earlier one.
    """

    tokens: Tensor
    length: Tensor
    repeats: Tensor

    @classmethod
    def of(cls, constraints: Tensor) -> Phrases:
        """From int32 `[batch, constraints, length]`, padded with PAD; there may be none."""
        tokens = tf.pad(constraints, [[0, 0], [0, 1], [0, 1]])     # one empty phrase and one column at least
        length = tf.math.count_nonzero(tokens, axis=2, dtype=tf.int32)
        same = tf.reduce_all(tf.equal(tokens[:, :, None], tokens[:, None]), axis=3)
        place = tf.range(tf.shape(tokens)[1])
        earlier = place[None, :] < place[:, None]
        return cls(tokens, length, same & earlier & (length > 0)[:, :, None])

    def start(self, hypotheses: int) -> Progress:
        """Of hypotheses without tokens."""
        batch, phrases, longest = tf.unstack(tf.shape(self.tokens))
        met = tf.tile(tf.equal(self.length, 0)[:, None], [1, hypotheses, 1])
        none = tf.zeros([batch, hypotheses, phrases, longest], tf.bool)
        return Progress(tf.concat([self._may_begin(met)[..., None], none], axis=3), met)

    def after(self, progress: Progress, token: Tensor) -> Progress:
        """Of hypotheses that grow by `token`, int32 `[batch, n]`."""
        longer = progress.begun[..., :-1] & tf.equal(self.tokens[:, None], token[:, :, None, None])
        is_last = tf.equal(tf.range(1, tf.shape(self.tokens)[2] + 1), self.length[:, :, None])
        met = progress.met | tf.reduce_any(longer & is_last[:, None], axis=3)
        return Progress(tf.concat([self._may_begin(met)[..., None], longer], axis=3), met)

    def next_tokens(self, progress: Progress) -> tuple[Tensor, Tensor]:
        """What brings each phrase on.

        Returns:
            tokens int32 `[batch, n, phrases]`, and bool of the same shape: whether the phrase still needs one.
        """
        place = tf.transpose(self._furthest(progress), [0, 2, 1])
        token = tf.transpose(tf.gather(self.tokens, place, batch_dims=2), [0, 2, 1])
        return token, progress.begun[..., 0] & ~progress.met

    def tokens_met(self, progress: Progress) -> Tensor:
        """The tokens of the phrases that have occurred, and of the one that has come furthest, int32 `[batch, n]`.

        Some next token always makes it more, so a search that keeps the highest meets all phrases in as many steps as
        they have tokens.
        """
        whole = tf.reduce_sum(tf.where(progress.met, self.length[:, None], 0), axis=2)
        return whole + tf.reduce_max(self._furthest(progress), axis=2)

    def missing(self, progress: Progress) -> Tensor:
        """How many phrases have not occurred, int32 `[batch, n]`."""
        return tf.math.count_nonzero(~progress.met, axis=2, dtype=tf.int32)

    def _furthest(self, progress: Progress) -> Tensor:
        """How many tokens of each phrase that has not occurred are there, int32 `[batch, n, phrases]`."""
        count = tf.range(tf.shape(self.tokens)[2] + 1)
        begun = tf.reduce_max(tf.where(progress.begun, count, 0), axis=3)
        return tf.where(progress.met, 0, begun)

    def _may_begin(self, met: Tensor) -> Tensor:
        """A repeated phrase begins behind the end of the one before, bool `[batch, n, phrases]`."""
        return ~tf.reduce_any(self.repeats[:, None] & ~met[:, :, None], axis=3)
