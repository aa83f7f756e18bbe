"""The decoding loop: encode once, then step until the strategy has its result or the length limit is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.kernels import as_ids, hoisting, padded_tensor
from towernmt.models.layers.attention import BLOCK, map_blocks
from towernmt.predict.search.decoding_interfaces import Candidates, Decoded, LogitsProcessor, Strategy, TokenFilter
from towernmt.predict.search.distribution import Distribution
from towernmt.predict.search.shortlist import AllowedTokens, Shortlist, ShortlistDistribution
from towernmt.predict.search.step_context import History, StepContext


class LengthLimit:
    """Maximum number of tokens: source tokens * factor + constant, EOS included on both sides, and at least 1.

    Args:
        factor: 0 or more.
        constant: 0 or more.
        maximum: maximum for sources of any length; 0 for no such maximum.
    """

    def __init__(self, factor: float, constant: int, maximum: int = 0) -> None:
        self._factor, self._constant, self._maximum = factor, constant, maximum

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the limit of each sentence, int32 `[batch]`."""
        scaled = tf.cast(inputs["source_length"], tf.float32) * self._factor
        limit = tf.maximum(tf.cast(tf.floor(scaled), tf.int32) + self._constant, 1)
        return tf.minimum(limit, self._maximum) if self._maximum else limit


class LimitAfterPrefix(LengthLimit):
    """Length limit that allows a minimum number of tokens after a forced prefix.

    Args:
        limit: limit of sentences without a prefix.
        minimum: minimum number of tokens after the prefix, EOS included.
    """

    def __init__(self, limit: LengthLimit, minimum: int) -> None:
        self._limit, self._minimum = limit, max(minimum, 1)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        prefix_length = tf.math.count_nonzero(inputs["prefix"], axis=1, dtype=tf.int32)
        limit = self._limit(inputs)
        return tf.where(prefix_length > 0, tf.maximum(limit, prefix_length + self._minimum), limit)


class Sentences(NamedTuple):
    """Data of the decoded sentences that are the same at every step.

    Attributes:
        memory: result of the encoder, a nest.
        inputs: inputs by name; inputs of sentences have a row for each.
        limit: int32 `[sentences]`, maximum number of tokens of a hypothesis.
        shortlist_bias: float32 `[sentences, n]`, `AllowedTokens.bias`; `()` without a shortlist.
    """

    memory: Any
    inputs: Mapping[str, Tensor]
    limit: Tensor
    shortlist_bias: Any = ()


class StepState(NamedTuple):
    """State of decoding between two steps.

    Attributes:
        step: int32 `[]`, number of tokens.
        token: ids `[rows]`, last token of each live hypothesis; rows are sentences * width.
        history: the live hypotheses.
        strategy: state of the strategy, a nest with the first dimension sentences.
        cache: cache of the model, a nest with the first dimension rows.
        blocks: `StepBlocks` of the model, or ().
    """

    step: Tensor
    token: Tensor
    history: History
    strategy: Any
    cache: Any
    blocks: Any


class DecodingSteps:
    """Steps of the decoding of sentences.

    Args:
        model: the model.
        decoding: components of the search.
        allowed: tokens of a shortlist, if the model returns only their logits; None for the complete vocabulary.
        sentences: the sentences.

    Attributes:
        sentences: the sentences.
        strategy: selection of hypotheses.
    """

    def __init__(self, model: NMTModel, decoding: Decoding, allowed: AllowedTokens | None,
                 sentences: Sentences) -> None:
        self.sentences, self.strategy = sentences, decoding.strategy
        self._model, self._decoding, self._allowed = model, decoding, allowed

    def with_sentences(self, sentences: Sentences) -> DecodingSteps:
        """Return the steps of other sentences."""
        return DecodingSteps(self._model, self._decoding, self._allowed, sentences)

    def start(self) -> StepState:
        """Return the state before the first step."""
        batch, width = tf.shape(self.sentences.limit)[0], self.strategy.width
        state = self._model.start_state(self.sentences.memory, width)
        empty = History(as_ids(tf.zeros([batch, width, 0], tf.int32)), self._no_attention(batch),
                        tf.zeros([batch, width, 0]) if self._decoding.log_probs else ())
        blocks = state.blocks
        if not self.strategy.reorders:
            blocks = map_blocks(lambda blocks: blocks.separated(), blocks)
        return StepState(
            step=tf.convert_to_tensor(state.step), token=as_ids(tf.fill([batch * width], BOS)), history=empty,
            strategy=self.strategy.start(empty, self.sentences.inputs), cache=state.cache, blocks=blocks)

    def advance(self, state: StepState) -> StepState:
        """Return the state after the next step, in which the live hypotheses have one more token."""
        logits, decoder, attention = self._decode(
            tf.cast(state.token, tf.int32), DecoderState(self.sentences.memory, state.cache, state.step, state.blocks))
        distribution = Distribution(logits)
        if self._allowed is not None:
            allowed = self._allowed._replace(bias=self.sentences.shortlist_bias)
            distribution = ShortlistDistribution(logits, allowed)
        context = StepContext(step=state.step, limit=self.sentences.limit, history=state.history, attention=attention,
                              inputs=self.sentences.inputs, vocabulary_size=self._model.target_vocab_size,
                              distribution=distribution if self._decoding.log_probs else None)
        candidates = Candidates(distribution, self._decoding.processors, context)
        choice = self.strategy.choose(candidates, context, state.strategy)
        cache, blocks = decoder.cache, decoder.blocks
        if choice.parent is not None:
            cache = self._reordered(cache, choice.parent)
            blocks = map_blocks(lambda blocks: blocks.reordered(choice.parent), blocks)
        return StepState(
            step=state.step + 1, token=tf.reshape(choice.token, [-1]),
            history=context.extend(choice.parent, choice.token), strategy=choice.state, cache=cache, blocks=blocks)

    def _decode(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, Tensor]:
        """Return logits, new state and attention (see `StepContext`)."""
        if not self._decoding.collects_attention:
            logits, state = self._model.decode_step(token, state)
            return logits, state, ()
        logits, state, attention = self._model.decode_step(token, state, attention=True)
        length = tf.shape(self.sentences.inputs["source"])[1]
        attention = tf.reshape(tf.cast(attention, tf.float32), [-1, self.strategy.width, length])
        return logits, state, attention

    def _no_attention(self, batch: Tensor) -> Tensor:
        """Return the attention of hypotheses without tokens."""
        if not self._decoding.collects_attention:
            return ()
        return tf.zeros([batch, self.strategy.width, 0, tf.shape(self.sentences.inputs["source"])[1]])

    def _reordered(self, cache: Any, parent: Tensor) -> Any:
        """Gather the rows of the cache for the parents of the live hypotheses; `parent` is `[sentences, width]`."""
        first = tf.cast(tf.range(tf.shape(parent)[0]), parent.dtype)[:, None] * self.strategy.width
        rows = tf.reshape(first + parent, [-1])     # [rows]
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), cache)


ROUND_SENTENCES = 8
"""The number of decoded sentences is a multiple of this, so that kernels compiled for a shape meet few shapes."""


@dataclass(frozen=True)
class Decoding:
    """Components of the search for translations.

    Attributes:
        strategy: selection of hypotheses.
        processors: processors of logits, in the order in which they act.
        limit: maximum length of hypotheses.
        attention: whether to return the attention of every step, which requires a model that returns it.
        log_probs: whether to return the log-probability of every token.
        shortlist: tokens that are allowed in the translation of a sentence; None for all.
    """

    strategy: Strategy
    processors: Sequence[LogitsProcessor]
    limit: LengthLimit
    attention: bool = False
    log_probs: bool = False
    shortlist: Shortlist | None = None

    @property
    def max_candidates(self) -> int:
        """Maximum number of tokens of a hypothesis that a search needs if no processor needs all tokens."""
        filtered = (processor.max_forbidden for processor in self.processors if isinstance(processor, TokenFilter))
        return 2 * self.strategy.width + sum(filtered)

    @property
    def collects_attention(self) -> bool:
        """Whether the history contains attention, because it is returned or the strategy reads it."""
        return self.attention or self.strategy.reads_attention


def decode(model: NMTModel, inputs: Mapping[str, Tensor], decoding: Decoding) -> Decoded:
    """Translate a batch of sentences.

    Of the model, only `encoder_inputs`, `encode`, `start_state`, `decode_step` and `target_vocab_size` are used.

    Args:
        model: the model; its variables are created, or reused under `reuse`.
        inputs: tensors of `decoding_signature(model, decoding)` by name.
        decoding: components of the search.

    Raises:
        SettingsError: attention is requested from a model without it, or a shortlist is for other vocabularies.
    """
    if decoding.collects_attention and not model.gives_step_attention:
        raise SettingsError(f"{type(model).__name__} gives no attention with decode_step: write its "
                            "decode_with_attention and decode_step(..., attention), or decode without attention and "
                            "without a coverage_penalty.")
    inputs = _as_declared(inputs, [*model.encoder_inputs(), *decoding.strategy.inputs(),
                                   *(spec for processor in decoding.processors for spec in processor.inputs())])
    memory, allowed = model.encode(*(inputs[spec.name] for spec in model.encoder_inputs())), None
    limit = decoding.limit(inputs)
    inputs = {name: as_ids(tensor) if tensor.dtype == tf.int32 else tensor for name, tensor in inputs.items()}
    if decoding.shortlist is not None:
        model, allowed = decoding.shortlist.limit_model(model, inputs, decoding.max_candidates)
    sentences = Sentences(memory, inputs, limit, allowed.bias if allowed else ())
    steps = DecodingSteps(model, decoding, allowed, sentences)
    start = steps.start()
    with hoisting():
        # The first step is outside the loop, because variables cannot be created inside it.
        first = steps.advance(start)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            results = _run(steps, start, first)
    result = decoding.strategy.result(results.strategy, results.history)
    return result._replace(tokens=tf.cast(result.tokens, tf.int32))


class _BatchResult(NamedTuple):
    """Results of all sentences of the batch."""

    strategy: Any
    history: History


class _Round(NamedTuple):
    """State between two rounds, each of which decodes the sentences that are not final.

    Attributes:
        state: state of the decoded sentences.
        sentences: data of the decoded sentences.
        indices: int32 `[n]`, indices of the decoded sentences in the batch.
        results: results of all sentences.
    """

    state: StepState
    sentences: Sentences
    indices: Tensor
    results: _BatchResult


def _run(steps: DecodingSteps, start: StepState, first: StepState) -> _BatchResult:
    """Take steps until all sentences are final, and return their results.

    Args:
        steps: steps of all sentences.
        start: state before the first step.
        first: state after the first step.
    """
    first_round = _Round(first, steps.sentences, tf.range(tf.shape(steps.sentences.limit)[0]),
                         _BatchResult(first.strategy, first.history))
    shapes = tf.nest.map_structure(lambda tensor: tensor.shape, first_round)
    shapes = shapes._replace(state=_common_shapes(start, first), results=_common_shapes(
        _BatchResult(start.strategy, start.history), first_round.results))

    def decode_round(*fields: Any) -> _Round:
        current = _without_final(steps, _Round(*fields))
        steps_of_round = steps.with_sentences(current.sentences)
        block_end = (current.state.step // BLOCK + 1) * BLOCK
        state = current.state
        state = state._replace(blocks=map_blocks(lambda blocks: blocks.with_capacity(block_end), state.blocks))
        state = StepState(*tf1.while_loop(
            lambda *state: (state[0] < block_end) & _is_unfinished(steps, StepState(*state)),
            lambda *state: steps_of_round.advance(StepState(*state)), state, shapes.state, back_prop=False))
        results = tf.nest.map_structure(
            lambda old, new, shape: _with_updated_rows(old, new, current.indices, shape),
            current.results, _BatchResult(state.strategy, state.history), shapes.results)
        return current._replace(state=state, results=results)

    return _Round(*tf1.while_loop(
        lambda *fields: _is_unfinished(steps, fields[0]), decode_round, first_round, shapes, back_prop=False)).results


def _is_unfinished(steps: DecodingSteps, state: StepState) -> Tensor:
    return tf.logical_not(tf.reduce_all(steps.strategy.is_done(state.strategy)))


def _without_final(steps: DecodingSteps, current: _Round) -> _Round:
    """Return a round without final sentences, except some that fill it up to a multiple of `ROUND_SENTENCES`."""
    state, width = current.state, steps.strategy.width
    done = tf.cast(steps.strategy.is_done(state.strategy), tf.int32)            # [n]
    live = tf.reduce_sum(1 - done)
    kept_sentences = tf.argsort(done, stable=True)[:-(-live // ROUND_SENTENCES) * ROUND_SENTENCES]
    rows = tf.reshape(kept_sentences[:, None] * width + tf.range(width), [-1])
    token, cache = tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), (state.token, state.cache))
    block_rows = kept_sentences if steps.strategy.reorders else rows
    blocks = map_blocks(lambda blocks: blocks.of_sentences(block_rows), state.blocks)
    history, strategy, sentences = tf.nest.map_structure(
        lambda tensor: tf.gather(tensor, kept_sentences) if _has_sentence_rows(tensor) else tensor,
        (state.history, state.strategy, current.sentences))
    return _Round(StepState(state.step, token, history, strategy, cache, blocks), sentences,
                  tf.gather(current.indices, kept_sentences), current.results)


def _with_updated_rows(old: Tensor, new: Tensor, sentence: Tensor, shape: Any) -> Tensor:
    """Return `old` with the rows at `sentence` replaced by `new`; its other dimensions are padded with zeros."""
    if not _has_sentence_rows(new):
        return new
    if None in shape.as_list()[1:]:
        growth = tf.shape(new)[1:] - tf.shape(old)[1:]
        old = padded_tensor(old, tf.pad(growth[:, None], [[1, 0], [1, 0]]))
    old = tf.tensor_scatter_nd_update(old, sentence[:, None], new)
    old.set_shape(shape)
    return old


def _has_sentence_rows(tensor: Tensor) -> bool:
    """Return whether a tensor has a row per sentence: only their number is unknown when the graph is built."""
    return bool(tensor.shape.rank) and tensor.shape[0] is None


def _as_declared(inputs: Mapping[str, Tensor], declared: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """Return the inputs with their declared static shapes, in which the number of sentences is unknown."""
    shapes = {spec.name: spec.shape for spec in declared}
    return {name: tensor if name not in shapes or tf.convert_to_tensor(tensor).shape == shapes[name]
            else tf1.placeholder_with_default(tensor, shapes[name]) for name, tensor in inputs.items()}


def _common_shapes(start: Any, first: Any) -> Any:
    """Return the static shapes in the loop; dimensions that differ between start and first step may grow."""
    def common(before: Tensor, after: Tensor) -> Any:
        dimensions = zip(before.shape.as_list(), after.shape.as_list(), strict=True)
        return tf.TensorShape([size if size == grown else None for size, grown in dimensions])

    shapes = tf.nest.map_structure(common, start, first)
    if isinstance(first, StepState):
        shapes = shapes._replace(blocks=map_blocks(lambda blocks: blocks.shapes(), first.blocks))
    return shapes
