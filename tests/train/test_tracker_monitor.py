"""Scalars in experiment trackers: MLflow itself, and libraries with the interface of Weights & Biases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorpack.callbacks import Callback
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train import SimpleTrainer

from towernmt.core.errors import SettingsError
from towernmt.core.session import SessionCreator
from towernmt.core.tf_compat import tf, tf1
from towernmt.train.tracker_monitor import Tracker, TrackerMonitor, make_tracker

SETTINGS = {"train.steps": 300, "model.pre_norm": True, "train.only": ["a|b"], "long": "x" * 900}


class Put(Callback):
    def _trigger_step(self) -> None:
        self.trainer.monitors.put_scalar("half", self.global_step / 2)
        self.trainer.monitors.put_scalar("validation_loss/de-en", 1.0 if self.global_step % 2 else float("nan"))


def train(tracker: Tracker, log: Path, steps: int, start: int = 0) -> None:
    """Count up to `steps`, and record two scalars after each step."""
    with tf.Graph().as_default():
        trainer = SimpleTrainer()
        step = tf1.train.get_or_create_global_step()
        trainer.train_op = tf.no_op()
        trainer.setup_callbacks([Put()], [TrackerMonitor(tracker, log, SETTINGS)])
        assign = step.assign(start)
        trainer.initialize(SessionCreator(), JustCurrentSession())
        trainer.sess.run(assign)
        trainer.main_loop(steps - start, 1, 1)


@pytest.mark.thorough
def test_mlflow_has_all_scalars_and_settings_of_a_resumed_run_in_one_run(tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    train(make_tracker("mlflow", "translation", "de-en"), tmp_path / "log", steps=3)
    train(make_tracker("mlflow", "translation", "de-en"), tmp_path / "log", steps=5, start=3)
    client = mlflow.MlflowClient()
    run, = client.search_runs([client.get_experiment_by_name("translation").experiment_id])
    assert run.info.run_name == "de-en" and run.info.status == "FINISHED"
    assert {key: run.data.params[key] for key in list(SETTINGS)[:3]} == {
        "train.steps": "300", "model.pre_norm": "True", "train.only": "['a|b']"}
    history = client.get_metric_history(run.info.run_id, "half")
    assert [(metric.step, metric.value) for metric in history] == [(step, step / 2) for step in range(1, 6)]
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "validation_loss/de-en")] == [1, 3, 5]


@pytest.mark.parametrize("library", ["wandb", "trackio"])
def test_libraries_like_weights_and_biases_are_called_once_a_step(library: str, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    module: Any = ModuleType(library)
    module.init = lambda **options: calls.append(options)
    module.log = lambda scalars, step: calls.append((step, scalars))
    module.finish = lambda: calls.append("finish")
    monkeypatch.setitem(sys.modules, library, module)
    monkeypatch.setattr("towernmt.train.tracker_monitor.find_spec", lambda name: name == library)
    for start in (0, 2):
        train(make_tracker(library, "translation", "de-en"), tmp_path, steps=start + 2, start=start)
    first, second = (call for call in calls if isinstance(call, dict))
    name = json.loads((tmp_path / "tracker.json").read_text())["run"]
    assert first == second == {"project": "translation", "config": SETTINGS, "resume": "allow", **(
        {"id": name, "name": "de-en"} if library == "wandb" else {"name": name})}
    assert calls[1:4] == [(1, {"half": 0.5, "validation_loss/de-en": 1.0}), (2, {"half": 1.0}), "finish"]
    assert calls[5:7] == [(3, {"half": 1.5, "validation_loss/de-en": 1.0}), (4, {"half": 2.0})]


def test_a_tracker_that_fails_is_left_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        def begin(self, identifier: Any, settings: Any) -> str:
            return "1"

        def log(self, scalars: Any, step: int) -> None:
            raise ConnectionError("no route to host")

        def end(self) -> None:
            raise AssertionError("it has failed before")

    warnings: list[str] = []
    monkeypatch.setattr("towernmt.train.monitors.logger.warning", warnings.append)
    train(Lost(), tmp_path, steps=3)
    assert warnings == ["Lost records nothing more (no route to host)."]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": 3}'])
def test_a_damaged_record_of_the_tracker_is_named_with_its_fix(content: str, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    class Unused:
        def begin(self, identifier: Any, settings: Any) -> str:
            raise AssertionError("the run to continue is unknown")

    warnings: list[str] = []
    monkeypatch.setattr("towernmt.train.monitors.logger.warning", warnings.append)
    (tmp_path / "tracker.json").write_text(content)
    train(Unused(), tmp_path, steps=1)  # type: ignore[arg-type]
    warning, = warnings
    assert f"{tmp_path / 'tracker.json'}: " in warning and "Remove it to begin a new run of the tracker" in warning


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.train.tracker_monitor.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"log\.tracker=mlflow needs .* pip install 'towernmt\[mlflow\]'"):
        make_tracker("mlflow", "project", "run")
