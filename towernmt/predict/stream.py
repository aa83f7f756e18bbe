"""Translate streams of lines in batches, for `Translator` and for validation."""

from __future__ import annotations

import logging
import threading
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from towernmt.core.errors import DataError, DivergenceError, SettingsError
from towernmt.core.thread_maps import map_ahead, map_in_threads
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import FactorError
from towernmt.predict.lines.batch_inputs import LinePiece, PieceBatch, piece_batches
from towernmt.predict.lines.faults import fault_of, retry_settings, worse
from towernmt.predict.lines.hypotheses import Hypothesis, SearchOutput, TokenDetails, Translation, joined
from towernmt.predict.lines.line_options import LineRequest, line_requests
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.words_of_lines import Cut, cuts_of
from towernmt.predict.search.device_batches import batching_for
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings

__all__ = ["Hypothesis", "Predictor", "SearchOutput", "Searches", "TokenDetails", "Translation", "translate_lines",
           "translate_stream"]

log = logging.getLogger(__name__)

_PARTS, _LEAST_PART = 4, 500
"""Maximum number of parts of a window that are translated at the same time, and minimum number of lines of a part."""
A = TypeVar("A")
B = TypeVar("B")
Predictor = Callable[..., SearchOutput | tuple[np.ndarray, ...]]
"""Returns `SearchOutput`, or its first two arrays, for the inputs of a batch by name."""
RunBatches = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Calls a function with each of several batches and returns the results in the order of the batches."""


class Searches(NamedTuple):
    """Additional searches and checks of a stream.

    Attributes:
        with_settings: returns a predictor with some search settings changed.
        checks_faults: whether translations are checked for faults.
        retry: whether the search is repeated for faulty translations, with `retry_settings`.
        is_undivided: returns whether all pieces of this kind form one batch, which the predictor divides itself; None
            if it divides no batch.
        without_details: returns a predictor with some search settings changed, and without log-probabilities and
            attention; None if the predictor cannot leave them out.
    """

    with_settings: Callable[[Mapping[str, Any]], Predictor] | None = None
    checks_faults: bool = False
    retry: bool = False
    is_undivided: Callable[[LinePiece], bool] | None = None
    without_details: Callable[[Mapping[str, Any]], Predictor] | None = None


def translate_lines(predictor: Predictor, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                    lines: Iterable[str | bytes], batch_tokens: int | None = None, batch_sentences: int | None = None,
                    max_source_length: int = StreamSettings.max_source_length, run_batches: RunBatches | None = None,
                    device: str = "cpu") -> list[str]:
    """Return the best translation of each line; all lines are sorted by length together.

    Args:
        predictor: translates batches.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.
        lines: lines to translate.
        batch_tokens: maximum number of source tokens in a batch, padding included; a batch has at least one line. None
            for the default of the device.
        batch_sentences: maximum number of sentences in a batch; None for the default of the device.
        max_source_length: longer lines (in tokens) are translated in pieces.
        run_batches: calls a function with each batch; None: this process translates them one after another.
        device: device of the predictor, "cpu" or a GPU.

    Raises:
        DivergenceError: the model's output is not a number.
    """
    lines = list(lines)
    settings = batching_for(device, batch_tokens, batch_sentences, window=max(len(lines), 1),
                            max_source_length=max_source_length)
    stream = translate_stream(predictor, source_vocabulary, target_vocabulary, line_requests(lines), settings,
                              run_batches=run_batches)
    return [hypotheses[0].text for hypotheses in stream]


def translate_stream(predictor: Predictor, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                     requests: Iterable[LineRequest], settings: StreamSettings, name: str = "input",
                     encoder: RequestEncoder | None = None,
                     searches: Searches = Searches(),  # noqa: B008 -- immutable
                     first: int = 1, run_batches: RunBatches | None = None) -> Iterator[Translation]:
    """Yield the translations of each line, best first, in the order of the lines.

    Requests are read in windows of `settings.window`, and all translations of a window are yielded before the next
    window is read. A line has one translation or more (up to the search's n_best); a blank line has one, the empty text
    with score 0. If the source has factors, each word is followed by them (`word|factor`). Lines before one that cannot
    be read are translated before the error is raised.

    Args:
        predictor: translates batches.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.
        requests: requests of the lines.
        settings: settings of the batches.
        name: name of the input, for warnings and errors; "" for no warnings.
        encoder: encodes the options of lines, and has the search settings of lines without options; None means the
            default search settings.
        searches: additional searches and checks.
        first: number of the first line.
        run_batches: calls a function with each batch; None means `settings.threads` threads of this process.

    Raises:
        DataError: a word lacks its factors, or an option of a line is not valid.
        DivergenceError: the model's output is not a number.
    """
    requests = iter(requests)
    encoder = encoder or RequestEncoder(SearchSettings(), source_vocabulary, target_vocabulary)
    translator = _BatchTranslator(predictor, source_vocabulary, target_vocabulary, settings, encoder.search, searches,
                                  run_batches or partial(map_in_threads, threads=settings.threads))
    count = 1 if searches.is_undivided is None else parts_of(settings.window)
    size = -(-settings.window // count)
    error: DataError | None = None

    def parts() -> Iterator[_Part]:
        nonlocal error
        number, is_last = first, False
        earlier: deque[set[LinePiece]] = deque(maxlen=count - 1)
        while not is_last:
            num_left = settings.window - (number - first) % settings.window
            num_requests = min(size, num_left)
            part_requests, error = read_window(requests, num_requests)
            pieces, encode_error = _encode(part_requests, name, number, source_vocabulary, settings.max_source_length,
                                           encoder)
            error = encode_error or error
            is_last = error is not None or len(part_requests) < num_requests
            new_pieces = {piece for line in pieces for piece in line}.difference(*earlier)
            earlier.append(new_pieces)
            yield _Part(part_requests, pieces, new_pieces, is_last and number == first, num_requests == num_left)
            if num_requests == num_left:    # a resumed stream has the same batches from its first window on
                earlier.clear()
            number += len(part_requests)

    def is_here(part: _Part) -> bool:
        # Parts are translated in threads of their own, so that a search never waits for this thread, which encodes
        # lines, and so that Ctrl-C, which the main thread gets, does not wait for CTranslate2.
        is_quick = len(part.requests) <= settings.batch_sentences or (
            threading.current_thread() is not threading.main_thread())
        return searches.is_undivided is None or (count == 1 or part.is_only) and is_quick

    window: deque[dict[LinePiece, Translation]] = deque(maxlen=count)
    for part, new_translations in map_ahead(translator.translate_part, parts(), count, is_here,
                                            attrgetter("ends_window")):
        window.appendleft(new_translations)     # first, because most pieces are new
        translations = ChainMap(*window)
        for pieces, request in zip(part.pieces, part.requests, strict=False):
            limit = _limit_of_text(settings.max_source_length, pieces[0].prefix_size if pieces else 0)
            yield joined([translations[piece] for piece in pieces], request.options.n_best, request.text,
                         source_vocabulary, limit, request.by_sentence)
    if error is not None:
        raise error


def parts_of(window: int) -> int:
    """Return the number of parts of a window that are translated at the same time."""
    return min(max(window // _LEAST_PART, 1), _PARTS)


class _Part(NamedTuple):
    """Consecutive lines of a stream.

    Attributes:
        requests: requests of the lines.
        pieces: pieces of each line; there are fewer lines than requests if a request is not valid.
        new_pieces: pieces to translate. The other pieces also occur in an earlier part of the window.
        is_only: whether this part has all lines of the stream.
        ends_window: whether this is the last part of a window.
    """

    requests: list[LineRequest]
    pieces: list[list[LinePiece]]
    new_pieces: set[LinePiece]
    is_only: bool
    ends_window: bool


class _BatchTranslator(NamedTuple):
    """Translator of pieces in batches of one kind and similar lengths."""

    predictor: Predictor
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    settings: StreamSettings
    search: SearchSettings
    searches: Searches
    run_batches: RunBatches

    def translate_part(self, part: _Part) -> dict[LinePiece, Translation]:
        """Return the translation of each new piece; for a faulty one, the better of two if `searches.retry` is set."""
        translations = self._translate_once(part.new_pieces)
        if self.searches.retry:
            retries = {piece: piece.with_search(retry_settings(self._search_of(piece)))
                       for piece, translation in translations.items() if translation.fault}
            retried = self._translate_once(retries.values())
            for piece, retry in retries.items():
                is_better = worse(translations[piece].fault, retried[retry].fault)
                translations[piece] = retried[retry] if is_better else translations[piece]
                translations[piece].retried = True
        return translations

    def _translate_once(self, pieces: Iterable[LinePiece]) -> dict[LinePiece, Translation]:
        translated: dict[LinePiece, Translation] = {}
        batches = piece_batches(pieces, self.settings, self.source_vocabulary.streams, self.searches.is_undivided)
        for batch, translations in zip(batches, self.run_batches(self._translate_batch, batches), strict=True):
            translated.update(zip(batch.pieces, translations, strict=True))
        return translated

    def _translate_batch(self, batch: PieceBatch) -> list[Translation]:
        predictor, changed = self.predictor, batch.pieces[0].search
        if self.searches.without_details is not None and not any(piece.details for piece in batch.pieces):
            predictor = self.searches.without_details(changed)
        elif changed and self.searches.with_settings is not None:
            predictor = self.searches.with_settings(changed)
        found = SearchOutput(*predictor(**batch.inputs))
        if not np.isfinite(found.scores[:, 0]).all():
            reason = "training has diverged. Take an earlier checkpoint."
            if np.isneginf(found.scores[:, 0]).any():
                reason += " Or a custom logits processor forbids every token."
            raise DivergenceError(f"The model's output is not a number (NaN), so nothing can be translated: {reason}")
        return found.translations(batch.pieces, self.source_vocabulary, self.target_vocabulary,
                                  fault_of if self.searches.checks_faults else None,
                                  self._search_of(batch.pieces[0]))

    def _search_of(self, piece: LinePiece) -> SearchSettings:
        """Return the search settings of a piece."""
        return replace(self.search, **piece.search) if piece.search else self.search


def read_window(items: Iterator[A], size: int) -> tuple[list[A], DataError | None]:
    """Return the next items, and the error that the iterator raises after them, if any."""
    window: list[A] = []
    try:
        for item in islice(items, size):
            window.append(item)     # noqa: PERF402 -- the items before an error are returned
    except DataError as error:
        return window, error
    return window, None


def _encode(window: Sequence[LineRequest], name: str, first: int, vocabulary: Vocabulary, limit: int,
            encoder: RequestEncoder) -> tuple[list[list[LinePiece]], DataError | None]:
    """Return the pieces of each request; a blank line has none, most lines have one.

    Args:
        window: requests.
        name: name of the input, for warnings and errors.
        first: number of the first line.
        vocabulary: source vocabulary.
        limit: maximum number of tokens of a piece with its source prefix.
        encoder: encodes the options.

    Returns:
        the pieces of the lines before the first one that cannot be encoded; the error of that line, or None.
    """
    error: DataError | None = None
    try:
        encoded = vocabulary.encode_batch([request.text for request in window])
    except FactorError as factor_error:
        error = factor_error.at(name, first + factor_error.index)
        encoded = vocabulary.encode_batch([request.text for request in window[:factor_error.index]])
    lines: list[list[LinePiece]] = []
    for number, (request, ids) in enumerate(zip(window, encoded, strict=False), start=first):
        try:
            limit_of_text = _limit_of_text(limit, len(encoder.source_prefix(request.options)))
            is_blank = not ids or not request.text.strip()
            is_one_cut = len(ids) <= limit_of_text and not request.by_sentence
            cuts = [] if is_blank else [Cut(ids, 0, request.text)] if is_one_cut else cuts_of(
                request.text, ids, vocabulary, limit_of_text, request.by_sentence)
            if len(cuts) > 1 and name:
                log.warning("%s line %d: its %d tokens are more than %d; translated in %d pieces.",
                            name, number, len(ids), limit_of_text, len(cuts))
            lines.append(encoder.pieces(request, cuts))
        except (SettingsError, DataError) as option_error:
            return lines, DataError(f"{name} line {number}: {option_error}")
    return lines, error


def _limit_of_text(limit: int, prefix_size: int) -> int:
    """Return the maximum number of tokens of a piece without its source prefix, at least 1.

    Args:
        limit: maximum number of tokens with the prefix.
        prefix_size: number of tokens of the prefix.
    """
    return max(limit - prefix_size, 1)
