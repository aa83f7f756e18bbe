"""A plateau schedule whose score is never recorded is refused before the graph is built."""

from __future__ import annotations

import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides
from towernmt.run.assemble import check_plateau
from towernmt.run.run_settings import default_settings


def settings(metric: str, schedule: str = "plateau"):
    return apply_overrides(default_settings(), {"schedule.name": schedule, "schedule.metric": metric})


def test_a_score_that_no_validation_puts_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match="_ter is not a validation score .* use validation_bleu, validation_loss/x"):
        check_plateau(settings("validation_ter"), ["validation_bleu", "validation_loss/x"])
    with pytest.raises(SettingsError, match="needs validation_bleu, but this run has no validation"):
        check_plateau(settings("validation_bleu"), [])


@pytest.mark.parametrize("metric", ["bleu", "loss/x", "valdation_bleu"])
def test_a_misspelt_score_is_refused(metric) -> None:
    with pytest.raises(SettingsError, match=f"schedule.metric={metric} is not .* validation_bleu, validation_loss/x"):
        check_plateau(settings(metric), ["validation_bleu", "validation_loss/x"])


@pytest.mark.parametrize("metric", ["loss", "nll", "perplexity"])
def test_a_mean_of_training_is_refused(metric) -> None:
    with pytest.raises(SettingsError, match=f"{metric} is a mean over training updates, .* validation_loss"):
        check_plateau(settings(metric), ["validation_bleu", "validation_loss"])
    check_plateau(settings(metric, "constant"), [])


def test_scores_of_validation_and_of_custom_callbacks_are_accepted() -> None:
    check_plateau(settings("validation_loss/x"), ["validation_bleu", "validation_loss/x"])
    check_plateau(settings("my_score"), [])
    check_plateau(settings("validation_bleu", "constant"), [])
