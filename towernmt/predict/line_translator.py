"""`LineTranslator`: translate lines with a search."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import numpy as np

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.language_codes import written_language
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.lines.batch_inputs import LineInputs, LinePiece
from towernmt.predict.lines.faults import FaultCounts, counted, retry_settings
from towernmt.predict.lines.hypotheses import SearchOutput, Translation
from towernmt.predict.lines.line_options import PLAIN, LineOptions, LineRequest, line_requests
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.special_lines import SpecialLines
from towernmt.predict.lines.unknown_words import UnknownWords
from towernmt.predict.reranking import WINDOW, Reranker, reranked
from towernmt.predict.search.search_settings import (
    EnsembleSettings,
    SearchSettings,
    SpecialLineSettings,
    StreamSettings,
)
from towernmt.predict.stream import Searches, parts_of, translate_stream

if TYPE_CHECKING:
    from towernmt.predict.search.decoding_interfaces import LogitsProcessor

log = logging.getLogger(__name__)


class Search(Protocol):
    """A predictor of `predict.stream` that can return predictors with other search settings."""

    def __call__(self, **inputs: np.ndarray) -> SearchOutput:
        """Translate a batch of inputs by name."""

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., SearchOutput]:
        """Return a predictor with these search settings changed."""


@runtime_checkable
class DividingSearch(Search, Protocol):
    """A search that divides some batches itself, and that can leave out details."""

    def is_undivided(self, piece: LinePiece) -> bool:
        """Return whether all pieces of this kind form one batch, which the search divides itself."""

    def without_details(self, changed: Mapping[str, Any]) -> Callable[..., SearchOutput]:
        """Return a search with some settings changed that may leave out log-probabilities and attention."""

    def among_others(self) -> DividingSearch:
        """Return a search that divides only large batches, because other searches use the same threads meanwhile."""


@dataclass(frozen=True)
class SearchArguments:
    """Search arguments of a `Translator`; see there.

    Attributes:
        runs, checkpoints, models: one per member, or one for all.
        attention: whether the caller or another component needs attention.
        threads: number of threads that search concurrently.
        precision: dtype of matrix products.
    """

    runs: Sequence[SavedRun]
    checkpoints: Sequence[str | OpenCheckpoint | None]
    models: Sequence[Any]
    ensemble: EnsembleSettings | None
    device: str | None
    search: SearchSettings
    processors: Sequence[LogitsProcessor]
    log_probs: bool
    attention: bool
    threads: int = 1
    precision: str = PRECISIONS[0]


class TrainedSearch(Search, Protocol):
    """Interface of the towers that translate batches with a trained run.

    Attributes:
        checkpoint: the checkpoint in use (TensorFlow's prefix); for an ensemble, those of its members joined by " + ".
        source_vocabulary, target_vocabulary: vocabularies of the run.
    """

    checkpoint: str
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary

    @property
    def predictor(self) -> Any:
        """The plain search as tensorpack's `OfflinePredictor`."""


class LineTranslator:
    """Translator of lines of text.

    Args:
        predictor: the search, which translates batches.
        options: options of all lines.
        retry: whether to repeat the search for faulty translations.
        reranker: reranker of the translations of each line.
        unknown: replaces unknown tokens by words.
        special_lines: translation of lines that the model may not be trained for.
        languages: ISO 639-1 codes of source and target, or "", for the letter case of lines in capitals and for
            ordinal numbers.
        source_text: facts about the training text, for lines that differ from it.

    Attributes:
        checkpoint: checkpoint of the model.
        search: settings of the search.
        stream: settings of the batches.
        source_vocabulary, target_vocabulary: the model's.
        retry: changed search settings of the second search for faulty translations of lines without search settings;
            empty for no second search.
        faults: counts of faults of all streams; None: each stream logs its own at its end.
        fault_advice: sentence at the end of the warning about faults; see `FaultCounts`.
        engine: name of the engine of lines without options, with its version and precision if they affect results.
    """

    faults: FaultCounts | None = None
    fault_advice: str = ""
    engine: str

    def __init__(self, predictor: Search, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, *,
                 checkpoint: str, search: SearchSettings, stream: StreamSettings, options: LineOptions = PLAIN,
                 retry: bool = False, reranker: Reranker | None = None, unknown: UnknownWords | None = None,
                 special_lines: SpecialLineSettings = SpecialLineSettings(),  # noqa: B008 -- immutable
                 languages: tuple[str, str] = ("", ""), source_text: SourceText = SourceText()) -> None:  # noqa: B008 -- immutable
        self.checkpoint, self.search, self.stream = checkpoint, search, stream
        self.source_vocabulary, self.target_vocabulary = source_vocabulary, target_vocabulary
        self._search, self._reranker, self._unknown = predictor, reranker, unknown
        self.retry = retry_settings(search) if retry else {}
        self._options = options
        # The second encoder is for checks, which other threads request, so that they do not replace the cached options.
        self._encoder, self._checker = (
            RequestEncoder(search, source_vocabulary, target_vocabulary) for _ in range(2))
        self._encoder.check(options)
        for tag in self._encoder.divided_tags(options):
            log.warning("The source vocabulary has no token '%s', so the model was probably not trained with this tag: "
                        "check the source prefix.", tag)
        self._special_lines = SpecialLines(special_lines, source_vocabulary, languages, source_text, self._checker)

    def check(self, options: LineOptions) -> None:
        """Check whether a line can have these options. Threads can call it during a translation.

        Raises:
            SettingsError: a vocabulary cannot write a prefix or a phrase, or a setting of the search cannot work.
            DataError: the vocabulary cannot write a term of the terminology.
        """
        self._checker.check(options)

    @overload
    def translate(self, lines: str, inputs: LineInputs | None = None,  # type: ignore[overload-overlap]
                  options: LineOptions | None = None) -> str: ...

    @overload
    def translate(self, lines: Iterable[str | LineRequest], inputs: Iterable[LineInputs] | None = None,
                  options: Iterable[LineOptions] | None = None) -> list[str]: ...

    def translate(self, lines: str | Iterable[str | LineRequest], inputs: Any = None,
                  options: Any = None) -> str | list[str]:
        """Return the best translation of each line, or of one sentence; that of a blank line is empty.

        Args:
            lines: lines or requests, or one sentence.
            inputs: inputs of each line, or of the sentence, by name, that the model or the processors declare in
                addition to `source` and `source_length`.
            options: options of each line, or of the sentence.
        """
        if isinstance(lines, str):
            return self.translate_nbest(lines, inputs, options)[0].text
        return [hypotheses[0].text for hypotheses in self.translate_nbest(lines, inputs, options)]

    @overload
    def translate_nbest(self, lines: str, inputs: LineInputs | None = None,  # type: ignore[overload-overlap]
                        options: LineOptions | None = None) -> Translation: ...

    @overload
    def translate_nbest(self, lines: Iterable[str | LineRequest], inputs: Iterable[LineInputs] | None = None,
                        options: Iterable[LineOptions] | None = None) -> list[Translation]: ...

    def translate_nbest(self, lines: str | Iterable[str | LineRequest], inputs: Any = None,
                        options: Any = None) -> Translation | list[Translation]:
        """Return up to n_best translations with scores, best first, of each line or of one sentence.

        Args:
            lines: see `translate`.
            inputs: see `translate`.
            options: see `translate`.
        """
        if isinstance(lines, str):
            return next(self.translate_stream([lines], inputs=None if inputs is None else [inputs],
                                              options=None if options is None else [options]))
        return list(self.translate_stream(lines, inputs=inputs, options=options))

    def translate_stream(self, lines: Iterable[str | bytes | LineRequest], name: str = "input",
                         inputs: Iterable[LineInputs] | None = None, options: Iterable[LineOptions] | None = None,
                         first: int = 1) -> Iterator[Translation]:
        """Yield the translations of each line as `translate_nbest` does.

        Lines are read in windows of `stream.window`. All translations of a window are yielded before the next one is
        read.

        Args:
            lines: text, bytes in UTF-8 (invalid bytes become U+FFFD, with a warning), or requests.
            name: name of the input, for warnings.
            inputs: inputs of each line by name that the model or the processors declare in addition to `source` and
                `source_length`: arrays without the batch dimension. Those of a batch are padded with 0.
            options: options of each line, which those of a request override. Only lines with the same kinds of options
                share a batch.
            first: number of the first line, for warnings.

        Raises:
            DataError: the number of inputs or options differs from that of lines, or an option of a line is not valid.
            SettingsError: an input is missing or unknown, both inputs and options are specified, `lines` is one text,
                or the process was forked from that of the translator.
        """
        if isinstance(lines, (str, bytes)):
            raise SettingsError("translate_stream takes lines, not one text: pass [text], or use translate(text).")
        if inputs is not None:
            if options is not None:
                raise SettingsError("Pass inputs or options, not both: LineOptions(inputs=...) has both.")
            options = (LineOptions(inputs=arrays) for arrays in inputs)
        requests = self.requests(lines, name, first, options)
        sources: Iterable[str] = ()
        if self._reranker is not None:
            requests, copies = tee(map(self._with_all_hypotheses, requests))
            sources = (request.prefixed_text for request in copies)
        search = self.current_search()

        dividing = search if isinstance(search, DividingSearch) else None
        parts = 0 if dividing is None else parts_of(self.stream.window)

        def translate(requests: Iterable[LineRequest], *, again: bool) -> Iterator[Translation]:
            chosen = dividing.among_others() if dividing is not None and again and parts > 1 else dividing
            used_search = search if chosen is None else chosen
            searches = Searches(used_search.with_settings, True, bool(self.retry), *(
                () if chosen is None else (
                    # Unknown words are replaced by attention, also those of lines without details.
                    chosen.is_undivided, chosen.without_details if self._unknown is None else None)))
            translations = translate_stream(
                used_search, self.source_vocabulary, self.target_vocabulary, requests, self.stream,
                "" if again else name, self._encoder, searches, first)
            return translations if self._unknown is None else map(self._unknown.replace, translations)

        translations = self._special_lines.translated(requests, translate, self.stream.window, parts)
        if self._reranker is not None:
            translations = reranked(translations, self._reranker, sources, WINDOW, name, self.stream.window)
        return counted(translations, name, first, self.faults, self.fault_advice)

    def current_search(self) -> Search:
        """Return the search for a stream that begins now."""
        return self._search

    def requests(self, lines: Iterable[str | bytes | LineRequest], name: str, first: int,
                 options: Iterable[LineOptions] | None) -> Iterator[LineRequest]:
        """Yield the request of each line; arguments as for `translate_stream`. Subclasses can check the options.

        Raises:
            DataError: the number of options differs from that of lines.
        """
        return line_requests(lines, name, first, options, self._options)

    def _with_all_hypotheses(self, request: LineRequest) -> LineRequest:
        """Return a request for all hypotheses, since a reranker needs more than the line requests.

        A line may request more hypotheses than the search has.
        """
        n_best = request.options.n_best
        if n_best == self._options.n_best or n_best is not None and n_best > self.search.n_best:
            return request
        options = dataclasses.replace(request.options, n_best=self._options.n_best)
        return dataclasses.replace(request, options=options)


def search_settings(saved: SearchSettings, beam_size: int | None, n_best: int | None,
                    others: dict[str, Any]) -> SearchSettings:
    """Return the search settings of a run, with the specified fields replaced.

    Args:
        saved: settings of the run.
        beam_size: None for the beam size of the run, or n_best if that is larger.
        n_best: number of translations; None for 1.
        others: other fields.
    """
    if beam_size is None:
        beam_size = max(saved.beam_size, n_best or 1)
    return dataclasses.replace(saved, beam_size=beam_size, n_best=1 if n_best is None else n_best, **others)


def languages_of(run: SavedRun) -> tuple[str, str]:
    """Return the ISO 639-1 codes of source and target that a package or the settings of a run contain, or ""."""
    package_languages = run.languages if isinstance(run, PackagedRun) else None
    if package_languages is None:
        settings = run.saved_settings() if run.exists() else {}
        source, _, target = str(settings.get("data.modifier_languages", "")).partition("-")
        return source, target
    return written_language(package_languages[0]), written_language(package_languages[1])


def with_default_prefix(options: LineOptions, prefix: str) -> LineOptions:
    """Return the options of all lines, with the source prefix of a package unless they have their own."""
    return dataclasses.replace(options, source_prefix=prefix) if prefix and not options.source_prefix else options
