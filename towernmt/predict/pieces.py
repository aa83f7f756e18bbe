"""Lines that are too long for a model, cut where it hurts least.

A model has seen sentences of limited length only. A longer line is cut at the ends of sentences, then
(where one sentence is too long) at other punctuation, then at spaces, and a word without any of these
between two tokens. Neighbouring parts are packed together as far as they fit.
"""

from __future__ import annotations

import re

from towernmt.dataflow.vocabulary import Vocabulary

# Each pattern matches the place between two parts, from the best to the worst place to cut.
_CUTS = [
    re.compile(r"(?<=[.!?…][\s\"'»”’)\]])\s*(?=\S)|(?<=[.!?…])\s+(?=\S)|(?<=[。！？])(?=[^。！？])"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])"),
    re.compile(r"\s+"),
]


def encode_pieces(text: str, vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """The ids of `text` in pieces of at most `limit` tokens (no EOS); no piece for a blank line."""
    ids = vocabulary.encode(text)
    if len(ids) <= limit:
        return [ids] if ids else []
    return [piece for piece in _cut(text, ids, vocabulary, limit, level=0) if piece]


def _cut(text: str, ids: list[int], vocabulary: Vocabulary, limit: int, level: int) -> list[list[int]]:
    if level == len(_CUTS):
        return [ids[i:i + limit] for i in range(0, len(ids), limit)]
    pieces: list[list[int]] = []
    packed: list[str] = []  # the parts of the piece that is being filled
    filled = 0
    for part in [p for p in _CUTS[level].split(text) if p]:
        part_ids = vocabulary.encode(part)
        if packed and filled + len(part_ids) > limit:
            pieces += _pack(packed, vocabulary, limit)
            packed, filled = [], 0
        if len(part_ids) > limit:
            pieces += _cut(part, part_ids, vocabulary, limit, level + 1)
        else:
            packed.append(part)
            filled += len(part_ids)
    return pieces + (_pack(packed, vocabulary, limit) if packed else [])


def _pack(parts: list[str], vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    ids = vocabulary.encode(" ".join(parts))
    # Joined text may be segmented into a few more tokens than its parts.
    return [ids] if len(ids) <= limit else [i for part in parts for i in [vocabulary.encode(part)]]
