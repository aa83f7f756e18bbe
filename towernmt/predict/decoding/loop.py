"""The loop of decoding: encode once, then step until the strategy has what it wants, as one graph.

It goes in rounds of some steps. Before each, sentences that are final leave the batch, so that what is left to decode
gets smaller as sentences end, and what steps write (`StepBlocks`) gets room for the round. What a sentence gets does
not depend on when it leaves: its strategy's state and its history are put aside as they were, and no later step would
change those of a final sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel
from towernmt.models.kernels.once import made_once
from towernmt.models.layers.step_blocks import BLOCK, each_of
from towernmt.predict.decoding.length_limit import LengthLimit
from towernmt.predict.decoding.processors.processor import LogitsProcessor, TokenFilter
from towernmt.predict.decoding.shortlist import Shortlist
from towernmt.predict.decoding.step import History
from towernmt.predict.decoding.steps import Sentences, Steps, StepState
from towernmt.predict.decoding.strategies.strategy import Decoded, Strategy

TOGETHER = 8
"""The number of sentences falls by so many at a time: kernels that are made for a shape meet few shapes."""


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
    inputs = _as_declared(inputs, [*model.encoder_inputs(), *decoding.strategy.inputs(),
                                   *(spec for processor in decoding.processors for spec in processor.inputs())])
    memory, words = model.encode(*(inputs[spec.name] for spec in model.encoder_inputs())), None
    if decoding.shortlist is not None:
        model, words = decoding.shortlist.limited(model, inputs, decoding.most_candidates)
    sentences = Sentences(memory, inputs, decoding.limit(inputs), words.bias if words else ())
    steps = Steps(model, decoding, words, sentences)
    start = steps.start()
    with made_once():
        # The first step stands outside the loop: variables cannot be created inside it.
        first = steps.take(start)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            found = _run(steps, start, first)
    return decoding.strategy.result(found.strategy, found.history)


class _Found(NamedTuple):
    """What is put aside of each sentence of the whole batch."""

    strategy: Any
    history: History


class _Round(NamedTuple):
    """What a round hands to the next.

    Attributes:
        state: of the sentences that are decoded.
        sentences: what belongs to them.
        number: int32 `[n]`, which of the whole batch they are.
        found: of the whole batch.
    """

    state: StepState
    sentences: Sentences
    number: Tensor
    found: _Found


def _run(steps: Steps, start: StepState, first: StepState) -> _Found:
    """Step until all sentences are final, from the states before and after the first step."""
    begin = _Round(first, steps.sentences, tf.range(tf.shape(steps.sentences.limit)[0]),
                   _Found(first.strategy, first.history))
    shapes = tf.nest.map_structure(lambda tensor: tensor.shape, begin)
    shapes = shapes._replace(state=_common_shapes(start, first), found=_common_shapes(
        _Found(start.strategy, start.history), begin.found))

    def one(*fields: Any) -> _Round:
        now = _without_final(steps, _Round(*fields))
        there = steps.of(now.sentences)
        end = (now.state.step // BLOCK + 1) * BLOCK
        state = now.state
        state = state._replace(blocks=each_of(lambda blocks: blocks.with_room(end), state.blocks))
        state = StepState(*tf1.while_loop(
            lambda *state: (state[0] < end) & _goes_on(steps, StepState(*state)),
            lambda *state: there.take(StepState(*state)), state, shapes.state, back_prop=False))
        found = tf.nest.map_structure(
            lambda aside, new, shape: _put_aside(aside, new, now.number, shape),
            now.found, _Found(state.strategy, state.history), shapes.found)
        return now._replace(state=state, found=found)

    return _Round(*tf1.while_loop(
        lambda *fields: _goes_on(steps, fields[0]), one, begin, shapes, back_prop=False)).found


def _goes_on(steps: Steps, state: StepState) -> Tensor:
    return tf.logical_not(tf.reduce_all(steps.strategy.is_done(state.strategy)))


def _without_final(steps: Steps, now: _Round) -> _Round:
    """The round of the sentences that go on, and of as many final ones as fill them up to `TOGETHER`."""
    state, width = now.state, steps.strategy.width
    done = tf.cast(steps.strategy.is_done(state.strategy), tf.int32)            # [n]
    live = tf.reduce_sum(1 - done)
    kept = tf.argsort(done, stable=True)[:-(-live // TOGETHER) * TOGETHER]
    rows = tf.reshape(kept[:, None] * width + tf.range(width), [-1])
    token, cache = tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), (state.token, state.cache))
    blocks = each_of(lambda blocks: blocks.of_sentences(kept if steps.strategy.reorders else rows), state.blocks)
    history, strategy, sentences = tf.nest.map_structure(
        lambda tensor: tf.gather(tensor, kept) if _of_sentences(tensor) else tensor,
        (state.history, state.strategy, now.sentences))
    return _Round(StepState(state.step, token, history, strategy, cache, blocks), sentences,
                  tf.gather(now.number, kept), now.found)


def _put_aside(aside: Tensor, new: Tensor, number: Tensor, shape: Any) -> Tensor:
    """`aside` with the rows `number` as they are now; its other dimensions grow with zeros."""
    if not _of_sentences(new):
        return new
    if None in shape.as_list()[1:]:
        longer = tf.shape(new)[1:] - tf.shape(aside)[1:]
        aside = tf.pad(aside, tf.pad(longer[:, None], [[1, 0], [1, 0]]))
    aside = tf.tensor_scatter_nd_update(aside, number[:, None], new)
    aside.set_shape(shape)
    return aside


def _of_sentences(tensor: Tensor) -> bool:
    """Whether a tensor has a row a sentence: their number alone is not known as the graph is built."""
    return bool(tensor.shape.rank) and tensor.shape[0] is None


def _as_declared(inputs: Mapping[str, Tensor], declared: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """The inputs with the static shapes that were declared: the number of sentences is none of them."""
    shapes = {spec.name: spec.shape for spec in declared}
    return {name: tensor if name not in shapes or tf.convert_to_tensor(tensor).shape == shapes[name]
            else tf1.placeholder_with_default(tensor, shapes[name]) for name, tensor in inputs.items()}


def _common_shapes(start: Any, first: Any) -> Any:
    """Static shapes in the loop: what differed between the start and the first step may grow."""
    def common(before: Tensor, after: Tensor) -> Any:
        dimensions = zip(before.shape.as_list(), after.shape.as_list(), strict=True)
        return tf.TensorShape([size if size == grown else None for size, grown in dimensions])

    shapes = tf.nest.map_structure(common, start, first)
    if isinstance(first, StepState):
        shapes = shapes._replace(blocks=each_of(lambda blocks: blocks.shapes(), first.blocks))
    return shapes
