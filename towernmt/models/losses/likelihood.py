"""Log-probabilities of given translations, sentence by sentence: for scoring, and for losses over whole sentences."""

from __future__ import annotations

from towernmt.core.tensors import Nest, Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.interface import NMTModel, shift_right
from towernmt.models.kernels.precision import to_float32


def token_log_probabilities(model: NMTModel, memory: Nest, target: Tensor, target_length: Tensor) -> Tensor:
    """log p(token | source, tokens before it), by teacher forcing; a gradient flows through.

    Args:
        model: builds or finds its variables in the present variable scope.
        memory: what `model.encode` returned.
        target: int32 `[batch, target length]`, ending with EOS (or cut), padded with PAD.
        target_length: int32 `[batch]`.
    Returns:
        float32 `[batch, target length]`, in nats; 0 behind a sentence's end.
    """
    places = tf.where(tf.sequence_mask(target_length, tf.shape(target)[1]))     # [tokens, 2]
    hidden = tf.gather_nd(model.decode_hidden(memory, shift_right(target)), places)     # [tokens, depth]
    labels = tf.gather_nd(target, places)                                       # [tokens]
    logits = to_float32(model.output_projection().flat_logits(hidden))          # [tokens, vocabulary]
    right = tf.gather(logits, labels, batch_dims=1)
    return tf.scatter_nd(places, right - tf.reduce_logsumexp(logits, axis=1), tf.shape(target, tf.int64))


def sentence_log_probabilities(model: NMTModel, memory: Nest, target: Tensor, target_length: Tensor) -> Tensor:
    """log p(target | source), float32 `[batch]`; arguments as those of `token_log_probabilities`."""
    return tf.reduce_sum(token_log_probabilities(model, memory, target, target_length), axis=1)
