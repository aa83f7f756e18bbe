"""Lines to translations by any search: by the towers of a `Translator`, or by another engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import tee
from typing import Any, Protocol, overload

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.alignment.unknown_words import UnknownWords
from towernmt.predict.batch_inputs import LineInputs
from towernmt.predict.decoding.settings import SearchSettings, StreamSettings
from towernmt.predict.hypotheses import Found, Translation
from towernmt.predict.lines.faults import FaultCounts, counted, retry_settings
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.predict.lines.requests import Requests
from towernmt.predict.reranking.reranker import WINDOW, Reranker, reranked
from towernmt.predict.stream import Searches, translate_stream
from towernmt.predict.text_io import clean_lines


class Search(Protocol):
    """A predictor of `predict.stream`, with which others are made by other settings."""

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch, by the inputs' names."""

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """The same, with some settings of the search changed."""


class LineTranslator:
    """Translates lines of text by a search.

    Attributes:
        checkpoint: of the model.
        search: the settings of the search.
        stream: how lines become batches.
        source_vocabulary, target_vocabulary: the model's.
        faults: what counts the faults of all streams; None: each stream says its own at its end.
    """

    faults: FaultCounts | None = None

    def __init__(self, finds: Search, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, *, checkpoint: str,
                 search: SearchSettings, stream: StreamSettings, options: LineOptions = PLAIN, retry: bool = False,
                 reranker: Reranker | None = None, unknown: UnknownWords | None = None) -> None:
        """
        Args:
            finds: what searches.
            options: what all lines ask for.
            retry: search again for translations that look wrong.
            reranker: puts the translations of each line into another order.
            unknown: puts words in place of unknown tokens.
        """
        self.checkpoint, self.search, self.stream = checkpoint, search, stream
        self.source_vocabulary, self.target_vocabulary = source_vocabulary, target_vocabulary
        self._search, self._reranker, self._unknown = finds, reranker, unknown
        self._retry = retry_settings(search) if retry else None
        self._requests = Requests(search, target_vocabulary, options)

    @overload
    def translate(self, lines: str, inputs: LineInputs | None = None,  # type: ignore[overload-overlap]
                  options: LineOptions | None = None) -> str: ...

    @overload
    def translate(self, lines: Iterable[str], inputs: Iterable[LineInputs] | None = None,
                  options: Iterable[LineOptions] | None = None) -> list[str]: ...

    def translate(self, lines: str | Iterable[str], inputs: Any = None, options: Any = None) -> str | list[str]:
        """The best translation of each line, or of one sentence; a blank line gives an empty one.

        Args:
            inputs: for each line (of one sentence: for that one), by name what the model or the processors declare
                beyond `source` and `source_length`.
            options: for each line (of one sentence: for that one), what it asks for.
        """
        if isinstance(lines, str):
            return self.translate_nbest(lines, inputs, options)[0].text
        return [hypotheses[0].text for hypotheses in self.translate_nbest(lines, inputs, options)]

    @overload
    def translate_nbest(self, lines: str, inputs: LineInputs | None = None,  # type: ignore[overload-overlap]
                        options: LineOptions | None = None) -> Translation: ...

    @overload
    def translate_nbest(self, lines: Iterable[str], inputs: Iterable[LineInputs] | None = None,
                        options: Iterable[LineOptions] | None = None) -> list[Translation]: ...

    def translate_nbest(self, lines: str | Iterable[str], inputs: Any = None,
                        options: Any = None) -> Translation | list[Translation]:
        """Up to n_best translations of each line, or of one sentence, with their scores, best first.

        Args:
            inputs, options: as for `translate`.
        """
        if isinstance(lines, str):
            return next(self.translate_stream([lines], inputs=None if inputs is None else [inputs],
                                              options=None if options is None else [options]))
        return list(self.translate_stream(lines, inputs=inputs, options=options))

    def translate_stream(self, lines: Iterable[str | bytes], name: str = "input",
                         inputs: Iterable[LineInputs] | None = None, options: Iterable[LineOptions] | None = None,
                         first: int = 1) -> Iterator[Translation]:
        """As `translate_nbest`, for any number of lines: at most `stream.window` of them are read ahead.

        Args:
            lines: text, or bytes to be read as UTF-8 (what is broken becomes U+FFFD, with a warning).
            name: where the lines come from, for the warnings.
            inputs: for each line, by name what the model or the processors declare beyond `source` and
                `source_length`: arrays without the batch's dimension. Those of a batch are padded with 0.
            options: for each line, what it asks for. Lines may ask for different things: what shares a batch asks for
                the same ones.
            first: the number of the first line, for the warnings.
        Raises:
            DataError: there are not as many inputs or options as lines, or a line asks for what cannot be.
            SettingsError: an input is missing or not known; inputs and options both; a text in place of lines; or the
                process was forked from that of the translator.
        """
        if isinstance(lines, (str, bytes)):
            raise SettingsError("translate_stream takes lines, not one text: pass [text], or use translate(text).")
        if inputs is not None:
            if options is not None:
                raise SettingsError("Give inputs or options, not both: LineOptions(inputs=...) has both.")
            options = (LineOptions(inputs=given) for given in inputs)
        if self._reranker is None:
            return counted(self._found(lines, name, options, first), name, first, self.faults)
        if options is not None:     # all that the search finds is judged, however many a line asks for
            options = (dataclasses.replace(given, n_best=None) for given in options)
        sources, again = tee(clean_lines(lines, name, first))
        return counted(reranked(self._found(again, name, options, first), self._reranker, sources,
                                min(WINDOW, self.stream.window), name), name, first, self.faults)

    def _found(self, lines: Iterable[str | bytes], name: str, options: Iterable[LineOptions] | None,
               first: int) -> Iterator[Translation]:
        """What the search finds for each line."""
        lines, asked = self._requests.of_lines(lines, options, name, first)
        found = translate_stream(self._search, self.source_vocabulary, self.target_vocabulary, lines, self.stream,
                                 name, asked, Searches(self._search.with_settings, True, self._retry), first)
        return found if self._unknown is None else map(self._unknown.replace, found)


def search_settings(saved: SearchSettings, beam_size: int | None, n_best: int | None,
                     others: dict[str, Any]) -> SearchSettings:
    """What a run, or runs, have for their search, with what was asked for in its place.

    Args:
        saved: the run's.
        beam_size, n_best: None for the run's beam, but at least n_best, and for one translation.
        others: further fields.
    """
    if beam_size is None:
        beam_size = max(saved.beam_size, n_best or 1)
    return dataclasses.replace(saved, beam_size=beam_size, n_best=1 if n_best is None else n_best, **others)
