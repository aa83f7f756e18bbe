"""Marian's binary shortlist: for each source piece the target pieces that may come, in one file with a checksum.

```
magic, checksum, first, best, source pieces + 1, target pieces in all lists     uint64 each
where the list of each source piece begins, and the end of the last             uint64 each
the lists, each ascending                                                       uint32 each
```

The first so many pieces of the vocabulary may always come. That serves for vocabularies in the order of frequency,
which ours need not be: here the frequent pieces are in the list of `</s>`, which every sentence has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES
from towernmt.export.marian.vocabulary import MarianVocabulary
from towernmt.predict.lexical.lexicon import Lexicon

MAGIC = 0xF11A48D5013417F5
FIRST = 2
"""`</s>` and `<unk>`."""


def shortlist_file(lexicon: Lexicon, size: int, frequent: int, source: MarianVocabulary, target: MarianVocabulary
                   ) -> bytes:
    """The content of a file.

    Args:
        lexicon: of the run's vocabularies.
        size: so many translations of each source piece.
        frequent: so many of the most frequent target pieces.
        source, target: the order of the pieces.
    """
    table, always = lexicon.best(size), lexicon.frequent(frequent)
    nothing = np.zeros(0, np.int32)
    lists = [_theirs(always if ours == EOS else table[ours] if ours >= len(SPECIAL_PIECES) else nothing, target)
             for ours in source.ours.tolist()]
    starts = np.zeros(len(lists) + 1, "<u8")
    np.cumsum([len(one) for one in lists], out=starts[1:])
    ids = np.concatenate(lists).astype("<u4")
    header = np.array([FIRST, size, len(starts), len(ids)], "<u8")
    content = header.tobytes() + starts.tobytes() + ids.tobytes()
    return np.array([MAGIC, checksum(content)], "<u8").tobytes() + content


def _theirs(tokens: NDArray[np.integer], target: MarianVocabulary) -> NDArray[np.int64]:
    """Marian's ids of some tokens of ours, ascending; special ones are none."""
    return np.unique(target.theirs[tokens[tokens >= len(SPECIAL_PIECES)]])


def checksum(content: bytes) -> int:
    """Marian's hash of the whole 8-byte words of some bytes, the combination of boost, modulo 2 ** 64."""
    seed, mask = 0, (1 << 64) - 1
    for word in np.frombuffer(content, "<u8", len(content) // 8).tolist():
        seed ^= (word + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & mask
    return seed
