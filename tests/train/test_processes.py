"""A trainer in a world of several processes: its share, its output, and the common end of all processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.train.base import StopTraining

from tests.train.plain_model import PlainBatches, PlainModel, train_plainly
from towernmt.callbacks.best_checkpoints import BestCheckpoints
from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.callbacks.saver import CheckpointSaver
from towernmt.callbacks.schedules import constant
from towernmt.callbacks.stopping import StopAtStep
from towernmt.core.errors import DataError, DivergenceError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import Decision, World, in_world
from towernmt.input_source import GeneralQueueInput
from towernmt.models.layers.randomness import set_seed
from towernmt.optim.gradients import GradientReducer, sum_over_towers
from towernmt.run.directory import RunDirectory
from towernmt.run.run_log import hold_log
from towernmt.train import callback_group
from towernmt.train.monitors import EventWriter, StatsWriter
from towernmt.train.trainer import SyncMultiGPUTrainer


class OwnGradients(GradientReducer):
    """A reducer that keeps the gradients of this process."""

    def reduce(self, towers: Any, world: World) -> Any:
        self.gradients = sum_over_towers(towers)
        return self.gradients

    def total(self, number: Any, world: World) -> Any:
        return number


class Scripted(World):
    """A world whose other process requests a decision at the N-th agreement."""

    def __init__(self, process: int, when: int, request: Decision) -> None:
        super().__init__(process, 2)
        self.when, self.request, self.calls = when, request, 0

    def agree(self, request: Any) -> Any:
        self.calls += 1
        return max(request, self.request) if self.calls == self.when else request


class Noted(World):
    """A world whose other processes request nothing; it records what this process requests."""

    def __init__(self, process: int, processes: int) -> None:
        super().__init__(process, processes)
        self.requests: list[Any] = []

    def agree(self, request: Any) -> Any:
        self.requests.append(request)
        return request


def trainer(**options: Any) -> SyncMultiGPUTrainer:
    return SyncMultiGPUTrainer(towers=1, reducer=OwnGradients(), **options)


def gradient_of(world: World, towers: int) -> np.ndarray:
    """Return the contribution of a process to the gradient of an update, float32 `[2, 1]`."""
    with tf.Graph().as_default(), in_world(world):
        set_seed(3)
        model, data, reducer = PlainModel(dropout=0.5), GeneralQueueInput(PlainBatches(1)), OwnGradients()
        trainer = SyncMultiGPUTrainer(towers=towers, reducer=reducer)
        trainer.setup_graph(model.get_input_signature(), data, model.build_graph, model.get_optimizer)
        ((gradient, _),) = reducer.gradients
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return np.array(session.run(gradient, dict(zip(data._global, BATCH, strict=True))))


BATCH = [np.random.default_rng(1).normal(size=[6, 2]), 0.0, 6.0]


def test_two_processes_share_the_rows_the_loss_and_the_dropout_of_two_towers() -> None:
    with_two_towers, with_one_tower = gradient_of(World(), towers=2), gradient_of(World(), towers=1)
    first, second = gradient_of(World(0, 2), towers=1), gradient_of(World(1, 2), towers=1)
    assert np.allclose(first + second, with_two_towers, rtol=1e-6)
    assert not np.allclose(with_two_towers, with_one_tower)        # in which the second tower drops other words


def test_a_process_that_is_not_the_chief_trains_and_writes_nothing(tmp_path: Path) -> None:
    run, model = RunDirectory(tmp_path / "run"), PlainModel()
    callbacks = [NaNGuard(loss="loss"), LearningRateSchedule(constant(0.05)), BestCheckpoints(run.best),
                 CheckpointSaver(run.checkpoints, every_steps=1), StopAtStep(3)]
    with in_world(World(1, 2)), hold_log():
        with run.writing("a test"):
            run.begin(None, UnreadData())  # type: ignore[arg-type]
            weights = train_plainly(trainer, callbacks, model, monitors=[EventWriter(run.log), StatsWriter(run.log)])
    assert list(tmp_path.iterdir()) == []
    assert len(model.processed_numbers) == 3 and np.any(weights)


class UnreadData:
    """Data whose vocabularies must not be copied."""


def test_every_process_begins_with_the_checkpoint(tmp_path: Path) -> None:
    saved = train_plainly(lambda: SyncMultiGPUTrainer(towers=1), [CheckpointSaver(tmp_path), StopAtStep(3)],
                          PlainModel())
    with in_world(World(1, 2)):
        restored = train_plainly(trainer, [CheckpointSaver(tmp_path), StopAtStep(3)], PlainModel())
    assert np.array_equal(saved, restored)


def test_several_processes_need_a_reducer_over_them() -> None:
    with in_world(World(0, 2)), pytest.raises(SettingsError, match="a reducer that adds over processes"):
        train_plainly(lambda: SyncMultiGPUTrainer(towers=1), [], PlainModel())


@pytest.mark.parametrize("when, steps", [(1, 0), (3, 1), (6, 3)])
def test_the_end_that_another_process_wants_is_the_end_of_this_one(tmp_path: Path, when: int, steps: int) -> None:
    """All processes agree before the first epoch, after each update, and after the callbacks of each step."""
    saver, model = CheckpointSaver(tmp_path, every_steps=0), PlainModel()
    with in_world(Scripted(0, when, Decision.END)):
        train_plainly(trainer, [saver], model)
    assert saver.latest() == tmp_path / f"step-{steps}"


def test_a_value_that_is_not_finite_in_another_process_ends_this_one_before_it_saves(tmp_path: Path) -> None:
    saver = CheckpointSaver(tmp_path, every_steps=0)
    with in_world(Scripted(0, 5, Decision.DIVERGED)), pytest.raises(DivergenceError, match="another process found"):
        train_plainly(trainer, [saver], PlainModel())
    assert saver.latest() == tmp_path / "step-0"


def test_a_process_that_reads_other_batches_ends_all_before_they_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                      ) -> None:
    """The sixth agreement is the second one about the position after the second update."""
    monkeypatch.setattr(callback_group, "COMPARED_STEPS", 2)
    saver = CheckpointSaver(tmp_path, every_steps=2)
    with in_world(Scripted(0, 6, Decision.CONTINUE)), pytest.raises(DataError, match="At step 2, the workers no"):
        train_plainly(trainer, [saver, StopAtStep(3)], PlainModel())
    assert saver.latest() == tmp_path / "step-0"


@pytest.mark.parametrize(("cycle", "step"), [(1, 2), (2, 1)])
def test_several_processes_do_not_skip_a_batch_that_does_not_fit(tmp_path: Path, cycle: int, step: int) -> None:
    """The other process waits for the gradients of this one, and would not agree to skip the batch."""
    saver, world = CheckpointSaver(tmp_path, every_steps=0), Noted(0, 2)
    message = rf"step {step}: .* ran out of memory \(.*batch 1.*\), and several processes cannot skip a batch: make"
    with in_world(world), pytest.raises(SettingsError, match=message):
        train_plainly(lambda: trainer(skip_out_of_memory=3, update_cycle=cycle), [saver], PlainModel(too_large={1}))
    assert saver.latest() == tmp_path / "step-0"
    assert len(world.requests) == 1 + 2 * (step - 1)      # before the first epoch, and twice for each complete step


class EndsAt(Callback):
    """A custom callback that ends training."""

    def _trigger_step(self) -> None:
        if self.global_step == 2:
            raise StopTraining("enough")


def test_a_callback_of_ones_own_ends_all_processes() -> None:
    world = Noted(0, 2)
    with in_world(world):
        train_plainly(trainer, [EndsAt()], PlainModel())
    assert world.requests == [Decision.CONTINUE] * 4 + [Decision.END]
