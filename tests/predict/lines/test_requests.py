"""From what lines ask for to the terms of a search."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.words import WordVocabulary
from towernmt.predict.batch_inputs import NOTHING, Asked
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.lines.options import LineOptions
from towernmt.predict.lines.requests import Requests

WORDS = WordVocabulary([*SPECIAL_PIECES, "house", "hour", "the", "House"])
SEARCH = SearchSettings(beam_size=4, n_best=2)


def asked(**options: object) -> Asked:
    return Requests(SEARCH, WORDS).asked(LineOptions(**options))  # type: ignore[arg-type]


def test_more_translations_than_the_search_gives_are_another_search_and_fewer_are_not() -> None:
    assert asked() == NOTHING
    assert asked(n_best=1) == Asked(n_best=1) and asked(n_best=2) == Asked(n_best=2)
    assert asked(n_best=3) == Asked(search={"n_best": 3}, n_best=3)
    assert asked(n_best=9) == Asked(search={"n_best": 9, "beam_size": 9}, n_best=9)
    assert asked(search={"beam_size": 4}) == NOTHING and asked(search={"min_length": 1}).search == {"min_length": 1}


def test_only_the_first_piece_of_a_long_line_begins_with_its_prefix_where_that_is_wanted() -> None:
    every = asked(prefix="the ho", partial_word=True, avoid=["hour"])
    assert every.of_piece is None and set(every.inputs) == {"prefix", "continuation", "avoid"}
    first = asked(prefix="the ho", partial_word=True, avoid=["hour"], prefix_every_piece=False)
    assert first.of_piece is not None
    pieces = [first.of_piece("a", place) for place in range(3)]
    assert [set(piece.inputs) for piece in pieces] == [{"prefix", "continuation", "avoid"}, {"avoid"}, {"avoid"}]
    assert np.array_equal(pieces[0].inputs["prefix"], every.inputs["prefix"])


def test_a_setting_that_cannot_work_is_named_with_its_line() -> None:
    options = [LineOptions(), LineOptions(search={"beam_size": 1})]
    _, found = Requests(SEARCH, WORDS).of_lines(["a", "b"], options, "in")
    assert found is not None
    with pytest.raises(DataError, match="in line 2: n_best=2: choose 1 to beam_size"):
        list(found)
