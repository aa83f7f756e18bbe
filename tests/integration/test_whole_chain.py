"""The commands prepare, train, translate and evaluate as processes, on one small corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from towernmt.core.settings import load_yaml

pytestmark = [pytest.mark.processes, pytest.mark.optimized]

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_transformer.py"


@pytest.fixture(scope="module")
def learned(corpus, module_start, arguments, tiny, tmp_path_factory):
    """Train a run that has memorised its corpus; return its directory and the process's result."""
    logdir = tmp_path_factory.mktemp("learned") / "run"
    result = module_start(*arguments(
        corpus.prepared, logdir, *tiny, "model.residual_dropout=0", "model.embedding_dropout=0",
        "train.steps=350", "validation.steps=0", "checkpoint.steps=0", "log.steps=50")).wait()
    assert result.status == 0, result.text
    return logdir, result


def test_a_run_logs_every_trainable_variable_with_its_shape_and_the_total(learned):
    output = (learned[0] / "log" / "log.log").read_text()
    assert "qkv/kernel" not in learned[1].output     # a terminal shows only the total
    assert "transformer/encoder/layer_0/self_attention/qkv/kernel" in output
    assert "[32, 96]" in output
    assert "Number of parameters (elements):" in output


def test_translate_gives_one_line_for_each_line_in_place(learned, corpus, start, tmp_path):
    known, other = corpus.file("train.source").read_bytes().splitlines()[:2]
    sources = [known, b"", known + b"\r", b"ba \xff\xfe be bi bo", b"zebra ba be bi bo", b"   ",
               b" ".join([known] * 300), other]      # and no line end at the end
    (tmp_path / "text").write_bytes(b"\n".join(sources))
    result = start("translate", "--model", learned[0], "--beam", "3", "--input", tmp_path / "text").wait()
    assert result.status == 0 and "Traceback" not in result.text, result.text
    lines = result.output.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(sources)
    expected = corpus.file("train.target").read_text().splitlines()
    assert lines[0] == lines[2] == expected[0]      # the carriage return is not part of the line
    assert lines[7] == expected[1]
    assert lines[1] == lines[5] == ""
    assert lines[3] and lines[4] and lines[6]


def test_a_model_that_learned_its_corpus_by_heart_evaluates_above_90_bleu(learned, corpus, start, tmp_path):
    hypothesis = tmp_path / "hypothesis"
    result = start("evaluate", "--model", learned[0], "--source", corpus.file("train.source"), "--reference",
                   corpus.file("train.target"), "--hypothesis", hypothesis, "--json").wait()
    assert result.status == 0, result.text
    scores = json.loads(result.output)
    assert scores["bleu"] > 90
    assert scores["sentences"] == 400
    assert "tok:13a" in scores["signature"] and "case:mixed" in scores["signature"]
    found = hypothesis.read_text().splitlines()
    expected = corpus.file("train.target").read_text().splitlines()
    assert len(found) == len(expected)
    assert sum(a == b for a, b in zip(found, expected, strict=True)) > 300


def test_a_finished_run_started_again_ends_at_once_with_status_0(learned, corpus, start, arguments, tiny):
    checkpoints = learned[0] / "checkpoints"
    before = {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*")}
    result = start("train", "--data", corpus.prepared, "--logdir", learned[0]).wait()   # with its own settings
    assert result.status == 0, result.text
    assert "is finished: train.steps=350 is reached" in " ".join(result.output.split())
    assert {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*")} == before


@pytest.mark.slow       # `.ci/smoke` does the same with other Pythons
def test_a_run_of_two_towers_resumes_with_one(corpus, start, arguments, tiny, variables, tmp_path):
    logdir = tmp_path / "run"
    settings = [*tiny, "validation.steps=0", "checkpoint.steps=4"]
    result = start(*arguments(corpus.prepared, logdir, *settings, "train.steps=8"), "--towers", "2").wait()
    assert result.status == 0, result.text
    assert "on 2 CPU towers" in " ".join(result.output.split())
    assert "Building training tower 2 of 2 on /cpu:0" in (logdir / "log" / "log.log").read_text()
    two = variables(logdir / "checkpoints" / "step-8")
    result = start(*arguments(corpus.prepared, logdir, *settings, "train.steps=12"), "--towers", "1").wait()
    assert result.status == 0, result.text
    one = variables(logdir / "checkpoints" / "step-12")
    assert one.keys() == two.keys()
    assert one["random_clock"] == one["global_step"] == 12


def test_the_example_trains_evaluates_and_translates_ones_own_files(corpus, start, tiny):
    files = [x for name in ("", "valid-", "test-") for kind in ("source", "target") for x in (
        f"--{name}{kind}", corpus.file(f"{'valid' if name else 'train'}.{kind}"))]
    result = start(*files, "--logdir", "run", "--vocab-size", "80", "--set", *tiny, "train.steps=20",
                   "train.precision=float32", "validation.steps=10", program=[EXAMPLE]).wait()
    assert result.status == 0, result.text
    assert "Test BLEU" in result.output
    assert "Copying the most similar training pair: BLEU 100.00" in result.output    # the test set is in train
    assert result.output.count("translation  ") >= 3
    assert "Learning curves:  run/curves.png" in result.output or "pip install 'towernmt[plot]'" in result.output


def test_a_run_whose_settings_are_chosen_tells_and_keeps_them_and_goes_on(corpus, start, tmp_path):
    command = ["train", "--data", corpus.prepared, "--logdir", tmp_path / "run", "--defaults", "automatic", "--set",
               "model.hidden_size=32", "model.filter_size=64", "model.heads=2", "model.encoder_layers=1",
               "model.decoder_layers=1", "data.batch_tokens=256", "validation.steps=0"]
    result = start(*command, "train.steps=10").wait()
    assert result.status == 0, result.text
    assert ("Automatic setting: schedule.name=budget, because the learning rate decreases until train.steps."
            in result.text)
    assert "data.batch_tokens=512" not in result.text and "cannot be measured" not in result.text
    told = yaml.safe_load((tmp_path / "run" / "automatic.yaml").read_text())
    saved = load_yaml(tmp_path / "run" / "settings.yaml")
    assert told["train.clip_norm"]["value"] == saved["train.clip_norm"] == 1.0
    assert all(saved[key] == choice["value"] for key, choice in told.items() if not key.startswith("--"))
    assert "--preset" not in told       # sizes are set
    assert saved["data.batch_tokens"] == 256 and "data.batch_tokens" not in told
    again = start(*command, "train.steps=20").wait()
    assert again.status == 0 and "Automatic setting:" not in again.text, again.text
    towers = f"on {told['--towers']['value']} CPU tower"
    assert towers in result.text and towers in again.text
    assert ("train.steps changed from 10 to 20. These automatic settings keep their old values: schedule.name=budget"
            in again.text)
    assert load_yaml(tmp_path / "run" / "settings.yaml") == {**saved, "train.steps": 20}
