"""Ancestral sampling as a strategy: each token is drawn from the model's distribution.

What comes out is a function of the weights, the seed, the sentence and the number of the sample: not of the place in
the batch, nor of the neighbours there. So a run which resumes draws what it would have drawn.
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
from towernmt.predict.decoding.processors.processor import NEVER
from towernmt.predict.decoding.step import History, StepContext
from towernmt.predict.decoding.strategies.drawing import NO_TRUNCATION, Truncation, draw
from towernmt.predict.decoding.strategies.row_randomness import sample_keys, uniform
from towernmt.predict.decoding.strategies.strategy import Choice, Decoded, Strategy


class SamplingState(NamedTuple):
    """What a step of sampling hands to the next.

    Attributes:
        log_prob: float32 `[batch, samples]`, by the model.
        done: bool `[batch, samples]`.
        key: int64 `[batch, samples]`, of their random numbers; the same at every step.
    """

    log_prob: Tensor
    done: Tensor
    key: Tensor


class AncestralSampling(Strategy):
    """Each token is drawn; samples are given in the order of their numbers, the k-th whatever their number is."""

    reorders = False

    def __init__(self, samples: int, truncation: Truncation = NO_TRUNCATION, seed: int | None = None) -> None:
        """
        Args:
            samples: how many for each sentence.
            truncation: which tokens are never drawn.
            seed: another one, another draw. None for that of the graph (`set_seed`) and of the variable scope; the
                input `draw` is the number of the draw then.
        """
        self.width, self._truncation, self._seed = samples, truncation, seed

    def inputs(self) -> Sequence[TensorSpec]:
        return [tf.TensorSpec([], tf.int64, "draw")] if self._seed is None else []

    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> SamplingState:
        samples = tf.shape(empty.tokens)[:2]  # [batch, samples]
        return SamplingState(tf.zeros(samples), tf.zeros(samples, tf.bool), sample_keys(
            self._seed_of(inputs), inputs["source"], inputs["source_length"], self.width))

    def choose(self, candidates: Candidates, context: StepContext, state: SamplingState) -> Choice:
        logits = tf.ensure_shape(candidates.logits(), [None, context.vocabulary_size])
        number = tf.reshape(uniform(state.key, context.step), [-1])
        drawn = draw(logits, number, self._truncation)
        token = tf.where(state.done, PAD, tf.reshape(drawn, tf.shape(state.done)))
        gain = tf.reshape(candidates.log_prob(tf.reshape(token, [-1])), tf.shape(state.done))
        gain = tf.where(tf.equal(token, PAD), NEVER, gain)     # PAD is drawn where every token is forbidden
        at_limit = (context.step + 1 >= context.limit)[:, None]
        return Choice(None, token, SamplingState(
            log_prob=state.log_prob + tf.where(state.done, 0.0, gain),
            done=state.done | tf.equal(token, EOS) | tf.equal(token, PAD) | at_limit, key=state.key))

    def is_done(self, state: SamplingState) -> Tensor:
        return tf.reduce_all(state.done, axis=1)

    def result(self, state: SamplingState, live: History) -> Decoded:
        live = live.without_attention_of_padding()
        return Decoded(live.tokens, state.log_prob, live.attention, live.log_probs)

    def _seed_of(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """int64 `[]`."""
        if self._seed is not None:
            return tf.constant(self._seed, tf.int64)
        place = zlib.crc32(f"{tf1.get_variable_scope().name}/sample/{graph_seed()}".encode())
        return tf.constant(place << 31, tf.int64) + tf.cast(inputs["draw"], tf.int64)
