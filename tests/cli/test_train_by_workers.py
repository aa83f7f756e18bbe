"""`towernmt train --workers`: the arguments of each worker, and refused options."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from towernmt.cli.main import main, make_parser
from towernmt.cli.run_options import note_of_fixed_defaults
from towernmt.cli.train_with_workers import worker_arguments
from towernmt.run.rules.automatic_value import AutomaticSetting


def parsed(*arguments: str) -> argparse.Namespace:
    return make_parser(["train"])[0].parse_args(["train", *arguments])


def test_each_worker_gets_the_same_command_without_the_options_of_workers() -> None:
    of_all = ["--data", "d e", "--vocabulary", "v", "--logdir", "l", "--model", "m.py:M", "--preset", "tiny",
              "--towers", "0", "--config", "c", "--verbose", "--set", "a=1", "b= 2", "--set", "c=3"]
    options = parsed(*of_all, "--workers", "3", "--min-workers", "2", "--max-failures", "0", "--cpus", "1", "--wait",
                     "5", "--ray", "local")
    assert vars(parsed(*worker_arguments(options)[1:])) == vars(parsed(*of_all, "--defaults", "fixed"))


def test_each_worker_gets_the_values_that_were_chosen_for_all() -> None:
    options = parsed("--data", "d", "--logdir", "l", "--set", "a=1", "--workers", "2", "--gpu", "0")
    arguments = worker_arguments(options, [AutomaticSetting("data.batch_tokens", 25_000, "2 GPUs share the batch"),
                                           AutomaticSetting("model.names", ["a, b"], "they are those of the model")])
    assert parsed(*arguments[1:]).assignments == ["data.batch_tokens=25000", "model.names=['a, b']", "a=1"]


def test_the_note_on_fixed_defaults_names_the_settings_that_are_automatic() -> None:
    chosen = [AutomaticSetting(key, 1, "it is small") for key in ("optimizer.learning_rate", "train.clip_norm")]
    assert note_of_fixed_defaults(chosen) == (
        "Several workers use the fixed defaults of --help-settings, except optimizer.learning_rate and "
        "train.clip_norm, because automatic settings depend on one machine: set the precision, the schedule and the "
        "batch size with --set.")


@pytest.mark.parametrize(("arguments", "sentences"), [
    ([], ["Several workers use the fixed defaults of --help-settings because automatic settings depend on one machine: "
          "set the precision, the schedule and the batch size with --set."]),
    (["--gpu", "0"], ["Several workers use the fixed defaults of --help-settings, except data.batch_tokens, because "
                      "automatic settings depend on one machine: set the precision, the schedule and the model with "
                      "--set.", "Automatic setting: data.batch_tokens="]),
    (["--defaults", "fixed"], []), (["--defaults", "fixed", "--gpu", "0"], [])])
def test_the_defaults_that_several_workers_get_without_a_request_are_reported(
        prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
        arguments: list[str], sentences: list[str]) -> None:
    monkeypatch.setattr("towernmt.farm.ray_workers.check_ray", lambda option: None)
    monkeypatch.setattr("towernmt.jobs.elastic_training.train_by_workers", lambda training, report: 0)
    status = main(["train", "--data", str(prepared), "--logdir", str(tmp_path / "run"), "--workers", "2", *arguments])
    lines = capsys.readouterr().out.splitlines()
    assert status == 0 and len(lines) == len(sentences)
    assert all(line.startswith(sentence) for line, sentence in zip(lines, sentences, strict=True))


@pytest.mark.parametrize("arguments, message", [
    (["--workers", "0"], "--workers 0 must be at least 1."),
    (["--workers", "2", "--min-workers", "3"],
     "--min-workers 3 is more than --workers 2: pass at most --min-workers 2."),
    (["--workers", "2", "--max-failures", "-1"], "--max-failures -1 must be at least 0."),
    (["--workers", "2", "--gpu", "2,3"], "write --gpu 0,1 for 2 GPUs per worker."),
    (["--min-workers", "1"], "--min-workers is an option of --workers: pass --workers, too."),
    (["--ray", "local"], "--ray is an option of --workers: pass --workers, too."),
    (["--workers", "2", "--dry-run"],
     "--dry-run forecasts a training in one process, and --workers starts several: leave out one of them."),
    (["--workers", "2", "--set", "train.steps=-1"], "train.steps=-1 must be at least 0.")])
def test_the_error_of_impossible_options_is_one_sentence(
        prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str],
        message: str) -> None:
    status = main(["train", "--data", str(prepared), "--logdir", str(tmp_path / "run"), *arguments])
    assert status == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_workers_and_a_forecast_in_a_cluster_that_the_environment_names_are_refused(
        prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}')
    command = ["train", "--data", str(prepared), "--logdir", str(tmp_path / "run")]
    assert main([*command, "--workers", "2"]) == 1
    assert "TF_CONFIG or SLURM already names the workers" in capsys.readouterr().err
    assert main([*command, "--dry-run"]) == 1
    assert "TF_CONFIG or SLURM names several workers: unset the environment variables." in capsys.readouterr().err


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a few pairs."""
    directory = tmp_path_factory.mktemp("data")
    for name in ("source", "target"):
        (directory / name).write_text("a b\nb a\n" * 5)
    assert main(["prepare", "--source", str(directory / "source"), "--target", str(directory / "target"),
                 "--vocab-kind", "word", "--shared-vocab", "--output", str(directory / "data")]) == 0
    return directory / "data"
