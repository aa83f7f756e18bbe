"""Training losses: label-smoothed cross-entropy, guided alignment, R-Drop.

Cross-entropy is over the real target tokens of a tower's batch. Guided alignment teaches an attention head word
alignments that were computed before training. R-Drop trains two passes with different dropout to agree (Liang et al.
2021).
"""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels import matmul, on_gpu, product_over_rows, to_float32
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
    """Return `x` `[V, ...]` with `rows` `[tokens, ...]` added to its rows `ids` `[tokens]`."""
    return tf.tensor_scatter_nd_add(x, ids[:, None], rows)


def _add_rows_on_gpu(x: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """Return `_add_rows` without a scatter, which TensorFlow runs on the CPU under op determinism."""
    return x + tf.math.unsorted_segment_sum(rows, ids, tf.shape(x)[0])


_LEAST = 1e-37
"""Smaller likelihoods count as this one (85 nats); the gradient is still exact."""


_LEAST_WEIGHT = 1e-30
"""Smaller attention counts as this."""


def guided_alignment_loss(attention: Tensor, alignment: Tensor, passes: int = 1) -> Tensor:
    """Return the cross-entropy of attention and reference alignments (Chen et al. 2016; one head: Garg et al. 2019).

    Each aligned target word should attend equally to its aligned source words. Other words are not constrained.

    Args:
        attention: float32 `[passes * batch, target length, source length]`, rows of sum 1.
        alignment: uint8 `[batch, target length, source length]`, 1 at links, 0 at padding.
        passes: number of passes of the batch through the model.
    Returns:
        float32 `[]`: the sum over the target words, in nats, and the mean over the passes.
    """
    links = tf.cast(alignment, tf.float32)
    wanted = links / tf.maximum(tf.reduce_sum(links, 2, keepdims=True), 1.0)
    got = tf.reshape(attention, tf.concat([[passes], tf.shape(alignment)], 0))
    return -tf.reduce_sum(wanted * tf.math.log(tf.maximum(got, _LEAST_WEIGHT))) / passes


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
