"""The parts of a validation without TensorFlow: its interval, its metrics, its report."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.callbacks import bleu_validator
from towernmt.callbacks.stateful import Period
from towernmt.callbacks.validation_metrics import METRICS, ValidationOutcome, mode_of
from towernmt.core.errors import DataError
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.evaluate.metrics import Scores

OUTCOME = ValidationOutcome(["x", "y"], Scores(12.345, 34.567, "nrefs:1"), 2.0)


def test_steps_and_minutes_may_both_make_it_due() -> None:
    seconds = [100.0]
    period = Period(steps=10, minutes=2.0, clock=lambda: seconds[0])
    assert [step for step in range(1, 31) if period.due(step)] == [10, 20, 30]
    seconds[0] += 121
    assert period.due(7)
    period.restart()
    seconds[0] += 119
    assert not period.due(7)
    seconds[0] += 1
    assert period.due(7)
    assert not any(Period(clock=lambda: 1e9 * seconds[0]).due(step) for step in range(1, 50))


def test_each_metric_has_its_name_direction_and_value() -> None:
    facts_by_name = {name: (metric.scalar(), metric.scalar("news"), metric.mode, metric.value(OUTCOME))
                     for name, metric in METRICS.items()}
    assert facts_by_name == {
        "bleu": ("validation_bleu", "validation_bleu/news", "max", 12.345),
        "chrf": ("validation_chrf", "validation_chrf/news", "max", 34.567),
        "loss": ("validation_loss", "validation_loss/news", "min", 2.0),
        "perplexity": ("validation_perplexity", "validation_perplexity/news", "min", pytest.approx(math.exp(2)))}
    assert METRICS["perplexity"].value(ValidationOutcome([], OUTCOME.scores, 1e4)) == math.inf
    without_loss = ValidationOutcome([], OUTCOME.scores)
    assert [METRICS[name].value(without_loss) for name in ("loss", "perplexity")] == [None, None]
    assert METRICS["loss"].at_least_as_good(1.0, 1.0) and not METRICS["loss"].at_least_as_good(2.0, 1.0)
    assert METRICS["bleu"].at_least_as_good(1.0, 1.0) and not METRICS["bleu"].at_least_as_good(1.0, 2.0)
    assert [mode_of(name) for name in ("validation_bleu/x", "validation_loss/x", "validation_perplexity", "nll")] == [
        "max", "min", "min", "min"]


def test_loss_and_perplexity_are_shown_with_those_of_training_without_label_smoothing() -> None:
    assert bleu_validator.describe_outcome(OUTCOME, 1.5) == (
        "BLEU 12.35, chrF 34.57, nll 2.0000 (training 1.5000), perplexity 7.39 (training 4.48)")
    assert bleu_validator.describe_outcome(OUTCOME, None) == "BLEU 12.35, chrF 34.57, nll 2.0000, perplexity 7.39"
    assert bleu_validator.describe_outcome(ValidationOutcome([], OUTCOME.scores), 1.5) == "BLEU 12.35, chrF 34.57"


def test_the_samples_change_over_a_run_and_are_a_function_of_step_and_seed() -> None:
    shown = [bleu_validator.sample_numbers(200, 3, step, seed=7) for step in range(100, 2100, 100)]
    assert shown == [bleu_validator.sample_numbers(200, 3, step, seed=7) for step in range(100, 2100, 100)]
    assert shown != [bleu_validator.sample_numbers(200, 3, step, seed=8) for step in range(100, 2100, 100)]
    assert len({number for numbers in shown for number in numbers}) > 40


@given(sentences=st.integers(1, 50), samples=st.integers(0, 60), step=st.integers(0, 2**40),
       seed=st.integers(0, 2**62))
def test_samples_are_different_sentences_of_the_set(sentences: int, samples: int, step: int, seed: int) -> None:
    numbers = bleu_validator.sample_numbers(sentences, samples, step, seed)
    assert numbers == sorted(set(numbers)) and len(numbers) == min(samples, sentences)
    assert all(0 <= number < sentences for number in numbers)


def test_samples_show_all_references_and_escape_markdown() -> None:
    validation = ValidationSet("", ["a|b", "c"], [["d", "e"], ["f", "*g*"]])
    assert bleu_validator.sample_lines(validation, ["x", "y"], [1]) == [
        "  source      c", "  reference   e", "  reference   *g*", "  translation y"]
    table = bleu_validator.sample_table(validation, ["x", "y"], [0, 1])
    assert "| source 1 | a\\|b |" in table and "| reference 2 | \\*g\\* |" in table


def test_a_set_whose_sides_differ_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="The validation set 'news' has 2 source lines, but 1 reference lines"):
        ValidationSet("news", ["a", "b"], [["c", "d"], ["e"]])
    with pytest.raises(DataError, match="has no reference translation"):
        ValidationSet("", ["a"], [])
    assert ValidationSet("n", ["a", "b"], [["c", "d"]]).first(1) == ValidationSet("n", ["a"], [["c"]])
    assert ValidationSet("n", ["a", "b"], [["c", "d"]]).first(0) == ValidationSet("n", ["a", "b"], [["c", "d"]])
