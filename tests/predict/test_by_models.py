"""Reranking by further models, their weights and n-best files, compared with numbers computed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.minimum_bayes_risk import MinimumBayesRisk
from towernmt.predict.model_reranker import CANDIDATE_WEIGHTS, Judge, JudgedList, ModelReranker, tune
from towernmt.predict.pair_scorer import PairScore
from towernmt.predict.reranking import Reranker, read_nbest, reranked, rescored


class Table:
    """A fake `Scorer`: log-probability and length of pairs from a table."""

    def __init__(self, **known: tuple[float, int]) -> None:
        self._known = known
        self.asked: list[tuple[str, str]] = []

    def score_stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairScore]:
        for source, target in pairs:
            self.asked.append((source, target))
            yield PairScore(*self._known[f"{source}_{target}".replace(" ", "_")], 1)


LIST = [Hypothesis("one", -1.0), Hypothesis("two", -1.5), Hypothesis("one", -2.0)]


def test_the_score_is_the_searchs_plus_the_weighted_normalised_log_probability_of_the_reverse() -> None:
    reverse: Any = Table(one_eins=(-6.0, 7), two_eins=(-2.0, 1))
    (found,) = ModelReranker([Judge(reverse, "reverse", 0.5)], length_penalty=1.0)(["eins"], [LIST])
    # one: -1 + 0.5 * -6 / (12 / 6) = -2.5, and -3.5 for its twin; two: -1.5 + 0.5 * -2 / (6 / 6) = -2.5
    assert found == [Hypothesis("one", -2.5), Hypothesis("two", -2.5), Hypothesis("one", -3.5)]
    assert reverse.asked == [("one", "eins"), ("two", "eins")]      # each pair once


def test_a_reverse_model_does_not_score_the_tag_of_the_target_language() -> None:
    scorer: Any = Table()
    assert Judge(scorer, "reverse").pair("<2en> eins zwei", "one two") == ("one two", "eins zwei")
    assert Judge(scorer, "forward").pair("<2en> eins", "one") == ("<2en> eins", "one")


def test_right_to_left_models_get_the_words_from_the_end() -> None:
    backwards: Any = Table(eins_b_a=(-3.0, 3))
    forwards: Any = Table(eins_a_b=(-4.0, 3))
    reranker = ModelReranker([Judge(backwards, "right-to-left", 1.0), Judge(forwards, "forward", 2.0)], 0.0)
    (found,) = reranker(["eins"], [[Hypothesis("a b", -1.0)]])
    assert found == [Hypothesis("a b", -1.0 - 3.0 - 8.0)]


def test_what_cannot_be_reranked_by_is_refused() -> None:
    table: Any = Table()
    with pytest.raises(SettingsError, match="at least one model"):
        ModelReranker([])
    with pytest.raises(SettingsError, match="direction=up and weight=1"):
        ModelReranker([Judge(table, "up", 1.0)])
    with pytest.raises(SettingsError, match="length_penalty=-1"):
        ModelReranker([Judge(table, "reverse")], -1)


class Backwards(Reranker):
    """A reranker that reverses each list, and records the lists of each call."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def __call__(self, sources: Any, lists: Any) -> Any:
        self.seen.append(list(sources))
        return [list(reversed(hypotheses)) for hypotheses in lists]


def test_a_stream_is_reranked_in_windows_with_the_source_of_each_line() -> None:
    reranker, lists = Backwards(), [[Hypothesis(text, 0.0), Hypothesis("", -1.0)] for text in "ABC"]
    found = list(reranked(iter(lists), reranker, iter("abc"), window=2))
    assert [[h.text for h in hypotheses] for hypotheses in found] == [["", "A"], ["", "B"], ["", "C"]]
    assert reranker.seen == [["a", "b"], ["c"]]
    assert len(list(reranked(lists, reranker))) == 3     # one that does not read the source
    with pytest.raises(DataError, match="test.de has 2 lines, but there are n-best lists of more"):
        list(reranked(lists, reranker, "ab", name="test.de"))
    with pytest.raises(DataError, match="of 3 lines, but test.de has more"):
        list(reranked(lists, reranker, "abcd", name="test.de"))


def test_what_is_known_of_a_line_stays_and_its_fault_is_that_of_the_new_best_translation() -> None:
    first, second = (Translation([Hypothesis("b", 0.0, fault=one), Hypothesis("a", -1.0, fault=other)])
                     for one, other in (("loop", None), (None, "cut")))
    first.retried = second.retried = True
    found = list(reranked([first, second], Backwards()))
    assert [translation.fault for translation in found] == [None, "cut"] and all(t.retried for t in found)
    assert [h.text for h in found[0]] == ["a", "b"] and [h.text for h in first] == ["b", "a"]
    assert rescored(second[1], 3.0).fault == "cut" and MinimumBayesRisk().ordered(first)[0].fault == "loop"


def test_lists_before_one_that_cannot_be_read_come_before_the_error() -> None:
    found = reranked(read_nbest(["0 ||| a ||| 1", "1 ||| b ||| 1", "broken"], "file"), Backwards())
    assert [next(found)[0].text] == ["a"]
    with pytest.raises(DataError, match="file line 3"):
        list(found)


def test_nbest_files_of_moses_and_of_translate_are_read() -> None:
    lines = ["0 ||| a b ||| -0.5", "0 |||  ||| -1", "1 ||| c ||| LM= -3 TM= -4 ||| -7.25"]
    assert list(read_nbest(lines, "file")) == [[Hypothesis("a b", -0.5), Hypothesis("", -1.0)],
                                               [Hypothesis("c", -7.25)]]
    with pytest.raises(DataError, match="file: the hypotheses of line 2 are where those of line 1 are expected"):
        list(read_nbest(["0 ||| a ||| 1", "2 ||| a ||| 1"], "file"))
    for broken in ("a b", "0 ||| a", "0 ||| 5", "x ||| a ||| 1", "0 ||| a ||| b", "0 ||| a |||"):
        with pytest.raises(DataError, match="file line 1 is not"):
            list(read_nbest([broken], "file"))


@pytest.mark.parametrize(("line", "text"), [
    ("0 ||| a b ||| -0.5 ||| 0-1 1-0", "a b"), ("0 |||  ||| -0.5 ||| ", ""),
    ("0 ||| a ||| d: 0 -1.5 lm: -4e-1 ||| -0.5 ||| 0-0", "a"), ("0 ||| a: ||| b |||| c ||| -0.5", "a: ||| b |||| c")])
def test_nbest_files_may_have_alignments_and_signs_of_fields_in_a_text(line: str, text: str) -> None:
    assert list(read_nbest([line], "file")) == [[Hypothesis(text, -0.5)]]


def judged(texts: list[str], features: list[list[float]]) -> JudgedList:
    return JudgedList([Hypothesis(text, feature[0]) for text, feature in zip(texts, features, strict=True)],
                      np.array(features))


def test_tuning_finds_the_weight_that_a_search_of_all_finds() -> None:
    rng = np.random.default_rng(1)
    words = "the cat sat on a mat and so did it".split()
    references = [" ".join(rng.choice(words, 8)) for _ in range(12)]
    lists = []
    for reference in references:
        texts, features = [], []
        for wrong in range(5):
            tokens = reference.split()
            tokens[:wrong] = ["wrong"] * wrong
            texts.append(" ".join(tokens))      # a judge sees, with noise, how many words are wrong
            features.append([-rng.random(), -0.7 * wrong + rng.normal(), rng.normal()])
        lists.append(judged(texts, features))

    def bleu(weights: np.ndarray) -> float:
        chosen = [judged.ordered(weights)[0].text for judged in lists]
        return BLEU(force=True).corpus_score(chosen, [references]).score

    found = tune(lists, references)
    assert found.bleu == pytest.approx(bleu(found.weights))
    assert found.bleu_of_search == pytest.approx(bleu(np.array([1, 0, 0])))
    # No change of a single weight improves BLEU, and the useless judge has a small weight.
    for place in (1, 2):
        others = [bleu(np.where(np.arange(3) == place, step, found.weights)) for step in CANDIDATE_WEIGHTS]
        assert max(others) == pytest.approx(found.bleu)
    assert found.bleu > found.bleu_of_search + 5 and found.weights[1] > 0


def test_a_judge_who_helps_nothing_gets_no_weight() -> None:
    found = tune([judged(["a b c d", "x"], [[-1.0, 0.0], [-2.0, 0.0]])], ["a b c d"])
    assert found.weights.tolist() == [1.0, 0.0] and found.bleu == found.bleu_of_search == pytest.approx(100.0)
    with pytest.raises(DataError, match="1 n-best lists and 2 references"):
        tune([judged(["a"], [[0.0, 0.0]])], ["a", "b"])
