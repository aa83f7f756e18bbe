"""A run's files for TensorBoard; neither they nor validation change the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, IMAGES, TENSORS, EventAccumulator

from tests.variables import checkpoint_values
from towernmt.core.settings import apply_overrides
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.run.launch import train
from towernmt.run.run_settings import default_settings

pytestmark = pytest.mark.processes

SILENT = ["validation.steps=0"]
RECORDED = ["validation.steps=3", "validation.metric=chrf", "log.histograms=4"]


def run(corpus: Any, tiny: list[str], logdir: Path, *settings: str) -> Path:
    given = dict(setting.split("=") for setting in [
        *tiny, "model.residual_dropout=0.1", "train.steps=8", "log.steps=2", *settings])
    assert train(apply_overrides(default_settings(), given), PreparedData(corpus.prepared), logdir, towers=2) == 0
    return logdir


@pytest.fixture(scope="module")
def recorded(corpus, tiny, tmp_path_factory) -> Path:
    return run(corpus, tiny, tmp_path_factory.mktemp("recorded") / "run", *RECORDED)


@pytest.fixture(scope="module")
def events(recorded) -> Any:
    found = EventAccumulator(str(recorded / "log"), {TENSORS: 0, HISTOGRAMS: 0, IMAGES: 0})
    found.Reload()
    return found


def variables(run_directory: Path) -> dict[str, np.ndarray]:
    return checkpoint_values(run_directory / "checkpoints/step-8")


def test_validation_and_recording_change_no_bit_of_what_is_trained(recorded, corpus, tiny, tmp_path):
    expected, found = variables(run(corpus, tiny, tmp_path / "run", *SILENT)), variables(recorded)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert np.array_equal(value, found[name]), name


def test_the_figures_of_the_input_stand_at_every_log_step(events, recorded):
    for name in ("input/queue_depth", "input/wait_share", "input/target_tokens_per_second", "loss", "nll"):
        assert [event.step for event in events.Scalars(name)] == [2, 4, 6, 8], name
    lines = [json.loads(line) for line in (recorded / "log/stats.jsonl").read_text().splitlines()]
    assert all("input/wait_share" in line for line in lines if "loss" in line)


def test_like_stands_beside_like_without_label_smoothing(events, recorded):
    """The nll and perplexity of training are comparable with the loss and perplexity of validation."""
    for nll, perplexity in (("nll", "perplexity"), ("validation_loss", "validation_perplexity")):
        for one, other in zip(events.Scalars(nll), events.Scalars(perplexity), strict=True):
            assert np.exp(one.value) == pytest.approx(other.value, rel=1e-4)
    assert [event.step for event in events.Scalars("validation_loss")] == [3, 6, 8]
    text = (recorded / "log/log.log").read_text()
    assert "(training " in text


def test_samples_settings_and_pictures_are_there_at_each_validation(events):
    samples = events.Tensors("validation_samples")
    assert [event.step for event in samples] == [3, 6, 8]
    texts = [event.tensor_proto.string_val[0].decode() for event in samples]
    assert len(set(texts)) == 3 and all(text.count("| translation ") == 3 for text in texts)
    assert "| validation.metric | chrf |" in events.Tensors("settings")[0].tensor_proto.string_val[0].decode()
    assert "_hparams_/session_start_info" in events.Tags()["tensors"]
    for number in range(2):
        images = events.Images(f"attention/{number}")
        assert [image.step for image in images] == [3, 6, 8]
        assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in images)


def test_histograms_are_there_of_every_parameter_and_gradient_when_they_are_due(events, recorded):
    names = [name for name in variables(recorded) if name.endswith(("kernel", "embedding", "gain"))
             and name.startswith("transformer/") and "adam" not in name.lower()]
    assert len(names) > 5
    for name in names:
        for kind in ("parameters", "gradients"):
            found = events.Histograms(f"{kind}/{name}")
            assert [event.step for event in found] == [4, 8]
            assert found[0].histogram_value.num == variables(recorded)[name].size or "embedding" in name


def test_the_best_checkpoint_and_its_record_go_by_the_metric(events, recorded):
    (entry,) = json.loads((recorded / "best/record.json").read_text())
    scores = {event.step: event.value for event in events.Scalars("validation_chrf")}
    assert entry["metric"] == "validation_chrf"
    assert entry["score"] == pytest.approx(max(scores.values()), rel=1e-5)
    assert entry["step"] == max(step for step, score in scores.items() if score == max(scores.values()))
