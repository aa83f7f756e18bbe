"""Sentences of ids as one padded array, where they are lists (`batches` does it from flat arrays)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary import EOS, PAD


def pad_sentences(sentences: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ids with EOS behind each sentence and PAD behind that.

    Args:
        sentences: ids without EOS; at least one sentence.
    Returns:
        int32 `[batch, length]`, and int32 `[batch]`: the lengths, EOS counted.
    """
    lengths = np.array([len(ids) + 1 for ids in sentences], np.int32)  # [batch]
    padded = np.full([len(sentences), lengths.max()], PAD, np.int32)  # [batch, length]
    for row, ids in zip(padded, sentences, strict=True):
        row[:len(ids)] = ids
        row[len(ids)] = EOS
    return padded, lengths
