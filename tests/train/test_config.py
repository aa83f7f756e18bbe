"""What a training goes on from: a whole checkpoint that fits, or an error that says why not."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorpack.callbacks import Callback
from tensorpack.train import ModelDesc
from tensorpack.train.interface import launch_train_with_config

from towernmt.callbacks.checkpoints.saver import CheckpointSaver
from towernmt.callbacks.stateful import StatefulCallback
from towernmt.checkpoint.files import checkpoint_steps
from towernmt.checkpoint.state import read_state
from towernmt.core.errors import CheckpointError, DirectoryInUseError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.order.position import Position
from towernmt.input_source import GeneralQueueInput
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer


class Weights(ModelDesc):
    """As many weights as told, under a name."""

    def __init__(self, size: int = 3, name: str = "w") -> None:
        self.size, self.name = size, name

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([], tf.float32, "x")]

    def build_graph(self, x: Any) -> Any:
        w = tf1.get_variable(self.name, [self.size], initializer=tf1.ones_initializer())
        return tf.multiply(x, tf.reduce_sum(w), name="loss")

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(tf1.get_variable("learning_rate", initializer=0.5, trainable=False))


class Ones:
    def batches_per_epoch(self) -> int:
        return 4

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Any:
        number = (position.batch if position else 0) + start
        while True:
            yield Position(0, 0, number + 1), self
            number += step

    def arrays(self) -> list[float]:
        return [1.0]


class Estimated(Ones):
    """Counting them is dear."""

    def estimated_batches_per_epoch(self) -> int:
        return 6


class Counter(StatefulCallback):
    """Counts steps over resumes."""

    def __init__(self, key: str = "counter") -> None:
        self.state_key, self.count = key, 0

    def _trigger_step(self) -> None:
        self.count += 1

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def train(directory: Any, epochs: int, *callbacks: Any, model: Any = None, **saver: Any) -> GeneralQueueInput:
    data = GeneralQueueInput(Ones(), feeders=2)
    with tf.Graph().as_default():
        launch_train_with_config(
            TrainConfig(model or Weights(), data, monitors=[], max_epoch=epochs,
                        callbacks=[*callbacks, CheckpointSaver(directory, **{"every_steps": 3, **saver})]),
            SyncMultiGPUTrainer(towers=1))
    return data


def test_variables_position_and_memory_of_callbacks_come_back(tmp_path):
    train(tmp_path, 1, Counter())
    assert checkpoint_steps(tmp_path) == [0, 3, 4]
    state = read_state(tmp_path / "step-4")
    assert state.callbacks == {"counter": {"count": 4}}
    assert Position.from_json(state.position) == Position(0, 0, 4)
    counter = Counter()
    data = train(tmp_path, 2, counter)
    assert counter.count == 8
    assert Position.from_json(data.last_position) == Position(0, 0, 8)
    reader = tf.train.load_checkpoint(str(tmp_path / "step-8" / "model"))
    assert reader.get_tensor("w") == pytest.approx([-3.0] * 3)     # 1 - 8 * 0.5


def test_a_run_resumed_in_mid_epoch_finishes_that_epoch(tmp_path):
    train(tmp_path, 1)
    (tmp_path / "step-4").rename(tmp_path / "away")     # as if it had been killed after step 3
    train(tmp_path, 2)
    assert checkpoint_steps(tmp_path) == [0, 3, 6, 8]


@pytest.mark.parametrize("model, message", [
    (Weights(size=5), r"step-4.*\bw\b.* has shape \[3\] there and \[5\]"),
    (Weights(name="v"), r"step-4.*\bv\b.*not in this checkpoint")])
def test_a_checkpoint_of_another_model_is_refused_by_the_variable(tmp_path, model, message):
    train(tmp_path, 1)
    with pytest.raises(CheckpointError, match=message) as refused:
        train(tmp_path, 2, model=model)
    assert "\n" not in str(refused.value)
    assert checkpoint_steps(tmp_path) == [0, 3, 4]


def test_a_truncated_checkpoint_is_refused_and_named(tmp_path):
    train(tmp_path, 1)
    weights = tmp_path / "step-4" / "model.data-00000-of-00001"
    weights.write_bytes(weights.read_bytes()[:4])
    with pytest.raises(CheckpointError, match="step-4"):
        train(tmp_path, 2)


def test_two_callbacks_with_one_key_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="'a'"):
        train(tmp_path, 1, Counter("a"), Counter("a"))


def spoilt(directory: Path, change: Callable[[Any], Any]) -> None:
    """Change what the last checkpoint's state.json holds."""
    file = directory / "step-4" / "state.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


@pytest.mark.parametrize("change, message", [
    (lambda s: {}, "the field `step` is missing"),
    (lambda s: [], "it holds a list where an object is expected"),
    (lambda s: None, "it holds null where an object is expected"),
    (lambda s: {**s, "format": 99}, "of format 99, but this towernmt reads format 1: use the version that wrote it"),
    (lambda s: {**s, "step": 3}, "`step` holds 3, but the directory is step-4"),
    (lambda s: {**s, "step": -4}, "`step` holds -4 where 0 or more is expected"),
    (lambda s: {k: v for k, v in s.items() if k != "position"}, "the field `position` is missing"),
    (lambda s: {**s, "position": None}, "`position` is null after 4 updates"),
    (lambda s: {**s, "position": 7}, "`position` holds 7 where"),
    (lambda s: {**s, "position": "7"}, "the field `position`: '7' is not a data position"),
    (lambda s: {k: v for k, v in s.items() if k != "callbacks"}, "the field `callbacks` is missing"),
    (lambda s: {**s, "callbacks": None}, "`callbacks` holds null"),
    (lambda s: {**s, "callbacks": {"counter": 5}}, "`callbacks.counter` is not what Counter wrote"),
    (lambda s: {**s, "callbacks": {"counter": {}}}, "`callbacks.counter` is not what Counter wrote"),
    (lambda s: {**s, "evil": 1}, "the field `evil` is not known")])
def test_a_spoilt_state_is_told_with_file_and_field(finished, tmp_path, change, message):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    spoilt(run, change)
    with pytest.raises(CheckpointError, match=re.escape(message)) as refused:
        TrainConfig(Weights(), GeneralQueueInput(Ones()), callbacks=[Counter(), CheckpointSaver(run)])
    assert "step-4/state.json" in str(refused.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("finished") / "run"
    train(place, 1, Counter())
    return place


def test_a_callback_may_remember_what_is_no_number(finished, tmp_path):
    run, counter = Path(shutil.copytree(finished, tmp_path / "run")), Counter()
    spoilt(run, lambda s: {**s, "callbacks": {"counter": {"count": float("nan")}}})
    TrainConfig(Weights(), GeneralQueueInput(Ones()), callbacks=[counter, CheckpointSaver(run)])
    assert counter.count != counter.count


class AtTheEnd(Counter):
    """Learns something when training ends, as the last validation does."""

    def _after_train(self) -> None:
        self.count += 100


def test_what_a_callback_learns_at_the_end_is_in_the_checkpoint_of_that_step(tmp_path):
    train(tmp_path, 1, AtTheEnd(), every_steps=4)
    assert read_state(tmp_path / "step-4").callbacks == {"counter": {"count": 104}}


def test_a_finished_training_that_is_started_again_changes_nothing(tmp_path):
    train(tmp_path, 1, Counter())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    train(tmp_path, 1, Counter())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


class Then(Callback):
    """Does something after a step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def _trigger_step(self) -> None:
        if self.global_step == self.step:
            self.action()


def test_a_second_trainer_on_a_directory_is_told_who_is_there_and_spoils_nothing(tmp_path):
    told = []

    def second() -> None:
        (tmp_path / ".writing-step-9").mkdir()
        other = CheckpointSaver(tmp_path)
        with pytest.raises(DirectoryInUseError) as refused:
            other._before_train()
        other._after_train()
        told.append(str(refused.value))

    train(tmp_path, 1, Then(2, second))
    assert f"process {os.getpid()}" in told[0] and "(training)" in told[0]
    assert checkpoint_steps(tmp_path) == [0, 3, 4]
    train(tmp_path, 2)          # the lock is free again
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("change", [shutil.rmtree, lambda place: place.rename(place.with_name("elsewhere")),
                                    lambda place: (place.rename(place.with_name("elsewhere")), place.mkdir())],
                         ids=["removed", "renamed", "replaced"])
def test_a_directory_that_vanishes_while_training_writes_there_is_an_error(tmp_path, change):
    place = tmp_path / "run" / "checkpoints"
    with pytest.raises(CheckpointError, match="checkpoints is not there any more, or is another directory"):
        train(place, 1, Then(2, lambda: change(place)))
    assert checkpoint_steps(place) == []


def test_a_checkpoint_that_was_made_from_other_data_is_refused(tmp_path):
    train(tmp_path, 1, made_from={"data": "a", "vocabulary": "v"})
    with pytest.raises(CheckpointError, match="step-4 was made from another data"):
        train(tmp_path, 2, made_from={"data": "b", "vocabulary": "v"})
    train(tmp_path, 2, made_from={"data": "a"})
    train(tmp_path, 3)          # nothing is known of what it is made from


@pytest.mark.parametrize(("limit", "steps"), [({}, 3), ({"max_epoch": 2}, 2)])
def test_batches_are_counted_where_training_ends_by_epochs_and_estimated_elsewhere(
        limit: dict[str, int], steps: int) -> None:
    data = GeneralQueueInput(Estimated())
    assert TrainConfig(model=Weights(), data=data, update_cycle=2, **limit).steps_per_epoch == steps
    assert TrainConfig(model=Weights(), data=GeneralQueueInput(Ones()), **limit).steps_per_epoch == 4
