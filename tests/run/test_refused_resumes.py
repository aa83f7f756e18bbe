"""Runs that cannot be resumed: with other data than those of their training, without any training, and finished."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.callbacks.bleu_validator import BleuValidator
from towernmt.checkpoint.checkpoint_files import state_text
from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides
from towernmt.dataflow.batches.mixed_data import GENERAL_PAIRS
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.run.assemble import patience_scalar
from towernmt.run.directory import RunDirectory
from towernmt.run.resume import check_data, check_resumable, why_finished
from towernmt.run.run_settings import default_settings

ALONE, MIXED = {"number of sentence pairs": 30}, {"number of sentence pairs": 30, GENERAL_PAIRS: 50}


def run_with_state(directory: Path, step: int, settings: str = "architecture: transformer\n", **state: Any
                   ) -> RunDirectory:
    """Return a run with a checkpoint that only has its state."""
    run = RunDirectory(directory)
    run.settings_file.write_text(settings)
    checkpoint = run.checkpoints / f"step-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text(state_text({"step": step, "position": None, "callbacks": {}, **state}))
    return run


@pytest.mark.parametrize(("saved", "settings", "message"), [
    (MIXED, ALONE, "was trained with other pairs mixed into those of --data: pass the same --general (or --monolingual,"
                   " or --source-monolingual) to resume it, or train without it in another --logdir"),
    (ALONE, MIXED, "was trained without --general: leave out --general to resume it, or train with it in another"),
    (MIXED, {**MIXED, GENERAL_PAIRS: 60}, "(number of general sentence pairs changed from 50 to 60): pass the data of "
                                          "the run as --data and --general, or train on the new data in another"),
    (MIXED, MIXED, "(their fingerprints differ): pass the data of the run as --data and --general, or train"),
    (ALONE, ALONE, "than data now holds (their fingerprints differ): pass the data of the run as --data, or train"),
    ({}, MIXED, "than data now holds (their fingerprints differ): pass the data of the run as --data and --general")])
def test_the_message_names_the_option_whose_data_differ(
        saved: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    run = run_with_state(tmp_path, 5, made_from={"data": "old"}, position_settings=saved)
    data: Any = SimpleNamespace(directory="data", fingerprint="new", position_settings=settings)
    with pytest.raises(SettingsError) as error:
        check_data(run, data)
    assert message in str(error.value) and str(error.value).endswith(f"(--set init.checkpoint={run.path}).")
    data.fingerprint = "old"
    check_data(run, data)


@pytest.mark.parametrize(("settings", "state"), [
    ("made_from: {imported: marian model.npz}\n", {}), ("architecture: transformer\n", {"grown_from": "runs/a"})])
def test_an_imported_or_grown_model_is_trained_in_another_directory(
        settings: str, state: dict[str, Any], tmp_path: Path) -> None:
    """Its checkpoint has neither the state of an optimizer nor a position in the data."""
    run = run_with_state(tmp_path, 0, settings, **state)
    with pytest.raises(SettingsError) as error:
        check_resumable(run, default_settings())
    assert str(error.value) == (f"{run.path} holds an imported or grown model, which has no training to resume: pass "
                                "it as --start, and another --logdir for the new run.")


def test_a_run_that_ended_before_its_first_update_is_resumed(tmp_path: Path) -> None:
    check_resumable(run_with_state(tmp_path, 0), default_settings())


@pytest.mark.parametrize(("changed", "is_finished"), [
    ({}, True), ({"validation.sentences": 3}, False), ({"validation.metric": "chrf"}, False),
    ({"validation.metric_set": "talks"}, False), ({"train.stop_patience": 3}, False)])
def test_a_run_that_patience_has_ended_resumes_if_its_validation_is_another_one(
        changed: dict[str, Any], is_finished: bool, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(4)]
    data: Any = SimpleNamespace(validation_sets=[ValidationSet(name, lines, [lines]) for name in ("news", "talks")])
    first, second = (validation_set.first(2) for validation_set in data.validation_sets)
    no_model: Any = None
    validator = BleuValidator(no_model, first.source, first.references[0], no_model, no_model, more_sets=[second])
    patience = {"best": 30.0, "best_step": 1, "failures": 2, "metric": "validation_bleu"}
    run = run_with_state(tmp_path, 5, callbacks={
        "bleu_validator": {**validator.state(), "last_step": 5}, "early_stopping": patience})
    settings = apply_overrides(default_settings(), {"validation.sentences": 2, "train.stop_patience": 2, **changed})
    reason = why_finished(run, settings.train, patience_scalar(settings, data, run))
    assert ("train.stop_patience=2 validations without a better score" in reason) == is_finished == bool(reason)
