"""R-Drop: two passes over a batch with different dropout, which are trained to agree (Liang et al. 2021)."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels.precision import to_float32
from towernmt.models.layers.projections import Projection
from towernmt.models.losses.cross_entropy import smoothed_cross_entropy


def r_drop_cross_entropy(hidden: Tensor, projection: Projection, target: Tensor, target_length: Tensor,
                         smoothing: float, alpha: float) -> tuple[Tensor, Tensor]:
    """The loss of R-Drop (Liang et al. 2021): of two passes over a batch, and the divergence between them.

    It is half the paper's, that is the mean of both passes' `smoothed_cross_entropy` plus
    `alpha / 2 * (KL(p || q) + KL(q || p)) / 2`, so that it compares with the loss of one pass.

    Args:
        hidden: float32 `[2 * batch, target length, depth]`: the batch, and the batch again with other dropout.
        projection: to the logits.
        target: int32 `[2 * batch, target length]`, both halves the same.
        target_length: int32 `[2 * batch]`, likewise.
        smoothing: the smoothed share of the probability, 0 for none.
        alpha: the paper's, which takes 5 for translation.
    Returns:
        two float32 `[]`, in nats: the sum over the batch's tokens of this loss, and the mean of both passes' summed
        negative log-likelihoods.
    """
    loss, nll = smoothed_cross_entropy(hidden, projection, target, target_length, smoothing)
    places = tf.where(tf.sequence_mask(target_length, tf.shape(target)[1]))             # [2 * tokens, 2]
    logits = to_float32(projection.flat_logits(tf.gather_nd(hidden, places)))           # [2 * tokens, V]
    log_p, log_q = tf.split(tf.nn.log_softmax(logits), 2)
    divergence = tf.reduce_sum((tf.exp(log_p) - tf.exp(log_q)) * (log_p - log_q))
    return (loss + alpha * divergence / 2.0) / 2.0, nll / 2.0
