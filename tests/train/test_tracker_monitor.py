"""Scalars in experiment trackers: MLflow itself, and libraries with the interface of Weights & Biases."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorpack.callbacks import Callback
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train import SimpleTrainer

from towernmt.core.errors import SettingsError
from towernmt.core.session import SessionCreator
from towernmt.core.settings import apply_overrides
from towernmt.core.tf_compat import tf, tf1
from towernmt.run.assemble import _monitors_of_run
from towernmt.run.directory import RunDirectory
from towernmt.run.launch import train as train_run
from towernmt.run.run_settings import default_settings
from towernmt.train import tracker_monitor
from towernmt.train.monitors import first_line
from towernmt.train.tracker_monitor import Tracker, TrackerMonitor, make_tracker, mlflow_name, name_for_tracker

SETTINGS = {"train.steps": 300, "model.pre_norm": True, "train.only": ["a|b"], "long": "x" * 900}


class Unreliable:
    """A tracker that cannot be reached at some steps of training.

    Args:
        fails: whether it cannot be reached at a step.
        begin_fails: whether the first attempt to begin a run fails.

    Attributes:
        now: the step of training.
        attempts: number of calls of `begin` and `log`.
        calls: those that were successful.
    """

    library = "mlflow"

    def __init__(self, fails: Callable[[int], bool] = lambda step: False, begin_fails: bool = False) -> None:
        self.fails, self.begin_fails = fails, begin_fails
        self.now = self.attempts = 0
        self.calls: list[Any] = []

    def begin(self, identifier: str | None, settings: Any) -> str:
        self.attempts += 1
        if self.begin_fails:
            self.begin_fails = False
            raise ConnectionError("no route to host\nsecond line")
        self.calls.append(("begin", identifier))
        return "1"

    def log(self, scalars: Any, step: int) -> None:
        self.attempts += 1
        if self.fails(self.now):
            raise ConnectionError("no route to host\nsecond line")
        self.calls.append((step, scalars["half"]))

    def is_refusal(self, error: Exception) -> bool:
        return False

    def end(self) -> None:
        self.calls.append("end")


class Picky:
    """A tracker that refuses steps with some scalars as invalid, and cannot be reached at some attempts.

    Args:
        refused: names of the scalars that it refuses.
        fails: numbers of the attempts, from 1, at which it cannot be reached.

    Attributes:
        recorded: the steps of each scalar.
    """

    library = "wandb"

    def __init__(self, refused: set[str], fails: tuple[int, ...] = ()) -> None:
        self._refused, self._fails, self._attempts = refused, fails, 0
        self.recorded: dict[str, list[int]] = {}

    def begin(self, identifier: str | None, settings: Any) -> str:
        return "1"

    def log(self, scalars: Any, step: int) -> None:
        self._attempts += 1
        if self._attempts in self._fails:
            raise ConnectionError("no route to host")
        if self._refused & set(scalars):
            raise ValueError("reserved name\nsecond line")
        for name in scalars:
            self.recorded.setdefault(name, []).append(step)

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, ValueError)

    def end(self) -> None:
        self.recorded["end"] = []


class Clock(Callback):
    """Sets the step of a tracker."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def _trigger_step(self) -> None:
        self._tracker.now = self.global_step


class Put(Callback):
    def _trigger_step(self) -> None:
        self.trainer.monitors.put_scalar("half", self.global_step / 2)
        self.trainer.monitors.put_scalar("validation_loss/de-en", 1.0 if self.global_step % 2 else float("nan"))


class PutAll(Callback):
    """Records scalars with some names after each step.

    Args:
        names: the names.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def _trigger_step(self) -> None:
        for name in self._names:
            self.trainer.monitors.put_scalar(name, self.global_step / 2)


def train(tracker: Tracker, log: Path, steps: int, start: int = 0, put: Callback | None = None) -> None:
    """Count up to `steps`, and record two scalars after each step, or those of another callback."""
    with tf.Graph().as_default():
        trainer = SimpleTrainer()
        step = tf1.train.get_or_create_global_step()
        trainer.train_op = tf.no_op()
        trainer.setup_callbacks([Clock(tracker), put or Put()], [TrackerMonitor(tracker, log, SETTINGS)])
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
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "validation_loss.de-en")] == [1, 3, 5]


@pytest.mark.thorough
def test_the_file_store_of_mlflow_has_the_scalars_of_all_sets_and_the_log_names_those_that_it_refuses(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    names = ["validation_loss", "validation_loss/de-en", "validation_loss/news+talks", "validation_loss/..", "half"]
    train(make_tracker("mlflow", "translation", "de-en"), tmp_path / "log", steps=3, put=PutAll(["x" * 251, *names]))
    client = mlflow.MlflowClient()
    run, = client.search_runs([client.get_experiment_by_name("translation").experiment_id])
    assert set(run.data.metrics) == set(map(mlflow_name, names))
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == [(step, step / 2) for step in range(1, 4)]
    warning, = (message for message in messages if "log.tracker" in message)
    assert warning.startswith(f"log.tracker=mlflow refuses {'x' * 251} ('Metric name' exceeds the maximum length")


def test_names_in_mlflow_are_different_and_none_is_the_directory_of_another_one() -> None:
    names = ["loss", "a/b", "a.b", "a b", "a 2e b", "a/2e/b", "a+b", "a/b/c", "a/..", ".", "..", "a/", "a"]
    mapped = [mlflow_name(name) for name in names]
    assert len(set(mapped)) == len(names) and not any("/" in name for name in mapped)
    assert [mlflow_name(name) for name in ("learning_rate", "input/wait_share", "validation_bleu/news+talks")] == [
        "learning_rate", "input.wait_share", "validation_bleu.news 2b talks"]


@pytest.mark.thorough
def test_mlflow_accepts_the_names() -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    for name in ("validation_bleu/news+talks", "validation_bleu/..", "..", ".", "a b", "a\nb", "ä", "a:b"):
        validation._validate_metric_name(mlflow_name(name))


@pytest.mark.parametrize("library", ["wandb", "trackio"])
def test_libraries_like_weights_and_biases_are_called_once_a_step(library: str, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    module: Any = ModuleType(library)
    module.init = lambda **options: calls.append(options)
    module.log = lambda scalars, step: calls.append((step, scalars))
    module.finish = lambda: calls.append("finish")
    monkeypatch.setitem(sys.modules, library, module)
    for start in (0, 2):
        train(make_tracker(library, "translation", "de-en"), tmp_path, steps=start + 2, start=start)
    first, second = (call for call in calls if isinstance(call, dict))
    name = json.loads((tmp_path / "tracker.json").read_text())[library]
    assert first == second == {"project": "translation", "config": SETTINGS, "resume": "allow", **(
        {"id": name, "name": "de-en"} if library == "wandb" else {"name": name})}
    assert calls[1:4] == [(1, {"half": 0.5, "validation_loss/de-en": 1.0}), (2, {"half": 1.0}), "finish"]
    assert calls[5:7] == [(3, {"half": 1.5, "validation_loss/de-en": 1.0}), (4, {"half": 2.0})]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect what the monitor logs; each attempt may follow the last one at once."""
    messages: list[str] = []
    for level in ("warning", "info"):
        monkeypatch.setattr(tracker_monitor.logger, level, lambda message, *_, **__: messages.append(message))
    monkeypatch.setattr(tracker_monitor, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tracker_monitor, "RETRY_FACTOR", 0)
    return messages


FAILURE = ("log.tracker=mlflow records nothing at present (no route to host). Training continues, and the figures are "
           "sent when the tracker works again.")
AGAIN = "log.tracker=mlflow records again."


def test_after_a_failure_the_figures_are_sent_later_and_both_are_logged_once(tmp_path: Path, messages: list[str]
                                                                             ) -> None:
    tracker = Unreliable(lambda step: step in (2, 3, 4))
    train(tracker, tmp_path, steps=6)
    assert tracker.calls == [("begin", None), *((step, step / 2) for step in range(1, 7)), "end"]
    assert [message for message in messages if "log.tracker" in message] == [FAILURE, AGAIN]


def test_a_run_that_could_not_begin_begins_later(tmp_path: Path, messages: list[str]) -> None:
    tracker = Unreliable(begin_fails=True)
    train(tracker, tmp_path, steps=3)
    assert tracker.calls == [("begin", None), *((step, step / 2) for step in range(1, 4)), "end"]
    assert [message for message in messages if "log.tracker" in message] == [FAILURE, AGAIN]


def test_the_password_of_a_tracker_is_not_logged() -> None:
    error = ConnectionError("API request to http://anna:geheim@host:5000/api/2.0/runs?token=leise failed\nmore")
    assert first_line(error) == "API request to http://***@host:5000/api/2.0/runs?token=*** failed"


def test_only_the_last_figures_are_kept_and_the_missing_ones_are_counted(tmp_path: Path, messages: list[str],
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_monitor, "MAX_UNSENT_STEPS", 2)
    tracker = Unreliable(lambda step: step in (2, 3, 4, 5))
    train(tracker, tmp_path, steps=7)
    assert [call[0] for call in tracker.calls[1:-1]] == [1, 4, 5, 6, 7]
    lost = Unreliable(lambda step: step > 1)
    train(lost, tmp_path, steps=4)
    assert [message for message in messages if "log.tracker" in message] == [
        FAILURE, f"{AGAIN} Number of steps whose figures are missing there: 2.", FAILURE,
        "log.tracker=mlflow has not worked again until the end of training. Number of steps whose figures are missing "
        "there: 3."]
    assert "end" not in lost.calls


def test_attempts_have_a_distance_in_which_training_is_not_delayed(tmp_path: Path, messages: list[str],
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_monitor, "RETRY_SECONDS", 3600.0)
    tracker = Unreliable(lambda step: step < 20)
    train(tracker, tmp_path, steps=20)
    assert tracker.attempts == 22       # to begin, at the first step, and for each of 20 steps at the end
    assert tracker.calls[-1] == "end"


def test_scalars_that_are_refused_as_invalid_do_not_hold_up_the_others(tmp_path: Path, messages: list[str]) -> None:
    tracker = Picky({"step", "time"})
    train(tracker, tmp_path, steps=3, put=PutAll(["step", "loss", "time"]))
    assert tracker.recorded == {"loss": [1, 2, 3], "end": []}
    assert [message for message in messages if "log.tracker" in message] == [
        "log.tracker=wandb refuses step, time (reserved name). These figures are missing there; stats.jsonl in the log "
        "directory has them."]


def test_a_failure_among_refusals_neither_repeats_nor_loses_a_scalar(tmp_path: Path, messages: list[str]) -> None:
    tracker = Picky({"step"}, fails=(4,))     # after the refused batch, `loss` and `step` of the first step
    train(tracker, tmp_path, steps=2, put=PutAll(["loss", "step", "nll"]))
    assert tracker.recorded == {"loss": [1, 2], "nll": [1, 2], "end": []}
    assert [message.partition(" (")[0] for message in messages if "log.tracker" in message] == [
        "log.tracker=wandb refuses step", "log.tracker=wandb records nothing at present",
        "log.tracker=wandb records again."]


@pytest.mark.parametrize(("error", "refused"), [
    (ValueError("reserved name"), True), (TypeError("no number"), True), (json.JSONDecodeError("", "", 0), False),
    (ConnectionError("no route"), False)])
def test_only_errors_about_the_scalars_are_refusals(error: Exception, refused: bool) -> None:
    assert tracker_monitor.WandbTracker("wandb", "a", "b").is_refusal(error) == refused
    answer = ConnectionError("answer")
    answer.error_code = "INVALID_PARAMETER_VALUE" if refused else "INTERNAL_ERROR"   # type: ignore[attr-defined]
    assert tracker_monitor.MlflowTracker("a", "b").is_refusal(answer) == refused


def test_each_library_keeps_its_own_run(tmp_path: Path, messages: list[str]) -> None:
    trackers = [Unreliable() for _ in range(3)]
    trackers[1].library = "wandb"
    for tracker in trackers:
        train(tracker, tmp_path, steps=1)
    assert [tracker.calls[0] for tracker in trackers] == [("begin", None), ("begin", None), ("begin", "1")]
    assert json.loads((tmp_path / "tracker.json").read_text()) == {"mlflow": "1", "wandb": "1"}


@pytest.mark.parametrize("content", ["", "[]", '{"mlflow": 3}'])
def test_a_damaged_record_of_the_tracker_is_named_with_its_fix(content: str, tmp_path: Path, messages: list[str]
                                                               ) -> None:
    tracker = Unreliable()
    (tmp_path / "tracker.json").write_text(content)
    train(tracker, tmp_path, steps=1)
    warning = next(message for message in messages if "log.tracker" in message)
    assert f"{tmp_path / 'tracker.json'}: " in warning and "Remove it to begin a new run in mlflow" in warning
    assert tracker.attempts == 0        # the run to continue is unknown


def test_a_retry_does_not_create_a_second_run_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        created = 0
        fails = True

        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="3")

        def create_run(self, experiment: str, run_name: str) -> Any:
            Client.created += 1
            return SimpleNamespace(info=SimpleNamespace(run_id=f"run {Client.created}"))

        def log_batch(self, identifier: str, params: Any) -> None:
            if Client.fails:
                raise ConnectionError("no route to host")

    mlflow: Any = ModuleType("mlflow")
    mlflow.MlflowClient, mlflow.entities = Client, ModuleType("mlflow.entities")
    mlflow.entities.Metric = mlflow.entities.Param = lambda *values: values
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", mlflow.entities)
    tracker = tracker_monitor.MlflowTracker("translation", "de-en")
    with pytest.raises(ConnectionError):
        tracker.begin(None, SETTINGS)
    Client.fails = False
    assert tracker.begin(None, SETTINGS) == "run 1" and Client.created == 1


def test_runs_inside_other_directories_have_names_that_tell_them_apart(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [name_for_tracker(Path(path)) for path in (
        "runs/de-en", "runs/de-en/monolingual/model", "de-en.zip.work/0f3a/run", ".")] == [
            "de-en", "de-en-monolingual-model", "de-en.zip.work-0f3a-run", tmp_path.name]


@pytest.mark.parametrize("library", ["none", "wandb"])
def test_a_run_has_the_monitor_of_its_tracker(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("wandb")
    module.init = module.log = module.finish = print
    monkeypatch.setitem(sys.modules, "wandb", module)
    settings = apply_overrides(default_settings(), {"log.tracker": library, "log.tracker_project": "translation"})
    monitors = [monitor for monitor in _monitors_of_run(settings, RunDirectory(tmp_path / "de-en"))
                if isinstance(monitor, TrackerMonitor)]
    assert [vars(monitor._tracker)["_project"] for monitor in monitors] == ["translation"] * (library != "none")
    assert all(monitor._settings["log.tracker"] == library for monitor in monitors)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SettingsError, match=r"log\.tracker=mlflow needs .* pip install 'towernmt\[mlflow\]'"):
        make_tracker("mlflow", "project", "run")


def test_a_missing_library_is_refused_before_a_run_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    data: Any = None        # not read before
    with pytest.raises(SettingsError, match="log.tracker=mlflow needs"):
        train_run(apply_overrides(default_settings(), {"log.tracker": "mlflow"}), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("file", "problem"), [
    ("offline-run.json", "Python imports .*trackio instead"),
    ("__init__.py", r"cannot be imported \(No module named 'missing_dependency'\)")])
def test_a_directory_and_a_damaged_library_are_not_taken_for_a_tracker_that_cannot_be_reached(
        file: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio").mkdir()
    (tmp_path / "trackio" / file).write_text("import missing_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    try:
        with pytest.raises(SettingsError, match=f"{problem}.*: pip install trackio, or set log.tracker=none"):
            make_tracker("trackio", "project", "run")
    finally:
        sys.modules.pop("trackio", None)
