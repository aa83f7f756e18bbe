"""The hypothesis that minimum Bayes risk chooses, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.metrics import CHRF

from towernmt.core.errors import SettingsError
from towernmt.predict.lines.hypotheses import Hypothesis
from towernmt.predict.minimum_bayes_risk import MinimumBayesRisk


def drawn(*texts: str) -> list[Hypothesis]:
    return [Hypothesis(text, -float(place)) for place, text in enumerate(texts)]


def test_the_hypothesis_most_like_all_others_comes_first_with_its_mean_chrf() -> None:
    samples = drawn("a dog barks", "the cat sat", "the cat sits", "the cat sat")
    (found,) = MinimumBayesRisk()(["?"], [samples])
    metric = CHRF()
    worth = {text: np.mean([metric.sentence_score(text, [other.text]).score for other in samples])
             for text in ("a dog barks", "the cat sat", "the cat sits")}
    assert [hypothesis.text for hypothesis in found] == ["the cat sat", "the cat sits", "a dog barks"]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([worth[h.text] for h in found])


def test_a_sample_counts_as_often_as_it_was_drawn() -> None:
    assert MinimumBayesRisk(lambda one, other: [[x == y for y in other] for x in one]).ordered(
        drawn("once", "often", "twice", "often", "twice", "often")) == [
            Hypothesis("often", 3 / 6), Hypothesis("twice", 2 / 6), Hypothesis("once", 1 / 6)]


def test_of_equally_good_hypotheses_the_former_comes_first() -> None:
    found = MinimumBayesRisk("bleu").ordered(drawn("b b", "a a"))
    assert [hypothesis.text for hypothesis in found] == ["b b", "a a"]


def test_a_blank_line_keeps_its_empty_translation() -> None:
    assert MinimumBayesRisk().ordered([Hypothesis("", 0.0)]) == [Hypothesis("", 0.0)]


def test_aggregated_references_give_nearly_the_same_order() -> None:
    samples = drawn("the cat sat on the mat", "the cat sat on a mat", "a cat sits on the mat", "dogs bark")
    plain, fast = MinimumBayesRisk().ordered(samples), MinimumBayesRisk(aggregate=True).ordered(samples)
    assert plain[0].text == fast[0].text and plain[-1].text == fast[-1].text == "dogs bark"
    with pytest.raises(SettingsError, match="Only the utility chrf"):
        MinimumBayesRisk("bleu", aggregate=True)
