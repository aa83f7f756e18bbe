"""Ancestral sampling as a strategy.

Each token is sampled from the model's distribution, by a seed for each hypothesis.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import EOS, PAD
from towernmt.models.kernels import as_ids, dtype_of_ids
from towernmt.models.layers.randomness import graph_seed
from towernmt.predict.search.decoding_interfaces import Candidates, Decoded, StepChoice, Strategy
from towernmt.predict.search.distribution import NEG_INF
from towernmt.predict.search.step_context import History, StepContext

_GOLDEN = 0x9E3779B97F4A7C15    # 2**64 over the golden ratio, made odd
_BITS = 52                      # of a random number: any float64 times 1 - 2**-52 is less than itself


def sample_keys(seed: Tensor, source: Tensor, source_length: Tensor, samples: int) -> Tensor:
    """Return a key for each sample of each sentence, int64 `[batch, samples]`.

    Args:
        seed: int64 `[]`.
        source: int32 `[batch, source length]`, or `[batch, source length, streams]`; padding has no effect.
        source_length: int32 `[batch]`, in tokens.
        samples: number of samples of a sentence; the k-th key does not depend on it.
    """
    length = tf.shape(source)[1]
    streams = tf.reshape(source, [tf.shape(source)[0], length, source.shape[2] if source.shape.rank == 3 else 1])
    position = tf.reshape(tf.range(tf.size(streams[:1])), tf.shape(streams)[1:])       # [source length, streams]
    is_token = tf.sequence_mask(source_length, length)[:, :, None]
    token_hash = _mixed_bits(_unsigned(streams) + _GOLDEN * _unsigned(position + 1))
    token_hash = tf.where(is_token, tf.bitcast(token_hash, tf.int64), tf.zeros([], tf.int64))
    sentence_hash = tf.reduce_sum(token_hash, axis=[1, 2])
    sentence_hash = _combined(tf.bitcast(tf.cast(seed, tf.int64), tf.uint64), tf.bitcast(sentence_hash, tf.uint64))
    return tf.bitcast(_combined(sentence_hash[:, None], _unsigned(tf.range(samples))[None]), tf.int64)


def uniform(keys: Tensor, step: Tensor) -> Tensor:
    """Return a random number from 0 to below 1 for each key and a step, float64 in the shape of `keys`.

    Args:
        keys: int64, any shape.
        step: int32 `[]`.
    """
    bits = tf.bitwise.right_shift(_combined(tf.bitcast(keys, tf.uint64), _unsigned(step)), _constant(64 - _BITS))
    return tf.cast(tf.bitcast(bits, tf.int64), tf.float64) * 2.0 ** -_BITS


def _combined(key: Tensor, value: Tensor) -> Tensor:
    """Return a new key from a key and a value, uint64."""
    return _mixed_bits(key + _GOLDEN * (value + 1))


def _mixed_bits(bits: Tensor) -> Tensor:
    """Return uint64 in which every bit depends on all bits of `bits`, uint64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _constant(shift))) * _constant(factor)
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _constant(31)))


def _unsigned(value: Tensor) -> Tensor:
    return tf.cast(value, tf.uint64)


def _constant(value: int) -> Tensor:
    return tf.constant(value, tf.uint64)


_NUCLEUS_CANDIDATES = 256
"""Number of most probable tokens that are searched for the nucleus first; other rows are sorted completely."""


class Truncation(NamedTuple):
    """Tokens that are never sampled. Each field acts on the result of the previous one; the most probable token stays.

    Attributes:
        top_k: sample from this number of most probable tokens (Fan et al. 2018); 0 for all tokens.
        top_p: sample from the smallest set of tokens with this share of the probability, the nucleus (Holtzman et al.
            2020), including tokens that are as probable as its last one; 1 for all tokens.
        epsilon: sample no token with a lower probability (Hewitt et al. 2022); 0 for all tokens.
    """

    top_k: int = 0
    top_p: float = 1.0
    epsilon: float = 0.0


NO_TRUNCATION = Truncation()


def sample_tokens(logits: Tensor, uniform: Tensor, truncation: Truncation) -> Tensor:
    """Return a sampled token of each row, int32 `[rows]`; 0 if all tokens are forbidden.

    Args:
        logits: float32 `[rows, vocabulary]`.
        uniform: float64 `[rows]`, from 0 to below 1: equal numbers and equal logits give equal tokens.
        truncation: tokens that are never sampled.
    """
    size, token = logits.shape[1], None
    if 0 < truncation.top_k < size:
        logits, token = tf.math.top_k(logits, truncation.top_k)
        token = as_ids(token)
    if truncation.top_p < 1.0:
        logits = tf.where(logits >= _nucleus_threshold(logits, truncation.top_p), logits, NEG_INF)
    if truncation.epsilon:
        log_threshold = math.log(truncation.epsilon) + tf.reduce_logsumexp(logits, axis=1, keepdims=True)
        highest = tf.reduce_max(logits, axis=1, keepdims=True)
        logits = tf.where(logits >= tf.minimum(log_threshold, highest), logits, NEG_INF)
    index = _inverse_index(logits, uniform)
    return index if token is None else tf.gather(token, index, batch_dims=1)


def _nucleus_threshold(logits: Tensor, top_p: float) -> Tensor:
    """Return the lowest logit of the nucleus, float32 `[rows, 1]`."""
    log_sum = tf.reduce_logsumexp(logits, axis=1, keepdims=True)

    def threshold(best: Tensor, log_sum: Tensor) -> Tensor:
        cumulative = tf.cumsum(tf.exp(best - log_sum), axis=1, exclusive=True)
        return tf.reduce_min(tf.where(cumulative < top_p, best, math.inf), axis=1, keepdims=True)

    size = int(logits.shape[1])
    best, _ = tf.math.top_k(logits, min(size, _NUCLEUS_CANDIDATES))
    if size <= _NUCLEUS_CANDIDATES:
        return threshold(best, log_sum)
    # Rows with a flatter distribution are sorted completely.
    flat_rows = tf.where(tf.reduce_sum(tf.exp(best - log_sum), axis=1) < top_p)
    all_logits, _ = tf.math.top_k(tf.gather(logits, flat_rows[:, 0]), size)
    flat_thresholds = threshold(all_logits, tf.gather(log_sum, flat_rows[:, 0]))
    return tf.tensor_scatter_nd_update(threshold(best, log_sum), flat_rows, flat_thresholds)


def _inverse_index(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return the index at which the distribution function exceeds `uniform`, int32 `[rows]`.

    A block of the vocabulary is found first, then the index in this block, so that few float64 sums are needed.
    """
    size = int(logits.shape[1])
    width = math.isqrt(size - 1) + 1
    weight = tf.exp(logits - tf.reduce_max(logits, axis=1, keepdims=True))
    weight = tf.reshape(tf.pad(weight, [[0, 0], [0, -size % width]]), [-1, -(-size // width), width])
    block, rest = _containing_weight(tf.reduce_sum(weight, axis=2), uniform)
    index, _ = _containing_weight(tf.gather(weight, block, batch_dims=1), rest)
    return block * width + index


def _containing_weight(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight into whose interval a number falls, and the position in this interval.

    Args:
        weights: float32 `[rows, n]`.
        uniform: float64 `[rows]`, from 0 to below 1.

    Returns:
        index of the weight, int32 `[rows]`; position in its interval, float64 `[rows]`, from 0 to below 1.
    """
    weights = tf.cast(weights, tf.float64)
    ends = tf.cumsum(weights, axis=1)
    target = uniform[:, None] * ends[:, -1:]
    index = tf.reduce_sum(tf.cast(ends <= target, dtype_of_ids(weights)), axis=1)
    start = tf.gather(ends - weights, index, batch_dims=1)
    fraction = (target[:, 0] - start) / tf.gather(weights, index, batch_dims=1)
    return index, tf.clip_by_value(fraction, 0.0, 1.0 - 2.0 ** -52)


class SamplingState(NamedTuple):
    """State of sampling between two steps.

    Attributes:
        log_prob: float32 `[batch, samples]`, log-probability of each sample.
        done: bool `[batch, samples]`, whether a sample has ended.
        key: int64 `[batch, samples]`, keys of the random numbers; the same at every step.
    """

    log_prob: Tensor
    done: Tensor
    key: Tensor


class AncestralSampling(Strategy):
    """Sampling of translations; sample k does not depend on the number of samples.

    Args:
        samples: number of samples of each sentence.
        truncation: tokens that are never sampled.
        seed: a different seed gives different samples. None for a seed from the graph (`set_seed`), the variable scope
            and the input `draw`.
    """

    reorders = False

    def __init__(self, samples: int, truncation: Truncation = NO_TRUNCATION, seed: int | None = None) -> None:
        self.width, self._truncation, self._seed = samples, truncation, seed

    def inputs(self) -> Sequence[TensorSpec]:
        return [tf.TensorSpec([], tf.int64, "draw")] if self._seed is None else []

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> SamplingState:
        samples = tf.shape(empty.tokens)[:2]  # [batch, samples]
        return SamplingState(tf.zeros(samples), tf.zeros(samples, tf.bool), sample_keys(
            self._seed_of(inputs), inputs["source"], inputs["source_length"], self.width))

    def choose(self, candidates: Candidates, context: StepContext, state: SamplingState) -> StepChoice:
        logits = tf.ensure_shape(candidates.logits(), [None, context.vocabulary_size])
        random_number = tf.reshape(uniform(state.key, context.step), [-1])
        sampled = sample_tokens(logits, random_number, self._truncation)
        token = tf.where(state.done, tf.constant(PAD, sampled.dtype), tf.reshape(sampled, tf.shape(state.done)))
        token_log_prob = tf.reshape(candidates.log_prob(tf.reshape(token, [-1])), tf.shape(state.done))
        # PAD is sampled if every token is forbidden.
        token_log_prob = tf.where(tf.equal(token, PAD), NEG_INF, token_log_prob)
        at_limit = (context.step + 1 >= context.limit)[:, None]
        return StepChoice(None, token, SamplingState(
            log_prob=state.log_prob + tf.where(state.done, 0.0, token_log_prob),
            done=state.done | tf.equal(token, EOS) | tf.equal(token, PAD) | at_limit, key=state.key))

    def is_done(self, state: SamplingState) -> Tensor:
        return tf.reduce_all(state.done, axis=1)

    def result(self, state: SamplingState, live: History) -> Decoded:
        live = live.without_attention_of_padding()
        return Decoded(live.tokens, state.log_prob, live.attention, live.log_probs)

    def _seed_of(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the seed, int64 `[]`."""
        if self._seed is not None:
            return tf.constant(self._seed, tf.int64)
        name_hash = zlib.crc32(f"{tf1.get_variable_scope().name}/sample/{graph_seed()}".encode())
        return tf.constant(name_hash << 31, tf.int64) + tf.cast(inputs["draw"], tf.int64)
