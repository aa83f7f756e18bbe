"""examples/from_run.py: the settings of a run that continues from a finished run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from towernmt.core.settings import apply_overrides
from towernmt.run import InitSettings, RunDirectory, default_settings


@pytest.mark.parametrize("initial_values", [
    {"init.embeddings": "cooccurrence"}, {"init.source_embeddings": "words.npy", "init.target_embeddings": "words.npy"},
    {"init.checkpoint": "general", "init.new": ["."], "init.left_out": ["."]}])
def test_the_parameters_of_the_finished_run_replace_its_initial_values(
        example: Callable[[str], Any], tmp_path: Path, initial_values: dict[str, Any]) -> None:
    finished = RunDirectory(tmp_path / "finished")
    finished.save_settings(apply_overrides(default_settings(), {
        "model.hidden_size": 32, "model.guided_alignment_weight": 0.1, **initial_values}))
    checkpoint = finished.checkpoints / "step-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.index").write_text("")
    (checkpoint / "state.json").write_text("{}")
    options = argparse.Namespace(model=str(finished.path), logdir=str(tmp_path / "new"), assignments=["init.new=x"])
    settings = example("from_run").settings_from_run(options, ["model.guided_alignment_weight=0"])
    assert settings.init == InitSettings(checkpoint=str(finished.path), new=["x"])
    assert settings.model.hidden_size == 32
    assert (settings.model.guided_alignment_weight, settings.model.guided_alignment_heads) == (0, 1)
