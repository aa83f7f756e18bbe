"""Guided alignment: an attention head learns word alignments that were found beforehand."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf

_LEAST = 1e-30
"""Smaller attention counts as this."""


def guided_alignment_loss(attention: Tensor, alignment: Tensor, passes: int = 1) -> Tensor:
    """The cross-entropy between given alignments and attention (Chen et al. 2016; for one head Garg et al. 2019).

    Each target word that has links shall attend to their source words, to all alike. Words without links may
    attend to what they like.

    Args:
        attention: float32 `[passes * batch, target length, source length]`, rows of sum 1.
        alignment: uint8 `[batch, target length, source length]`, 1 at links, 0 at padding.
        passes: how often the batch went through the model, one pass after the other.
    Returns:
        float32 `[]`: the sum over the target words, in nats, and the mean over the passes.
    """
    links = tf.cast(alignment, tf.float32)
    wanted = links / tf.maximum(tf.reduce_sum(links, 2, keepdims=True), 1.0)
    got = tf.reshape(attention, tf.concat([[passes], tf.shape(alignment)], 0))
    return -tf.reduce_sum(wanted * tf.math.log(tf.maximum(got, _LEAST))) / passes
