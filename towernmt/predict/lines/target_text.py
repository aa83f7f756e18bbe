"""From text of the target language to the inputs of a search: prefixes, and phrases in all the ways to write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, UNK, Vocabulary
from towernmt.predict.lexical.phrases import phrase_ids
from towernmt.predict.lines.options import LineOptions
from towernmt.predict.lines.surfaces import Surfaces

SEGMENTATIONS = 20
"""So many ways to cut an avoided phrase into tokens are avoided, those of the fewest tokens first."""
_REMEMBERED = 10_000    # phrases: a long input may avoid others in each line
_WORD_BREAK = -1  # as the processor has it


class TargetText:
    """From text of the target language to ids, as inputs of the search have them.

    Args:
        vocabulary: of the target.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary, self._surfaces = vocabulary, Surfaces(vocabulary)
        self._avoided: dict[str, list[list[int]]] = {}

    def prefix(self, options: LineOptions) -> dict[str, Any]:
        """`prefix`, the ids of the whole words; and `continuation`, where a word begins that is not whole."""
        if not options.prefix:
            return {}
        text = clean(options.prefix)
        if options.partial_word:
            whole, _, part = (text, "", "") if options.prefix[-1:].isspace() else text.rpartition(" ")
            table = self._surfaces.going_on_with(part, first=not whole)
            if table is not None:
                return {"prefix": self._ids(whole), "continuation": table}
        return {"prefix": self._ids(text)}

    def avoid(self, options: LineOptions) -> dict[str, Any]:
        """`avoid`, the ids of the phrases."""
        found = [ids for phrase in options.avoid for ids in self._ways_to_write(phrase)]
        return {"avoid": padded(found)} if found else {}

    def phrase(self, text: str) -> list[int]:
        """The ids of a phrase that must come.

        Raises:
            SettingsError: it is empty, or the vocabulary cannot write it.
        """
        return phrase_ids(text, self._vocabulary)

    def _ids(self, text: str) -> np.ndarray:
        return np.array(self._vocabulary.encode(text), np.int32)

    def _ways_to_write(self, phrase: str) -> list[list[int]]:
        """The ids of a phrase in its forms, each cut in several ways; none where the vocabulary cannot write it."""
        ways = self._avoided.get(phrase)
        if ways is None:
            words = clean(phrase).split(" ")
            first, last = words[0] == "<s>", words[-1] == "</s>"
            text = " ".join(words[first:len(words) - last])
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


INPUTS: Sequence[Callable[[TargetText, LineOptions], Mapping[str, Any]]] = [TargetText.prefix, TargetText.avoid]
"""What turns options into inputs by name; what a line does not ask for has no input. See also
`decoding/line_inputs.py`."""


def padded(rows: Iterable[Sequence[int]]) -> np.ndarray:
    """Lists of ids as int32 `[rows, longest]`, padded with PAD."""
    given = list(rows)
    array = np.full([len(given), max(map(len, given), default=0)], PAD, np.int32)
    for place, ids in zip(array, given, strict=True):
        place[:len(ids)] = ids
    return array
