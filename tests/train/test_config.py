"""What a training goes on from: a whole checkpoint that fits, or an error that says why not."""

from __future__ import annotations

from typing import Any

import pytest
from tensorpack.train import ModelDesc
from tensorpack.train.interface import launch_train_with_config

from towernmt.callbacks.checkpoint import CheckpointSaver
from towernmt.callbacks.stateful import StatefulCallback
from towernmt.dataflow.position import Position
from towernmt.errors import CheckpointError, SettingsError
from towernmt.input_source import GeneralQueueInput
from towernmt.tf_compat import tf, tf1
from towernmt.train.checkpoint import checkpoint_steps, read_state
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


def train(directory: Any, epochs: int, *callbacks: Any, model: Any = None) -> GeneralQueueInput:
    data = GeneralQueueInput(Ones(), feeders=2)
    with tf.Graph().as_default():
        launch_train_with_config(
            TrainConfig(model or Weights(), data, monitors=[], max_epoch=epochs,
                        callbacks=[*callbacks, CheckpointSaver(directory, every_steps=3)]),
            SyncMultiGPUTrainer(towers=1))
    return data


def test_variables_position_and_memory_of_callbacks_come_back(tmp_path):
    train(tmp_path, 1, Counter())
    assert checkpoint_steps(tmp_path) == [0, 3, 4]
    state = read_state(tmp_path / "step-4")
    assert state["callbacks"] == {"counter": {"count": 4}}
    assert Position.from_json(state["position"]) == Position(0, 0, 4)
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
