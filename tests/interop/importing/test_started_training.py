"""Train from models of every kind by commands: the first validation is the model's; foreign text is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.interop.importing import opus
from tests.interop.importing.opennmt_tf import test_opennmt_tf as opennmt_tf
from tests.interop.importing.test_starting_models import write_bin
from tests.interop.importing.thumt import test_thumt as thumt
from tests.run_command import run_command
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.restore import initial_checkpoint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.weights import weights_of_checkpoint
from towernmt.core.tf_compat import tf
from towernmt.interop.starting_models import open_starting_model, read_foreign_model
from towernmt.run.started_run import starting_settings

STEPS = ["--towers", "1", "--set", "train.precision=float32", "data.batch_tokens=60", "train.steps=2",
         "checkpoint.steps=1"]


def write_text(place: Path, source: list[str], target: list[str], name: str = "new") -> list[str]:
    """Write parallel text, and return the options of `prepare` for training and validation."""
    options = []
    for side, lines in (("source", source), ("target", target)):
        file = place / f"{name}.{side}"
        file.write_text("".join(f"{line}\n" for line in lines))
        options += [f"--{side}", str(file), f"--valid-{side}", str(file)]
    return options


def opus_model(place: Path) -> Path:
    return opus.write_opus(place / "opus")


def bergamot_model(place: Path) -> Path:
    return write_bin(opus.write_opus(place / "opus", options={"transformer-ffn-activation": "relu"})).parent


def opennmt_tf_model(place: Path) -> Path:
    return opennmt_tf.write_model(place / "onmt", opennmt_tf.random_values(False, relative=True)).parent


def thumt_model(place: Path) -> Path:
    return thumt.write_model(place / "thumt", thumt.random_values({}), {})


def package_of_model(place: Path) -> Path:
    run, package = place / "run", place / "de-en.towernmt.zip"
    assert run_command("import", opus_model(place), "--from", "marian", "--output", run) == 0
    assert run_command("package", "--model", run, "--output", package, "--licence", "CC0-1.0") == 0
    return package


def words_of(letter: str) -> list[str]:
    """Return sentences of the words of the models of OpenNMT-tf and THUMT."""
    random = np.random.default_rng(4)
    return [" ".join(f"{letter}{number}" for number in random.integers(0, 9, 4)) for _ in range(8)]


KINDS: dict[str, tuple[Callable[[Path], Path], list[str], list[str]]] = {
    "marian": (opus_model, opus.GERMAN, opus.ENGLISH), "bergamot": (bergamot_model, opus.GERMAN, opus.ENGLISH),
    "opennmt-tf": (opennmt_tf_model, words_of("s"), words_of("t")),
    "thumt": (thumt_model, words_of("s"), words_of("t")), "package": (package_of_model, opus.GERMAN, opus.ENGLISH)}


def first_validation(logdir: Path) -> dict[str, Any]:
    """Return the scalars of the validation before the first update."""
    rows = [json.loads(line) for line in (logdir / "log" / "stats.jsonl").read_text().splitlines()]
    return next(row for row in rows if row["global_step"] == 0 and "validation_bleu" in row)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "marian"])     # see `test_starting_models.py`
def test_a_training_can_start_from_each_kind_of_model_with_exactly_its_weights(kind: str, tmp_path: Path, cache: Path
                                                                              ) -> None:
    model = KINDS[kind][0](tmp_path)
    start = open_starting_model(str(model), "--start")
    settings = starting_settings(start)
    if kind == "package":
        original = SavedRun(tmp_path / "run")
        assert settings.model == starting_settings(start._replace(run=original)).model
        assert settings.search == original.group("search", settings.search)
        vocabularies, checkpoint = original.vocabularies(), OpenCheckpoint(original.checkpoint())
        weights = {name: checkpoint.value(name) for name in checkpoint.shapes() if name.startswith("transformer/")}
        checkpoint.close()
    else:
        foreign = read_foreign_model(str(model), "--start")
        assert start.run.group("model", foreign.settings) == foreign.settings and settings.search == foreign.search
        assert settings.model.hidden_size == foreign.settings.hidden_size
        vocabularies, weights = (foreign.source, foreign.target), dict(foreign.weights)
    assert settings.init.checkpoint == start.location and initial_checkpoint(start.location)[0].path == start.run.path
    assert [vocabulary.files() for vocabulary in start.run.vocabularies()] == [
        vocabulary.files() for vocabulary in vocabularies]
    held = OpenCheckpoint(start.run.checkpoint())
    assert len(weights) > 10
    for name, value in weights.items():
        np.testing.assert_array_equal(held.value(name), value)
    held.close()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["package", *(pytest.param(kind, marks=pytest.mark.slow) for kind in (
    "marian", "bergamot", "opennmt-tf", "thumt"))])     # a package of a Marian model
def test_each_kind_of_model_gets_the_subwords_of_a_text(kind: str, tmp_path: Path, cache: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    make, source, target = KINDS[kind]
    model, grown = make(tmp_path), tmp_path / "grown"
    text = write_text(tmp_path, [f"{line} żółw ζ" for line in source], [f"{line} żuk ζ" for line in target])
    assert run_command("prepare", "--vocabulary-of", model, *text, "--output", tmp_path / "data") == 0
    note = capsys.readouterr().err
    command = f"towernmt grow --model {model} {' '.join([*text[:2], *text[4:6]])} --output"
    assert f"tokens are unknown to the model. To add the subwords of this text, run {command} GROWN, " in note
    assert run_command(*command.split()[1:], grown) == 0
    assert run_command("prepare", "--vocabulary-of", grown, *text, "--output", tmp_path / "more") == 0
    assert "unknown to the model" not in capsys.readouterr().err
    assert run_command("train", "--start", grown, "--data", tmp_path / "more", "--logdir", tmp_path / "new",
                       *STEPS, "validation.steps=0") == 0
    old, new = open_starting_model(str(model), "--model").run, SavedRun(grown)
    for before, after in zip(old.vocabularies(), new.vocabularies(), strict=True):
        pieces, more = ([v.id_to_piece(id) for id in range(v.size)] for v in (before, after))
        assert more[:before.size] == pieces and after.size > before.size
    first, second = OpenCheckpoint(old.checkpoint()), OpenCheckpoint(new.checkpoint())
    for name in weights_of_checkpoint(second):
        value = first.value(name)
        np.testing.assert_array_equal(second.value(name)[:len(value)] if value.ndim else second.value(name), value)
    first.close()
    second.close()


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.thorough if kind == "marian" else
                                               pytest.mark.slow) for kind in KINDS])
def test_the_first_validation_is_that_of_the_model(kind: str, tmp_path: Path, cache: Path) -> None:
    from towernmt.evaluate.metrics import corpus_scores
    from towernmt.predict.scorer import Scorer
    from towernmt.predict.translator import Translator

    make, source, target = KINDS[kind]
    model = make(tmp_path)
    text = write_text(tmp_path, source, target)
    assert run_command("prepare", "--vocabulary-of", model, *text, "--output", tmp_path / "data") == 0
    command = ["train", "--start", model, "--data", tmp_path / "data", "--logdir", tmp_path / "new", *STEPS]
    assert run_command(*command) == 0
    found = first_validation(tmp_path / "new")
    start = open_starting_model(str(model), "--start")
    with tf.Graph().as_default():
        scores = corpus_scores(Translator(start.run).translate(source), target)
        pairs = Scorer(start.run).score(list(zip(source, target, strict=True)))
    assert found["validation_bleu"] == pytest.approx(scores.bleu) and found["validation_chrf"] == pytest.approx(
        scores.chrf)
    nll = -sum(pair.log_prob for pair in pairs) / sum(pair.tokens for pair in pairs)
    assert found["validation_loss"] == pytest.approx(nll, rel=1e-5)
    settings = yaml.safe_load((tmp_path / "new" / "settings.yaml").read_text())
    assert settings["init"]["checkpoint"] == start.location and settings["validation"]["at_start"]
    assert settings["search"]["beam_size"] == start.run.saved_settings()["search.beam_size"]


@pytest.mark.thorough
def test_general_text_is_mixed_in_and_both_sets_are_validated(tmp_path: Path, cache: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    model = opus_model(tmp_path)
    for name, german, english in (("new", opus.GERMAN[:3], opus.ENGLISH[:3]), ("old", opus.GERMAN, opus.ENGLISH)):
        text = write_text(tmp_path, german * 2, english * 2, name)
        assert run_command("prepare", "--vocabulary-of", model, *text, "--output", tmp_path / name) == 0
    assert f"towernmt train --start {model} --data {tmp_path / 'old'} " in capsys.readouterr().err
    command = ["train", "--start", model, "--data", tmp_path / "new", "--general", tmp_path / "old", "--logdir",
               tmp_path / "run", *STEPS]
    assert run_command(*command) == 0
    settings = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert settings["validation"]["metric_set"] == "mean" and settings["data"]["general_share"] == 0.5
    row = first_validation(tmp_path / "run")
    assert row["validation_bleu/mean"] == pytest.approx((row["validation_bleu"] + row["validation_bleu/general"]) / 2)
    assert json.loads((tmp_path / "run" / "best" / "record.json").read_text())[0]["metric"] == "validation_bleu/mean"
    assert run_command(*command[:5], *command[7:]) == 1         # without the general text
    assert "was trained with other pairs mixed into those of --data: pass the same --general" in capsys.readouterr().err


@pytest.mark.thorough
def test_text_is_trained_on_unprepared_with_the_vocabulary_of_the_model(tmp_path: Path, cache: Path) -> None:
    model = opus_model(tmp_path)
    write_text(tmp_path, opus.GERMAN, opus.ENGLISH)
    assert run_command("train", "--start", model, "--data", f"{tmp_path}/new.{{source,target}}", "--logdir",
                       tmp_path / "run", "--defaults", "fixed", *STEPS) == 0
    saved = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert saved["model"]["hidden_size"] == opus.OPTIONS["dim-emb"]


def test_options_of_the_vocabulary_are_refused_with_the_vocabulary_of_a_model(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text = opus_model(tmp_path), write_text(tmp_path, opus.GERMAN, opus.ENGLISH)
    command = ["prepare", "--vocabulary-of", model, *text, "--output", tmp_path / "data"]
    for options, shown in ((["--vocab-size", "50"], "--vocab-size 50"), (["--shared-vocab"], "--shared-vocab"),
                           (["--vocab-kind", "bpe"], "--vocab-kind bpe"), (["--byte-fallback"], "--byte-fallback"),
                           (["--split-digits"], "--split-digits"),
                           (["--source-vocab", "a.model"], "--source-vocab a.model")):
        assert run_command(*command, *options) == 1
        assert f"{shown}: the vocabularies are those of --vocabulary-of {model}: leave out {shown.split()[0]}." in (
            capsys.readouterr().err)
    assert run_command(*command, "--source-factors", "1") == 1
    assert "The text has 1 source factors, but --vocabulary-of" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.thorough
def test_foreign_vocabularies_and_paths_that_are_no_models_leave_nothing(
        tmp_path: Path, cache: Path, prepare_pairs: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, data = opus_model(tmp_path), prepare_pairs(tmp_path)
    command = ["train", "--data", data, "--logdir", tmp_path / "run"]
    capsys.readouterr()
    for start, message in ((model, f"{data} has another vocabulary than the model of --start {model} (source.words "
                                   f"differs): prepare the text with `towernmt prepare --vocabulary-of {model}`"),
                           (tmp_path / "source", "source is not a trained model"),
                           (tmp_path / "run", "run is the same file as --start")):
        assert run_command(*command, "--start", start) == 1
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
