"""From what lines request to the terms of a search: prefixes and phrases as token ids, and the options of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from towernmt.checkpoint.checkpoint_reader import HeldCheckpoint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.text_lines import clean
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, UNK, Vocabulary
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.lines.batch_inputs import NOTHING, SearchRequest
from towernmt.predict.lines.hypotheses import Found
from towernmt.predict.lines.line_options import PLAIN, LineOptions
from towernmt.predict.lines.terminology import Anchored, Terminology, WritableTerms, phrase_ids
from towernmt.predict.search.search_settings import EnsembleSettings, SearchSettings
from towernmt.predict.search.surfaces import Surfaces

if TYPE_CHECKING:
    from towernmt.predict.search.decoding_interfaces import LogitsProcessor

SEGMENTATIONS = 20
"""Maximum number of segmentations of an avoided phrase that are excluded, shortest first."""
_REMEMBERED = 10_000    # phrases: each line of a long input may avoid different ones
_WORD_BREAK = -1  # as in the processor


class TargetText:
    """Converter of target text to ids for the inputs of the search.

    Args:
        vocabulary: target vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary, self._surfaces = vocabulary, Surfaces(vocabulary)
        self._avoided: dict[str, list[list[int]]] = {}

    def prefix(self, options: LineOptions) -> dict[str, Any]:
        """Return `prefix`, the ids of complete words, and `continuation` for a partial last word.

        Raises:
            SettingsError: the vocabulary cannot write the prefix.
        """
        if not options.prefix:
            return {}
        text = clean(options.prefix)
        if options.partial_word:
            whole, _, part = (text, "", "") if options.prefix[-1:].isspace() else text.rpartition(" ")
            table = self._surfaces.going_on_with(part, first=not whole)
            if table is not None:
                return {"prefix": self._writable_ids(whole), "continuation": table}
        return {"prefix": self._writable_ids(text)}

    def avoid(self, options: LineOptions) -> dict[str, Any]:
        """Return `avoid`, the ids of the phrases to avoid."""
        found = [ids for phrase in options.avoid for ids in self._ways_to_write(phrase)]
        return {"avoid": padded(found)} if found else {}

    def constraints(self, options: LineOptions) -> tuple[dict[str, Any], list[list[int]], list[list[int]]]:
        """Return the inputs and ids of the lexical constraints.

        Returns:
            the inputs of the phrase at the beginning (`prefix`), in place of those of a shorter `options.prefix`;
            the ids of the phrases anywhere; the ids of those at the end, with EOS.
        Raises:
            SettingsError: a phrase is empty, the vocabulary cannot write it, or two of them exclude each other.
        """
        phrases = [Anchored.of(phrase) for phrase in options.constraints]
        begins = list(dict.fromkeys(phrase for phrase in phrases if phrase.at_beginning))
        ends = list(dict.fromkeys(phrase for phrase in phrases if phrase.at_end and not phrase.at_beginning))
        others = [phrase for phrase in phrases if not phrase.at_beginning and not phrase.at_end]
        ids = {phrase: phrase_ids(phrase.text, self._vocabulary) for phrase in (*begins, *ends, *others)}
        inputs: dict[str, Any] = {}
        if begins:
            longest = max(begins, key=lambda phrase: (len(phrase.text), phrase.at_end))
            given = clean(options.prefix)
            for phrase in begins:
                whole = phrase.at_end and phrase.text != longest.text
                if whole or not longest.text.startswith(phrase.text):
                    raise _excluded(f"<s> {longest.text}", f"<s> {phrase.text}")
            if longest.text.startswith(given):
                whole_ids = [*self._vocabulary.encode(longest.text), *([EOS] if longest.at_end else [])]
                inputs = {"prefix": np.array(whole_ids, np.int32)}
            elif longest.at_end or not given.startswith(longest.text):
                raise SettingsError(f"the prefix '{given}' and the phrase '<s> {longest.text}' exclude each other: "
                                    "leave one of them out.")
            if longest.at_end:
                for phrase in (*ends, *others):
                    if not (longest.text.endswith(phrase.text) if phrase.at_end else phrase.text in longest.text):
                        raise _excluded(f"<s> {longest.text} </s>", phrase.text)
                return inputs, [], []
        for phrase in ends:
            longest_end = max((one.text for one in ends), key=len)
            if not longest_end.endswith(phrase.text):
                raise _excluded(f"{longest_end} </s>", f"{phrase.text} </s>")
        return inputs, [ids[phrase] for phrase in others], [[*ids[phrase], EOS] for phrase in ends]

    def _writable_ids(self, prefix: str) -> np.ndarray:
        ids = self._vocabulary.encode(prefix)
        if self._vocabulary.unk_id in ids:
            raise SettingsError(f"the prefix '{prefix}' holds what the target vocabulary does not know, so no "
                                "translation can begin with it: write it in other characters or words.")
        return np.array(ids, np.int32)

    def _ways_to_write(self, phrase: str) -> list[list[int]]:
        """The ids of a phrase in its forms, each cut in several ways; none where the vocabulary cannot write it."""
        ways = self._avoided.get(phrase)
        if ways is None:
            text, first, last = Anchored.of(phrase)
            forms = [text] if text != text.lower() else list(dict.fromkeys([text, text[:1].upper() + text[1:]]))
            ways = [[*([BOS] if first else []), *ids, *([EOS] if last else [])]
                    for form in forms if form for ids in self._segmentations(form, first)]
            if len(self._avoided) >= _REMEMBERED:
                self._avoided.clear()
            self._avoided[phrase] = ways
        return ways

    def _segmentations(self, text: str, first: bool) -> list[list[int]]:
        surfaces = self._surfaces
        best = self._vocabulary.encode(text)
        ways = [best, *surfaces.segmentations(text, True, SEGMENTATIONS)]
        if not first and surfaces.marks_before:
            ways += [[_WORD_BREAK, *ids] for ids in surfaces.segmentations(text, False, SEGMENTATIONS)]
        elif not first and self._vocabulary.kind == "bpe-codes":
            ways = [[_WORD_BREAK, *ids] for ids in ways]
        return [list(ids) for ids in dict.fromkeys(map(tuple, ways)) if UNK not in ids and ids]


def _excluded(one: str, other: str) -> SettingsError:
    return SettingsError(f"the phrases '{one}' and '{other}' exclude each other: leave one of them out.")


INPUTS: Sequence[Callable[[TargetText, LineOptions], Mapping[str, Any]]] = [TargetText.prefix, TargetText.avoid]
"""Functions from options to inputs by name. An unused option has no input. See also `batch_inputs.py`."""


def padded(rows: Iterable[Sequence[int]]) -> np.ndarray:
    """Return lists of ids as int32 `[rows, longest]`, padded with PAD."""
    given = list(rows)
    array = np.full([len(given), max(map(len, given), default=0)], PAD, np.int32)
    for place, ids in zip(array, given, strict=True):
        place[:len(ids)] = ids
    return array


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
    checkpoints: Sequence[str | HeldCheckpoint | None]
    models: Sequence[Any]
    ensemble: EnsembleSettings | None
    device: str | None
    search: SearchSettings
    processors: Sequence[LogitsProcessor]
    log_probs: bool
    attention: bool
    threads: int = 1
    precision: str = PRECISIONS[0]


class SearchTowers(Protocol):
    """Interface of the towers that translate batches.

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

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch of named inputs."""

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """Return a function that translates with some search settings changed."""


class Requests:
    """Converter of line options to requests of a search.

    Args:
        search: search settings of plain lines.
        vocabulary: target vocabulary.
        options: options of all lines.
    """

    def __init__(self, search: SearchSettings, vocabulary: Vocabulary, options: LineOptions = PLAIN) -> None:
        self._search, self._text, self._options = search, TargetText(vocabulary), options
        self._vocabulary = vocabulary
        self._terms: WritableTerms | None = None
        self._terms_of(options.terminology)

    def of_lines(self, options: Iterable[LineOptions] | None, name: str,
                 first: int = 1) -> Iterable[SearchRequest] | SearchRequest:
        """Return the request of each line, or one request if all lines have the same.

        Args:
            options: options of each line; None if all lines have those of the translator.
            name: name of the input, for errors.
            first: number of the first line.
        """
        return self.asked(PLAIN) if options is None else self._each(options, name, first)

    def asked(self, options: LineOptions) -> SearchRequest:
        """Return the search request of a line.

        Raises:
            SettingsError: a search setting is invalid.
        """
        options = options.over(self._options)
        if options == PLAIN:
            return NOTHING
        inputs = dict(options.inputs)
        for make in INPUTS:
            inputs.update(make(self._text, options))
        terms = self._terms_of(options.terminology)
        search = dict(options.search)
        if options.n_best is not None and options.n_best > self._search.n_best:
            beam = search.get("beam_size", self._search.beam_size)
            search = {**search, "n_best": options.n_best, "beam_size": max(beam, options.n_best)}
        search = {name: value for name, value in search.items() if value != getattr(self._search, name)}
        dataclasses.replace(self._search, **search)
        asked = SearchRequest(inputs, search, options.n_best)
        if not options.constraints and terms is None and options.prefix_every_piece:
            return asked
        phrases = self._text.constraints(options)
        of_first = () if options.prefix_every_piece else ("prefix", "continuation")
        return asked._replace(of_piece=partial(_of_piece, asked, of_first, phrases, terms))

    def _terms_of(self, terminology: Terminology | None) -> WritableTerms | None:
        """Return the terms as ids; they are checked once and cached."""
        if terminology is None:
            return None
        if self._terms is None or self._terms.terminology is not terminology:
            self._terms = WritableTerms(terminology, self._vocabulary)
        return self._terms

    def _each(self, options: Iterable[LineOptions], name: str, first: int) -> Iterator[SearchRequest]:
        for number, given in enumerate(options, start=first):
            try:
                yield self.asked(given)
            except SettingsError as error:
                raise DataError(f"{name} line {number}: {error}") from None


def _of_piece(asked: SearchRequest, of_first: Sequence[str],
              phrases: tuple[dict[str, Any], Sequence[Sequence[int]], Sequence[Sequence[int]]],
              terms: WritableTerms | None, text: str, place: int, is_last: bool) -> SearchRequest:
    """Return the request of a piece of a line.

    The first piece has the constraints of the line, the last piece those at the end, and each piece its own terms.

    Args:
        asked: request of the line.
        of_first: inputs that only the first piece has.
        phrases: constraints of the line from `TargetText.constraints`.
        terms: terms of the terminology, or None.
        text: text of the piece.
        place: index of the piece in the line.
        is_last: whether the piece is the last one.
    """
    beginning, anywhere, at_end = phrases
    wanted = [list(phrase) for phrase in (*(anywhere if place == 0 else ()), *(at_end if is_last else ()))]
    found = [] if terms is None else terms.found(text)
    if place == 0 and beginning and beginning["prefix"][-1] == EOS:     # the whole translation: no term can be added
        found = []
    wanted += [ids for term, ids in found if ids not in wanted]
    inputs = {name: value for name, value in asked.inputs.items() if place == 0 or name not in of_first}
    if beginning and place == 0:
        inputs = {name: value for name, value in inputs.items() if name != "continuation"} | beginning
    inputs |= {"constraints": padded(wanted)} if wanted else {}
    return asked._replace(inputs=inputs, terms=[term for term, _ in found], of_piece=None)
