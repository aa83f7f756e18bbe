"""Lines -> batches -> lines: what `Translator` and the validation callback share.

A predictor is any function of the inputs of a batch by name (`predictor(source=..., source_length=...)`,
see `batch_inputs`) that gives (tokens int32 `[batch, n_best, length]`, scores float32 `[batch, n_best]`); nothing here
knows of TensorFlow. Lines are read a window at a time, their sentences sorted by length, batched, translated
(the same sentence once), and given back in the order they came in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from towernmt.core.errors import DivergenceError
from towernmt.dataflow.text.cleaning import one_line
from towernmt.dataflow.vocabulary.base import EOS, PAD, Vocabulary
from towernmt.dataflow.vocabulary.factored import FactorError
from towernmt.predict.batch_inputs import LineInputs, Piece, batch_inputs, inputs_of_lines, piece_of
from towernmt.predict.decoding.settings import StreamSettings
from towernmt.predict.pieces import cut_line
from towernmt.predict.text_io import clean_lines

log = logging.getLogger(__name__)

Predictor = Callable[..., tuple[np.ndarray, np.ndarray]]
S = TypeVar("S", bound=Sized)


class Hypothesis(NamedTuple):
    """A translation.

    Attributes:
        text: detokenised, without line breaks.
        score: log-probability over the length penalty; of a line translated in pieces, their mean.
    """

    text: str
    score: float


def translate_lines(predictor: Predictor, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                    lines: Iterable[str | bytes], batch_tokens: int = StreamSettings.batch_tokens,
                    batch_sentences: int = StreamSettings.batch_sentences,
                    max_source_length: int = StreamSettings.max_source_length) -> list[str]:
    """The best translation of every line, all lines sorted by length together.

    Args:
        batch_tokens: source tokens in a batch, padding included, at most (one line at least).
        batch_sentences: sentences in a batch, at most.
        max_source_length: longer lines (tokens) are translated in pieces.
    Raises:
        DivergenceError: the model's output is not a number.
    """
    lines = list(lines)
    settings = StreamSettings(batch_tokens=batch_tokens, batch_sentences=batch_sentences,
                              window=max(len(lines), 1), max_source_length=max_source_length)
    stream = translate_stream(predictor, source_vocabulary, target_vocabulary, lines, settings)
    return [hypotheses[0].text for hypotheses in stream]


def translate_stream(predictor: Predictor, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                     lines: Iterable[str | bytes], settings: StreamSettings, name: str = "input",
                     inputs: Iterable[LineInputs] | None = None) -> Iterator[list[Hypothesis]]:
    """The translations of every line, best first, in the order of the lines.

    At most `settings.window` lines are read ahead. A line has one translation or more (up to the
    search's n_best); a blank line has one, the empty text with score 0. Where the source has factors, the words of a
    line have them behind them (`word|factor`).

    Args:
        name: where the lines come from, for warnings and errors.
        inputs: for each line, what the predictor reads beyond `source` and `source_length`, by name. All pieces of a
            long line have those of the line.
    Raises:
        DataError: a word lacks its factors, or there are not as many inputs as lines.
        DivergenceError: the model's output is not a number.
    """
    rest = inputs_of_lines(enumerate(clean_lines(lines, name), start=1), inputs, name)
    while window := list(islice(rest, settings.window)):
        pieces = _encode(window, name, source_vocabulary, settings.max_source_length)
        unique = sorted({piece for line in pieces for piece in line},
                        key=lambda piece: (len(piece), piece.ids, piece.key))
        translated: dict[Piece, list[Hypothesis]] = {}
        for batch in plan_batches(unique, settings.batch_tokens, settings.batch_sentences):
            translated.update(zip(batch, _translate_batch(
                predictor, target_vocabulary, batch, source_vocabulary.streams), strict=True))
        for line in pieces:
            yield _join([translated[piece] for piece in line])


def plan_batches(pieces: Iterable[S], batch_tokens: int, batch_sentences: int) -> Iterator[list[S]]:
    """Cut pieces, shortest first, into batches; the tokens of a batch count EOS and padding."""
    batch: list[S] = []
    for piece in pieces:
        if batch and (len(batch) == batch_sentences or (len(batch) + 1) * (len(piece) + 1) > batch_tokens):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _encode(window: list[tuple[int, str, LineInputs]], name: str, vocabulary: Vocabulary,
            limit: int) -> list[list[Piece]]:
    """The pieces of each (line number, text, further inputs); a blank line has none, most lines have one."""
    try:
        encoded = vocabulary.encode_batch([text for _, text, _ in window])
    except FactorError as error:
        raise error.at(name, window[error.index][0]) from None
    result = []
    for (number, text, inputs), ids in zip(window, encoded, strict=True):
        pieces = cut_line(text, ids, vocabulary, limit) if text.strip() else []
        if len(pieces) > 1:
            log.warning("%s line %d: its %d tokens are more than %d; translated in %d pieces.",
                        name, number, len(ids), limit, len(pieces))
        result.append([piece_of(piece, inputs) for piece in pieces])
    return result


def _translate_batch(predictor: Predictor, vocabulary: Vocabulary, batch: Sequence[Piece],
                     streams: int) -> list[list[Hypothesis]]:
    tokens, scores = predictor(**batch_inputs(batch, streams))  # [batch, n_best, length], [batch, n_best]
    if not np.isfinite(scores[:, 0]).all():
        why = "training has diverged. Take an earlier checkpoint."
        if np.isneginf(scores[:, 0]).any():
            why += " Or a logits processor of your own forbids every token."
        raise DivergenceError(f"The model's output is not a number (NaN), so nothing can be translated: {why}")
    return [[Hypothesis(_text(vocabulary, ids), float(score))
             for ids, score in zip(row, row_scores, strict=True) if np.isfinite(score)]
            for row, row_scores in zip(tokens, scores, strict=True)]


def _text(vocabulary: Vocabulary, ids: np.ndarray) -> str:
    ends = np.flatnonzero((ids == EOS) | (ids == PAD))
    return one_line(vocabulary.decode(ids[:ends[0]].tolist() if len(ends) else ids.tolist()))


def _join(pieces: list[list[Hypothesis]]) -> list[Hypothesis]:
    """The k-th best of a line is the k-th best of each of its pieces, joined."""
    if not pieces:
        return [Hypothesis("", 0.0)]
    if len(pieces) == 1:
        return pieces[0]
    return [Hypothesis(" ".join(h.text for h in parts if h.text), sum(h.score for h in parts) / len(parts))
            for parts in zip(*pieces, strict=False)]
