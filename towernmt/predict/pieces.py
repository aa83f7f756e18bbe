"""Lines that are too long for a model, cut where it hurts least.

A model has seen sentences of limited length only. A longer line is cut at the ends of sentences, then
(where one sentence is too long) at other punctuation, then at spaces, and a word without any of these
between two tokens. Neighbouring parts are packed together as far as they fit.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from towernmt.dataflow.vocabulary.base import Vocabulary

# Each pattern matches between two parts, from the best place to cut to the worst.
_CUTS = [
    re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"'»”’)\]])\s+|(?<=[。！？])"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])"),
    re.compile(r"\s+"),
]

# Words with their factors behind them are cut at spaces alone, behind words that end in punctuation first.
_FACTORED_CUTS = [
    re.compile(r"""[.!?…。！？]["'»”’)\]]?\|\S+\s+"""),
    re.compile(r"[,;:–—，、；：]\|\S+\s+"),
    re.compile(r"\s+"),
]


class Cut(NamedTuple):
    """A piece of a line.

    Attributes:
        ids: of its tokens, without EOS.
        start: the character of the line at which `text` begins.
        text: holds the piece.
        first: how many tokens of `text` stand before the piece: none, but where a text without any place to cut is cut
            between two tokens.
    """

    ids: list[int]
    start: int
    text: str
    first: int = 0


def cut_line(text: str, ids: list[int], vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """The ids of `text` in pieces of at most `limit` tokens; no piece if it has no tokens.

    Args:
        ids: the whole text, encoded (no EOS).
    """
    return [cut.ids for cut in cuts_of(text, ids, vocabulary, limit)]


def cuts_of(text: str, ids: list[int], vocabulary: Vocabulary, limit: int) -> list[Cut]:
    """As `cut_line`, with the place of each piece in the line."""
    if len(ids) <= limit:
        return [Cut(ids, 0, text)] if ids else []
    return _cut(Cut(ids, 0, text), vocabulary, limit, level=0)


def _cut(whole: Cut, vocabulary: Vocabulary, limit: int, level: int) -> list[Cut]:
    text, ids = whole.text, whole.ids
    if len(ids) <= limit:
        return [whole]
    cuts = _CUTS if vocabulary.streams == 1 else _FACTORED_CUTS
    if level == len(cuts):
        return [Cut(ids[i:i + limit], whole.start, text, i) for i in range(0, len(ids), limit)]
    spans = _spans(cuts[level], text)
    encoded = vocabulary.encode_batch([text[start:end] for start, end in spans])
    pieces: list[Cut] = []
    first = 0
    while first < len(spans):
        last, size = first + 1, len(encoded[first])
        while last < len(spans) and size + len(encoded[last]) <= limit:
            size += len(encoded[last])
            last += 1
        start, piece = spans[first][0], text[spans[first][0]:spans[last - 1][1]]
        # A part that is too long alone is cut at the next level, and so is a pack whose joined text
        # turns out to have more tokens than its parts.
        pieces += _cut(Cut(vocabulary.encode(piece), whole.start + start, piece), vocabulary, limit, level + 1)
        first = last
    return [piece for piece in pieces if piece.ids]


def _spans(cut: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    ends = [match.end() for match in cut.finditer(text) if 0 < match.end() < len(text)]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))
