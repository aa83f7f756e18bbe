"""Lists of ids as one padded array (`batch` does the same from flat arrays)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import EOS, PAD


def pad_sentences(sentences: Sequence[Sequence[Any]], streams: int = 1) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """One array of all sentences, each with EOS at its end, and PAD after that.

    Args:
        sentences: ids without EOS; at least one sentence. Of several streams, tuples of ids.
        streams: ids of a piece, as the vocabulary has it (`Vocabulary.streams`).
    Returns:
        int32 `[batch, length]`, of several streams `[batch, length, streams]`, and int32 `[batch]`: the lengths, EOS
        counted.
    """
    lengths = np.array([len(ids) + 1 for ids in sentences], np.int32)  # [batch]
    depth = [] if streams == 1 else [streams]
    padded = np.full([len(sentences), lengths.max(), *depth], PAD, np.int32)  # [batch, length(, streams)]
    for row, ids in zip(padded, sentences, strict=True):
        if len(ids):
            row[:len(ids)] = ids
        row[len(ids)] = EOS
    return padded, lengths
