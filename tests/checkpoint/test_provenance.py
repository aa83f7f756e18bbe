"""Fingerprints link a run's vocabulary, data and checkpoints; nothing of a run or of prepared data is overwritten."""

from __future__ import annotations

import json
import platform
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow
import yaml

import towernmt
from tests.directory_contents import contents
from towernmt.checkpoint.averaging import average_checkpoints, last_checkpoints
from towernmt.checkpoint.checkpoint_files import checkpoint_steps, read_state, state_text
from towernmt.checkpoint.records import vocabulary_fingerprint
from towernmt.cli.main import main
from towernmt.core.errors import SettingsError
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.predict.scorer import Scorer
from towernmt.predict.translator import Translator
from towernmt.run import launch
from towernmt.run.directory import RunDirectory
from towernmt.run.grown_run import grow_vocabulary
from towernmt.run.resume import why_finished

pytestmark = pytest.mark.thorough

TINY = ["model.hidden_size=8", "model.filter_size=8", "model.heads=2", "model.encoder_layers=1",
        "model.decoder_layers=1", "data.batch_tokens=100", "train.steps=4", "checkpoint.steps=2",
        "train.deterministic=false", "log.steps=1", "search.beam_size=1"]


def prepare(directory: Path, letters: str, seed: int, old_data: Path | None = None) -> Path:
    """Return prepared data of these words, with the vocabulary of `old_data`; different seeds give different texts."""
    chance = random.Random(seed)
    lines = [letters.replace("", " ").strip(), *(" ".join(chance.choices(letters, k=6)) for _ in range(40))]
    directory.mkdir()
    (directory / "text").write_text("".join(f"{line}\n" for line in lines))
    vocabulary = ["--vocab-kind", "word", "--shared-vocab"] if old_data is None else [
        x for side in ("source", "target") for x in (f"--{side}-vocab", str(old_data / f"vocabulary/{side}.words"))]
    assert main(["prepare", "--source", str(directory / "text"), "--target", str(directory / "text"), *vocabulary,
                 "--valid-source", str(directory / "text"), "--valid-target", str(directory / "text"),
                 "--output", str(directory / "data")]) == 0
    return directory / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("text") / "here", "abcdefgh", 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data) -> Path:
    logdir = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "--defaults=fixed", "--data", str(data), "--logdir", str(logdir), "--set", *TINY]) == 0
    return logdir


@pytest.fixture
def run(trained, tmp_path) -> RunDirectory:
    return RunDirectory(shutil.copytree(trained, tmp_path / "run"))


def _fields(state: Path) -> dict[str, Any]:
    """Return the fields of a `state.json`."""
    return dict(json.loads(state.read_text()))


def error_of(capsys, *arguments: object) -> str:
    """Return the error message of a command."""
    capsys.readouterr()
    assert main(list(map(str, arguments))) == 1
    return capsys.readouterr().err.splitlines()[-1]


def test_the_settings_file_names_inputs_and_versions_and_can_still_be_read_as_settings(run, data):
    content = yaml.safe_load(run.settings_file.read_text())
    assert content["made_with"] == {"towernmt": towernmt.__version__, "tensorflow": tensorflow.__version__,
                                 "numpy": np.__version__, "python": platform.python_version()}
    assert content["made_from"]["data_path"] == str(data.absolute())
    assert content["made_from"]["data"] == PreparedData(data).fingerprint
    assert read_state(run.checkpoints / "step-4").made_from == {
        name: content["made_from"][name] for name in ("vocabulary", "data")}
    log = (run.log / "log.log").read_text()
    assert f"towernmt {towernmt.__version__}, tensorflow {tensorflow.__version__}" in log and str(data) in log
    assert run.settings().train.steps == 4
    shutil.rmtree(run.checkpoints)
    assert main(["train", "--defaults=fixed", "--config", str(run.settings_file), "--data", str(data), "--logdir",
                 str(run.path.parent / "other"), "--set", "train.steps=1", "validation.steps=0"]) == 0


def test_every_reader_refuses_a_replaced_vocabulary_of_a_run(run, data, tmp_path, capsys):
    words = (run.vocabulary / "source.words").read_text().splitlines()
    for side in ("source", "target"):       # of the same size
        (run.vocabulary / f"{side}.words").write_text("".join(f"{w}\n" for w in [*words[:-2], words[-1], words[-2]]))
    for read in (lambda: Translator(run.path, engine="graph"), lambda: Scorer(run.path), run.vocabularies,
                 lambda: average_checkpoints(run, last_checkpoints(run, 1), tmp_path / "mean"),
                 lambda: grow_vocabulary(run, data / "vocabulary", tmp_path / "grown")):
        with pytest.raises(SettingsError, match="is not the vocabulary that this run was trained with"):
            read()
    error = error_of(capsys, "train", "--defaults=fixed", "--data", data, "--logdir", tmp_path / "new", "--set", *TINY,
                     f"init.checkpoint={run.path}")
    assert "is not the vocabulary that this run was trained with" in error
    assert "another vocabulary" in error_of(capsys, "train", "--defaults=fixed", "--data", data, "--logdir", run.path)


def test_a_vocabulary_of_another_size_is_refused_in_a_run_without_fingerprints_too(run, tmp_path):
    other_data = PreparedData(prepare(tmp_path / "other", "abc", 1))
    run.save_settings(run.settings())
    save_vocabularies(other_data.source_vocabulary, other_data.target_vocabulary, run.vocabulary)
    with pytest.raises(SettingsError, match="source vocabulary has 7 subwords, but the run was trained with 12"):
        Translator(run.path, engine="graph")


def test_a_checkpoint_of_a_run_with_another_vocabulary_is_refused(run):
    state = run.checkpoints / "step-4" / "state.json"
    state.write_text(state_text({**_fields(state), "made_from": {"vocabulary": "0123"}}))
    with pytest.raises(SettingsError, match="step-4 was not trained with the vocabulary in"):
        Translator(run.path, checkpoint="last", engine="graph")


def test_resuming_with_other_data_of_the_same_vocabulary_is_refused_with_advice(run, data, tmp_path, capsys):
    other_data = prepare(tmp_path / "other", "abcdefgh", 2, old_data=data)
    assert vocabulary_fingerprint(other_data / "vocabulary") == vocabulary_fingerprint(data / "vocabulary")
    before = contents(run.path)
    error = error_of(capsys, "train", "--defaults=fixed", "--data", other_data, "--logdir", run.path, "--set",
                     "train.steps=6")
    assert "trained on other data than" in error and f"init.checkpoint={run.path}" in error
    assert contents(run.path) == before
    assert main(["train", "--defaults=fixed", "--data", str(other_data), "--logdir", str(tmp_path / "new"), "--set",
                 *TINY, "validation.steps=0", f"init.checkpoint={run.path}"]) == 0


@pytest.mark.parametrize("change, sentence", [
    ("data.batch_tokens=120", "data.batch_tokens changed from 100 to 120, but the data position in"),
    ("data.seed=5", "data.seed changed from 1 to 5, but the data position in"),
    ("data.memory_gb=3", "data.memory_gb changed from 0 to 3, which changes data.batch_tokens, but the data position")])
def test_a_setting_that_the_position_depends_on_is_refused_by_name(run: RunDirectory, data: Path, capsys: Any,
                                                                   change: str, sentence: str) -> None:
    before = contents(run.path)
    error = error_of(capsys, "train", "--defaults=fixed", "--data", data, "--logdir", run.path, "--set",
                     "train.steps=6", change)
    assert sentence in error and f"init.checkpoint={run.path}" in error and contents(run.path) == before


def test_resuming_a_finished_run_prints_a_line_and_changes_nothing(run, data, caplog):
    before = contents(run.path)
    assert main(["train", "--defaults=fixed", "--data", str(data), "--logdir", str(run.path)]) == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"{run.path} is finished: train.steps=4 is reached at step 4. To resume it, pass a higher limit (--set ...)."]
    assert contents(run.path) == before


def test_the_validation_at_the_end_is_in_the_checkpoint_that_was_saved_before_it(run):
    remembered = read_state(run.checkpoints / "step-4").callbacks["bleu_validator"]
    assert remembered["last_step"] == remembered["best_step"] == 4


@pytest.mark.parametrize("change, settings, reason", [
    ({}, {"steps": 5}, ""), ({}, {"steps": 4}, "train.steps=4 is reached at step 4"),
    ({"position": '{"epoch": 2, "block": 0, "batch": 0}'}, {"steps": 0, "epochs": 2}, "train.epochs=2"),
    ({"position": '{"epoch": 1, "block": 3, "batch": 0}'}, {"steps": 0, "epochs": 2}, ""),
    ({"callbacks": {"stop_after_minutes": {"elapsed_seconds": 60.0}}}, {"steps": 0, "minutes": 1.0}, "train.minutes=1"),
    ({"callbacks": {"progress": {"seconds": 60.0}}}, {"steps": 0, "minutes": 1.0}, "train.minutes=1"),
    ({"callbacks": {"early_stopping": {"failures": 3, "metric": "validation_bleu"}}},
     {"steps": 0, "stop_patience": 3}, "train.stop_patience=3"),
    ({"callbacks": {"early_stopping": {"failures": 3, "metric": "validation_loss"}}},
     {"steps": 0, "stop_patience": 3}, ""),
    ({"callbacks": {"bleu_validator": {"last_step": 2}}}, {"steps": 4}, "")])
def test_a_run_is_finished_when_a_limit_is_reached_and_no_validation_is_owed(run, change, settings, reason):
    state = run.checkpoints / "step-4" / "state.json"
    state.write_text(state_text({**_fields(state), **change}))
    train = run.settings().train
    for name, value in settings.items():
        setattr(train, name, value)
    why = why_finished(run, train, "validation_bleu")
    assert reason in why and bool(why) == bool(reason)


def test_prepared_data_are_never_used_as_a_run_or_as_its_directory(run, data, tmp_path, capsys):
    prepared = Path(shutil.copytree(data, tmp_path / "data"))
    before = contents(prepared)
    other_data = prepare(tmp_path / "other", "abc", 1)
    for arguments in (["train", "--defaults=fixed", "--data", other_data, "--logdir", prepared, "--set", *TINY],
                      ["grow", "--model", run.path, "--vocabulary", other_data, "--output", prepared],
                      ["average", "--model", run.path, "--last", "2", "--output", prepared],
                      ["average", "--model", run.path, "--last", "2", "--output", prepared / "vocabulary"]):
        assert "prepared data" in error_of(capsys, *arguments)
    with pytest.raises(SettingsError, match="prepared data"):
        RunDirectory(prepared).begin(run.settings(), PreparedData(other_data))
    assert contents(prepared) == before


def test_a_vocabulary_that_no_run_wrote_is_not_replaced(data, tmp_path, capsys):
    other_data = prepare(tmp_path / "other", "abc", 1)
    shutil.copytree(other_data / "vocabulary", tmp_path / "mine" / "vocabulary")
    before = contents(tmp_path / "mine")
    assert "contains another vocabulary" in error_of(
        capsys, "train", "--defaults=fixed", "--data", data, "--logdir", tmp_path / "mine", "--set", *TINY)
    assert contents(tmp_path / "mine") == before


def test_average_and_grow_never_write_over_a_step_of_a_run(run, data, tmp_path, capsys):
    before = contents(run.path)
    average = ["average", "--model", run.path, "--last", "2", "--output"]
    assert "lies in a run" in error_of(capsys, *average, run.checkpoints)
    (tmp_path / "link").symlink_to(run.checkpoints)
    assert "lies in a run" in error_of(capsys, *average, tmp_path / "link")
    by_hand = Path(shutil.copytree(run.checkpoints, tmp_path / "by-hand" / "saved"))
    assert "is a checkpoint of training" in error_of(capsys, *average, by_hand)
    assert main(list(map(str, [*average, tmp_path / "mean"]))) == 0
    assert main(list(map(str, [*average, tmp_path / "mean"]))) == 0     # an average may be made again
    grow = ["grow", "--model", run.path, "--vocabulary", data, "--output"]
    assert "is the same directory as --model" in error_of(capsys, *grow, run.path)
    by_hand.rename(by_hand.with_name("checkpoints"))
    assert "lies in a run" in error_of(capsys, *grow, tmp_path / "by-hand")
    assert contents(run.path) == before


def test_one_training_a_directory_and_one_a_process(run, data, tmp_path, capsys):
    with run.writing("towernmt train"):
        error = error_of(capsys, "train", "--defaults=fixed", "--data", data, "--logdir", run.path, "--set",
                         "train.steps=9")
        assert "(towernmt train) has been writing there since" in error
    with launch.one_training():
        errors = []
        thread = threading.Thread(target=lambda: errors.append(error_of(
            capsys, "train", "--defaults=fixed", "--data", data, "--logdir", tmp_path / "second", "--set", *TINY)))
        thread.start()
        thread.join()
    assert "This process already trains a model" in errors[0]
    assert checkpoint_steps(run.checkpoints)[-1] == 4 and not (tmp_path / "second").exists()
