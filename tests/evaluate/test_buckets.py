"""Scores by length and words by frequency, counted by hand."""

from __future__ import annotations

import pytest
from sacrebleu.metrics import CHRF

from towernmt.core.errors import DataError, SettingsError
from towernmt.evaluate.buckets import bucket_of, by_frequency, by_length, count_words, labels
from towernmt.evaluate.comparison import System
from towernmt.evaluate.metrics import MetricSettings
from towernmt.evaluate.report import Report, ReportSettings, pick


def test_labels_and_places_of_ranges_agree():
    assert labels([5, 10, 11], 1) == ["1-5", "6-10", "11", "12+"]
    assert labels([0, 1, 4, 999], 0) == ["0", "1", "2-4", "5-999", "1,000+"]
    assert [bucket_of(value, [5, 10, 11]) for value in (1, 5, 6, 10, 11, 12)] == [0, 0, 1, 1, 2, 3]
    for bounds in ([5, 5], [0, 2], [-1]):
        with pytest.raises(SettingsError, match="must ascend"):
            labels(bounds, 1)


def test_each_range_of_lengths_is_scored_as_a_corpus_of_its_own():
    references, hypotheses = ["one two", "one", "three four five", "six seven"], ["one too", "one", "three five", "x"]
    buckets = by_length([2, 1, 3, 2], [System("a", hypotheses), System("b", references)], [references],
                        MetricSettings(("chrf",)), bounds=[1, 2, 7])
    assert [(bucket.label, bucket.sentences) for bucket in buckets] == [("1", 1), ("2", 2), ("3-7", 1)]
    assert by_length([0], [System("a", [""])], [[""]], MetricSettings(("chrf",)))[0].label == "0-5"
    with_range_of_blank_lines = by_length([2], [System("a", ["one too"])], [["one two"]], MetricSettings(("chrf",)),
                                          ReportSettings(length_bounds=[0, 5]).length_bounds)
    assert [bucket.label for bucket in with_range_of_blank_lines] == ["1-5"]
    expected = CHRF().corpus_score(["one too", "x"], [["one two", "six seven"]]).score
    assert buckets[1].scores["chrF2"] == pytest.approx([expected, 100])


@pytest.mark.parametrize("source", [["a"], ["a", "b", "c"]])
def test_a_report_refuses_a_source_of_another_number_of_sentences(source):
    with pytest.raises(DataError, match=f"source has {len(source)} sentences, and the reference has 2"):
        Report([System("a", ["x", "y"])], [["x", "y"]], source)


def test_words_match_once_each_within_their_sentence_and_count_in_the_range_of_their_frequency():
    training = count_words(["a a a a a b b", "a c"])
    assert training == {"a": 6, "b": 2, "c": 1}
    references, hypotheses = ["a b b", "c d"], ["a a b", "d b"]
    buckets = by_frequency(training, [System("x", hypotheses)], [references], bounds=[0, 2])
    assert [(bucket.label, bucket.words) for bucket in buckets] == [("0", 1), ("1-2", 3), ("3+", 1)]
    unseen, rare, frequent = (bucket.matches[0] for bucket in buckets)
    assert (unseen.precision, unseen.recall) == (1, 1)                      # d
    assert (rare.precision, rare.recall) == (1 / 2, 1 / 3)                  # said b, b; wanted b, b, c; right: b
    assert (frequent.precision, frequent.recall) == (1 / 2, 1)              # said a, a; wanted a
    assert rare.f1 == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))


def test_of_several_references_the_one_counts_that_shares_most_words():
    references = [["a b c", "a"], ["d e", "q"]]
    bucket, = by_frequency(count_words(references[0]), [System("x", ["d e", "a"])], references, bounds=[9])
    assert (bucket.words, bucket.matches[0].recall, bucket.matches[0].precision) == (4, 1, 1)


def test_case_and_absent_words_are_as_asked():
    bucket, = by_frequency(count_words(["A"], True), [System("x", ["b"])], [["A"]], lowercase=True, bounds=[9])
    assert (bucket.matches[0].precision, bucket.matches[0].recall, bucket.matches[0].f1) == (0, 0, 0)
    bucket, = by_frequency(count_words(["A"], True), [System("x", ["a"])], [["A"]], lowercase=True, bounds=[9])
    assert bucket.matches[0].f1 == 1


def test_sentences_stand_out_by_their_scores_and_by_what_sets_systems_apart():
    picks = pick([[50, 10, 90, 10], [60, 5, 90, 80]], 2)
    assert picks.worst == [[1, 3], [1, 0]] and picks.best == [[2, 0], [2, 3]]
    assert picks.lost == [[1]] and picks.gained == [[3, 0]]     # no equal word
    assert pick([[1.0, 2.0]], 0).worst == [[]]
