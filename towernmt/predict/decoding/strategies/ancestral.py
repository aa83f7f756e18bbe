"""Ancestral sampling as a strategy: each token is drawn from the model's distribution.

The draws are stateless: what comes out is a function of the weights, the seed, the number of the draw and the place
in the batch, so that a run which resumes draws what it would have drawn.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import EOS, PAD
from towernmt.models.layers.randomness import graph_seed
from towernmt.predict.decoding.candidates import Candidates
from towernmt.predict.decoding.step import History, StepContext
from towernmt.predict.decoding.strategies.strategy import Choice, Decoded, Strategy


class SamplingState(NamedTuple):
    """What a step of sampling hands to the next.

    Attributes:
        log_prob: float32 `[batch, samples]`, by the model.
        done: bool `[batch, samples]`.
        seed: int64 `[2]`, the same at every step.
    """

    log_prob: Tensor
    done: Tensor
    seed: Tensor


class AncestralSampling(Strategy):
    """Each token is drawn. The seed is the graph's (`set_seed`); the input `draw` is the number of the draw."""

    def __init__(self, samples: int, top_k: int = 0) -> None:
        """
        Args:
            samples: how many for each sentence.
            top_k: draw among so many of the most probable tokens; 0 for among all.
        """
        self.width, self._top_k = samples, top_k

    def inputs(self) -> Sequence[TensorSpec]:
        return [tf.TensorSpec([], tf.int64, "draw")]

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> SamplingState:
        samples = tf.shape(empty.tokens)[:2]  # [batch, samples]
        place = zlib.crc32(f"{tf1.get_variable_scope().name}/sample/{graph_seed()}".encode())
        seed = tf.stack([tf.constant(place, tf.int64), tf.cast(inputs["draw"], tf.int64)])
        return SamplingState(tf.zeros(samples), tf.zeros(samples, tf.bool), seed)

    def choose(self, candidates: Candidates, context: StepContext, state: SamplingState) -> Choice:
        drawn = self._draw(candidates.logits(), context.step, tf.ensure_shape(state.seed, [2]), context.vocabulary_size)
        token = tf.where(state.done, PAD, tf.reshape(drawn, tf.shape(state.done)))
        gain = tf.reshape(candidates.log_prob(tf.reshape(token, [-1])), tf.shape(state.done))
        at_limit = (context.step + 1 >= context.limit)[:, None]
        return Choice(None, token, SamplingState(
            log_prob=state.log_prob + tf.where(state.done, 0.0, gain),
            done=state.done | tf.equal(token, EOS) | at_limit, seed=state.seed))

    def is_done(self, state: SamplingState) -> Tensor:
        return tf.reduce_all(state.done, axis=1)

    def result(self, state: SamplingState, live: History) -> Decoded:
        live = live.without_attention_of_padding()
        return Decoded(live.tokens, state.log_prob, live.attention, live.log_probs)

    def _draw(self, logits: Tensor, step: Tensor, seed: Tensor, vocabulary_size: int) -> Tensor:
        """A token of each row, int32 `[batch * samples]`."""
        seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(step, tf.int64))
        if not 0 < self._top_k < vocabulary_size:
            return tf.random.stateless_categorical(logits, 1, seed, tf.int32)[:, 0]
        best, token = tf.math.top_k(logits, self._top_k)
        place = tf.random.stateless_categorical(best, 1, seed, tf.int32)
        return tf.gather(token, place, batch_dims=1)[:, 0]
