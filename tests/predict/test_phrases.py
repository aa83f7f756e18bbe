"""Phrases and terms as ids."""

from __future__ import annotations

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.terminology import Term, Terminology, WritableTerms, phrase_ids

VOCABULARY = WordVocabulary(["<pad>", "<s>", "</s>", "<unk>", "new", "york"])


def test_a_phrase_is_the_ids_of_its_words() -> None:
    assert phrase_ids("new  york", VOCABULARY) == [4, 5]


def test_a_phrase_that_no_translation_can_hold_is_refused() -> None:
    with pytest.raises(SettingsError, match="'new amsterdam' contains text that the target vocabulary does not know"):
        phrase_ids("new amsterdam", VOCABULARY)
    with pytest.raises(SettingsError, match="is empty"):
        phrase_ids("  ", VOCABULARY)


def test_the_terms_of_a_line_come_with_the_ids_of_their_translations() -> None:
    term = Term("Neu York", "new york")
    assert WritableTerms(Terminology([term]), VOCABULARY).terms_in("in Neu York") == [(term, [4, 5])]


def test_a_term_that_the_vocabulary_cannot_write_is_refused_with_its_line() -> None:
    terms = Terminology([Term("Neu", "new"), Term("Haus", "house", where="terms.tsv line 7")])
    with pytest.raises(DataError, match="terms.tsv line 7: 'house' contains text that the target vocabulary"):
        WritableTerms(terms, VOCABULARY)


def test_a_phrase_of_a_script_without_spaces_has_no_space_before_it() -> None:
    vocabulary = learn_sentence_piece(["東京に住む", "私は東京が好き", "the house is"] * 4, "unigram", 40)
    ids = phrase_ids("東京", vocabulary)
    assert "".join(map(vocabulary.id_to_piece, ids)) == "東京"
    assert vocabulary.decode([*vocabulary.encode("私は"), *ids]) == "私は東京"
    assert phrase_ids("house", vocabulary) == vocabulary.encode("house")
