"""The training loss: label-smoothed cross-entropy over the real target tokens of a tower's batch."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels.precision import matmul, to_float32
from towernmt.models.kernels.products import on_gpu, product_over_rows
from towernmt.models.layers.projections import Projection


def smoothed_cross_entropy(hidden: Tensor, projection: Projection, target: Tensor, target_length: Tensor,
                           smoothing: float) -> tuple[Tensor, Tensor]:
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
    return _summed_losses(tokens, projection, labels, smoothing)


def _summed_losses(tokens: Tensor, projection: Projection, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """What `smoothed_cross_entropy` returns, with the gradient written out.

    The gradient with respect to the logits is their softmax, less the label's share and the same small number
    everywhere. Only the softmax is of size `[tokens, V]`; what the loss's scale multiplies is the thin side of a
    product, the label's share is scattered into the finished gradient of the kernel, and the small number is one row
    that is added to it.

    Args:
        tokens: float32 `[tokens, depth]`.
        labels: int32 `[tokens]`.
    """

    @tf.custom_gradient
    def losses(tokens: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        logits = Projection(kernel, bias).flat_logits(tokens)
        # float16 has nothing below 6e-8, so the loss must not be computed in it.
        exact = tf.nn.softmax(to_float32(logits) if logits.dtype == tf.float16 else logits)         # [tokens, V]
        likelihood = to_float32(tf.gather(exact, labels, batch_dims=1))
        probabilities = tf.cast(exact, logits.dtype)
        vocabulary = int(kernel.shape[0])
        count = tf.cast(tf.shape(labels)[0], tf.float32)
        kernel_of_label = tf.gather(kernel, labels)                                                 # [tokens, depth]
        nll = loss = -tf.reduce_sum(tf.math.log(tf.maximum(likelihood, _LEAST)))
        if smoothing:
            # As a product, since a mean over the first dimension takes 3 to 6 times as long.
            mean_kernel = tf.matmul(tf.fill([1, vocabulary], 1.0 / vocabulary), kernel)             # [1, depth]
            right = tf.reduce_sum(tokens * kernel_of_label) + tf.reduce_sum(tf.gather(bias, labels))
            mean = tf.reduce_sum(tokens * mean_kernel) + tf.reduce_mean(bias) * count
            loss = nll + smoothing * (right - mean)
        add_rows = _add_rows_on_gpu if on_gpu(logits) else _add_rows

        def gradient(d_loss: Tensor, d_nll: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            of_softmax = d_loss + d_nll
            of_label, of_mean = smoothing * d_loss - of_softmax, -smoothing * d_loss
            ones = tf.ones([1, tf.shape(labels)[0]], probabilities.dtype)
            d_tokens = to_float32(matmul(probabilities, kernel)) * of_softmax + kernel_of_label * of_label
            scaled = tf.cast(tokens * of_softmax, probabilities.dtype)
            d_kernel = add_rows(
                to_float32(product_over_rows(probabilities, scaled)),                               # [V, depth]
                labels, tokens * of_label)
            d_bias = add_rows(
                to_float32(matmul(ones, probabilities))[0] * of_softmax,                            # [V]
                labels, tf.fill([tf.shape(labels)[0]], of_label))
            if smoothing:
                d_tokens += mean_kernel * of_mean
                d_kernel += tf.reduce_sum(tokens, 0) * (of_mean / vocabulary)
                d_bias += count * of_mean / vocabulary
            return d_tokens, d_kernel, d_bias

        return (loss, nll), gradient

    loss, nll = losses(tokens, *[tf.convert_to_tensor(weights) for weights in projection])
    return loss, nll


def _add_rows(x: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """`x` `[V, ...]`, with `rows` `[tokens, ...]` added to its rows `ids` `[tokens]`."""
    return tf.tensor_scatter_nd_add(x, ids[:, None], rows)


def _add_rows_on_gpu(x: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """`_add_rows`, in one pass more: under op determinism TensorFlow scatters on the CPU, copying there and back."""
    return x + tf.math.unsorted_segment_sum(rows, ids, tf.shape(x)[0])


_LEAST = 1e-37
"""Smaller likelihoods count as this one (85 nats); the gradient is still exact."""
