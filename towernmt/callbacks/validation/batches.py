"""Sentence pairs as padded arrays for the teacher-forced tower, by length, without the input queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from towernmt.dataflow.order.padding import pad_sentences
from towernmt.dataflow.vocabulary.base import Vocabulary


def teacher_forced_batches(source_lines: Sequence[str], target_lines: Sequence[str],
                           source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                           batch_tokens: int) -> Iterator[list[np.ndarray]]:
    """Every pair once, similar lengths together.

    Args:
        batch_tokens: the longer side's tokens in a batch at most, with padding and EOS (one pair at least).
    Yields:
        source int32 `[batch, source length]` (with factors `[batch, source length, 1 + factors]`), source_length int32
        `[batch]`, target int32 `[batch, target length]`, target_length int32 `[batch]`, target_tokens float32 `[]` (of
        this batch).
    """
    pairs = list(zip(source_vocabulary.encode_batch(list(source_lines)),
                     target_vocabulary.encode_batch(list(target_lines)), strict=True))
    pairs.sort(key=lambda pair: (max(len(pair[0]), len(pair[1])), len(pair[0])))
    begin = 0
    for end in range(1, len(pairs) + 1):
        following = max(len(pairs[end][0]), len(pairs[end][1])) + 1 if end < len(pairs) else 0
        if end == len(pairs) or (end + 1 - begin) * following > batch_tokens:
            source, source_length = pad_sentences([pair[0] for pair in pairs[begin:end]], source_vocabulary.streams)
            target, target_length = pad_sentences([pair[1] for pair in pairs[begin:end]])
            yield [source, source_length, target, target_length, np.array(target_length.sum(), np.float32)]
            begin = end
