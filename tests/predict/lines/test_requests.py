"""From what lines ask for to the terms of a search."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.batch_inputs import NOTHING, SearchRequest
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.requests import Requests
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.predict.search.search_settings import SearchSettings

WORDS = WordVocabulary([*SPECIAL_PIECES, "house", "hour", "the", "House"])
SEARCH = SearchSettings(beam_size=4, n_best=2)


def asked(**options: object) -> SearchRequest:
    return Requests(SEARCH, WORDS).asked(LineOptions(**options))  # type: ignore[arg-type]


def test_more_translations_than_the_search_gives_are_another_search_and_fewer_are_not() -> None:
    assert asked() == NOTHING
    assert asked(n_best=1) == SearchRequest(n_best=1) and asked(n_best=2) == SearchRequest(n_best=2)
    assert asked(n_best=3) == SearchRequest(search={"n_best": 3}, n_best=3)
    assert asked(n_best=9) == SearchRequest(search={"n_best": 9, "beam_size": 9}, n_best=9)
    assert asked(search={"beam_size": 4}) == NOTHING and asked(search={"min_length": 1}).search == {"min_length": 1}


def test_only_the_first_piece_of_a_long_line_begins_with_its_prefix_where_that_is_wanted() -> None:
    every = asked(prefix="the ho", partial_word=True, avoid=["hour"])
    assert every.of_piece is None and set(every.inputs) == {"prefix", "continuation", "avoid"}
    first = asked(prefix="the ho", partial_word=True, avoid=["hour"], prefix_every_piece=False)
    assert first.of_piece is not None
    pieces = [first.of_piece("a", place, place == 2) for place in range(3)]
    assert [set(piece.inputs) for piece in pieces] == [{"prefix", "continuation", "avoid"}, {"avoid"}, {"avoid"}]
    assert np.array_equal(pieces[0].inputs["prefix"], every.inputs["prefix"])


def ids_of(asked: SearchRequest, place: int = 0, is_last: bool = True) -> dict[str, list]:
    assert asked.of_piece is not None
    return {name: value.tolist() for name, value in asked.of_piece("a", place, is_last).inputs.items()}


def test_anchored_phrases_are_a_prefix_or_end_with_the_sentence() -> None:
    house, hour, the = WORDS.encode("house hour the")
    assert ids_of(asked(constraints=["<s> the house"])) == {"prefix": [the, house]}
    assert ids_of(asked(constraints=["the house </s>"])) == {"constraints": [[the, house, EOS]]}
    assert ids_of(asked(constraints=["<s> the  </s>"])) == {"prefix": [the, EOS]}
    assert ids_of(asked(constraints=["<s> the", "hour", "house </s>"])) == {
        "prefix": [the], "constraints": [[hour, 0], [house, EOS]]}
    assert ids_of(asked(constraints=["<s> the hour", "<s> the"], prefix="the")) == {"prefix": [the, hour]}
    assert ids_of(asked(constraints=["<s> the"], prefix="the hour")) == {"prefix": [the, hour]}
    assert ids_of(asked(constraints=["<s> the hour"], prefix="the ho", partial_word=True)) == {"prefix": [the, hour]}
    pieces = asked(constraints=["<s> the", "hour", "house </s>"])
    assert ids_of(pieces, 0, is_last=False) == {"prefix": [the], "constraints": [[hour]]}
    assert ids_of(pieces, 1, is_last=True) == {"constraints": [[house, EOS]]}


def test_a_whole_translation_gets_no_terms() -> None:
    terms = Terminology([Term("a", "hour")])
    assert "constraints" not in ids_of(asked(constraints=["<s> the </s>"], terminology=terms))
    assert "constraints" in ids_of(asked(constraints=["<s> the"], terminology=terms))


@pytest.mark.parametrize(("options", "message"), [
    ({"constraints": ["<s>"]}, "anchor without a phrase"), ({"constraints": ["</s>"]}, "anchor without a phrase"),
    ({"avoid": ["<s> </s>"]}, "anchor without a phrase"),
    ({"constraints": ["<s> the", "<s> hour"]}, "exclude each other"),
    ({"constraints": ["the </s>", "hour </s>"]}, "exclude each other"),
    ({"constraints": ["<s> the </s>", "hour"]}, "exclude each other"),
    ({"constraints": ["<s> the"], "prefix": "hour"}, "the prefix 'hour' and the phrase '<s> the' exclude"),
    ({"constraints": ["<unk>"]}, "does not know"), ({"constraints": ["<pad>"]}, "does not know"),
    ({"constraints": ["the <s> house"]}, "does not know"), ({"constraints": ["</s> the"]}, "does not know")])
def test_anchors_that_cannot_be_met_and_other_special_tokens_are_refused(options: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        asked(**options)


def test_a_setting_that_cannot_work_is_named_with_its_line() -> None:
    options = [LineOptions(), LineOptions(search={"beam_size": 1})]
    found = Requests(SEARCH, WORDS).of_lines(options, "in")
    with pytest.raises(DataError, match="in line 2: n_best=2: choose 1 to beam_size"):
        list(found)


@pytest.mark.parametrize(("prefix", "partial"), [
    ("cat", False), ("the cat", False), ("the cat ", True), ("cat ho", True), ("the cat", True), ("ho", False),
    ("\u2047", False)])
def test_a_prefix_that_the_vocabulary_cannot_write_is_refused(prefix: str, partial: bool) -> None:
    with pytest.raises(SettingsError, match="holds what the target vocabulary does not know"):
        asked(prefix=prefix, partial_word=partial)


@pytest.mark.parametrize(("prefix", "partial"), [("the ho", True), ("the ", True), ("the", False), (" ", True)])
def test_a_prefix_that_the_vocabulary_can_write_is_accepted(prefix: str, partial: bool) -> None:
    assert "prefix" in asked(prefix=prefix, partial_word=partial).inputs


def test_a_line_with_a_prefix_that_cannot_be_written_is_named() -> None:
    found = Requests(SEARCH, WORDS).of_lines([LineOptions(), LineOptions(prefix="cat")], "in")
    with pytest.raises(DataError, match="in line 2: the prefix 'cat' holds"):
        list(found)
