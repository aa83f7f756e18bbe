"""Phrases of text as ids."""

from __future__ import annotations

import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.words import WordVocabulary
from towernmt.predict.lexical.phrases import constraint_array, phrase_ids

VOCABULARY = WordVocabulary(["<pad>", "<s>", "</s>", "<unk>", "new", "york"])


def test_a_phrase_is_the_ids_of_its_words_and_an_array_is_padded() -> None:
    phrases = [phrase_ids("new  york", VOCABULARY), phrase_ids("york", VOCABULARY)]
    assert constraint_array(phrases).tolist() == [[4, 5], [5, 0]]
    assert constraint_array([]).shape == (0, 0)


def test_a_phrase_that_no_translation_can_hold_is_refused() -> None:
    with pytest.raises(DataError, match="'new amsterdam' holds what the target vocabulary does not know"):
        phrase_ids("new amsterdam", VOCABULARY)
    with pytest.raises(DataError, match="is empty"):
        phrase_ids("  ", VOCABULARY)
