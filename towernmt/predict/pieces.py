"""Lines that are too long for a model, cut where it hurts least.

A model has seen sentences of limited length only. A longer line is cut at the ends of sentences, then
(where one sentence is too long) at other punctuation, then at spaces, and a word without any of these
between two tokens. Neighbouring parts are packed together as far as they fit.
"""

from __future__ import annotations

import re

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


def cut_line(text: str, ids: list[int], vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """The ids of `text` in pieces of at most `limit` tokens; no piece if it has no tokens.

    Args:
        ids: the whole text, encoded (no EOS).
    """
    if len(ids) <= limit:
        return [ids] if ids else []
    return _cut(text, ids, vocabulary, limit, level=0)


def _cut(text: str, ids: list[int], vocabulary: Vocabulary, limit: int, level: int) -> list[list[int]]:
    if len(ids) <= limit:
        return [ids]
    cuts = _CUTS if vocabulary.streams == 1 else _FACTORED_CUTS
    if level == len(cuts):
        return [ids[i:i + limit] for i in range(0, len(ids), limit)]
    spans = _spans(cuts[level], text)
    encoded = vocabulary.encode_batch([text[start:end] for start, end in spans])
    pieces: list[list[int]] = []
    first = 0
    while first < len(spans):
        last, size = first + 1, len(encoded[first])
        while last < len(spans) and size + len(encoded[last]) <= limit:
            size += len(encoded[last])
            last += 1
        piece = text[spans[first][0]:spans[last - 1][1]]
        # A part that is too long alone is cut at the next level, and so is a pack whose joined text
        # turns out to have more tokens than its parts.
        pieces += _cut(piece, vocabulary.encode(piece), vocabulary, limit, level + 1)
        first = last
    return [piece for piece in pieces if piece]


def _spans(cut: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    ends = [match.end() for match in cut.finditer(text) if 0 < match.end() < len(text)]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))
