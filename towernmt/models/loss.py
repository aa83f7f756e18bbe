"""The training loss: label-smoothed cross-entropy over the real target tokens of a tower's batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from towernmt.models.precision import affine, matmul, to_float32, with_ones
from towernmt.tf_compat import tf


class Projection(NamedTuple):
    """The affine map from the last hidden layer to the logits.

    Attributes:
        kernel: float32 `[target vocabulary, depth]`, the layout of an embedding, so that it can be one.
        bias: float32 `[target vocabulary]`.
    """

    kernel: Any
    bias: Any

    def logits(self, hidden: Any) -> Any:
        """float32 `[..., target vocabulary]` of `hidden` `[..., depth]`."""
        shape = tf.shape(hidden)
        logits = to_float32(self.flat_logits(tf.reshape(hidden, [-1, self.kernel.shape[1]])))
        return tf.reshape(logits, tf.concat([shape[:-1], [self.kernel.shape[0]]], 0))

    def flat_logits(self, tokens: Any) -> Any:
        """`[tokens, target vocabulary]` in the compute dtype, of `tokens` `[tokens, depth]`."""
        return affine(tokens, self.kernel, self.bias, transpose_kernel=True)


def smoothed_cross_entropy(hidden: Any, projection: Projection, target: Any, target_length: Any,
                           smoothing: float) -> tuple[Any, Any]:
    """Summed token losses, computed for the real tokens only.

    Label smoothing (Szegedy et al. 2016) replaces the one-hot target by
    `(1 - smoothing) * onehot + smoothing / V`. With logits z and target y this adds
    `smoothing * (z_y - mean(z))` to the plain loss `log(sum(exp(z))) - z_y`; since z is affine in the
    hidden layer, `mean(z)` and `z_y` follow from `mean(kernel)` and `kernel[y]`, and only the normaliser
    needs `[tokens, V]`.

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
    kernel, bias = projection
    right = tf.reduce_sum(tokens * tf.gather(kernel, labels), 1) + tf.gather(bias, labels)      # [tokens]
    nll = _summed_negative_log_likelihood(tokens, kernel, bias, labels, right)
    if smoothing == 0.0:
        return nll, nll
    mean = tf.reduce_sum(tokens * tf.reduce_mean(kernel, 0)) + tf.reduce_mean(bias) * tf.cast(
        tf.shape(labels)[0], tf.float32)
    return nll + smoothing * (tf.reduce_sum(right) - mean), nll


def _summed_negative_log_likelihood(tokens: Any, kernel: Any, bias: Any, labels: Any, right: Any) -> Any:
    """float32 `[]`: the sum over tokens of `log(sum(exp(logits))) - right`, with the gradient written out.

    The gradient with respect to the logits is their softmax (but for the share of `right`, which is left to
    TensorFlow), times one number for all tokens, which is multiplied into the thin sides of the two products.
    So the softmax is the only thing of size `[tokens, V]` that is made from the logits and kept, and in
    bfloat16 it is as narrow as the product wants it.

    Args:
        tokens: float32 `[tokens, depth]`.
        labels: int32 `[tokens]`.
        right: float32 `[tokens]`, the logit of each label.
    """

    @tf.custom_gradient
    def negative_log_likelihood(tokens: Any, kernel: Any, bias: Any, right: Any) -> Any:
        logits = Projection(kernel, bias).flat_logits(tokens)
        # float16 ends at 6e-8: what the loss is made from must not have been that narrow.
        exact = tf.nn.softmax(to_float32(logits) if logits.dtype == tf.float16 else logits)         # [tokens, V]
        likelihood = to_float32(tf.gather(exact, labels, batch_dims=1))
        probabilities = tf.cast(exact, logits.dtype)

        def gradient(scale: Any) -> Any:
            # Like `affine`: the column of ones sums the gradient of the bias along the way.
            scaled = with_ones(tf.cast(tokens * scale, probabilities.dtype))
            joint = to_float32(matmul(probabilities, scaled, transpose_a=True))                 # [V, depth + ones]
            return (to_float32(matmul(probabilities, kernel)) * scale,
                    joint[:, :tokens.shape[1]], joint[:, tokens.shape[1]] * scale, tf.zeros_like(right) - scale)

        return -tf.reduce_sum(tf.math.log(tf.maximum(likelihood, _LEAST))), gradient

    return negative_log_likelihood(tokens, tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias), right)


_LEAST = 1e-37
"""Smaller likelihoods count as this one, 85 nats; the gradient is exact all the same."""
