"""Divide segments into sentences, each with the text that the model sees and the marks inside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.language_codes import written_language
from towernmt.dataflow.text.word_segmentation import is_unspaced
from towernmt.documents.protection import ShieldedWithMarks, protected
from towernmt.documents.segments import Atom, Mark, Segment, Shielded, Tag, runs_by_kind
from towernmt.documents.shields import (
    EVERYTHING,
    Attached,
    Protection,
    find_placeholders,
    make_placeholders,
    placeholder_pattern,
)

Gap = list[str | Tag]
"""White space and marks between two atoms."""
_CLOSING = (".", ",", ";", ":", "!", "?", "…", ")", "]", "}")
"""Signs that have no space before them in most languages."""


@dataclass(frozen=True)
class SourceSentence:
    """A sentence of a segment.

    Attributes:
        atoms: the atoms of the sentence.
        gaps: white space and marks before each atom and after the last one. A mark between two sentences belongs to the
            sentence that contains its partner.
        known_words: names and numbers that the model copies, for placeholders.
    """

    atoms: Sequence[Atom]
    gaps: Sequence[Gap]
    known_words: Sequence[str] = ()

    @cached_property
    def spaces(self) -> list[bool]:
        """For each atom, whether the model sees a space before it; False for the first one."""
        return [False, *(_has_space(before, gap, atom)
                         for before, gap, atom in zip(self.atoms, self.gaps[1:], self.atoms[1:], strict=False))]

    @cached_property
    def names(self) -> dict[str, int]:
        """The placeholders, with the indices of their shielded atoms."""
        text = " ".join(atom.text for atom in self.atoms if atom.shield is None)
        shielded = [index for index, atom in enumerate(self.atoms) if atom.shield is not None]
        placeholders = make_placeholders([self.atoms[index].text for index in shielded], text, self.known_words)
        return dict(zip(placeholders, shielded, strict=True))

    def placeholders_in(self, text: str) -> list[tuple[int, int, int]]:
        """Return the index of the shielded atom, start and end of each placeholder in a translation."""
        return find_placeholders(self.names, self._placeholder_pattern, text)

    @cached_property
    def _placeholder_pattern(self) -> re.Pattern[str]:
        return placeholder_pattern(self.names)

    @cached_property
    def seen(self) -> list[str]:
        """The text or placeholder that the model sees for each atom."""
        names = iter(self.names)
        return [atom.text if atom.shield is None else next(names) for atom in self.atoms]

    @cached_property
    def text(self) -> str:
        """The sentence as the model sees it: plain text, with placeholders for shielded words.

        The text of a sentence with marks is cleaned if that changes the number of words. Otherwise, engines would
        number the words of their alignments differently.
        """
        words = self._joined(self.seen)
        text = " ".join(words)
        return text if self.is_plain or len(self.word_indices) == len(words) else clean(text)

    @cached_property
    def word_indices(self) -> list[int]:
        """The index in `words` of each word of the cleaned text.

        Cleaning removes words of invisible characters, and divides ligatures such as U+FDFA into several words.
        """
        return [index for index, word in enumerate(self._joined(self.seen)) for _ in clean(word).split()]

    @cached_property
    def words(self) -> list[str]:
        """The words of the sentence, with shielded words instead of placeholders."""
        return self._joined([atom.text for atom in self.atoms])

    def _joined(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of the atoms, joined to words."""
        words: list[str] = []
        for space, text in zip(self.spaces, texts, strict=True):
            if space or not words:
                words.append("")
            words[-1] += text
        return words

    @cached_property
    def symbols(self) -> list[str]:
        """The symbols, and the signs next to words, that the model does not see."""
        return [item.mark.text for gap in self.gaps for item in gap
                if isinstance(item, Tag) and isinstance(item.mark, Attached)]

    @cached_property
    def shown(self) -> str:
        """The sentence as readers see it: with shielded words, symbols and single spaces."""
        shown = "".join(text for gap, atom in zip(self.gaps, [*self.atoms, None], strict=True)
                        for text in (*map(_shown, gap), "" if atom is None else atom.text))
        return " ".join(shown.split())

    @cached_property
    def is_plain(self) -> bool:
        """Whether the sentence consists of words, signs and single spaces only."""
        return not self.names and not any(gap and gap != [" "] for gap in self.gaps)

    @cached_property
    def is_unspaced(self) -> bool:
        """Whether the sentence is in a script without spaces between words."""
        return is_unspaced(self.text)


@dataclass(frozen=True)
class SplitSegment:
    """A segment, divided into sentences.

    Attributes:
        sentences: the sentences that contain words.
        between: the parts before, between and after the sentences, which are not translated.
        source: the segment.
    """

    sentences: list[SourceSentence]
    between: list[list[str | Mark | Shielded]]
    source: Segment


def split_segment(segment: Segment, language: str | None, protection: Protection = EVERYTHING,
                  known_words: Sequence[str] = ()) -> SplitSegment:
    """Divide a segment into sentences with the library `sentencex`.

    Args:
        segment: the segment.
        language: language of the text; None to treat the segment as one sentence.
        protection: the words and symbols to protect.
        known_words: names and numbers that the model copies, for placeholders.

    Raises:
        SettingsError: the library is not installed.
    """
    atoms, gaps = _atoms_and_gaps(segment, protection)
    result = SplitSegment([], [[]], segment)
    pairs = _gaps_of_pairs(gaps)
    consumed = 0        # number of items in the gap before a sentence that belong to the previous sentence
    for first, last in _ranges(atoms, gaps, language):
        sentence_atoms, before, after = atoms[first:last], gaps[first], gaps[last]
        if not any(atom.is_word and atom.shield is None for atom in sentence_atoms):
            for atom, gap in zip(sentence_atoms, [before, *gaps[first + 1:last]], strict=True):
                result.between[-1] += [*_as_parts(gap[consumed:]), atom.text if atom.shield is None else atom.shield]
                consumed = len(atom.shield.crossing) if isinstance(atom.shield, ShieldedWithMarks) else 0
            continue
        inside = range(first + 1, last)
        first_inside = next((index for index, item in enumerate(before) if isinstance(item, Tag)
                             and item.role == "open" and pairs[item.mark.key][1] in inside), len(before))
        end_inside = next((index for index in range(len(after), 0, -1) if isinstance(item := after[index - 1], Tag)
                           and item.role == "close" and pairs[item.mark.key][0] in inside), 0)
        result.between[-1].extend(_as_parts(before[consumed:first_inside]))
        sentence_gaps = [before[first_inside:], *gaps[first + 1:last], after[:end_inside]]
        result.sentences.append(SourceSentence(sentence_atoms, sentence_gaps, known_words))
        result.between.append([])
        consumed = end_inside
    result.between[-1].extend(_as_parts(gaps[-1][consumed:]))
    return result


def _gaps_of_pairs(gaps: Sequence[Gap]) -> dict[int, tuple[int, int]]:
    """Return the indices of the gaps in which each pair begins and ends, by key."""
    start_of: dict[int, int] = {}
    pairs = {}
    for index, gap in enumerate(gaps):
        for item in gap:
            if isinstance(item, Tag) and item.role == "open":
                start_of[item.mark.key] = index
            elif isinstance(item, Tag) and item.role == "close":
                pairs[item.mark.key] = start_of[item.mark.key], index
    return pairs


def _shown(item: str | Tag) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item.mark, Attached):
        return item.mark.text
    return " " if item.role == "single" else ""


def _as_parts(gap: Gap) -> Iterable[str | Mark]:
    return (item.mark if isinstance(item, Tag) else item for item in gap)


def _atoms_and_gaps(segment: Segment, protection: Protection) -> tuple[list[Atom], list[Gap]]:
    """Return the atoms, and the gaps before each and after the last one."""
    atoms: list[Atom] = []
    gaps: list[Gap] = [[]]

    def add(atom: Atom) -> None:
        atoms.append(atom)
        gaps.append([])

    for part in protected(_tagged(segment), protection):
        if isinstance(part, Tag):
            gaps[-1].append(part)
        elif isinstance(part, Shielded):
            add(Atom(part.text, True, part))
        else:
            for kind, piece in runs_by_kind(part):
                if kind == " ":
                    gaps[-1].append(piece)
                else:
                    add(Atom(piece, kind == "a"))
    return atoms, gaps


def _tagged(segment: Segment) -> list[str | Tag | Shielded]:
    """Return the parts, with the role of each mark."""
    tagged: list[str | Tag | Shielded] = []
    open_marks: list[tuple[int, int]] = []          # keys, and indices in `tagged`
    keys: set[int] = set()
    for part in segment:
        if not isinstance(part, Mark):
            tagged.append(part)
            continue
        tagged.append(Tag(part, "single" if part.kind == "single" else "lone"))
        if part.kind == "open" and part.key not in keys:
            open_marks.append((part.key, len(tagged) - 1))
            keys.add(part.key)
        elif part.kind == "close" and part.key in keys:
            key, index = open_marks.pop()
            keys.remove(key)
            while key != part.key:      # this pair was not closed, so it crosses the pair of `part`
                key, index = open_marks.pop()
                keys.remove(key)
            tagged[index] = Tag(tagged[index].mark, "open")   # type: ignore[union-attr]
            tagged[-1] = Tag(part, "close")
    return tagged


def _has_space(before: Atom, gap: Gap, after: Atom) -> bool:
    """Return whether the model sees a space between two atoms.

    It sees the spaces of the source, a space for a line break or an image between words or after a sign, and spaces
    around the placeholders of shielded words, which must not become parts of other words.
    """
    if any(isinstance(item, str) for item in gap):
        # In `a ☺.` the space belongs to the symbol.
        is_after_symbol = isinstance(item := gap[-1], Tag) and isinstance(item.mark, Attached)
        return not (is_after_symbol and after.text in _CLOSING)
    has_single_mark = any(isinstance(item, Tag) and item.role == "single" for item in gap)
    if not (before.is_word and after.is_word):
        return has_single_mark and after.is_word and before.text in _CLOSING
    return before.shield is not None or after.shield is not None or has_single_mark


def _ranges(atoms: Sequence[Atom], gaps: Sequence[Gap], language: str | None) -> list[tuple[int, int]]:
    """Return the start and end of each sentence, as indices of atoms."""
    if not atoms:
        return []
    if language is None:
        return [(0, len(atoms))]
    starts: list[int] = []
    pieces: list[str] = []
    length = 0
    for index, atom in enumerate(atoms):
        space = " " if index and _has_space(atoms[index - 1], gaps[index], atom) else ""
        written = space + (atom.text if atom.shield is None else "X1")      # `X.` would be an initial, as in `X. Mann`
        starts.append(length + len(space))
        length += len(written)
        pieces.append(written)
    sentences = sentences_of("".join(pieces), language)
    ranges, first, end = [], 0, 0
    for sentence in sentences:
        end += len(sentence)
        last = first
        while last < len(atoms) and starts[last] < end:
            last += 1
        if last > first:
            ranges.append((first, last))
        first = last
    return ranges


def sentences_of(text: str, language: str) -> list[str]:
    """Return the sentences of a text, each with the spaces after it.

    Args:
        text: the text.
        language: a code, such as `de` or `zh-CN`.

    Raises:
        SettingsError: the library `sentencex` is not installed.
    """
    try:
        from sentencex import segment  # type: ignore[import-untyped]
    except ImportError:
        raise SettingsError("Splitting text into sentences needs the package sentencex: install it with "
                            "`pip install 'towernmt[serve]'`.") from None
    found = list(segment(written_language(language), text))
    return found if "".join(found) == text else [text]
