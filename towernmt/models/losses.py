"""Training losses: `LossBatch`, which `NMTModel.loss` receives, cross-entropy, guided alignment and R-Drop.

Cross-entropy covers the target tokens of a tower's batch without padding. Its softmax is over the vocabulary, or over a
sample of it (Jean et al. 2015, "On using very large target vocabulary for neural machine translation"). Guided
alignment teaches an attention head word alignments that were computed before training. R-Drop trains two passes with
different dropout to agree (Liang et al. 2021).
"""

from __future__ import annotations

import math

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels import (
    count_to,
    matmul,
    on_gpu,
    product_over_rows,
    rows_at,
    rows_into,
    to_float32,
    token_mask,
)
from towernmt.models.layers.projections import Projection
from towernmt.models.layers.randomness import random_members


class TokenRows:
    """The tokens of the sentences in a padded batch, whose positions are the rows of a flat tensor.

    Args:
        length: int32 `[batch]`, in tokens, each at least 0.
        longest: int32 `[]`, number of columns of the batch.

    Attributes:
        mask: bool `[batch, longest]`, whether a position contains a token.
    """

    def __init__(self, length: Tensor, longest: Tensor) -> None:
        self.mask = token_mask(length, longest)
        self._shape = tf.shape(self.mask)
        self._rows = tf.where(tf.reshape(self.mask, [-1]))[:, 0]
        first_token = tf.cumsum(tf.cast(length, tf.int64), exclusive=True)
        token_index = first_token[:, None] + count_to(longest)                     # [batch, longest], of each token
        self._token_of_position = tf.reshape(tf.where(self.mask, token_index, tf.shape(self._rows, tf.int64)[0]), [-1])

    def select(self, batch: Tensor) -> Tensor:
        """Return the tokens of a batch `[batch, longest]` or `[batch, longest, depth]`: `[tokens]`, `[tokens, depth]`.

        A batch with a depth gets a gradient.
        """
        if batch.shape.rank == 2:
            return tf.gather(tf.reshape(batch, [-1]), self._rows)
        return rows_at(tf.reshape(batch, [-1, int(batch.shape[2])]), self._rows, self._token_of_position)

    def padded(self, tokens: Tensor) -> Tensor:
        """Return a number of each token, `[tokens]`, at its position in the batch: `[batch, longest]`, 0 at padding."""
        return tf.reshape(rows_into(tokens, self._rows, self._token_of_position), self._shape)


class LossBatch:
    """The batch of a tower, and facts about its target tokens for the loss.

    "Tokens" are the real target tokens of the batch, EOS included and padding excluded. With R-Drop, the batch contains
    each sentence twice: first all sentences, then all again.

    Args:
        source: int32 `[batch, source length]`, or `[batch, source length, 1 + factors]`.
        source_length: int32 `[batch]`, in tokens, EOS included.
        target: int32 `[batch, target length]`.
        target_length: int32 `[batch]`, in tokens, EOS included.
        hidden: last hidden layer, float32 `[batch, target length, depth]`.
        projection: map from the hidden layer to the logits.
        is_training: whether the tower trains; False in a validation tower.
        keeps_padding: whether "tokens" include the padding, whose weight in the loss is 0. XLA, which compiles a tower
            for each shape, needs it.
        softmax_sample: fraction of the vocabulary that the logits contain in addition to the labels of the batch; 0 for
            the complete vocabulary.

    Attributes:
        positions: int64 `[tokens, 2]`, the row and the column of each token in `target`.
        labels: int32 `[tokens]`, the column of `logits` of the reference token at each position.
        hidden: float32 `[tokens, depth]`, the last hidden layer at each position.
        logits: float32 `[tokens, target vocabulary]`, or `[tokens, sample]`.
    """

    def __init__(self, source: Tensor, source_length: Tensor, target: Tensor, target_length: Tensor, hidden: Tensor,
                 projection: Projection, is_training: bool, keeps_padding: bool = False,
                 softmax_sample: float = 0.0) -> None:
        self.source, self.source_length, self.target, self.target_length = source, source_length, target, target_length
        self.is_training = is_training
        # Read once: an optimizer may change the variables before a second read, which the gradient would then use.
        self._projection = Projection(*[tf.convert_to_tensor(weights) for weights in projection])
        rows = TokenRows(target_length, tf.shape(target)[1])
        self._weights: Tensor | None = None
        if keeps_padding:
            self._weights = tf.cast(tf.reshape(rows.mask, [-1]), tf.float32)
            self.positions = tf.where(tf.ones_like(rows.mask))
            self.hidden, self.labels = tf.reshape(hidden, [-1, int(hidden.shape[2])]), tf.reshape(target, [-1])
        else:
            self.positions = tf.where(rows.mask)
            self.hidden, self.labels = rows.select(hidden), rows.select(target)
        self._vocabulary: Projection | None = None
        if softmax_sample:
            self._vocabulary = self._projection
            self._projection, self.labels = sampled_projection(self._projection, self.labels, softmax_sample)
        self._flat_logits = self._projection.flat_logits(self.hidden)               # in the compute dtype
        self.logits = to_float32(self._flat_logits)
        self._nll: Tensor | None = None

    def cross_entropy(self, smoothing: float = 0.0) -> Tensor:
        """Return the summed cross-entropy of the tokens, float32 `[]`, in nats.

        Args:
            smoothing: probability mass that is spread evenly over the vocabulary (Szegedy et al. 2016).
        """
        if self._weights is not None:
            loss, self._nll = weighted_cross_entropy(self.logits, self.labels, self._weights, smoothing)
            return loss
        loss, self._nll = smoothed_cross_entropy(
            self.hidden, self._projection, self._flat_logits, self.labels, 0.0 if self._vocabulary else smoothing)
        if self._vocabulary and smoothing:
            loss += smoothing * self._label_above_mean(self._vocabulary)
        return loss

    def _label_above_mean(self, vocabulary: Projection) -> Tensor:
        """Return the sum of the labels' logits, less the mean logit of the vocabulary for each label, float32 `[]`."""
        kernel, bias = self._projection
        label_logits = tf.reduce_sum(self.hidden * tf.gather(kernel, self.labels))
        label_logits += tf.reduce_sum(tf.gather(bias, self.labels))
        size = int(vocabulary.kernel.shape[0])
        mean_kernel = tf.matmul(tf.fill([1, size], 1.0 / size), vocabulary.kernel)                  # [1, depth]
        count = tf.cast(tf.shape(self.hidden)[0], tf.float32)
        return label_logits - tf.reduce_sum(self.hidden * mean_kernel) - tf.reduce_mean(vocabulary.bias) * count

    def negative_log_likelihood(self) -> Tensor:
        """Return the summed negative log-likelihood of the tokens, float32 `[]`, in nats.

        If `cross_entropy` was called, its result is reused.
        """
        if self._nll is None:
            label_logits = tf.gather(self.logits, self.labels, batch_dims=1)
            self._nll = tf.reduce_sum(tf.reduce_logsumexp(self.logits, axis=1) - label_logits)
        return self._nll


def sampled_projection(projection: Projection, labels: Tensor, share: float) -> tuple[Projection, Tensor]:
    """Return the part of a projection for a sample of the vocabulary, and the labels as numbers in the sample.

    The sample has all labels of the batch, and each other token with the probability `share`. The logits of these
    drawn tokens are raised by `-log(share)`, so that the expected sum of the exponentials is that over the vocabulary.

    Args:
        projection: map to the vocabulary of size V, as tensors.
        labels: int32 `[tokens]`.
        share: probability between 0 and 1.

    Returns:
        The projection to the sample, kernel `[sample, depth]` and bias `[sample]`, and int32 `[tokens]`.
    """
    size = int(projection.kernel.shape[0])
    is_label = tf.math.unsorted_segment_sum(tf.ones_like(labels, tf.float32), labels, size) > 0.0            # [V]
    is_member = is_label | random_members(size, share, "softmax_sample")
    members = tf.where(is_member)[:, 0]                                                                     # [sample]
    column = tf.cumsum(tf.cast(is_member, tf.int32)) - 1                                                    # [V]
    offset = tf.where(tf.gather(is_label, members), 0.0, -math.log(share))
    sampled = Projection(_rows_of(projection.kernel, members), _rows_of(projection.bias, members) + offset)
    return sampled, tf.gather(column, labels)


def _rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Return distinct rows of `x` `[V, ...]`; its gradient is dense, like that of a complete softmax."""

    @tf.custom_gradient
    def gathered(x: Tensor) -> Tensor:
        return tf.gather(x, rows), lambda d_rows: tf.math.unsorted_segment_sum(d_rows, rows, int(x.shape[0]))

    return gathered(x)


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the sums of `smoothed_cross_entropy` with a weight for each token, without a gradient written by hand.

    XLA fuses the operations between the products, so that it needs no other form.

    Args:
        logits: float32 `[tokens, V]`.
        labels: int32 `[tokens]`.
        weights: float32 `[tokens]`.
        smoothing: probability mass that is spread evenly over the vocabulary.
    """
    label_logits = tf.gather(logits, labels, batch_dims=1)
    nll = tf.reduce_sum(weights * (tf.reduce_logsumexp(logits, axis=1) - label_logits))
    if not smoothing:
        return nll, nll
    return nll + smoothing * tf.reduce_sum(weights * (label_logits - tf.reduce_mean(logits, axis=1))), nll


def smoothed_cross_entropy(tokens: Tensor, projection: Projection, logits: Tensor, labels: Tensor, smoothing: float
                           ) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy with label smoothing and without, with a gradient written by hand.

    Label smoothing (Szegedy et al. 2016) replaces the one-hot target by
    `(1 - smoothing) * onehot + smoothing / V`. With logits z and target y this adds
    `smoothing * (z_y - mean(z))` to the plain loss `log(sum(exp(z))) - z_y`; since z is affine in the
    hidden layer, `mean(z)` and `z_y` follow from `mean(kernel)` and `kernel[y]`, and only the normaliser
    needs `[tokens, V]`.

    The gradient with respect to the logits is their softmax, minus the label's share and the same small number for each
    token of the vocabulary. Only the softmax has the size `[tokens, V]`: the scale of the loss multiplies the smaller
    factor of a product, the label's share is scattered into the gradient of the kernel, and the small number is one row
    that is added to it.

    Args:
        tokens: last hidden layer, float32 `[tokens, depth]`.
        projection: map from the hidden layer to the logits, of the tensors from which the logits were computed.
        logits: `projection.flat_logits(tokens)`, `[tokens, V]` in the compute dtype. They receive no gradient; `tokens`
            and the projection do.
        labels: int32 `[tokens]`.
        smoothing: probability mass that is spread evenly over the vocabulary.

    Returns:
        Two float32 `[]`: the sum of the smoothed losses and the sum of the negative log-likelihoods, in nats.
    """
    logits = tf.stop_gradient(logits)       # not an argument of `losses`, which would keep the logits in memory longer

    @tf.custom_gradient
    def losses(tokens: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        # float16 has nothing below 6e-8, so the loss must not be computed in it.
        exact_probabilities = tf.nn.softmax(                                                        # [tokens, V]
            to_float32(logits) if logits.dtype == tf.float16 else logits)
        likelihood = to_float32(tf.gather(exact_probabilities, labels, batch_dims=1))
        probabilities = tf.cast(exact_probabilities, logits.dtype)
        size = tf.shape(logits)[0]               # not of `labels`: TensorFlow reads the shape of int32 on the host
        count = tf.cast(size, tf.float32)
        kernel_of_label = tf.gather(kernel, labels)                                                 # [tokens, depth]
        nll = loss = -tf.reduce_sum(tf.math.log(tf.maximum(likelihood, _LEAST)))
        if smoothing:
            vocabulary = int(kernel.shape[0])
            # As a product, since a mean over the first dimension takes 3 to 6 times as long.
            mean_kernel = tf.matmul(tf.fill([1, vocabulary], 1.0 / vocabulary), kernel)             # [1, depth]
            label_logits = tf.reduce_sum(tokens * kernel_of_label) + tf.reduce_sum(tf.gather(bias, labels))
            mean_logits = tf.reduce_sum(tokens * mean_kernel) + tf.reduce_mean(bias) * count
            loss = nll + smoothing * (label_logits - mean_logits)
        add_rows = _add_rows_on_gpu if on_gpu(logits) else _add_rows

        def gradient(d_loss: Tensor, d_nll: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            of_softmax = d_loss + d_nll
            of_label, of_mean = smoothing * d_loss - of_softmax, -smoothing * d_loss
            row_of_ones = tf.ones([1, size], probabilities.dtype)
            d_tokens = to_float32(matmul(probabilities, kernel)) * of_softmax + kernel_of_label * of_label
            scaled = tf.cast(tokens * of_softmax, probabilities.dtype)
            d_kernel = add_rows(
                to_float32(product_over_rows(probabilities, scaled)),                               # [V, depth]
                labels, tokens * of_label)
            d_bias = add_rows(
                to_float32(matmul(row_of_ones, probabilities))[0] * of_softmax,                            # [V]
                labels, tf.fill([size], of_label))
            if smoothing:
                d_tokens += mean_kernel * of_mean
                d_kernel += tf.reduce_sum(tokens, 0) * (of_mean / vocabulary)
                d_bias += count * of_mean / vocabulary
            return d_tokens, d_kernel, d_bias

        return (loss, nll), gradient

    loss, nll = losses(tokens, *projection)
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
    expected = links / tf.maximum(tf.reduce_sum(links, 2, keepdims=True), 1.0)
    predicted = tf.reshape(attention, tf.concat([[passes], tf.shape(alignment)], 0))
    return -tf.reduce_sum(expected * tf.math.log(tf.maximum(predicted, _LEAST_WEIGHT))) / passes


def r_drop_loss(loss: Tensor, logits: Tensor, alpha: float) -> Tensor:
    """Return the loss of R-Drop (Liang et al. 2021): the loss of two passes plus the divergence between them.

    The result is half of the paper's loss, so that it is comparable to the loss of one pass: the mean of both losses
    plus `alpha / 2 * (KL(p || q) + KL(q || p)) / 2`.

    Args:
        loss: float32 `[]`, sum of the losses of both passes.
        logits: float32 `[2 * tokens, V]`, those of the first pass and then those of the second.
        alpha: weight of the divergence; the paper uses 5 for translation.

    Returns:
        float32 `[]`, the sum over the tokens of one pass, in nats.
    """
    log_p, log_q = tf.split(tf.nn.log_softmax(logits), 2)
    divergence = tf.reduce_sum((tf.exp(log_p) - tf.exp(log_q)) * (log_p - log_q))
    return (loss + alpha * divergence / 2.0) / 2.0
