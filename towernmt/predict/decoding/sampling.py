"""Ancestral sampling as one graph, for any `NMTModel`: each token is drawn from the model's distribution.

The draws are stateless: what comes out is a function of the weights, the seed, the number of the draw and the place
in the batch, so that a run which resumes draws what it would have drawn.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers.randomness import graph_seed
from towernmt.predict.decoding.beam import NEVER
from towernmt.predict.decoding.search import search_signature


@dataclass(frozen=True)
class SamplingSettings:
    """How translations are drawn.

    Attributes:
        samples: how many for each sentence.
        temperature: divides the logits; 1 draws from the model itself, less keeps nearer to its best.
        top_k: draw among so many of the most probable tokens (Fan et al. 2018); 0 for among all.
        max_length_factor, max_length_constant: a sample has at most source tokens * factor + constant tokens (EOS
            counts on both sides); what is longer is cut there and has no EOS.
    Raises:
        SettingsError: a value that cannot work.
    """

    samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    max_length_factor: float = 2.0
    max_length_constant: int = 10

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SettingsError(f"samples={self.samples}: draw 1 or more.")
        if not 0.0 < self.temperature < float("inf"):
            raise SettingsError(f"temperature={self.temperature}: choose a number above 0; 1 is the model's own.")
        if self.top_k < 0:
            raise SettingsError(f"top_k={self.top_k}: choose 0 (all tokens) or more.")
        if self.max_length_factor < 0 or self.max_length_constant < 0:
            raise SettingsError("max_length_factor and max_length_constant are 0 or more.")


class SampleResult(NamedTuple):
    """What was drawn.

    Attributes:
        tokens: int32 `[batch, samples, length]`: no BOS; EOS where the sample ended by itself; PAD behind.
        log_prob: float32 `[batch, samples]`: log p(sample | source) by the model, as teacher forcing gives it,
            whatever the temperature.
    """

    tokens: Any
    log_prob: Any


def sample(model: NMTModel, source: Any, source_length: Any, draw: Any, settings: SamplingSettings) -> SampleResult:
    """Draw translations token by token. PAD and BOS are never drawn.

    Args:
        model: its variables are created here or, under reuse, found.
        source: int32 `[batch, source length]`, ending with EOS, padded with PAD.
        source_length: int32 `[batch]`, EOS counted.
        draw: int64 `[]`: another number, another draw; the seed is the graph's (`set_seed`).
    """
    sampler = _Sampling(model, model.encode(source, source_length), source_length, draw, settings)
    start = sampler.start()
    # The first step stands outside the loop: variables cannot be created inside it.
    first = sampler.step(start)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
        last = tf1.while_loop(
            lambda *state: tf.logical_not(tf.reduce_all(_Samples(*state).done)),
            lambda *state: sampler.step(_Samples(*state)), first,
            shape_invariants=_invariants(start, first), back_prop=False)
    drawn = _Samples(*last)
    batch = tf.shape(source_length)[0]
    return SampleResult(tf.reshape(drawn.tokens, [batch, settings.samples, drawn.step]),
                        tf.reshape(drawn.log_prob, [batch, settings.samples]))


class _Samples(NamedTuple):
    """What a step hands to the next; `step` is the number of steps taken."""

    step: Any  # int32 []
    token: Any  # int32 [batch * samples], the last one
    tokens: Any  # int32 [batch * samples, step]
    log_prob: Any  # float32 [batch * samples]
    done: Any  # bool [batch * samples]
    cache: Any  # the model's nest, first dimension batch * samples


class _Sampling:
    def __init__(self, model: NMTModel, memory: Any, source_length: Any, draw: Any,
                 settings: SamplingSettings) -> None:
        self._model, self._memory, self._settings = model, memory, settings
        self._rows = tf.shape(source_length)[0] * settings.samples
        longest = tf.cast(source_length, tf.float32) * settings.max_length_factor
        limit = tf.maximum(tf.cast(tf.floor(longest), tf.int32) + settings.max_length_constant, 1)
        self._limit = tf.repeat(limit, settings.samples)  # [batch * samples]
        place = zlib.crc32(f"{tf1.get_variable_scope().name}/sample/{graph_seed()}".encode())
        self._seed = tf.stack([tf.constant(place, tf.int64), tf.cast(draw, tf.int64)])

    def start(self) -> _Samples:
        state = self._model.start_state(self._memory, self._settings.samples)
        return _Samples(
            step=tf.convert_to_tensor(state.step), token=tf.fill([self._rows], BOS),
            tokens=tf.zeros([self._rows, 0], tf.int32), log_prob=tf.zeros([self._rows]),
            done=tf.zeros([self._rows], tf.bool), cache=state.cache)

    def step(self, samples: _Samples) -> _Samples:
        logits, state = self._model.decode_step(
            samples.token, DecoderState(self._memory, samples.cache, samples.step))
        logits = tf.cast(logits, tf.float32)  # [batch * samples, vocabulary]
        token = tf.where(samples.done, tf.fill([self._rows], PAD), self._draw(logits, samples.step))
        gain = tf.gather(logits, token, batch_dims=1) - tf.reduce_logsumexp(logits, axis=1)
        step = samples.step + 1
        return _Samples(
            step=step, token=token, tokens=tf.concat([samples.tokens, token[:, None]], axis=1),
            log_prob=samples.log_prob + tf.where(samples.done, tf.zeros_like(gain), gain),
            done=samples.done | tf.equal(token, EOS) | (step >= self._limit), cache=state.cache)

    def _draw(self, logits: Any, step: Any) -> Any:
        """A token of each row, int32 `[batch * samples]`."""
        settings, size = self._settings, self._model.target_vocab_size
        forbidden = np.full([size], 0.0, np.float32)
        forbidden[[PAD, BOS]] = NEVER
        logits = logits / settings.temperature + forbidden
        seed = tf.random.experimental.stateless_fold_in(self._seed, tf.cast(step, tf.int64))
        if not 0 < settings.top_k < size:
            return tf.random.stateless_categorical(logits, 1, seed, tf.int32)[:, 0]
        best, token = tf.math.top_k(logits, settings.top_k)
        place = tf.random.stateless_categorical(best, 1, seed, tf.int32)
        return tf.gather(token, place, batch_dims=1)[:, 0]


def _invariants(start: _Samples, first: _Samples) -> _Samples:
    """Static shapes in the loop: the rows, and what differed between the start and the first step, may change."""
    def common(before: Any, after: Any) -> Any:
        sizes = zip(before.shape.as_list()[1:], after.shape.as_list()[1:], strict=True)
        return tf.TensorShape([None, *(n if n == m else None for n, m in sizes)] if after.shape.rank else [])
    return _Samples(*tf.nest.map_structure(common, tuple(start), tuple(first)))


class Sampler:
    """Sampling in a trainer's session: call it with arrays. `build_sampler` makes it while the graph is built."""

    def __init__(self, inputs: list[Any], outputs: SampleResult) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._call: Callable[..., Any] | None = None

    def set_session(self, session: Any) -> None:
        """Run in this session from now on, such as `trainer.session(Run.SAMPLING)`."""
        self._call = session.make_callable(list(self._outputs), feed_list=self._inputs)

    def __call__(self, source: np.ndarray, source_length: np.ndarray, draw: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw for a batch.

        Args:
            source: int32 `[batch, source length]`, ending with EOS, padded with PAD.
            source_length: int32 `[batch]`.
            draw: another number, another draw; a trainer takes its global step.
        Returns:
            tokens int32 `[batch, samples, length]` and log-probabilities float32 `[batch, samples]`.
        """
        if self._call is None:
            raise RuntimeError("Sampler: call set_session(session) before the first batch.")
        tokens, log_prob = self._call(source, source_length, draw)
        return tokens, log_prob


def build_sampler(model: NMTModel, settings: SamplingSettings) -> Sampler:
    """Build a sampling tower in the current graph and variable scope, on the variables of a training tower.

    Raises:
        ValueError: the graph has no training tower yet (TensorFlow's error for reuse of a missing variable).
    """
    name = tf1.get_default_graph().unique_name("tower-sample", mark_as_used=False)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True), PredictTowerContext(name):
        signature = [*search_signature(model), tf.TensorSpec([], tf.int64, "draw")]
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in signature]
        source, source_length, draw = inputs
        return Sampler(inputs, sample(model, source, source_length, draw, settings))
