"""Required terms of translations: which terms are required, and which are met."""

from __future__ import annotations

import pytest

from towernmt.evaluate.buckets import TermAccuracy, required_phrases, term_accuracy
from towernmt.predict.lines.terminology import Term, Terminology


def test_the_terms_of_a_line_are_wanted_once_and_its_own_phrases_as_often_as_they_are_given() -> None:
    terminology = Terminology([Term("Hund", "hound"), Term("Haus", "house")])
    assert required_phrases("Der Hund und der Hund im Haus", terminology) == ["hound", "house"]
    assert required_phrases("Der Hund", terminology, ["hound", "a", "a"]) == ["hound", "a", "a"]
    assert required_phrases("Der Hund", None) == []


@pytest.mark.parametrize(("phrases", "text", "met"), [
    (["hound"], "The hounds sleep.", 1), (["hound"], "A greyhound.", 0), (["hound"], "Hound", 0),
    (["hound"], "(hound)", 1), (["New York"], "in New York", 1), (["New York", "York City"], "New York City", 2),
    (["a", "a"], "a b", 1), (["a", "a"], "a b a c a", 2), (["no no"], "no no no", 1), (["東京"], "私は東京に住む。", 1),
    ([], "a", 0), (["a"], "", 0), (["<s> a"], "a b", 1), (["<s> b"], "a b", 0), (["b </s>"], "a b", 1),
    (["a </s>"], "a b", 0), (["<s> a b </s>"], "a b", 1), (["<s> a </s>"], "a b", 0),
    (["का"], "काम", 1), (["क"], "काम", 0),
])
def test_a_phrase_is_met_where_a_word_begins_with_it(phrases: list[str], text: str, met: int) -> None:
    assert term_accuracy([phrases], [text]) == TermAccuracy(len(phrases), met)


def test_the_share_is_over_all_sentences() -> None:
    accuracy = term_accuracy([["a"], ["b", "c"], []], ["a", "b", "c"])
    assert (accuracy.met, accuracy.required, accuracy.share) == (2, 3, pytest.approx(2 / 3))
    assert TermAccuracy(0, 0).share == 1.0
