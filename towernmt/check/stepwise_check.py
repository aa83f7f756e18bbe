"""Check that step-by-step decoding equals teacher forcing: run both forms of a decoder, and compare their logits.

A decoder is written twice: `decode_hidden` for the whole target at once, `decode_step` for one word. A decoder with
attention is written once more, as `decode_with_attention`, which guided alignment trains. Nothing in a graph shows that
they agree, so the check runs them in a session, on random sentences, with random parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from towernmt.check.tower_builds import Scratch, location_of_definition, location_of_error
from towernmt.check.tower_rules import Breach
from towernmt.core.tensors import Session, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES
from towernmt.models.interface import DecoderState, NMTModel

BEAM = 3
LENGTHS = (6, 3, 4)     # source lengths, EOS included; two of the sources are padded
STEPS = 5
EXTRA_PADDING = 4
TOLERANCE = 5e-4
"""Tolerance relative to the largest logit; the two forms add in different orders."""


class _Case(NamedTuple):
    """Input of a comparison. A row is a hypothesis; each sentence has `BEAM` adjacent rows.

    Attributes:
        source: int32 `[batch, source length]` or `[batch, source length, streams]`.
        source_length: int32 `[batch]`.
        prefixes: for each step, int32 `[rows, step + 1]`: BOS and the words before the predicted one.
        parents: for each step but the last, int32 `[rows]`: the previous step's row that each row continues.
    """

    source: np.ndarray
    source_length: np.ndarray
    prefixes: list[np.ndarray]
    parents: list[np.ndarray]


class _StepDecoder(NamedTuple):
    """The tensors of both forms of a decoder, in one graph.

    Attributes:
        source, source_length, target_in: placeholders of the teacher-forced form, a row a hypothesis.
        forced_logits: float32 `[rows, STEPS, target vocabulary]`.
        attended_logits: those of `decode_with_attention`, of the same shape; `forced_logits` for a model without it.
        sentences, sentence_length: placeholders of the stepwise form, a row a sentence.
        words: placeholder int32 `[STEPS, rows]`, the word before each step.
        parents: placeholder int32 `[STEPS - 1, rows]`.
        step_logits: float32 `[STEPS, rows, target vocabulary]`.
    """

    source: Tensor
    source_length: Tensor
    target_in: Tensor
    forced_logits: Tensor
    attended_logits: Tensor
    sentences: Tensor
    sentence_length: Tensor
    words: Tensor
    parents: Tensor
    step_logits: Tensor


def stepwise(model: NMTModel) -> Iterator[Breach]:
    """Run a copy of a model, and yield the first breach of `padding`, `causal` or `stepwise`.

    Each rule depends on the previous rules, so only the first broken rule is reported.
    """
    rng = np.random.Generator(np.random.Philox(7))
    scratch = Scratch(model, [])
    build = scratch.build(lambda copied: lambda: _build(copied), "a decoder", training=False, reuse=True)
    if build.error is None:
        try:
            with scratch.graph.as_default(), tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
                _set_random_variables(session, rng)
                yield from _breaches(scratch.subject, session, build.result, rng)
        except (tf.errors.OpError, ValueError) as error:
            build.error = error
    if build.error is not None:
        text = (str(build.error).strip().splitlines() or [""])[0]
        yield Breach("fails", "", f"{STEPS} steps of decode_step with {BEAM} hypotheses a sentence, reordered as beam "
                                  f"search does, fail: {type(build.error).__name__}: {text}",
                     location_of_error(build.error) or location_of_definition(model.decode_step))


def _breaches(model: NMTModel, session: Session, decoder: _StepDecoder, rng: np.random.Generator) -> Iterator[Breach]:
    in_order, reordered = _case(model, rng, reorder=False), _case(model, rng, reorder=True)
    logits = _forced_logits(session, decoder, in_order, model, rng)
    decode, decode_step = location_of_definition(model.decode_hidden), location_of_definition(model.decode_step)
    forced = "decode" if type(model).decode is NMTModel.decode else (
        "decode_hidden with output_projection (training calls these, and not decode)")
    if not np.isfinite(logits).all():
        yield Breach("stepwise", "", f"{forced} returns logits that are not finite with random parameters: fix its "
                                     "formula.", decode)
    elif step := _differs(logits, _forced_logits(session, decoder, in_order, model, rng)):
        yield Breach("causal", "", (
            f"the logits of {forced} for target position {step} change with later target words: mask later positions; "
            "otherwise training sees words that translation cannot see."), decode)
    elif step := _differs(logits, _forced_logits(session, decoder, in_order, model, rng, EXTRA_PADDING)):
        yield Breach("padding", "", (
            f"the logits of a sentence (target position {step}) change when its source has {EXTRA_PADDING} more "
            "columns of padding: mask the padding by source_length; otherwise a translation depends on the other "
            "sentences of its batch."),
            location_of_definition(model.encode))
    elif step := _differs(logits, _forced_logits(session, decoder, in_order, model, rng, with_attention=True)):
        yield Breach("stepwise", "", (
            f"decode_with_attention and {forced} return different logits for target position {step} of the same words: "
            "both must compute the same function; otherwise translation does not use the model that guided alignment "
            "trains."), location_of_definition(model.decode_with_attention))
    elif step := _differs(logits, _stepwise_logits(session, decoder, in_order)):
        yield Breach("stepwise", "", (
            f"decode_step and {forced} return different logits for target position {step} of the same words: both must "
            "compute the same function; otherwise translation does not use the model that was trained."), decode_step)
    elif step := _differs(_forced_logits(session, decoder, reordered, model, rng),
                          _stepwise_logits(session, decoder, reordered)):
        yield Breach("stepwise", "", (
            f"decode_step and {forced} return different logits for target position {step} after hypotheses are "
            "reordered: keep the complete state of a hypothesis in its row of the cache, and nowhere else."),
            decode_step)


def _case(model: NMTModel, rng: np.random.Generator, reorder: bool) -> _Case:
    first = len(SPECIAL_PIECES)
    batch, rows = len(LENGTHS), len(LENGTHS) * BEAM
    streams = 1 + model.source_factor_count
    source = np.full([batch, max(LENGTHS), streams], PAD, np.int32)
    for row, length in enumerate(LENGTHS):
        source[row, :length] = EOS
        source[row, :length - 1, 0] = rng.integers(first, model.source_vocab_size, length - 1)
        # The vocabulary of a factor may contain only the special tokens.
        source[row, :length - 1, 1:] = rng.integers(1, first, [length - 1, streams - 1])
    prefixes, parents = [np.full([rows, 1], BOS, np.int32)], []
    for _ in range(STEPS - 1):
        parent = np.arange(rows)
        if reorder:
            parent = (np.arange(batch)[:, None] * BEAM + rng.integers(0, BEAM, [batch, BEAM])).reshape(-1)
        word = rng.integers(first, model.target_vocab_size, [rows, 1])
        parents.append(parent.astype(np.int32))
        prefixes.append(np.concatenate([prefixes[-1][parent], word], 1).astype(np.int32))
    return _Case(source if streams > 1 else source[:, :, 0], np.array(LENGTHS, np.int32), prefixes, parents)


def _build(model: NMTModel) -> _StepDecoder:
    shape = [None, None, 1 + model.source_factor_count][:3 if model.source_factor_count else 2]

    def placeholder(*dimensions: int | None) -> Tensor:
        return tf1.placeholder(tf.int32, dimensions)

    source, source_length, target_in = placeholder(*shape), placeholder(None), placeholder(None, STEPS)
    forced_memory = model.encode(source, source_length)
    forced_logits = attended_logits = NMTModel.decode(model, forced_memory, target_in)      # as training decodes
    if model.gives_attention:
        attended_logits = model.output_projection().logits(model.decode_with_attention(forced_memory, target_in)[0])

    sentences, sentence_length = placeholder(*shape), placeholder(None)
    words, parents = placeholder(STEPS, None), placeholder(STEPS - 1, None)
    memory = model.encode(sentences, sentence_length)
    state = model.start_state(memory, BEAM)
    step_logits = []
    for step in range(STEPS):
        cache, blocks = state.cache, state.blocks
        if step:
            rows = parents[step - 1]
            cache = tf.nest.map_structure(lambda tensor, rows=rows: tf.gather(tensor, rows), cache)
            blocks = blocks.reordered(tf.reshape(rows % BEAM, [-1, BEAM])) if blocks else ()
        logits, state = model.decode_step(words[step], DecoderState(memory, cache, state.step, blocks))
        tf.nest.assert_same_structure((cache, blocks), (state.cache, state.blocks))
        step_logits.append(tf.cast(logits, tf.float32))
    return _StepDecoder(source, source_length, target_in, tf.cast(forced_logits, tf.float32),
                        tf.cast(attended_logits, tf.float32), sentences, sentence_length, words, parents,
                        tf.stack(step_logits))


def _forced_logits(session: Session, decoder: _StepDecoder, case: _Case, model: NMTModel, rng: np.random.Generator,
                   padding: int = 0, with_attention: bool = False) -> np.ndarray:
    """Return the logits of teacher forcing after the prefixes of each step.

    Random words follow each prefix, up to length `STEPS`; they must not change the logits.

    Args:
        session: a session with values of the variables.
        decoder: the tensors.
        case: sources and prefixes.
        model: the model.
        rng: draws the random words.
        padding: number of added columns of padding in the source.
        with_attention: return the logits of `decode_with_attention`.

    Returns:
        float32 `[STEPS, rows, target vocabulary]`.
    """
    rows = len(LENGTHS) * BEAM
    targets = rng.integers(len(SPECIAL_PIECES), model.target_vocab_size, [STEPS, rows, STEPS])
    for step, prefix in enumerate(case.prefixes):
        targets[step, :, :step + 1] = prefix
    source = np.pad(case.source, [(0, 0), (0, padding), (0, 0)][:case.source.ndim], constant_values=PAD)
    logits = session.run(decoder.attended_logits if with_attention else decoder.forced_logits, {
        decoder.source: np.concatenate([np.repeat(source, BEAM, 0)] * STEPS),
        decoder.source_length: np.concatenate([np.repeat(case.source_length, BEAM)] * STEPS),
        decoder.target_in: targets.reshape(STEPS * rows, STEPS)})
    by_step = logits.reshape(STEPS, rows, STEPS, -1)
    return np.stack([by_step[step, :, step] for step in range(STEPS)])


def _stepwise_logits(session: Session, decoder: _StepDecoder, case: _Case) -> np.ndarray:
    """Return the logits of `decode_step`, called as beam search calls it, with the shape of `_forced_logits`."""
    return session.run(decoder.step_logits, {
        decoder.sentences: case.source, decoder.sentence_length: case.source_length,
        decoder.words: np.stack([prefix[:, -1] for prefix in case.prefixes]),
        decoder.parents: np.stack(case.parents)})


def _set_random_variables(session: Session, rng: np.random.Generator) -> None:
    """Initialise variables, with noise on trainable ones, because a bias of 0 would hide a wrong use of it."""
    session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer(), tf1.tables_initializer()])
    variables = tf1.trainable_variables()
    initial_values = {}
    for variable, value in zip(variables, session.run(variables), strict=True):
        noise = rng.standard_normal(value.shape) * (0.1 * np.std(value) or 0.02)
        initial_values[variable.initializer.inputs[1]] = value + noise.astype(value.dtype)
    session.run([variable.initializer for variable in variables], initial_values)


def _differs(first: np.ndarray, second: np.ndarray) -> int:
    """Return the first step, from 1, whose logits `[STEPS, rows, target vocabulary]` differ; 0 if all are equal."""
    if first.shape != second.shape:
        return 1
    for step, (a, b) in enumerate(zip(first, second, strict=True), 1):
        if not np.abs(a - b).max() <= TOLERANCE * np.abs(a).max():       # NaN differs from everything
            return step
    return 0
