"""The loop of decoding: encode once, then `decode_step` until the strategy has what it wants, as one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.predict.decoding.candidates import Candidates
from towernmt.predict.decoding.distribution import Distribution
from towernmt.predict.decoding.length_limit import LengthLimit
from towernmt.predict.decoding.processors.processor import LogitsProcessor, TokenFilter
from towernmt.predict.decoding.shortlist import Shortlist
from towernmt.predict.decoding.step import History, StepContext
from towernmt.predict.decoding.strategies.strategy import Decoded, Strategy


@dataclass(frozen=True)
class Decoding:
    """How a model is decoded.

    Attributes:
        strategy: what is kept of the candidates.
        processors: what a candidate may be; they act in this order.
        limit: how long a hypothesis may become.
        attention: whether the attention of every step is given, for which the model must give it.
        log_probs: whether the log-probability of every token is collected.
        shortlist: which tokens may come in the translation of a sentence; None for all.
    """

    strategy: Strategy
    processors: Sequence[LogitsProcessor]
    limit: LengthLimit
    attention: bool = False
    log_probs: bool = False
    shortlist: Shortlist | None = None

    @property
    def most_candidates(self) -> int:
        """How many tokens of a hypothesis a search looks at, at most, where no processor must see all."""
        filtered = (processor.at_most for processor in self.processors if isinstance(processor, TokenFilter))
        return 2 * self.strategy.width + sum(filtered)

    @property
    def collects_attention(self) -> bool:
        """Whether the history has attention: it is given, or the strategy reads it."""
        return self.attention or self.strategy.reads_attention


def decode(model: NMTModel, inputs: Mapping[str, Tensor], decoding: Decoding) -> Decoded:
    """Translate a batch of sentences.

    Of the model, only `encoder_inputs`, `encode`, `start_state`, `decode_step` and `target_vocab_size` are used.

    Args:
        model: its variables are created here or, under reuse, found.
        inputs: the tensors of `decoding_signature(model, decoding)` by name.
    Raises:
        SettingsError: attention is to be collected of a model that gives none, or a shortlist is for other
            vocabularies.
    """
    if decoding.collects_attention and not model.gives_step_attention:
        raise SettingsError(f"{type(model).__name__} gives no attention with decode_step: write its "
                            "decode_with_attention and decode_step(..., attention), or decode without attention and "
                            "without a coverage_penalty.")
    memory = model.encode(*(inputs[spec.name] for spec in model.encoder_inputs()))
    distribution_of: Callable[[Tensor], Distribution] = Distribution
    if decoding.shortlist is not None:
        model, distribution_of = decoding.shortlist.limited(model, inputs, decoding.most_candidates)
    loop = _Loop(model, memory, inputs, decoding, distribution_of)
    start = loop.start()
    # The first step stands outside the loop: variables cannot be created inside it.
    first = loop.step(start)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
        last = _LoopState(*tf1.while_loop(
            lambda *state: loop.goes_on(_LoopState(*state)), lambda *state: loop.step(_LoopState(*state)), first,
            shape_invariants=_shape_invariants(start, first), back_prop=False))
    return decoding.strategy.result(last.strategy, last.history)


class _LoopState(NamedTuple):
    """What a step hands to the next."""

    step: Tensor        # int32 [], the number of tokens so far
    token: Tensor       # int32 [batch * width], the last one of each live hypothesis
    history: History    # the live hypotheses
    strategy: Any       # the strategy's nest, first dimension batch
    cache: Any          # the model's nest, first dimension batch * width


class _Loop:
    def __init__(self, model: NMTModel, memory: Any, inputs: Mapping[str, Tensor], decoding: Decoding,
                 distribution_of: Callable[[Tensor], Distribution]) -> None:
        self._model, self._memory, self._inputs, self._decoding = model, memory, inputs, decoding
        self._distribution_of = distribution_of
        self._strategy = decoding.strategy
        self._limit = decoding.limit(inputs)
        self._batch = tf.shape(self._limit)[0]

    def start(self) -> _LoopState:
        width = self._strategy.width
        state = self._model.start_state(self._memory, width)
        empty = History(tf.zeros([self._batch, width, 0], tf.int32), self._no_attention(),
                        tf.zeros([self._batch, width, 0]) if self._decoding.log_probs else ())
        return _LoopState(
            step=tf.convert_to_tensor(state.step), token=tf.fill([self._batch * width], BOS), history=empty,
            strategy=self._strategy.start(empty, self._inputs), cache=state.cache)

    def goes_on(self, state: _LoopState) -> Tensor:
        return tf.logical_not(tf.reduce_all(self._strategy.is_done(state.strategy)))

    def step(self, state: _LoopState) -> _LoopState:
        logits, decoder, attention = self._decode(
            state.token, DecoderState(self._memory, state.cache, state.step))
        distribution = self._distribution_of(logits)
        context = StepContext(step=state.step, limit=self._limit, history=state.history, attention=attention,
                              inputs=self._inputs, vocabulary_size=self._model.target_vocab_size,
                              distribution=distribution if self._decoding.log_probs else None)
        choice = self._strategy.choose(
            Candidates(distribution, self._decoding.processors, context), context, state.strategy)
        return _LoopState(
            step=state.step + 1, token=tf.reshape(choice.token, [-1]),
            history=context.grown(choice.parent, choice.token), strategy=choice.state,
            cache=decoder.cache if choice.parent is None else self._reordered(decoder.cache, choice.parent))

    def _decode(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, Tensor]:
        """Logits, new state and attention (see `StepContext`)."""
        if not self._decoding.collects_attention:
            logits, state = self._model.decode_step(token, state)
            return logits, state, ()
        logits, state, attention = self._model.decode_step(token, state, attention=True)
        length = tf.shape(self._inputs["source"])[1]
        attention = tf.reshape(tf.cast(attention, tf.float32), [self._batch, self._strategy.width, length])
        return logits, state, attention

    def _no_attention(self) -> Tensor:
        """That of no steps."""
        if not self._decoding.collects_attention:
            return ()
        return tf.zeros([self._batch, self._strategy.width, 0, tf.shape(self._inputs["source"])[1]])

    def _reordered(self, cache: Any, parent: Tensor) -> Any:
        """Each live hypothesis takes over its parent's rows of the cache; `parent` is `[batch, width]`."""
        first = tf.range(self._batch)[:, None] * self._strategy.width
        rows = tf.reshape(first + parent, [-1])  # [batch * width]
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), cache)


def _shape_invariants(start: _LoopState, first: _LoopState) -> _LoopState:
    """Static shapes in the loop: what differed between the start and the first step may grow."""
    def common(before: Tensor, after: Tensor) -> Any:
        dimensions = zip(before.shape.as_list(), after.shape.as_list(), strict=True)
        same = [size if size == grown else None for size, grown in dimensions]
        return tf.TensorShape([None, *same[1:]] if same else [])
    return tf.nest.map_structure(common, start, first)
