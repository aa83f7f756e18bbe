"""Encode the requests of lines: prefixes and phrases as token ids, and the changed settings of the search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.clean_text import clean, one_line
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, UNK, Vocabulary
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE
from towernmt.dataflow.vocabulary.source_factors import FactorError
from towernmt.predict.lines.batch_inputs import LinePiece
from towernmt.predict.lines.hypotheses import words_of_line
from towernmt.predict.lines.line_options import PLAIN, LineOptions, LineRequest
from towernmt.predict.lines.terminology import AnchoredPhrase, Term, Terminology, WritableTerms, phrase_ids
from towernmt.predict.lines.words_of_lines import Cut
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.surfaces import WORD_BREAK, Surfaces

SEGMENTATIONS = 20
"""Maximum number of segmentations of an avoided phrase that are excluded, shortest first."""
LONGEST_PHRASE = 1_000
"""Maximum number of characters of an avoided phrase, and of a partial word: no translation has longer ones."""
_REMEMBERED = 10_000    # phrases: each line of a long input may avoid different ones


class TargetText:
    """Converter of target text to ids for the inputs of the search."""

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
            complete_words, _, partial_word = (text, "", "") if options.prefix[-1:].isspace() else text.rpartition(" ")
            table = (self._surfaces.continuations(partial_word, first=not complete_words)
                     if len(partial_word) <= LONGEST_PHRASE else None)
            if table is not None:
                return {"prefix": self._writable_ids(complete_words), "continuation": table}
        return {"prefix": self._writable_ids(text)}

    def avoid(self, options: LineOptions) -> dict[str, Any]:
        """Return `avoid`, the ids of the phrases to avoid.

        Raises:
            SettingsError: a phrase is too long, or has anchors but no words.
        """
        segmentations = [ids for phrase in options.avoid for ids in self._ways_to_write(phrase)]
        return {"avoid": padded(segmentations)} if segmentations else {}

    def constraints(self, options: LineOptions) -> tuple[dict[str, Any], list[list[int]], list[list[int]]]:
        """Return the inputs and ids of the lexical constraints.

        Returns:
            the inputs of the phrase at the beginning (`prefix`), in place of those of a shorter `options.prefix`;
            the ids of the phrases anywhere; the ids of those at the end, with EOS.

        Raises:
            SettingsError: a phrase is empty, the vocabulary cannot write it, or two of them exclude each other.
        """
        phrases = [AnchoredPhrase.of(phrase) for phrase in options.constraints]
        beginnings = list(dict.fromkeys(phrase for phrase in phrases if phrase.at_beginning))
        ends = list(dict.fromkeys(phrase for phrase in phrases if phrase.at_end and not phrase.at_beginning))
        inner_phrases = [phrase for phrase in phrases if not phrase.at_beginning and not phrase.at_end]
        ids = {phrase: phrase_ids(phrase.text, self._vocabulary) for phrase in (*beginnings, *ends, *inner_phrases)}
        inputs: dict[str, Any] = {}
        if beginnings:
            beginning = max(beginnings, key=lambda phrase: (len(phrase.text), phrase.at_end))
            prefix = clean(options.prefix)
            for phrase in beginnings:
                is_different = phrase.at_end and phrase.text != beginning.text
                if is_different or not beginning.text.startswith(phrase.text):
                    raise _excluded(f"<s> {beginning.text}", f"<s> {phrase.text}")
            if beginning.text.startswith(prefix):
                prefix_ids = [*self._vocabulary.encode(beginning.text), *([EOS] if beginning.at_end else [])]
                inputs = {"prefix": np.array(prefix_ids, np.int32)}
            elif beginning.at_end or not prefix.startswith(beginning.text):
                raise SettingsError(f"the prefix '{prefix}' and the phrase '<s> {beginning.text}' exclude each other: "
                                    "leave one of them out.")
            if beginning.at_end:
                for phrase in (*ends, *inner_phrases):
                    if not (beginning.text.endswith(phrase.text) if phrase.at_end else phrase.text in beginning.text):
                        raise _excluded(f"<s> {beginning.text} </s>", phrase.text)
                return inputs, [], []
        for phrase in ends:
            longest_end = max((end.text for end in ends), key=len)
            if not longest_end.endswith(phrase.text):
                raise _excluded(f"{longest_end} </s>", f"{phrase.text} </s>")
        return inputs, [ids[phrase] for phrase in inner_phrases], [[*ids[phrase], EOS] for phrase in ends]

    def _writable_ids(self, prefix: str) -> np.ndarray:
        ids = self._vocabulary.encode(prefix)
        if self._vocabulary.unk_id in ids:
            raise SettingsError(f"the prefix '{prefix}' contains text that the target vocabulary does not know, so no "
                                "translation can begin with it: write it in other characters or words.")
        return np.array(ids, np.int32)

    def _ways_to_write(self, phrase: str) -> list[list[int]]:
        """Return several segmentations of the forms of a phrase; none if the vocabulary cannot write it."""
        ways = self._avoided.get(phrase)
        if ways is None:
            if len(phrase) > LONGEST_PHRASE:
                raise SettingsError(f"the phrase to avoid '{phrase[:40]}...' has {len(phrase)} characters: write at "
                                    f"most {LONGEST_PHRASE}.")
            text, at_beginning, at_end = AnchoredPhrase.of(phrase)
            forms = [text] if text != text.lower() else list(dict.fromkeys([text, text[:1].upper() + text[1:]]))
            ways = [[*([BOS] if at_beginning else []), *ids, *([EOS] if at_end else [])]
                    for form in forms if form for ids in self._segmentations(form, at_beginning)]
            if len(self._avoided) >= _REMEMBERED:
                self._avoided.clear()
            self._avoided[phrase] = ways
        return ways

    def _segmentations(self, text: str, at_beginning: bool) -> list[list[int]]:
        surfaces = self._surfaces
        best_ids = self._vocabulary.encode(text)
        ways = [best_ids, *surfaces.segmentations(text, True, SEGMENTATIONS)]
        if not at_beginning and surfaces.marks_before:
            ways += [[WORD_BREAK, *ids] for ids in surfaces.segmentations(text, False, SEGMENTATIONS)]
        elif not at_beginning and self._vocabulary.kind == "bpe-codes":
            ways = [[WORD_BREAK, *ids] for ids in ways]
        return [list(ids) for ids in dict.fromkeys(map(tuple, ways)) if UNK not in ids and ids]


def _excluded(phrase: str, other_phrase: str) -> SettingsError:
    return SettingsError(f"the phrases '{phrase}' and '{other_phrase}' exclude each other: leave one of them out.")


def is_one_token(word: str, vocabulary: Vocabulary) -> bool:
    """Return whether a vocabulary has a word as one token; a token for the space before it is not counted."""
    ids = vocabulary.encode(word)
    return vocabulary.unk_id not in ids and sum(vocabulary.id_to_piece(id).strip(SPACE) != "" for id in ids) == 1


INPUTS: Sequence[Callable[[TargetText, LineOptions], Mapping[str, Any]]] = [TargetText.prefix, TargetText.avoid]
"""Functions from options to inputs by name. An unused option has no input. See also `batch_inputs.py`."""


def padded(rows: Iterable[Sequence[int]]) -> np.ndarray:
    """Return lists of ids as int32 `[rows, longest]`, padded with PAD."""
    id_lists = list(rows)
    array = np.full([len(id_lists), max(map(len, id_lists), default=0)], PAD, np.int32)
    for row, ids in zip(array, id_lists, strict=True):
        row[:len(ids)] = ids
    return array


class RequestEncoder:
    """Encoder of line requests as pieces with inputs of the search.

    Several threads can use it. It caches the last options, so threads with different options should have separate
    encoders.

    Args:
        search: search settings of lines without options.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.

    Attributes:
        search: see the arguments.
    """

    def __init__(self, search: SearchSettings, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary) -> None:
        self.search, self._source, self._vocabulary = search, source_vocabulary, target_vocabulary
        self._text = TargetText(target_vocabulary)
        self._terms: WritableTerms | None = None
        self._last_encoded: tuple[LineOptions, _EncodedOptions] | None = None

    def check(self, options: LineOptions) -> None:
        """Check whether a line can have these options.

        Raises:
            SettingsError: a vocabulary cannot write a prefix or a phrase, or a search setting is invalid.
            DataError: the vocabulary cannot write a term of the terminology.
        """
        self._encode(options)

    def source_prefix(self, options: LineOptions) -> Sequence[Any]:
        """Return the source ids of `LineOptions.source_prefix`; with several streams, tuples of ids.

        Raises:
            SettingsError, DataError: see `check`.
        """
        return self._encode(options).source_prefix if options.source_prefix else ()

    def written(self, text: str) -> str:
        """Return a text as the target vocabulary writes it, which may have other forms of letters."""
        return one_line(self._vocabulary.decode(self._vocabulary.encode(text)))

    def divided_tags(self, options: LineOptions) -> list[str]:
        """Return the tags of the source prefix that the source vocabulary divides into several tokens.

        `towernmt prepare` makes each tag of a `corpora.yaml` a single token, so the model was not trained with these
        tags. A word of letters is not a tag.
        """
        if self._source.streams > 1:
            return []
        tags = [word for word in clean(options.source_prefix).split() if not word.isalpha()]
        return [tag for tag in tags if not is_one_token(tag, self._source)]

    def pieces(self, request: LineRequest, cuts: Sequence[Cut]) -> list[LinePiece]:
        """Return the pieces of a line. A line has one piece unless it is too long for the model.

        The first piece has the constraints of the line, the last piece those at the end, and each piece its own terms
        and the source prefix.

        Args:
            request: request of the line.
            cuts: pieces of the text; with several streams, their ids are tuples.

        Raises:
            SettingsError, DataError: see `check`.
        """
        if request.options is PLAIN or request.options == PLAIN:
            return [LinePiece(tuple(cut.ids)) for cut in cuts]
        inputs, search, (beginning, anywhere, at_end), terms, source_prefix = self._encode(request.options)
        is_complete = bool(beginning) and beginning["prefix"][-1] == EOS
        pieces = []
        for index, cut in enumerate(cuts):
            piece_inputs, phrases = dict(inputs), []
            if index == 0:
                phrases += anywhere
                if beginning:
                    piece_inputs.pop("continuation", None)
                    piece_inputs |= beginning
            elif not request.options.prefix_every_piece:
                piece_inputs = {name: value for name, value in inputs.items() if name not in ("prefix", "continuation")}
            if index == len(cuts) - 1:
                phrases += at_end
            terms_and_ids: list[tuple[Term, list[int]]] = []
            if terms is not None and not (index == 0 and is_complete):      # no term can be added to a complete text
                terms_and_ids = terms.terms_in(self._source.decode(cut.ids) if cut.is_divided
                                               else " ".join(words_of_line(self._source, cut.text)))
            phrases += [term_ids for _, term_ids in terms_and_ids if term_ids not in phrases]
            if phrases:
                piece_inputs["constraints"] = padded(phrases)
            pieces.append(LinePiece.of((*source_prefix, *cut.ids), piece_inputs, search,
                                       [term for term, _ in terms_and_ids], request.options.details,
                                       len(source_prefix)))
        return pieces

    def _encode(self, options: LineOptions) -> _EncodedOptions:
        """Return the encoded options. Those of the last call are cached, since many lines have the same options."""
        last = self._last_encoded       # another thread may replace it at any time
        if last is None or last[0] is not options:
            if options.protect and self._source.streams > 1:
                raise SettingsError(f"protect={list(options.protect)} has no effect, because the source words of the "
                                    "model have factors: leave it out.")
            inputs = dict(options.inputs)
            for encode in INPUTS:
                inputs.update(encode(self._text, options))
            terms, changed = self._writable_terms(options.terminology), self._changed_settings(options)
            constraints = self._text.constraints(options)
            if any(constraints[1:]) or terms is not None and terms.terminology.terms:
                dataclasses.replace(self.search, **changed).check_lexical_constraints()
            self._last_encoded = last = options, _EncodedOptions(
                inputs, changed, constraints, terms, self._prefix_ids(clean(options.source_prefix)))
        return last[1]

    def _prefix_ids(self, prefix: str) -> tuple[Any, ...]:
        try:
            ids = self._source.encode(prefix)
        except FactorError as error:
            raise SettingsError(f"the source prefix '{prefix}': {error.reason}") from None
        if UNK in np.ravel(ids):
            raise SettingsError(f"the source prefix '{prefix}' has a word that the source vocabulary does not know, so "
                                "the model was not trained with it: write the tag of its training text.")
        return tuple(ids)

    def _changed_settings(self, options: LineOptions) -> dict[str, Any]:
        """Return the search settings of a line that differ from those of lines without options."""
        search = dict(options.search)
        if options.n_best is not None and options.n_best > self.search.n_best:
            beam = search.get("beam_size", self.search.beam_size)
            search |= {"n_best": options.n_best, "beam_size": max(beam, options.n_best)}
        search = {name: value for name, value in search.items() if value != getattr(self.search, name)}
        if search:
            dataclasses.replace(self.search, **search)      # raises an error if they exclude each other
        return search

    def _writable_terms(self, terminology: Terminology | None) -> WritableTerms | None:
        """Return the terms as ids; they are checked once and cached."""
        if terminology is None:
            return None
        terms = self._terms
        if terms is None or terms.terminology is not terminology:
            self._terms = terms = WritableTerms(terminology, self._vocabulary)
        return terms


class _EncodedOptions(NamedTuple):
    """Encoded options of a line.

    Attributes:
        inputs: inputs of the search by name, without those of the constraints.
        search: changed search settings.
        constraints: inputs and ids of the lexical constraints from `TargetText.constraints`.
        terms: terms of the terminology, or None.
        source_prefix: ids of the source prefix; with several streams, tuples of ids.
    """

    inputs: dict[str, Any]
    search: dict[str, Any]
    constraints: tuple[dict[str, Any], list[list[int]], list[list[int]]]
    terms: WritableTerms | None
    source_prefix: tuple[Any, ...]
