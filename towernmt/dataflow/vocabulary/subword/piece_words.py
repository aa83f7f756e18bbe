"""The word of a text that each SentencePiece piece belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

_SPACE = "\u2581"  # SentencePiece's mark of a space
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class PieceWords:
    """Finds the words of pieces by the marks of spaces in them.

    The marks may not show all words: a piece is unknown, the text itself holds the mark, or pieces end with the mark
    or span several words. Then the characters of the written pieces are counted.

    Args:
        pieces: the pieces of the model by their ids there.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._starts = np.array([piece.startswith(_SPACE) for piece in pieces], np.int64)
        self._plain = np.array([_SPACE not in piece[1:] for piece in pieces])

    def of(self, texts: Sequence[str], encoded: Sequence[Sequence[int]], written: Callable[[], list[list[str]]]
           ) -> list[list[int]]:
        """The number of each piece's word, from 0; a piece of several words belongs to the first.

        Args:
            texts: cleaned.
            encoded: their pieces, as the model's ids.
            written: gives the pieces as text; called if the ids are not enough.
        """
        words: list[list[int]] = []
        pieces: list[list[str]] | None = None
        for index, (text, ids) in enumerate(zip(texts, encoded, strict=True)):
            found = None if _SPACE in text else self._by_marks(np.array(ids, np.int64), text.count(" ") + 1)
            if found is None:
                pieces = written() if pieces is None else pieces
                found = _by_characters(text, pieces[index])
            words.append(found)
        return words

    def _by_marks(self, ids: NDArray[np.int64], count: int) -> list[int] | None:
        """The words by the marks of spaces; None if the marks do not show `count` words."""
        if not len(ids):
            return []
        words = np.cumsum(self._starts[ids]) - 1
        if words[0] != 0 or words[-1] != count - 1 or not self._plain[ids].all():
            return None
        found: list[int] = words.tolist()
        return found


def _by_characters(text: str, pieces: Sequence[str]) -> list[int]:
    """The word of the character at which each piece begins; marks and spaces do not count.

    A model that normalises text may change the number of characters. Then the marks are counted, and what is left over
    belongs to the last word.
    """
    split = text.split()
    owners = [word for word, characters in enumerate(split) for c in characters if c != _SPACE]
    sizes = [_characters(piece) for piece in pieces]
    if sum(sizes) == len(owners):
        begins = np.cumsum([0, *sizes])[:-1].tolist()
        # A mark alone at the end of a text has no character after it.
        return [owners[min(begin, len(owners) - 1)] if owners else 0 for begin in begins]
    words, word, open_ = [], -1, False
    for piece in pieces:
        lead = piece[:1] == _SPACE
        words.append(min(max(word + (lead or not open_), 0), len(split) - 1))
        for character in piece:
            word += character != _SPACE and not open_
            open_ = character != _SPACE
    return words


def _characters(piece: str) -> int:
    byte = _BYTE.fullmatch(piece)
    if byte is not None:
        return int(byte[1], 16) & 0xC0 != 0x80  # the first byte of a character stands for it
    return len(piece.replace(_SPACE, ""))
