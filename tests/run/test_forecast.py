"""The sentences of a forecast."""

from __future__ import annotations

from datetime import datetime

import pytest

from towernmt.run.forecast import TrainingForecast

NOW = datetime(2026, 1, 2, 3, 4)


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
