"""Lines -> batches -> lines: what `Translator` and the validation callback share.

A predictor is any function of the inputs of a batch by name (`predictor(source=..., source_length=...)`,
see `batch_inputs`) that gives `Found`; nothing here knows of TensorFlow. Lines are read a window at a time, their
sentences sorted by length, batched, translated (the same sentence once), and given back in the order they came in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from towernmt.core.errors import DataError, DivergenceError
from towernmt.dataflow.text.cleaning import one_line
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import FactorError
from towernmt.predict.alignment.of_lines import align, with_words
from towernmt.predict.batch_inputs import Asked, Piece, asked_of_lines, batch_inputs, piece_of
from towernmt.predict.decoding.settings import StreamSettings
from towernmt.predict.hypotheses import Found, Hypothesis, TokenDetails, Translation, joined
from towernmt.predict.lines.faults import fault_of, worse
from towernmt.predict.pieces import cut_line
from towernmt.predict.text_io import clean_lines

__all__ = ["Found", "Hypothesis", "Predictor", "Searches", "TokenDetails", "Translation", "plan_batches",
           "translate_lines", "translate_stream"]

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Sized)
A = TypeVar("A")
B = TypeVar("B")
LEAST_SHARE = 8
"""Fewer sentences are not divided among threads: a batch of half of them takes nearly as long."""
Predictor = Callable[..., Found | tuple[np.ndarray, ...]]
"""From the inputs of a batch by name to `Found`, or to its first two arrays."""
Deal = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Who does what: a function and the batches that it is to be called with, to its results in their order."""


class Searches(NamedTuple):
    """What else than the plain search a stream may do, and what it watches.

    Attributes:
        with_settings: gives the predictor with some settings of the search changed.
        watched: whether it is noted what is seen to be wrong with translations.
        retry: settings with which what is wrong is searched for again; None: it is not.
    """

    with_settings: Callable[[Mapping[str, Any]], Predictor] | None = None
    watched: bool = False
    retry: Mapping[str, Any] | None = None


def translate_lines(predictor: Predictor, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                    lines: Iterable[str | bytes], batch_tokens: int = StreamSettings.batch_tokens,
                    batch_sentences: int = StreamSettings.batch_sentences,
                    max_source_length: int = StreamSettings.max_source_length, deal: Deal | None = None) -> list[str]:
    """The best translation of every line, all lines sorted by length together.

    Args:
        batch_tokens: source tokens in a batch, padding included, at most (one line at least).
        batch_sentences: sentences in a batch, at most.
        max_source_length: longer lines (tokens) are translated in pieces.
        deal: who translates which batch; None: this process, one after the other.
    Raises:
        DivergenceError: the model's output is not a number.
    """
    lines = list(lines)
    settings = StreamSettings(batch_tokens=batch_tokens, batch_sentences=batch_sentences,
                              window=max(len(lines), 1), max_source_length=max_source_length)
    stream = translate_stream(predictor, source_vocabulary, target_vocabulary, lines, settings, deal=deal)
    return [hypotheses[0].text for hypotheses in stream]


def translate_stream(predictor: Predictor, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                     lines: Iterable[str | bytes], settings: StreamSettings, name: str = "input",
                     asked: Iterable[Asked] | None = None, searches: Searches = Searches(),  # noqa: B008 -- immutable
                     first: int = 1, deal: Deal | None = None) -> Iterator[Translation]:
    """The translations of every line, best first, in the order of the lines.

    At most `settings.window` lines are read ahead. A line has one translation or more (up to the
    search's n_best); a blank line has one, the empty text with score 0. Where the source has factors, the words of a
    line have them behind them (`word|factor`). Lines before one that cannot be read are translated before the error
    is raised.

    Args:
        name: where the lines come from, for warnings and errors.
        asked: for each line, what the predictor reads beyond `source` and `source_length`, and what else it asks for.
            All pieces of a long line have what the line has.
        searches: what else than the plain search may be done.
        first: the number of the first line.
        deal: who translates which batch; None: this process, by so many threads as the settings say.
    Raises:
        DataError: a word lacks its factors, or there is not as much asked as there are lines.
        DivergenceError: the model's output is not a number.
    """
    rest = asked_of_lines(enumerate(clean_lines(lines, name, first), start=first), asked, name)
    translator = _BatchTranslator(predictor, source_vocabulary, target_vocabulary, settings, searches,
                                  deal or partial(side_by_side, threads=settings.threads))
    error: DataError | None = None
    while error is None:
        window, error = _read(rest, settings.window)
        pieces, error = _encode(window, name, source_vocabulary, settings.max_source_length, error)
        translated = translator.translate({piece for line in pieces for piece in line})
        for line, (_, text, request) in zip(pieces, window, strict=False):
            translation = joined([translated[piece] for piece in line], request.n_best)
            align(translation, text, source_vocabulary, settings.max_source_length)
            yield translation
        if not window and error is None:
            return
    raise error


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


def side_by_side(function: Callable[[A], B], arguments: Sequence[A], threads: int) -> Iterator[B]:
    """The results in the order of the arguments; so many calls at a time, each in a thread of its own.

    An error is raised where its result would come, and what was not begun by then is left undone.
    """
    threads = min(threads, len(arguments))
    if threads <= 1:
        yield from map(function, arguments)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="translate") as pool:
        yield from pool.map(function, arguments)


class _BatchTranslator(NamedTuple):
    """Translates pieces, those of one kind and of similar lengths together."""

    predictor: Predictor
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    settings: StreamSettings
    searches: Searches
    deal: Deal

    def translate(self, pieces: Iterable[Piece]) -> dict[Piece, Translation]:
        """The translation of each piece; of one that comes out wrong, the better of two where that is asked for."""
        found = self._once(pieces)
        if self.searches.retry is not None:
            again = {piece: piece.searched(self.searches.retry) for piece, translation in found.items()
                     if translation.fault}
            second = self._once(again.values())
            for piece, other in again.items():
                better = worse(found[piece].fault, second[other].fault)
                found[piece] = second[other] if better else found[piece]
                found[piece].retried = True
        return found

    def _once(self, pieces: Iterable[Piece]) -> dict[Piece, Translation]:
        translated: dict[Piece, Translation] = {}
        batches = self._batches(list(pieces))
        for batch, translations in zip(batches, self.deal(self._batch, batches), strict=True):
            translated.update(zip(batch, translations, strict=True))
        return translated

    def _batches(self, pieces: Sequence[Piece]) -> list[list[Piece]]:
        """For threads those that take longest first, and of few pieces so many that each thread has one."""
        sentences, shares = self.settings.batch_sentences, self.settings.shares or self.settings.threads
        if shares > 1:
            sentences = min(sentences, max(LEAST_SHARE, -(-len(pieces) // shares)))
        kinds = groupby(sorted(pieces, key=lambda piece: piece.place), lambda piece: piece.kind)
        batches = [batch for _, kind in kinds for batch in plan_batches(kind, self.settings.batch_tokens, sentences)]
        return batches[::-1] if self.settings.threads > 1 else batches

    def _batch(self, batch: Sequence[Piece]) -> list[Translation]:
        predictor, changed = self.predictor, batch[0].asked.search
        if changed and self.searches.with_settings is not None:
            predictor = self.searches.with_settings(changed)
        found = Found(*predictor(**batch_inputs(batch, self.source_vocabulary.streams)))
        if not np.isfinite(found.scores[:, 0]).all():
            why = "training has diverged. Take an earlier checkpoint."
            if np.isneginf(found.scores[:, 0]).any():
                why += " Or a logits processor of your own forbids every token."
            raise DivergenceError(f"The model's output is not a number (NaN), so nothing can be translated: {why}")
        return [self._translation(found, row, piece) for row, piece in enumerate(batch)]

    def _translation(self, found: Found, row: int, piece: Piece) -> Translation:
        translation = Translation(self._hypothesis(found, row, k, piece)
                                  for k in range(len(found.scores[row])) if np.isfinite(found.scores[row, k]))
        translation.terms = piece.asked.terms
        return translation

    def _hypothesis(self, found: Found, row: int, k: int, piece: Piece) -> Hypothesis:
        ids, ended = found.text_ids(row, k)
        text = one_line(self.target_vocabulary.decode(ids))
        fault = fault_of(text, ids, ended, lambda: self.source_vocabulary.decode(piece.ids)
                         ) if self.searches.watched else None
        return Hypothesis(text, float(found.scores[row, k]),
                          with_words(found.details(row, k, piece.ids), self.target_vocabulary), fault,
                          len(ids) + ended)


def _read(lines: Iterator[tuple[int, str, Asked]],
          size: int) -> tuple[list[tuple[int, str, Asked]], DataError | None]:
    """The next lines, and the error behind them if there is one."""
    window: list[tuple[int, str, Asked]] = []
    try:
        for line in islice(lines, size):
            window.append(line)
    except DataError as error:
        return window, error
    return window, None


def _encode(window: list[tuple[int, str, Asked]], name: str, vocabulary: Vocabulary, limit: int,
            error: DataError | None) -> tuple[list[list[Piece]], DataError | None]:
    """The pieces of each (line number, text, what is asked); a blank line has none, most lines have one.

    Returns:
        the pieces of the lines before one that lacks a factor; and the error: that of this line, or the given one.
    """
    try:
        encoded = vocabulary.encode_batch([text for _, text, _ in window])
    except FactorError as wrong:
        error = wrong.at(name, window[wrong.index][0])
        encoded = vocabulary.encode_batch([text for _, text, _ in window[:wrong.index]])
    result = []
    for (number, text, asked), ids in zip(window, encoded, strict=False):
        pieces = cut_line(text, ids, vocabulary, limit) if text.strip() else []
        if len(pieces) > 1:
            log.warning("%s line %d: its %d tokens are more than %d; translated in %d pieces.",
                        name, number, len(ids), limit, len(pieces))
        if asked.of_piece is None:
            result.append([piece_of(piece, asked) for piece in pieces])
        else:
            texts = [text] if len(pieces) == 1 else map(vocabulary.decode, pieces)
            result.append([piece_of(piece, asked.of_piece(part, place))
                           for place, (piece, part) in enumerate(zip(pieces, texts, strict=False))])
    return result, error
