"""The commands prepare, train and translate with source factors and guided alignment, on tiny text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def annotated(module_start, tmp_path_factory) -> Path:
    """Return a directory with text whose words have different translations by their factor, and its prepared `data`."""
    place = tmp_path_factory.mktemp("annotated")
    chance = random.Random(4)
    words = [(first + second, tag) for first in "bdfgk" for second in "ae" for tag in "XY"]
    sentences = [chance.choices(words, k=chance.randint(3, 6)) for _ in range(200)]
    texts = {"source": lambda word, tag, n: f"{word}|{tag}", "links": lambda word, tag, n: f"{n}-{n}",
             "target": lambda word, tag, n: word[::-1] + ("x" if tag == "X" else "y")}
    for name, write in texts.items():
        lines = [" ".join(write(*word, n) for n, word in enumerate(sentence)) for sentence in sentences]
        (place / name).write_text("".join(line + "\n" for line in lines))
        (place / f"valid.{name}").write_text("".join(line + "\n" for line in lines[:8]))
    result = module_start(
        "prepare", "--source", place / "source", "--target", place / "target", "--source-factors", "1", "--alignments",
        place / "links", "--valid-source", place / "valid.source", "--valid-target", place / "valid.target",
        "--vocab-kind", "word", "--output", place / "data").wait()
    assert result.status == 0, result.text
    assert "source factor 1: 6 values" in result.output and "alignments: " in result.output
    return place


@pytest.fixture(scope="module")
def run(annotated, module_start, arguments, tiny) -> Path:
    """Train a run on this data."""
    logdir = annotated / "run"
    result = module_start(*arguments(
        annotated / "data", logdir, *tiny, "model.decoder_layers=2", "model.residual_dropout=0",
        "model.embedding_dropout=0", "model.guided_alignment_weight=0.3", "train.steps=160", "validation.steps=160",
        "checkpoint.steps=0", "log.steps=50")).wait()
    assert result.status == 0, result.text
    assert "Validation at step 160: BLEU" in result.output
    assert sorted((logdir / "vocabulary" / "source_factor_1.words").read_text().split()[4:]) == ["X", "Y"]
    return logdir


def test_a_translation_depends_on_the_factors(run, annotated, start) -> None:
    (annotated / "pair").write_text("ba|X de|X ga|X\nba|Y de|Y ga|Y\n")
    result = start("translate", "--model", run, "--input", annotated / "pair", "--cpu").wait()
    assert result.status == 0, result.text
    first, second = (set(word[-1] for word in line.split()) for line in result.output.splitlines())
    assert first == {"x"} and second == {"y"}


def test_a_line_without_factors_is_one_sentence_with_its_place(run, annotated, start) -> None:
    (annotated / "plain").write_text("ba|X\nba de\n")
    result = start("translate", "--input", annotated / "plain", "--model", run, "--cpu").wait()
    assert result.status != 0
    assert f"{annotated / 'plain'} line 2: 'ba' does not have the form word|factor1" in result.the_error()


def test_guided_alignment_without_alignments_is_refused(annotated, corpus, here, arguments, tiny, tmp_path) -> None:
    result = here(*arguments(corpus.prepared, tmp_path / "run", *tiny, "model.guided_alignment_weight=0.3"))
    assert result.status != 0
    assert "has no word alignments" in result.the_error() and "towernmt prepare --alignments" in result.the_error()


def test_a_run_with_factors_does_not_go_on_with_data_without(run, annotated, corpus, here, arguments, tiny) -> None:
    result = here(*arguments(corpus.prepared, run, *tiny, "model.decoder_layers=2",
                             "model.guided_alignment_weight=0.3"))
    assert result.status != 0
    assert "pass another --logdir" in result.the_error()
