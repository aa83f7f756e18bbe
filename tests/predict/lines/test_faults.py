"""Detected faults of translations, acceptable translations, and the second search for faulty ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.faults import (
    CUT,
    EMPTY,
    LOOP,
    RETRY_ADVICE,
    counted,
    fault_of,
    most_copies,
    retry_settings,
    worse,
)
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.lines.line_options import LineOptions, LineRequest, line_requests
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.stream import Searches, translate_stream


@given(st.lists(st.integers(0, 2), max_size=14), st.integers(1, 6))
def test_the_most_copies_are_those_of_all_parts_there_are(sequence: list[int], min_items: int) -> None:
    max_copies = 1
    for start in range(len(sequence)):
        for size in range(1, len(sequence) - start + 1):
            subsequence, copies = sequence[start:start + size], 1
            while sequence[start + copies * size:start + (copies + 1) * size] == subsequence:
                copies += 1
            # A partial copy after the last one counts as tokens of the run.
            run = copies * size
            while run + start < len(sequence) and sequence[start + run] == sequence[start + run - size]:
                run += 1
            if run >= min_items:
                max_copies = max(max_copies, copies)
    assert most_copies(sequence, min_items) == max_copies


@pytest.mark.parametrize(("fault", "ids", "source"), [
    (LOOP, [9] * 8, "Nein."), (None, [9] * 7, "Nein."),                           # too few tokens for a loop
    (LOOP, [4, 5, 6, 7, 8] + [6, 7, 8] * 3, "Das ist ein Haus."), (None, [6, 7, 8] * 3, "Das ist ein Haus."),
    (LOOP, [6, 7] * 5 + [4, 3], "Das ist ein Haus."),                             # in the middle of the translation
    (None, [9] * 8, "ha ha ha ha ha ha ha ha"), (None, [9] * 8, "Hahahahahahahaha!"),
    (None, [4] + [5] * 12, "1 000 000 000 000 Euro"), (None, [4] * 10, "......"),
    (None, [7, 8] * 4, "Nein, nein, nein!"),
    (LOOP, [9] * 30, "ha ha ha"), (None, list(range(40)), "Ein langer Satz."), (None, [6], "Ja.")])
def test_a_loop_is_what_repeats_itself_more_than_the_source_does(
        fault: str | None, ids: list[int], source: str) -> None:
    assert fault_of("x", ids, True, lambda: source) == fault
    assert fault_of("x", ids, False, lambda: source) == (fault or CUT)      # it has no EOS
    assert fault_of("", ids, True, lambda: source) == EMPTY


def test_a_loop_is_worse_than_an_end_that_is_cut_and_nothing_is_worse_than_no_text() -> None:
    order = [EMPTY, LOOP, CUT, None]
    assert [[worse(fault, other_fault) for other_fault in order] for fault in order] == [
        [False, True, True, True], [False, False, True, True], [False, False, False, True], [False] * 4]


WORDS = WordVocabulary([*SPECIAL_PIECES, *"abcdefgh"])
SECOND = {"a": "d", "b": "e e e e e e e e", "c": ""}
"""Results of a second search."""


def predict(settings: Mapping[str, Any], source: np.ndarray, source_length: np.ndarray,
            weight: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Translate in a search that loops, is cut at its limit, or returns nothing; "f" is translated to "f"."""
    first_texts = {"a": "a a a a a a a a", "b": "b", "c": "", "f": "f"}
    texts = [(SECOND if settings else first_texts)[WORDS.decode(row)] for row in source]
    ids = [WORDS.encode(text) + ([] if text == "b" else [EOS]) for text in texts]
    tokens = np.array([row + [0] * (9 - len(row)) for row in ids])[:, None]
    return tokens, np.full([len(tokens), 1], -2.0 if settings else -1.0)


def translate(retry: bool, advice: str = "") -> list[Translation]:
    searches = Searches(lambda settings: partial(predict, settings), True, retry)
    lines = ["a", "b", LineRequest("a", LineOptions(inputs={"weight": 1.0})), "c", "f", ""]
    return list(counted(translate_stream(partial(predict, {}), WORDS, WORDS, line_requests(lines, "in"),
                                         StreamSettings(), "in", searches=searches), "in", advice=advice))


@pytest.mark.parametrize("advice", ["", RETRY_ADVICE])
def test_what_looks_wrong_is_counted_and_the_lines_are_named(caplog: pytest.LogCaptureFixture, advice: str) -> None:
    with caplog.at_level(logging.WARNING):
        translations = translate(False, advice)
    assert [translation.fault for translation in translations] == [LOOP, CUT, LOOP, EMPTY, None, None]
    assert not any(translation.retried for translation in translations)
    assert caplog.messages == [
        "in: 4 of 6 translations look wrong: 1 empty (the first: line 4), 2 in a loop (the first: line 1), 1 cut at "
        f"the length limit (the first: line 2).{advice and ' --retry repeats the search for them.'}"]


def test_what_looks_wrong_is_searched_for_again_and_the_better_one_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        translations = translate(True)
    # "b" keeps its translation, because a loop is not better than a cut one. "c" is not better the second time.
    assert translations == [
        [Hypothesis("d", -2.0)], [Hypothesis("b", -1.0)], [Hypothesis("d", -2.0)], [Hypothesis("", -1.0)],
        [Hypothesis("f", -1.0)], [Hypothesis("", 0.0)]]
    assert [translation.fault for translation in translations] == [None, CUT, None, EMPTY, None, None]
    assert [translation.retried for translation in translations] == [True, True, True, True, False, False]
    assert caplog.messages == ["in: the search was repeated for 4 of 6 faulty translations; remaining faults: 1 empty "
                               "(the first: line 4), 1 cut at the length limit (the first: line 2)."]


def test_nothing_is_said_where_nothing_looks_wrong(caplog: pytest.LogCaptureFixture) -> None:
    assert len(list(counted([Translation([Hypothesis("a", 0.0)])], "in"))) == 1
    assert caplog.messages == []


def test_a_second_search_is_no_less_strict_than_the_first() -> None:
    for first_settings in (SearchSettings(), SearchSettings(no_repeat_ngram=2, min_length=5, min_length_factor=0.5),
                           SearchSettings(no_repeat_ngram=6), SearchSettings(max_length_factor=0.1)):
        # The second search can succeed.
        second_settings = SearchSettings(**{**vars(first_settings), **retry_settings(first_settings)})
        assert 0 < second_settings.no_repeat_ngram <= (first_settings.no_repeat_ngram or 3)
        assert second_settings.min_length >= max(first_settings.min_length, 1)
        assert second_settings.min_length_factor >= first_settings.min_length_factor


def test_a_second_search_is_no_less_strict_than_the_settings_of_its_line() -> None:
    changes: list[dict[str, Any]] = []

    def with_settings(changed: Mapping[str, Any]) -> Any:
        changes.append(dict(changed))
        return partial(predict, changed)

    search = {"no_repeat_ngram": 2, "min_length": 4, "max_length_factor": 0.2}
    stream = translate_stream(partial(predict, {}), WORDS, WORDS, [LineRequest("b", LineOptions(search=search))],
                              StreamSettings(), searches=Searches(with_settings, True, True))
    assert [translation.retried for translation in stream] == [True]
    assert changes == [search, {**search, "min_length_factor": 0.2}]
