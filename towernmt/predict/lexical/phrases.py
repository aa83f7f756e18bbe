"""Phrases of text as the ids that a translation must hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import PAD, Vocabulary


def phrase_ids(phrase: str, vocabulary: Vocabulary) -> list[int]:
    """The ids of a phrase as they are within a sentence, behind a space.

    Raises:
        DataError: the phrase is empty, or holds what the vocabulary does not know.
    """
    ids = vocabulary.encode(phrase)
    if not ids:
        raise DataError("a phrase that a translation must hold is empty: leave it out, or write its words.")
    if vocabulary.unk_id in ids:
        raise DataError(f"'{phrase}' holds what the target vocabulary does not know, so no translation can hold it: "
                        "write it in other characters or words.")
    return ids


def constraint_array(phrases: Sequence[Sequence[int]]) -> np.ndarray:
    """The input `constraints` of a sentence: int32 `[phrases, longest]`, padded with PAD."""
    array = np.full([len(phrases), max(map(len, phrases), default=0)], PAD, np.int32)
    for row, phrase in enumerate(phrases):
        array[row, :len(phrase)] = phrase
    return array
