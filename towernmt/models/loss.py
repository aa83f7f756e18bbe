"""The training loss: label-smoothed cross-entropy over the real target tokens of a tower's batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from towernmt.models.precision import compute_dtype, matmul, to_float32
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
        """float32 `[..., target vocabulary]` of `hidden` float32 `[..., depth]`."""
        shape = tf.shape(hidden)
        flat = tf.reshape(hidden, [-1, self.kernel.shape[1]])
        logits = tf.nn.bias_add(to_float32(matmul(flat, self.kernel, transpose_b=True)), self.bias)
        return tf.reshape(logits, tf.concat([shape[:-1], [self.kernel.shape[0]]], 0))


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
    right = tf.reduce_sum(tokens * tf.gather(kernel, labels)) + tf.reduce_sum(tf.gather(bias, labels))
    nll = _summed_log_normaliser(tokens, kernel, bias) - right
    if smoothing == 0.0:
        return nll, nll
    mean = tf.reduce_sum(tokens * tf.reduce_mean(kernel, 0)) + tf.reduce_mean(bias) * tf.cast(
        tf.shape(labels)[0], tf.float32)
    return nll + smoothing * (right - mean), nll


def _summed_log_normaliser(tokens: Any, kernel: Any, bias: Any) -> Any:
    """float32 `[]`: the sum over tokens of `log(sum(exp(logits)))`, with the gradient written out.

    Its gradient with respect to the logits is their softmax, times one number for all tokens, which is
    multiplied into the thin sides of the two products: no pass over `[tokens, V]` but the softmax itself.

    Args:
        tokens: float32 `[tokens, depth]`.
    """

    @tf.custom_gradient
    def log_normaliser(tokens: Any, kernel: Any, bias: Any) -> Any:
        logits = Projection(kernel, bias).logits(tokens)                # [tokens, V]
        log_probabilities = tf.nn.log_softmax(logits)

        def gradient(scale: Any) -> Any:
            probabilities = tf.exp(log_probabilities)
            rounded = tf.cast(probabilities, compute_dtype())
            return (to_float32(matmul(rounded, kernel)) * scale,
                    to_float32(matmul(rounded, tokens * scale, transpose_a=True)),
                    tf.raw_ops.BiasAddGrad(out_backprop=probabilities) * scale)

        return tf.reduce_sum(logits[:, 0] - log_probabilities[:, 0]), gradient

    return log_normaliser(tokens, tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias))
