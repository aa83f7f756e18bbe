"""A run resumes from a complete checkpoint that fits, or ends with an error that names the reason."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import Callback, EnableCallbackIf, PeriodicTrigger, ScalarPrinter
from tensorpack.tfutils.sessinit import DictRestore
from tensorpack.train import ModelDesc
from tensorpack.train.interface import launch_train_with_config

from towernmt.callbacks.saver import CheckpointSaver
from towernmt.callbacks.stateful import ScoreWatcher, StatefulCallback
from towernmt.checkpoint.checkpoint_files import checkpoint_steps, parse_state, read_state, state_text
from towernmt.core.errors import CheckpointError, DirectoryInUseError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Position
from towernmt.input_source import GeneralQueueInput
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer


class Weights(ModelDesc):
    """A model with a named variable of a requested size."""

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
    """Batches that must not be counted, because that would read the corpus."""

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


def train(directory: Any, epochs: int, *callbacks: Any, model: Any = None, after: Sequence[Any] = (), **saver: Any
          ) -> GeneralQueueInput:
    data = GeneralQueueInput(Ones(), feeders=2)
    with tf.Graph().as_default():
        launch_train_with_config(
            TrainConfig(model or Weights(), data, monitors=[], max_epoch=epochs,
                        callbacks=[*callbacks, CheckpointSaver(directory, **{"every_steps": 3, **saver}),
                                   *after]),
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


@pytest.mark.parametrize("wrap", [
    lambda counter: PeriodicTrigger(counter, every_k_steps=2),
    lambda counter: EnableCallbackIf(PeriodicTrigger(counter, every_k_epochs=1), lambda _: True)])
def test_the_state_of_a_callback_inside_another_comes_back(tmp_path: Path, wrap: Callable[[Any], Callback]) -> None:
    train(tmp_path, 1, wrap(Counter()))
    counter = Counter()
    train(tmp_path, 2, wrap(counter))
    assert counter.count == 8


def test_the_state_of_an_extra_callback_comes_back(tmp_path: Path) -> None:
    for epochs in (1, 2):
        counter = Counter()
        with tf.Graph().as_default():
            config = TrainConfig(Weights(), GeneralQueueInput(Ones()), [CheckpointSaver(tmp_path)], monitors=[],
                                 max_epoch=epochs, extra_callbacks=[counter])
            launch_train_with_config(config, SyncMultiGPUTrainer(towers=1))
    assert counter.count == 8


@pytest.mark.parametrize("removed", ["step-4", "."])
def test_a_run_with_several_savers_resumes_from_the_latest_checkpoint_of_all(tmp_path: Path, removed: str) -> None:
    train(tmp_path / "last", 1, Counter(), CheckpointSaver(tmp_path / "first", every_steps=3))
    shutil.rmtree(tmp_path / "first" / removed)
    counter = Counter()
    train(tmp_path / "last", 2, counter, CheckpointSaver(tmp_path / "first", every_steps=3))
    assert counter.count == 8
    assert checkpoint_steps(tmp_path / "last") == [0, 3, 4, 6, 8]


class Printing(ScoreWatcher):
    """Prints each score, and has no state."""

    def _on_score(self, step: int, score: float) -> None:
        print(step, score)


def test_watchers_of_scores_need_no_state(tmp_path: Path) -> None:
    for epochs in (1, 2):
        train(tmp_path, epochs, Printing("bleu"), Printing("loss"), Counter())
    assert read_state(tmp_path / "step-8").callbacks == {"counter": {"count": 8}}


class Forgetful(ScoreWatcher):
    """Saves a state, and does not restore it."""

    state_key = "forgetful"

    def state(self) -> dict[str, Any]:
        return {}


def test_a_callback_that_does_not_restore_its_state_is_refused_by_its_name(tmp_path: Path) -> None:
    train(tmp_path, 1, Forgetful("bleu"))
    with pytest.raises(SettingsError, match=r"Forgetful is a StatefulCallback without restore_state\(\)"):
        train(tmp_path, 2, Forgetful("bleu"))


class NumPyCounter(Counter):
    """Has a state that JSON cannot represent."""

    def state(self) -> dict[str, Any]:
        return {"count": np.float32(self.count)}


def test_a_state_that_json_cannot_represent_is_refused_by_the_name_of_its_callback(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"The state of NumPyCounter .*float32.* by float\(\)"):
        train(tmp_path, 1, NumPyCounter())


def test_batches_without_a_queue_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"got a Ones, .* pass GeneralQueueInput\(batches\)"):
        TrainConfig(Weights(), Ones())


def test_an_input_of_an_earlier_training_is_refused() -> None:
    data = GeneralQueueInput(Ones())
    for refused in (False, True):
        with tf.Graph().as_default(), pytest.raises(SettingsError, match="already used") if refused else nullcontext():
            launch_train_with_config(TrainConfig(Weights(), data, monitors=[], max_epoch=1),
                                     SyncMultiGPUTrainer(towers=1))


@pytest.mark.parametrize("callback, fix", [
    (tf1.train.StopAtStepHook(last_step=5), r"pass HookToCallback\(HOOK\) of towernmt.callbacks"),
    (Counter, "pass an instance"), (ScalarPrinter(), r"pass it in the argument monitors=")])
def test_an_object_that_is_not_a_callback_is_refused(callback: Any, fix: str) -> None:
    with pytest.raises(SettingsError, match=f"is (not a callback|a monitor): {fix}"):
        TrainConfig(Weights(), GeneralQueueInput(Ones()), [callback], monitors=[])


def test_a_resumed_run_ignores_the_initial_values_of_a_new_run(tmp_path: Path) -> None:
    for epochs in (1, 2):
        initial = DictRestore({"w": np.full(3, 7.0 * epochs, np.float32)})
        with tf.Graph().as_default():
            config = TrainConfig(Weights(), GeneralQueueInput(Ones()), [CheckpointSaver(tmp_path)], monitors=[],
                                 max_epoch=epochs, session_init=initial)
            launch_train_with_config(config, SyncMultiGPUTrainer(towers=1))
    assert checkpoint_steps(tmp_path) == [0, 4, 8]
    values = [tf.train.load_checkpoint(str(tmp_path / f"step-{step}" / "model")).get_tensor("w")[0]
              for step in (0, 4, 8)]
    assert values == pytest.approx([7.0, 5.0, 3.0])     # 0.5 less in each step


def test_a_run_resumed_in_mid_epoch_finishes_that_epoch(tmp_path):
    train(tmp_path, 1)
    (tmp_path / "step-4").rename(tmp_path / "away")     # as if it had been killed after step 3
    train(tmp_path, 2)
    assert checkpoint_steps(tmp_path) == [0, 3, 6, 8]


@pytest.mark.parametrize("model, message", [
    (Weights(size=5), r"step-4.*\bw\b.* has shape \[3\] in this checkpoint but \[5\]"),
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
    """Change the content of the last checkpoint's state.json, with a valid checksum if possible."""
    file = directory / "step-4" / "state.json"
    state = json.loads(file.read_text())
    del state["checksum"]
    changed = change(state)
    file.write_text(state_text(changed) if isinstance(changed, dict) else json.dumps(changed))


@pytest.mark.parametrize("change, message", [
    (lambda s: {}, "the field `step` is missing"),
    (lambda s: [], "it holds a list where an object is expected"),
    (lambda s: None, "it holds null where an object is expected"),
    (lambda s: {**s, "format": 99}, "has format 99, but this version of towernmt reads format 1: use"),
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
def test_a_damaged_state_is_reported_with_file_and_field(finished, tmp_path, change, message):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    spoilt(run, change)
    with pytest.raises(CheckpointError, match=re.escape(message)) as refused:
        TrainConfig(Weights(), GeneralQueueInput(Ones()), callbacks=[Counter(), CheckpointSaver(run)])
    assert "step-4/state.json" in str(refused.value)


def test_each_flipped_bit_of_the_state_is_refused(finished: Path) -> None:
    content, checkpoint = (finished / "step-4" / "state.json").read_bytes(), finished / "step-4"
    assert parse_state(content, checkpoint).step == 4
    for index in range(len(content)):
        damaged = content[:index] + bytes([content[index] ^ 1 << index % 8]) + content[index + 1:]
        with pytest.raises(CheckpointError):
            parse_state(damaged, checkpoint)


class Cut(Ones):
    """Batches whose positions depend on a setting."""

    def __init__(self, window: int, last_position: Position | None = None) -> None:
        self.position_settings = {"data.window": window, "data.seed": 1, "mix": ("a", "b")}
        self._last_position = last_position

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Any:
        for read_position, batch in super().read(position, start, step):
            yield self._last_position or read_position, batch


@pytest.mark.parametrize("window, last_position, refused", [
    (60, None, False), (80, None, True), (80, Position(1), False), (80, Position(0, 1), True),
    (80, Position(0, 0, 0, "cursor"), True)])
def test_a_setting_of_the_position_may_change_between_epochs_alone(tmp_path: Path, window: int,
                                                                   last_position: Position | None,
                                                                   refused: bool) -> None:
    def go(data: Any, epochs: int) -> None:
        with tf.Graph().as_default():
            launch_train_with_config(
                TrainConfig(Weights(), GeneralQueueInput(data), monitors=[], max_epoch=epochs,
                            callbacks=[CheckpointSaver(tmp_path / "run" / "checkpoints")]),
                SyncMultiGPUTrainer(towers=1))

    go(Cut(60, last_position), 1)
    if refused:
        with pytest.raises(CheckpointError, match="data.window changed from 60 to 80, but the data position") as error:
            go(Cut(window), 2)
        assert f"init.checkpoint={tmp_path / 'run'}" in str(error.value)
    else:
        go(Cut(window), 2)
        assert read_state(tmp_path / "run/checkpoints/step-8").position_settings["data.window"] == window


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("finished") / "run"
    train(run, 1, Counter())
    return run


def test_a_callback_may_remember_what_is_no_number(finished, tmp_path):
    run, counter = Path(shutil.copytree(finished, tmp_path / "run")), Counter()
    spoilt(run, lambda s: {**s, "callbacks": {"counter": {"count": float("nan")}}})
    TrainConfig(Weights(), GeneralQueueInput(Ones()), callbacks=[counter, CheckpointSaver(run)])
    assert counter.count != counter.count


class AtTheEnd(Counter):
    """Changes its state at the end of training, as the last validation does."""

    def _after_train(self) -> None:
        self.count += 100


def test_the_state_of_a_callback_at_the_end_is_in_the_checkpoint_of_that_step(tmp_path):
    train(tmp_path, 1, AtTheEnd(), every_steps=4)
    assert read_state(tmp_path / "step-4").callbacks == {"counter": {"count": 104}}


def test_a_finished_training_that_is_started_again_changes_nothing(tmp_path):
    train(tmp_path, 1, Counter())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    train(tmp_path, 1, Counter())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


class Then(Callback):
    """Runs an action after a step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def _trigger_step(self) -> None:
        if self.global_step == self.step:
            self.action()


def test_a_second_trainer_on_a_directory_is_refused_with_the_first_process(tmp_path):
    errors = []

    def second() -> None:
        (tmp_path / ".writing-step-9").mkdir()
        second_saver = CheckpointSaver(tmp_path)
        with pytest.raises(DirectoryInUseError) as refused:
            second_saver._before_train()
        second_saver._after_train()
        errors.append(str(refused.value))

    train(tmp_path, 1, Then(2, second))
    assert f"process {os.getpid()}" in errors[0] and "(training)" in errors[0]
    assert checkpoint_steps(tmp_path) == [0, 3, 4]
    train(tmp_path, 2)          # the lock is free again
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("change", [
    shutil.rmtree, lambda directory: directory.rename(directory.with_name("elsewhere")),
    lambda directory: (directory.rename(directory.with_name("elsewhere")), directory.mkdir())],
                         ids=["removed", "renamed", "replaced"])
def test_a_directory_that_vanishes_while_training_writes_there_is_an_error(tmp_path, change):
    checkpoints = tmp_path / "run" / "checkpoints"
    with pytest.raises(CheckpointError, match="checkpoints was removed, renamed or replaced during training"):
        train(checkpoints, 1, Then(2, lambda: change(checkpoints)))
    assert checkpoint_steps(checkpoints) == []


@pytest.mark.parametrize("at", [2, 4])
@pytest.mark.parametrize("removed", ["settings.yaml", "vocabulary", "code/mine.py", "checkpoints/step-4"])
def test_files_for_later_commands_exist_after_training_although_they_were_removed(tmp_path: Path, at: int, removed: str
                                                                                ) -> None:
    run = tmp_path / "run"
    for name in ("settings.yaml", "vocabulary/source.words", "code/mine.py"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("architecture: mine.py:Mine\n")

    def remove() -> None:
        shutil.rmtree(run / removed, ignore_errors=True)
        (run / removed).unlink(missing_ok=True)

    train(run / "checkpoints", 1, Counter(), after=[Then(at, remove)], every_steps=4)      # acts after the saver
    assert (run / "settings.yaml").is_file() and (run / "vocabulary/source.words").is_file()
    assert (run / "code/mine.py").is_file() and checkpoint_steps(run / "checkpoints") == [0, 4]
    assert (run / "checkpoints/step-4/model.index").is_file()


def test_a_checkpoint_that_was_made_from_other_data_is_refused(tmp_path):
    train(tmp_path, 1, made_from={"data": "a", "vocabulary": "v"})
    with pytest.raises(CheckpointError, match="step-4 was made with a different data"):
        train(tmp_path, 2, made_from={"data": "b", "vocabulary": "v"})
    train(tmp_path, 2, made_from={"data": "a"})
    train(tmp_path, 3)          # nothing is known of what it is made from


@pytest.mark.parametrize(("limit", "steps"), [({}, 3), ({"max_epoch": 2}, 2)])
def test_batches_are_counted_where_training_ends_by_epochs_and_estimated_elsewhere(
        limit: dict[str, int], steps: int) -> None:
    data = GeneralQueueInput(Estimated())
    assert TrainConfig(model=Weights(), data=data, update_cycle=2, **limit).steps_per_epoch == steps
    assert TrainConfig(model=Weights(), data=GeneralQueueInput(Ones()), **limit).steps_per_epoch == 4
