"""Training that ends within an update writes no checkpoint, because the variables belong to no step."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.train.interface import launch_train_with_config

from tests.train.plain_model import PlainBatches, PlainModel
from tests.variables import checkpoint_values
from tests.waiting import PATIENCE
from towernmt.callbacks.saver import CheckpointSaver
from towernmt.core.errors import FeederError
from towernmt.core.tf_compat import tf
from towernmt.dataflow.batches.batch import Position
from towernmt.input_source import GeneralQueueInput
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer


class Broken(PlainBatches):
    """Fails after its last batch."""

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Any:
        yield from super().read(position, start, step)
        raise OSError("the disk is gone")


class Unfinished(PlainBatches):
    """Blocks after its last batch."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.waits, self.released = threading.Event(), threading.Event()

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Any:
        yield from super().read(position, start, step)
        self.waits.set()
        self.released.wait()


class StoppedFeeders(SyncMultiGPUTrainer):
    """Stops the feeders before batch number `at`, as a signal does in a step that takes long."""

    def __init__(self, update_cycle: int, batches: Unfinished, at: int) -> None:
        super().__init__(towers=1, update_cycle=update_cycle)
        self._batches, self._at = batches, at

    def train_batch(self, run: Any) -> None:
        if self.batch_number == self._at:
            assert self._batches.waits.wait(PATIENCE)     # all batches are in the queue
            self._input.run.request_stop()
            self._batches.released.set()
            self._input.stop()
        run()


class Interrupted(SyncMultiGPUTrainer):
    """Raises KeyboardInterrupt after TensorFlow has processed batch `at` of the model."""

    def __init__(self, update_cycle: int, model: PlainModel, at: int) -> None:
        super().__init__(towers=1, update_cycle=update_cycle)
        self._numbers, self._at = model.processed_numbers, at

    def initialize(self, session_creator: Any, session_init: Any) -> None:
        super().initialize(session_creator, session_init)
        run = self.sess.run

        def run_and_interrupt(*args: Any, **options: Any) -> Any:
            result = run(*args, **options)
            if self._numbers[-1:] == [self._at]:
                self._numbers.clear()
                raise KeyboardInterrupt
            return result

        self.sess.run = run_and_interrupt


def train(directory: Path, batches: PlainBatches, update_cycle: int, callbacks: tuple[Callback, ...] = (),
          interrupted_at: int | None = None) -> None:
    """Train to the end of the batches, from the last checkpoint if there is one."""
    model = PlainModel(dropout=0.5)
    trainer = (SyncMultiGPUTrainer(towers=1, update_cycle=update_cycle) if interrupted_at is None else
               Interrupted(update_cycle, model, interrupted_at))
    train_by(trainer, directory, model, batches, callbacks)


def train_by(trainer: SyncMultiGPUTrainer, directory: Path, model: PlainModel, batches: PlainBatches,
             callbacks: tuple[Callback, ...] = ()) -> None:
    with tf.Graph().as_default():
        launch_train_with_config(TrainConfig(
            model, GeneralQueueInput(batches, feeders=1),
            callbacks=[*callbacks, CheckpointSaver(directory, every_steps=0)], monitors=[],
            update_cycle=trainer.update_cycle), trainer)


def saved(directory: Path) -> dict[str, np.ndarray]:
    """Return the variables of the last checkpoint."""
    latest = CheckpointSaver(directory).latest()
    assert latest is not None
    return checkpoint_values(latest)


def assert_saved_after_one_update_of_three_batches(directory: Path) -> None:
    checkpoint = saved(directory)
    assert checkpoint["global_step"] == 1 and checkpoint["random_clock"] == 3
    latest = CheckpointSaver(directory).latest()
    assert latest is not None
    assert json.loads((latest / "state.json").read_text())["position"] == Position(0, 0, 3).to_json()


@pytest.mark.parametrize("good", [4, 5])
def test_a_broken_source_in_mid_cycle_leaves_the_last_whole_update(tmp_path: Path, good: int) -> None:
    with pytest.raises(FeederError, match="the disk is gone"):
        train(tmp_path, Broken(good), 3)
    assert_saved_after_one_update_of_three_batches(tmp_path)


def test_an_interruption_of_a_collected_batch_leaves_the_last_whole_update(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", PlainBatches(6), 3, interrupted_at=4)
    assert_saved_after_one_update_of_three_batches(tmp_path / "run")
    train(tmp_path / "run", PlainBatches(6), 3)
    train(tmp_path / "never", PlainBatches(6), 3)
    resumed, never = saved(tmp_path / "run"), saved(tmp_path / "never")
    assert resumed["global_step"] == 2
    assert {name: value.tolist() for name, value in resumed.items()} == {
        name: value.tolist() for name, value in never.items()}


@pytest.mark.parametrize("update_cycle, at", [(1, 2), (3, 5)])
def test_an_update_whose_run_was_interrupted_is_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                                          update_cycle: int, at: int) -> None:
    with caplog.at_level("INFO", "tensorpack"), pytest.raises(KeyboardInterrupt):
        train(tmp_path, PlainBatches(6), update_cycle, interrupted_at=at)
    assert saved(tmp_path)["global_step"] == 0
    assert f"interrupted within update {at // update_cycle + 1}: no checkpoint is written" in caplog.text


def test_an_end_before_an_update_does_not_prevent_saving_the_last_one(tmp_path: Path
                                                                      ) -> None:
    class Refuse(Callback):
        def _before_run(self, _: Any) -> None:
            if self.global_step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, PlainBatches(6), 1, (Refuse(),))
    assert saved(tmp_path)["global_step"] == 2


def test_feeders_that_are_stopped_in_mid_cycle_are_no_end_of_the_data(tmp_path: Path) -> None:
    batches = Unfinished(5)
    train_by(StoppedFeeders(3, batches, at=4), tmp_path, PlainModel(dropout=0.5), batches)
    assert_saved_after_one_update_of_three_batches(tmp_path)
