"""The sentences of a forecast."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from towernmt.core.settings import apply_overrides
from towernmt.run.forecast import TrainingForecast, _amounts
from towernmt.run.product_rates import ProductRates
from towernmt.run.run_settings import default_settings
from towernmt.run.training_conditions import TrainingConditions

NOW = datetime(2026, 1, 2, 3, 4)
CONDITIONS = TrainingConditions(target_tokens=100_000, pairs=10_000, vocabulary=8000, unigram=True, validation_pairs=0,
                                gpus=0, processors=2, bfloat16=True, rates=ProductRates(2.8e11, 8e11))


def test_a_forecast_names_amount_end_and_memory() -> None:
    assert TrainingForecast(512, 1234.0, 11.6, 30.0, 1 << 30).lines(NOW) == [
        "Training: about 1,200 updates, 11.6 passes over the corpus; it would end at about 2026-01-02 03:34.",
        "Memory: 1.00 GiB (measured on the largest batches of data.batch_tokens=512)."]


def test_a_step_that_does_not_fit_has_no_memory() -> None:
    assert TrainingForecast(512, None, None, None, None).lines(NOW)[1] == (
        "Memory: the largest batches of data.batch_tokens=512 do not fit, so lower data.batch_tokens (and raise "
        "train.update_cycle).")


@pytest.mark.parametrize("minutes, end", [(30.0, "it would end at about 2026-01-02 03:24"),
                                          (5.0, "it would end at about 2026-01-02 03:04"),
                                          (1e30, "it would take more than a century")])
def test_the_end_of_a_resumed_run_counts_from_now(minutes: float, end: str) -> None:
    assert TrainingForecast(512, 1200.0, None, minutes, None, 400, 10.0).lines(NOW)[0] == (
        f"Training: about 1,200 updates, of which the run has made 400 updates; {end}.")


def test_minutes_are_a_limit_although_the_speed_of_a_gpu_is_unknown() -> None:
    assert TrainingForecast(12_500, None, None, 30.0, 1 << 30).lines(NOW)[0] == (
        "Training: an unknown number of updates; it would end at about 2026-01-02 03:34.")
    assert TrainingForecast(12_500, None, None, None, 1 << 30).lines(NOW)[0] == (
        "Training: without a limit (train.steps, train.epochs or train.minutes); its end is unknown.")


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("limits, updates", [
    ({"train.steps": 1000}, 1000), ({"train.minutes": 30}, 600), ({"train.steps": 1000, "train.minutes": 30}, 600),
    ({"train.epochs": 5}, 500), ({"train.steps": 1000, "train.epochs": 5, "train.minutes": 30}, 500)])
def test_a_resumed_run_is_expected_to_continue_at_its_speed(gpus: int, limits: dict[str, float], updates: int) -> None:
    """400 updates in 20 minutes are 20 updates per minute; a pass has 100 batches."""
    settings = apply_overrides(default_settings(), {"data.batch_tokens": 1000, **limits})
    conditions = replace(CONDITIONS, gpus=gpus)
    assert _amounts(settings, conditions, 400, 20.0) == pytest.approx((updates, updates / 100, updates / 20))


def test_a_resumed_run_without_a_limit_has_no_end() -> None:
    assert _amounts(default_settings(), CONDITIONS, 400, 20.0) == (None, None, None)
