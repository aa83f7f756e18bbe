"""Sentences as a padded array."""

from __future__ import annotations

from towernmt.dataflow.batches.batch import pad_sentences


def test_sentences_end_with_eos_and_are_padded_to_the_longest() -> None:
    padded, lengths = pad_sentences([[7, 8, 9], [], (5,)])
    assert padded.tolist() == [[7, 8, 9, 2], [2, 0, 0, 0], [5, 2, 0, 0]]
    assert lengths.tolist() == [4, 1, 2]
    assert padded.dtype == lengths.dtype == "int32"
