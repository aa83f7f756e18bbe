"""The update at which a run ends, by which the learning rate decreases; and limits that a resumed run gets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules import budget
from towernmt.callbacks.stopping import EndOfEpochs, StopAfterMinutes
from towernmt.checkpoint.checkpoint_files import STATE, state_text
from towernmt.dataflow.batches.batch_settings import BatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.input_source import GeneralQueueInput
from towernmt.run.assemble import Components, estimated_end, last_update, make_callbacks
from towernmt.run.directory import RunDirectory
from towernmt.run.run_settings import TrainSettings, default_settings


class Stream:
    """Batches of unknown number."""

    def read(self, position: object = None, start: int = 0, step: int = 1) -> None:
        raise AssertionError

    def batches_per_epoch(self) -> int:
        raise NotImplementedError


@pytest.fixture
def data(tmp_path: Path, prepare_pairs: Callable[[Path], Path]) -> PreparedData:
    return PreparedData(prepare_pairs(tmp_path))


@pytest.fixture
def batches(data: PreparedData) -> Batches:
    return Batches(data, BatchSettings(batch_tokens=20), epochs=3)


def end_of(train: TrainSettings, source: GeneralQueueInput) -> int:
    """Return the last update of a new run."""
    return last_update(train, estimated_end(train, source))


def test_epochs_end_with_their_last_batch(batches: Batches) -> None:
    made = sum(1 for _ in batches.read())
    assert made > 3
    source = GeneralQueueInput(batches)
    assert end_of(TrainSettings(epochs=3), source) == made
    assert end_of(TrainSettings(epochs=3, update_cycle=2), source) == math.ceil(made / 2)


def test_a_last_update_of_fewer_batches_has_a_learning_rate(batches: Batches) -> None:
    made = sum(1 for _ in batches.read())
    end = end_of(TrainSettings(epochs=3, update_cycle=made - 1), GeneralQueueInput(batches))
    assert end == 2 and budget(0.1, steps=end)(end) == pytest.approx(0.05)


def test_the_nearer_limit_counts(batches: Batches) -> None:
    source = GeneralQueueInput(batches)
    assert end_of(TrainSettings(epochs=3, steps=2), source) == 2
    assert end_of(TrainSettings(epochs=1, steps=10**6), source) == batches.batches_per_epoch()
    assert end_of(TrainSettings(minutes=5), source) == 0


def test_the_rate_of_a_run_falls_to_the_end_of_its_epochs(data: PreparedData, batches: Batches, tmp_path: Path
                                                          ) -> None:
    settings = default_settings("transformer")
    settings.train.epochs, settings.validation.steps = 3, 0
    settings.schedule.name, settings.schedule.warmup_steps = "budget", 0
    made = make_callbacks(settings, data, RunDirectory(tmp_path / "run"), None, GeneralQueueInput(batches),
                          Components())
    rate = next(callback for callback in made if isinstance(callback, LearningRateSchedule))
    peak, last = settings.optimizer.learning_rate, sum(1 for _ in batches.read())
    assert rate.value(1) == peak
    assert rate.value(last) == pytest.approx(peak / last)
    assert rate.value(last + 1) == 0


def resumed(end: EndOfEpochs, step: int, batches: int, update_cycle: int = 1, epochs: int = 20) -> EndOfEpochs:
    """Return the end of a run that resumes at a step with other sizes."""
    end.trainer = SimpleNamespace(global_step=step)
    other = EndOfEpochs(epochs, batches, update_cycle)
    other.restore_state(json.loads(json.dumps(end.state())))
    return other


def test_updates_before_a_change_of_their_size_count_as_the_epochs_that_they_made() -> None:
    """Otherwise the rate of a run that resumes with larger batches would be that of the end."""
    end = EndOfEpochs(epochs=10, batches=40)
    assert (end.last_update(), end.share_used(401)) == (400, 1.0)
    end = resumed(end, 400, batches=10)         # ten epochs more, with batches of four times the size
    assert (end.last_update(), end.share_used(401)) == (500, 0.5)
    end = resumed(end, 450, batches=10)         # the same sizes: nothing changes
    assert (end.last_update(), end.share_used(401), end.share_used(451)) == (500, 0.5, 0.75)
    end = resumed(end, 450, batches=10, update_cycle=2)
    assert (end.last_update(), end.share_used(451), end.share_used(476)) == (475, 0.75, 1.0)
    assert resumed(end, 475, batches=10, update_cycle=2, epochs=5).share_used(476) == 1.0       # a lower limit


def test_the_rate_of_a_run_that_resumes_with_larger_batches_falls_to_the_new_end(
        data: PreparedData, batches: Batches, tmp_path: Path) -> None:
    settings, run, count = default_settings("transformer"), RunDirectory(tmp_path / "run"), batches.batches_per_epoch()
    settings.train.epochs, settings.validation.steps = 4, 0
    settings.schedule.name, settings.schedule.warmup_steps = "budget", 0
    before = EndOfEpochs(2, 3 * count)
    before.trainer = SimpleNamespace(global_step=6 * count)
    save_state(run, 6 * count, {"end_of_epochs": before.state()})
    made = make_callbacks(settings, data, run, None, GeneralQueueInput(batches), Components())
    rate = next(callback for callback in made if isinstance(callback, LearningRateSchedule))
    assert rate.value(6 * count + 1) == pytest.approx(settings.optimizer.learning_rate / 2)
    assert rate.value(8 * count + 1) == 0


def save_state(run: RunDirectory, step: int, callbacks: dict[str, Any]) -> None:
    """Write the state of a checkpoint."""
    directory = run.checkpoints / f"step-{step}"
    directory.mkdir(parents=True)
    (directory / STATE).write_text(state_text({"step": step, "position": None, "callbacks": callbacks}))


@pytest.mark.parametrize("callbacks", [
    {"progress": {"target_tokens": 9.0, "seconds": 90.0}},      # of a run without the limit
    {"progress": {"target_tokens": 9.0, "seconds": 91.0}, "stop_after_minutes": {"elapsed_seconds": 90.0}}])
def test_the_time_before_a_resume_counts_even_if_it_had_no_limit(data: PreparedData, batches: Batches, tmp_path: Path,
                                                                 callbacks: dict[str, Any]) -> None:
    settings, run = default_settings("transformer"), RunDirectory(tmp_path / "run")
    settings.train.minutes, settings.validation.steps = 3, 0
    save_state(run, 5, callbacks)
    made = make_callbacks(settings, data, run, None, GeneralQueueInput(batches), Components())
    limit = next(callback for callback in made if isinstance(callback, StopAfterMinutes))
    assert limit.elapsed_seconds == 90.0 and limit.share_used() == 0.5


def test_the_epochs_of_a_stream_have_no_known_end() -> None:
    source = GeneralQueueInput(Stream())  # type: ignore[arg-type]
    assert end_of(TrainSettings(epochs=3), source) == 0
    assert end_of(TrainSettings(epochs=3, steps=7), source) == 7
