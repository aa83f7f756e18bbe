"""The training loss: label-smoothed cross-entropy over the real target tokens of a tower's batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from towernmt.tf_compat import tf


class Projection(NamedTuple):
    """The affine map from the last hidden layer to the logits.

    Attributes:
        kernel: float32 `[target vocabulary, depth]`, the layout of an embedding, so that it can be one.
        bias: float32 `[target vocabulary]`, or None.
    """

    kernel: Any
    bias: Any

    def logits(self, hidden: Any) -> Any:
        """float32 `[..., target vocabulary]` of `hidden` float32 `[..., depth]`."""
        shape = tf.shape(hidden)
        flat = tf.reshape(hidden, [-1, self.kernel.shape[1]])
        logits = tf.matmul(flat, self.kernel, transpose_b=True)
        if self.bias is not None:
            logits = tf.nn.bias_add(logits, self.bias)
        return tf.reshape(logits, tf.concat([shape[:-1], [self.kernel.shape[0]]], 0))


def smoothed_cross_entropy(hidden: Any, projection: Projection, target: Any, target_length: Any,
                           smoothing: float) -> tuple[Any, Any]:
    """Summed token losses, computed for the real tokens only.

    Label smoothing (Szegedy et al. 2016) replaces the one-hot target by
    `(1 - smoothing) * onehot + smoothing / V`. With logits z and target y this adds
    `smoothing * (z_y - mean(z))` to the plain loss; since z is affine in the hidden layer, `mean(z)` and
    `z_y` follow from `mean(kernel)` and `kernel[y]` without another pass over `[tokens, V]`.

    Args:
        hidden: float32 `[batch, target length, depth]`.
        projection: to the logits.
        target: int32 `[batch, target length]`.
        target_length: int32 `[batch]`.
        smoothing: the smoothed share of the probability, 0 for none.
    Returns:
        two float32 `[]`: the sum of the smoothed losses and the sum of the negative log-likelihoods, in nats.
    """
    mask = tf.sequence_mask(target_length, tf.shape(target)[1])
    places = tf.where(mask)                                             # [tokens, 2]
    tokens = tf.gather_nd(hidden, places)                               # [tokens, depth]
    labels = tf.gather_nd(target, places)                               # [tokens]
    logits = projection.logits(tokens)                                  # [tokens, V]
    nll = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if smoothing == 0.0:
        return nll, nll
    difference = tf.reduce_sum(
        tokens * (tf.gather(projection.kernel, labels) - tf.reduce_mean(projection.kernel, 0)))
    if projection.bias is not None:
        difference += tf.reduce_sum(tf.gather(projection.bias, labels) - tf.reduce_mean(projection.bias))
    return nll + smoothing * difference, nll
