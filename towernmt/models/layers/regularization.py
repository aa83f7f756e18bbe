"""Noise on the words that a training tower reads, and agreement between two passes through it."""

from __future__ import annotations

from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import UNK
from towernmt.models.kernels.precision import to_float32
from towernmt.models.layers.randomness import dropout
from towernmt.models.loss import Projection, smoothed_cross_entropy


def drop_words(ids: Any, rate: float, name: str) -> Any:
    """Word dropout: in a training tower each word becomes the unknown word with a probability (Bowman et al. 2016).

    Padding, BOS and EOS stay. The model, which is not told a word, has to use the others, and its factors.

    Args:
        ids: int32 `[batch, length]`, or `[batch, length, 1 + factors]`, where factors stay.
        rate: the probability.
        name: the place, unique within the enclosing variable scope.
    Returns:
        int32 of the shape of `ids`; `ids` itself outside of training.
    """
    if rate == 0.0 or not get_current_tower_context().is_training:
        return ids
    if ids.shape.rank == 3:
        return tf.concat([drop_words(ids[:, :, 0], rate, name)[:, :, None], ids[:, :, 1:]], 2)
    dropped = tf.equal(dropout(tf.ones(tf.shape(ids)), rate, name), 0.0) & (ids > UNK)
    return tf.where(dropped, tf.fill(tf.shape(ids), UNK), ids)


def agreeing_cross_entropy(hidden: Any, projection: Projection, target: Any, target_length: Any, smoothing: float,
                           weight: float) -> tuple[Any, Any]:
    """The loss of R-Drop (Liang et al. 2021): of two passes over a batch, with what they do not agree about.

    It is half the paper's, that is the mean of both passes' `smoothed_cross_entropy` plus
    `weight / 2 * (KL(p || q) + KL(q || p)) / 2`, so that it compares with the loss of one pass.

    Args:
        hidden: float32 `[2 * batch, target length, depth]`: the batch, and the batch again with other dropout.
        projection: to the logits.
        target: int32 `[2 * batch, target length]`, both halves the same.
        target_length: int32 `[2 * batch]`, likewise.
        smoothing: the smoothed share of the probability, 0 for none.
        weight: alpha in the paper, which takes 5 for translation.
    Returns:
        two float32 `[]`, in nats: the sum over the batch's tokens of this loss, and the mean of both passes' summed
        negative log-likelihoods.
    """
    loss, nll = smoothed_cross_entropy(hidden, projection, target, target_length, smoothing)
    places = tf.where(tf.sequence_mask(target_length, tf.shape(target)[1]))             # [2 * tokens, 2]
    logits = to_float32(projection.flat_logits(tf.gather_nd(hidden, places)))           # [2 * tokens, V]
    log_p, log_q = tf.split(tf.nn.log_softmax(logits), 2)
    divergence = tf.reduce_sum((tf.exp(log_p) - tf.exp(log_q)) * (log_p - log_q))
    return (loss + weight * divergence / 2.0) / 2.0, nll / 2.0
