"""A trial's process: earlier reports come first, and a training that cannot begin reports the reason."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from towernmt.callbacks.validation_metrics import METRICS
from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.core.errors import SettingsError
from towernmt.core.files import write_text
from towernmt.farm.ray_workers import Resources
from towernmt.jobs import training_process, tune_search
from towernmt.jobs.trials import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    STOPPED,
    WAITING,
    TrialKilled,
    TrialReport,
    TrialRow,
    TrialRun,
    TrialTable,
)
from towernmt.jobs.tune_search import SearchLimits, Trial, search, trial_processors

SCALAR = METRICS["bleu"].scalar()
TINY = ["model.hidden_size=8", "model.filter_size=8", "model.heads=1", "model.encoder_layers=1",
        "model.decoder_layers=1"]


def trained(directory: Path, scores: list[float | None]) -> Path:
    """Return the directory of a finished trial."""
    log = directory / "run" / "log"
    log.mkdir(parents=True)
    lines = [{"loss": 1.0, "global_step": 5}]
    lines += [{SCALAR: score, "global_step": 10 * step} for step, score in enumerate(scores, 1)]
    (log / "stats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_text(directory / "finished.json", "{}\n")
    return directory


def test_a_finished_trial_reports_all_of_its_validations_and_starts_nothing(tmp_path: Path) -> None:
    trial = TrialRun(trained(tmp_path / "1", [2.0, 3.0]), ["nothing"], SCALAR, tmp_path)
    assert [trial.next() for _ in range(3)] == [
        TrialReport(10, 2.0), TrialReport(20, 3.0), TrialReport(20, 3.0, ended=True)]
    assert not (tmp_path / "1" / "output.txt").exists()


def test_a_score_that_is_not_finite_is_reported(tmp_path: Path) -> None:
    trial = TrialRun(trained(tmp_path / "1", [None]), ["nothing"], SCALAR, tmp_path)
    report = trial.next()
    assert report.step == 10 and report.score is not None and math.isnan(report.score)


def test_half_a_line_of_the_statistics_waits_for_its_end(tmp_path: Path) -> None:
    trial = TrialRun(trained(tmp_path / "1", [2.0]), ["nothing"], SCALAR, tmp_path)
    with (tmp_path / "1" / "run" / "log" / "stats.jsonl").open("a") as file:
        file.write('{"global_step": 20, "valid')
    assert [trial.next() for _ in range(2)] == [TrialReport(10, 2.0), TrialReport(10, 2.0, ended=True)]


def test_a_line_of_the_statistics_that_a_full_disk_has_cut_is_left_out(tmp_path: Path) -> None:
    trial = TrialRun(trained(tmp_path / "1", [2.0]), ["nothing"], SCALAR, tmp_path)
    with (tmp_path / "1" / "run" / "log" / "stats.jsonl").open("a") as file:
        file.write('{"global_step": 20, "valid{"global_step": 21, "loss": 1.0}\n')
        file.write(json.dumps({SCALAR: 3.0, "global_step": 30}) + "\n")
    assert [trial.next() for _ in range(3)] == [
        TrialReport(10, 2.0), TrialReport(30, 3.0), TrialReport(30, 3.0, ended=True)]


def test_a_trial_without_news_returns_after_the_time_limit(tmp_path: Path) -> None:
    trial = TrialRun(tmp_path, ["train", "--data", "missing"], SCALAR, tmp_path)
    assert trial.next(seconds=0) == TrialReport(0, None)
    trial.stop()


@pytest.mark.parametrize("status", [-9, 137, 143])
def test_a_killed_process_is_no_failure_of_the_training(tmp_path: Path, status: int) -> None:
    with pytest.raises(TrialKilled):
        TrialRun(tmp_path, [], SCALAR, tmp_path)._end(status)


def test_a_killed_process_is_started_again_within_its_trial(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [*["import os; os.kill(os.getpid(), 9)"] * 3, "pass"]
    real = subprocess.Popen
    monkeypatch.setattr(training_process.subprocess, "Popen", lambda *arguments, **others: real(
        [sys.executable, "-S", "-c", programs.pop(0)], stdin=subprocess.PIPE))
    assert TrialRun(tmp_path, [], SCALAR, tmp_path).next() == TrialReport(0, None, ended=True) and not programs


def test_a_training_that_cannot_begin_ends_with_its_last_words(tmp_path: Path) -> None:
    trial = TrialRun(tmp_path, ["train", "--data", str(tmp_path), "--model", "transformr", "--logdir",
                                str(tmp_path / "run")], SCALAR, tmp_path)
    report = trial.next()
    trial.stop()
    assert report.ended and report.score is None and "transformr" in report.reason


def test_paths_of_a_trial_are_relative_to_the_directory_of_the_command_if_the_machine_has_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")       # as Ray changes the directory of a trial
    (tmp_path / "mine.yaml").write_text("train: {stepz: 1}")
    arguments = ["train", "--data", str(tmp_path), "--logdir", str(tmp_path / "run"), "--config", "mine.yaml"]
    reasons = []
    for number, directory in enumerate((tmp_path, tmp_path / "missing")):
        trial = TrialRun(tmp_path / str(number), arguments, SCALAR, directory)
        reasons.append(trial.next().reason)
        trial.stop()
    assert "train.stepz" in reasons[0] and "mine.yaml" in reasons[1] and "train.stepz" not in reasons[1]


@pytest.mark.parametrize(("machines", "trials", "gpus", "expected"), [
    ([(8, 0), (8, 0)], 1, 0, 8), ([(8, 0), (8, 0)], 4, 0, 4), ([(8, 0)], 3, 0, 2), ([(2, 0)], 5, 0, 1),
    ([(16, 0), (4, 1)], 1, 1, 4), ([(8, 2)], 4, 1, 4)])
def test_a_trial_has_as_many_processors_as_one_machine_can_give(
        machines: list[tuple[int, int]], trials: int, gpus: int, expected: int) -> None:
    limits = SearchLimits(30, 10, max_concurrent=trials, gpus=gpus)
    assert trial_processors([Resources(*machine) for machine in machines], limits) == expected


def test_a_training_uses_only_the_processors_of_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    real = subprocess.Popen

    def start(command: list[str], **others: object) -> subprocess.Popen[bytes]:
        commands.append(command)
        return real([sys.executable, "-S", "-c", "pass"], stdin=subprocess.PIPE)

    monkeypatch.setattr(training_process.subprocess, "Popen", start)
    assert TrialRun(tmp_path, ["train"], SCALAR, tmp_path, processors=3).next().ended
    assert [command[-2:] for command in commands] == [["3", "train"]]


def test_more_gpus_than_a_machine_has_are_one_clear_sentence() -> None:
    with pytest.raises(SettingsError) as caught:
        trial_processors([Resources(8, 1), Resources(4, 0)], SearchLimits(30, 10, gpus=2))
    assert str(caught.value) == (
        "--gpus 2: no machine has as many GPUs for a trial (the machines: 8 processors, 1 GPU; 4 "
        "processors): pass fewer.")


@pytest.fixture(scope="module")
def one_processor() -> Iterator[None]:
    """Connect to a new Ray cluster of one processor."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.tune")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.processes
def test_the_better_trials_go_on_and_one_that_fails_is_a_row(
        one_processor: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_search, "_MAX_RESTARTS", 1)        # each starts a process of Ray
    table = TrialTable(METRICS["bleu"])
    trials = []
    for number, scores in enumerate(([3.0, 4.0, 5.0], [1.0, 9.0, 9.0], []), 1):
        directory = tmp_path / str(number)
        directory.mkdir() if not scores else trained(directory, scores)
        table.rows.append(TrialRow(number, {"n": number}))
        trials.append(Trial(table.rows[-1], directory, ["no-such-command"]))
    table.rows.append(TrialRow(4, {"n": 4}))
    trials.append(Trial(table.rows[-1], tmp_path / "file", ["no-such-command"]))
    (tmp_path / "file").touch()
    said: list[int] = []
    search(trials, table, SearchLimits(30, 10, factor=2), tmp_path / "ray", lambda row: said.append(row.number),
           print)
    assert [(row.state, row.step, row.score) for row in table.rows] == [
        (FINISHED, 30, 5.0), (STOPPED, 10, 1.0), (FAILED, 0, None), (FAILED, 0, None)]
    assert "no-such-command" in table.rows[2].reason and set(said) == {1, 2, 3, 4}
    assert re.fullmatch("it failed more than 1 times; the last time: .*NotADirectoryError.*", table.rows[3].reason)
    best = table.best()
    assert best is not None and best.number == 1 and not (tmp_path / "ray").exists()


@pytest.mark.processes
def test_a_search_on_a_busy_cluster_reports_once_what_it_waits_for(
        one_processor: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    class Occupant:
        pass

    monkeypatch.setattr(tune_search, "_START_SECONDS", 0.5)
    occupant = ray.remote(Occupant).options(name="occupant", num_cpus=1).remote()
    ray.get(occupant.__ray_ready__.remote())
    messages: list[str] = []

    def release(message: str) -> None:
        messages.append(message)
        ray.kill(ray.get_actor("occupant"))

    row = TrialRow(1, {"n": 1})
    trial = Trial(row, trained(tmp_path / "1", [1.0, 2.0]), ["no-such-command"])
    search([trial], TrialTable(METRICS["bleu"], [row]), SearchLimits(30, 10), tmp_path / "ray", lambda row: None,
           release)
    assert messages == ["Waiting for the Ray cluster to start a trial with 1 processor: 0 of 1 processors of the "
                        "cluster are free."]
    assert row.state == FINISHED


@pytest.mark.processes
def test_a_search_that_ctrl_c_stops_returns_the_signal_and_leaves_the_other_trials_waiting(
        one_processor: None, tmp_path: Path) -> None:
    table = TrialTable(METRICS["bleu"], [TrialRow(number, {"n": number}) for number in (1, 2)])
    trials = [Trial(row, trained(tmp_path / str(row.number), [1.0, 2.0]), ["no-such-command"]) for row in table.rows]
    said: list[int] = []

    def stop_at_first(row: TrialRow) -> None:
        said.append(row.number)
        if len(said) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    stop_signal = search(trials, table, SearchLimits(30, 10), tmp_path / "ray", stop_at_first, print)
    assert stop_signal == signal.SIGINT and signal.getsignal(signal.SIGINT) == handler
    assert [row.state for row in table.rows] == [INTERRUPTED, WAITING] and set(said) == {1}


@pytest.mark.processes
def test_a_trial_that_runs_when_ctrl_c_stops_the_search_saves_a_checkpoint(
        one_processor: None, tmp_path: Path, prepare_pairs: Callable[[Path], Path]) -> None:
    arguments = ["train", "--defaults", "fixed", "--data", str(prepare_pairs(tmp_path)), "--logdir",
                 str(tmp_path / "1" / "run"), "--set", *TINY, "train.steps=100000", "validation.steps=10",
                 "checkpoint.steps=100000"]
    (tmp_path / "1").mkdir()
    row = TrialRow(1, {"n": 1})
    signals: list[int] = []

    def stop_at_first_score(row: TrialRow) -> None:
        if row.score is not None and not signals:
            signals.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    search([Trial(row, tmp_path / "1", arguments)], TrialTable(METRICS["bleu"], [row]), SearchLimits(100_000, 10),
           tmp_path / "ray", stop_at_first_score, print)
    steps = checkpoint_steps(tmp_path / "1" / "run" / "checkpoints")
    assert row.state == INTERRUPTED and steps and steps[-1] >= 10
