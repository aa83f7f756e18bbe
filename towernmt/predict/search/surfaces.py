"""The text that each token of a target vocabulary writes, so that text can be matched across segmentations."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from towernmt.dataflow.text.word_segmentation import may_end_word
from towernmt.dataflow.vocabulary.base import BOS, SPECIAL_PIECES, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import SEPARATOR
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE

SPACE_MARK = b"\xff"
"""A space in the text of tokens. It is not a byte of UTF-8, so that no character contains it."""
WORD_BREAK = -1
"""First token of a phrase in the input `avoid`: matches any token after which a word may begin, and the beginning."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class _Segmentation(NamedTuple):
    """A segmentation of the end of a text; those of longer ends contain it.

    Attributes:
        length: number of its tokens.
        id: the first token.
        rest: the other tokens; None without tokens.
    """

    length: int = 0
    id: int = 0
    rest: _Segmentation | None = None

    def ids(self) -> list[int]:
        """Return the tokens."""
        ids, segmentation = [], self
        while segmentation.rest is not None:
            ids.append(segmentation.id)
            segmentation = segmentation.rest
        return ids


class Surfaces:
    """The text of tokens, as UTF-8.

    Args:
        vocabulary: target vocabulary. Only SentencePiece, BPE codes and words are supported; the tokens of other kinds
            have no text, and a text has only the segmentation of the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @property
    def _known(self) -> bool:
        """Whether the texts of the tokens are known."""
        return self.vocabulary.kind in ("sentencepiece", "bpe-codes", "word")

    @property
    def marks_before(self) -> bool:
        """Whether the mark of a space is before the word, not after it."""
        return self.vocabulary.kind == "sentencepiece"

    @cached_property
    def texts(self) -> list[bytes]:
        """Text of each id; empty for special ids."""
        count = self.vocabulary.size if self._known else 0
        return [b"" if id < len(SPECIAL_PIECES) else self._write(self.vocabulary.id_to_piece(id))
                for id in range(count)]

    @property
    def lengths(self) -> np.ndarray:
        """Number of bytes of each id, int32 `[size]`."""
        if not self._known:
            return np.zeros(self.vocabulary.size, np.int32)
        return np.array([len(text) for text in self.texts], np.int32)

    @property
    def breaks(self) -> np.ndarray:
        """Whether a word may begin after each id without a mark, bool `[size]`.

        BOS is the beginning of a text. With SentencePiece, a word may begin after a sign such as a bracket, and after
        each character of a script without spaces.
        """
        breaks = np.zeros(self.vocabulary.size, bool)
        breaks[BOS] = True
        for id, text in enumerate(self.texts):
            if self.marks_before:
                decoded = text.replace(SPACE_MARK, b" ").decode("utf-8", errors="ignore")     # drops parts of letters
                breaks[id] |= may_end_word(decoded)
            else:
                breaks[id] |= text.endswith(SPACE_MARK)
        return breaks

    def continuations(self, text: str, first: bool) -> np.ndarray | None:
        """Return the tokens that can write a word that begins with `text`.

        Args:
            text: beginning of a word, without spaces; empty for any word.
            first: whether the word is the first of the translation.

        Returns:
            int32 `[bytes, n]`, padded with 0: in row k, the tokens that can follow k written bytes (the mark of a space
            included) and from which `text` can be completed. None if no tokens can write it, or if any can.
        """
        goal = self._goal(text, first) if self.marks_before else text.encode()
        if not goal or not self._known:
            return None
        rows: list[list[int]] = []
        can_finish = [False] * len(goal) + [True]
        for start in reversed(range(len(goal))):
            candidates = [(id, start + length) for length in range(1, min(len(goal) - start, self._longest + 1))
                          for id in self._ids.get(goal[start:start + length], ())]
            ids = [id for id, end in candidates if can_finish[end]]
            if len(goal) - start <= self._longest:
                ids += self._beginning_with(goal[start:])
            can_finish[start] = bool(ids)
            rows.append(ids)
        if not can_finish[0]:
            return None
        table = np.zeros([len(goal), max(map(len, rows))], np.int32)
        for row, ids in zip(table, reversed(rows), strict=True):
            row[:len(ids)] = ids
        return table

    def segmentations(self, words: str, after_space: bool, limit: int) -> list[list[int]]:
        """Return the segmentations of complete words, shortest first.

        Args:
            words: text of the words, cleaned.
            after_space: for SentencePiece, whether the mark of a space is before the first word.
            limit: maximum number of segmentations.
        """
        if not self._known:
            return [self.vocabulary.encode(words)]
        marked = words.encode().replace(b" ", SPACE_MARK)
        goal = (SPACE_MARK if after_space else b"") + marked if self.marks_before else marked + SPACE_MARK
        suffixes: list[list[_Segmentation]] = [[] for _ in goal] + [[_Segmentation()]]
        for start in reversed(range(len(goal))):
            ends = range(start + 1, min(start + self._longest, len(goal)) + 1)
            candidates = [_Segmentation(rest.length + 1, id, rest) for end in ends if suffixes[end]
                          for id in self._ids.get(goal[start:end], ()) for rest in suffixes[end]]
            suffixes[start] = sorted(candidates, key=attrgetter("length"))[:limit]
        return [segmentation.ids() for segmentation in suffixes[0]]

    def _goal(self, text: str, first: bool) -> bytes:
        return (SPACE_MARK if not first or self._marks_first_word else b"") + text.encode()

    @cached_property
    def _marks_first_word(self) -> bool:
        pieces = [self.vocabulary.id_to_piece(id) for id in islice(self.vocabulary.encode("a"), 1)]
        return any(piece.startswith(SPACE) for piece in pieces)

    def _write(self, piece: str) -> bytes:
        if self.marks_before:
            byte = _BYTE.fullmatch(piece)
            if byte is None:
                return piece.encode().replace(SPACE.encode(), SPACE_MARK)
            return bytes([int(byte[1], 16)]).replace(SPACE_MARK, b"")
        if self.vocabulary.kind == "bpe-codes" and piece.endswith(SEPARATOR):
            return piece.removesuffix(SEPARATOR).encode()
        return piece.encode() + SPACE_MARK

    @cached_property
    def _ids(self) -> dict[bytes, list[int]]:
        """Ids by their text."""
        ids: dict[bytes, list[int]] = defaultdict(list)
        for id, text in enumerate(self.texts):
            if text:
                ids[text].append(id)
        return dict(ids)

    @cached_property
    def _longest(self) -> int:
        """Maximum number of bytes of a token."""
        return max(map(len, self._ids), default=0)

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self._ids)

    def _beginning_with(self, text: bytes) -> list[int]:
        """Return the ids whose text begins with `text`."""
        first = bisect_left(self._sorted, text)
        last = bisect_right(self._sorted, text + SPACE_MARK * 64)     # after all others
        return [id for token_text in self._sorted[first:last] for id in self._ids[token_text]]
