"""The loss of BLEU of a run in int8 is measured once for each checkpoint, on the validation text of its data."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sacrebleu.metrics import BLEU

from towernmt.checkpoint.records import validation_fingerprint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.interop import int8_measurement
from towernmt.interop.ctranslate2_engine import CTranslate2Translator
from towernmt.interop.int8_measurement import (
    Int8Loss,
    Int8Measurement,
    MeasuredCheckpoint,
    TextResult,
    default_on_processors,
    int8_loss,
    mean_reference_log_prob,
)
from towernmt.predict.pair_scorer import PairScorer


def write_validation_text(run: Path, lines: list[str], references: list[str]) -> Path:
    """Write text next to a run as the validation text of its data, and return the file that names the data."""
    data = run.parent / "corpora.yaml"
    for name, text in (("valid.de", lines), ("valid.en", references), ("train.tsv", ["w1\tw2"])):
        (run.parent / name).write_text("".join(f"{line}\n" for line in text))
    data.write_text(yaml.safe_dump({"sources": [{"uri": str(run.parent / "train.tsv")}], "validation": {
        "source": str(run.parent / "valid.de"), "target": str(run.parent / "valid.en")}}))
    settings = yaml.safe_load((run / "settings.yaml").read_text())
    settings["made_from"] = {"data_path": str(data), "validation": validation_fingerprint(
        [ValidationSet("", lines, [references])])}
    (run / "settings.yaml").write_text(yaml.safe_dump(settings))
    return data


@pytest.fixture(scope="module")
def text(lines: list[str]) -> list[str]:
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def run(original_run: Path, text: list[str], tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    """A run whose validation text is its sources in reverse order."""
    run = Path(shutil.copytree(original_run, tmp_path_factory.mktemp("measured") / "run"))
    write_validation_text(run, text, text[::-1])
    return SavedRun(run)


@pytest.mark.thorough
def test_both_bleus_are_those_of_the_translators_and_are_kept_for_the_checkpoint(
        run: SavedRun, text: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "towernmt")
    monkeypatch.setattr(int8_measurement, "MAX_SENTENCES", len(text) - 1)
    checkpoint = MeasuredCheckpoint(run, True)
    assert checkpoint.stored() is None
    measured = checkpoint.measure("en", lambda: False)
    expected = [BLEU().corpus_score(
        CTranslate2Translator(run, device="cpu", precision=precision).translate(text[:-1]), [text[:0:-1]]).score
        for precision in ("float32", "int8")]
    assert measured is not None and measured.sentences == len(text) - 1
    assert [measured.float32_bleu, measured.int8_bleu] == pytest.approx(expected, abs=1e-4)
    assert measured.loss.bleu == pytest.approx(expected[0] - expected[1], abs=1e-3)
    [line] = [record.getMessage() for record in caplog.records if "BLEU of" in record.getMessage()]
    assert f"{expected[0]:.2f} in float32 and {expected[1]:.2f} in int8, so CTranslate2 uses " in line
    assert line.endswith(" nats per reference token.") and f"loss of {measured.loss.bleu:.2f} BLEU" in line
    assert MeasuredCheckpoint(SavedRun(run.path), True).stored() == measured
    assert MeasuredCheckpoint(run, False).stored() is None
    other = Path(shutil.copytree(run.path, run.path.parent / "other"))
    index = Path(f"{SavedRun(other).checkpoint()}.index")
    index.write_bytes(index.read_bytes() + b"other weights")
    assert MeasuredCheckpoint(SavedRun(other), True).stored() is None


@pytest.mark.parametrize(("loss", "precision"), [
    (Int8Loss(0.1, -0.3, 0.5, 0.003), "int8"), (Int8Loss(-0.4, -0.9, 0.1, -0.001), "int8"),
    (Int8Loss(0.5, -0.1, 1.1, 0.003), "int8"),          # 0.5 BLEU by chance
    (Int8Loss(0.5, 0.21, 0.8, 0.003), "float32"),       # but not here
    (Int8Loss(0.1, -0.3, 0.5, 0.02), "float32")])       # BLEU has not shown it
def test_int8_is_the_default_if_the_log_probability_and_bleu_allow_it(loss: Int8Loss, precision: str) -> None:
    assert Int8Measurement(500, 30.0, 30.0 - loss.bleu, loss).precision == precision
    assert default_on_processors([Int8Loss(0.0, 0.0, 0.0, 0.0), loss]) == precision     # the worst text decides


def test_the_loss_of_a_text_is_that_of_its_bleu_and_its_log_probability() -> None:
    references = [[f"the house number {number} is very old" for number in range(40)]]
    worse = [line.replace("very", "quite") if number % 4 == 0 else line for number, line in enumerate(references[0])]
    loss = int8_loss(TextResult(references[0], -1.5), TextResult(worse, -1.5078), references)
    assert loss.bleu == pytest.approx(100.0 - BLEU().corpus_score(worse, references).score, abs=1e-4)
    assert 0 < loss.bleu_low < loss.bleu < loss.bleu_high and loss.log_prob == pytest.approx(0.0078)


class _UnigramScorer(PairScorer):
    """A scorer that gives each token the probability 1/2, times exp(-1) for each source token of its sentence."""

    def score_ids(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        log_probs = [np.full(len(target) + 1, -math.log(2.0)) for target in targets]
        return [(float(one.sum()) - len(source), one) for source, one in zip(sources, log_probs, strict=True)]


def test_the_mean_log_probability_is_that_of_the_pairs_that_are_short_enough(run: SavedRun) -> None:
    scorer = _UnigramScorer(*run.vocabularies(), "", 1)
    pairs = ["w1 w2", "w3", "w1 w1 w1 w1"], ["w1", "w2 w3 w1", "w1"]
    assert mean_reference_log_prob(scorer, *pairs, 4) == pytest.approx(-math.log(2.0) - (2 + 1) / (2 + 4))
    assert mean_reference_log_prob(scorer, *pairs, None) == pytest.approx(-math.log(2.0) - (2 + 1 + 4) / (2 + 4 + 2))
    assert mean_reference_log_prob(scorer, ["w1"], ["w1 w1 w1 w1"], 4) == 0.0


@pytest.mark.parametrize(("problem", "words"), [
    ("no record", "the run has no validation text"), ("no data", "cannot be read"),
    ("changed", "is not that of the run")])
def test_without_its_validation_text_a_run_is_not_measured(
        original_run: Path, tmp_path: Path, text: list[str], caplog: pytest.LogCaptureFixture, problem: str,
        words: str) -> None:
    caplog.set_level(logging.INFO, "towernmt")
    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    if problem != "no record":
        data = write_validation_text(run, text, text)
        if problem == "no data":
            data.unlink()
        else:
            (tmp_path / "valid.en").write_text("w1\n" * len(text))
    checkpoint = MeasuredCheckpoint(SavedRun(run), True)
    assert checkpoint.measure("", lambda: False) is None and checkpoint.stored() is None
    [line] = caplog.messages
    assert "CTranslate2 uses float32, because int8 could not be measured: " in line and words in line
    assert not (run / "exports").exists()


@pytest.fixture
def checkpoint(run: SavedRun, tmp_path: Path) -> MeasuredCheckpoint:
    """The checkpoint of a copy of the run."""
    return MeasuredCheckpoint(SavedRun(shutil.copytree(run.path, tmp_path / "run")), True)


def test_a_slow_measurement_ends_after_its_first_chunk(checkpoint: MeasuredCheckpoint,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_measurement, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(int8_measurement, "CHUNK_SENTENCES", 3)
    measured = checkpoint.measure("", lambda: False)
    assert measured is not None and measured.sentences == 3


def test_a_stopped_measurement_has_no_result(checkpoint: MeasuredCheckpoint) -> None:
    calls: list[Any] = []

    def stopped() -> bool:
        calls.append(None)
        return len(calls) > 2

    assert checkpoint.measure("", stopped) is None and len(calls) == 3


def test_a_damaged_result_is_measured_again(checkpoint: MeasuredCheckpoint, tmp_path: Path) -> None:
    measured = checkpoint.measure("", lambda: False)
    [file] = (tmp_path / "run/exports").glob("*/int8_measurement.json")
    file.write_text("{")
    assert checkpoint.stored() is None
    assert checkpoint.measure("", lambda: False) == measured == checkpoint.stored()
