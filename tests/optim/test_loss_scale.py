"""float16 with dynamic loss scaling: results near those of float32, and skipped updates without effect."""

from __future__ import annotations

import logging
import shutil
from functools import partial
from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import Callback, MonitorBase
from tensorpack.train.interface import launch_train_with_config

from tests.variables import checkpoint_values
from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.callbacks.saver import CheckpointSaver
from towernmt.callbacks.stopping import StopAtStep
from towernmt.callbacks.summaries import LossScaleMonitor
from towernmt.core.errors import CheckpointError, DivergenceError, SettingsError
from towernmt.core.graph_state import GraphSettings, LossScaling, configure_graph
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch_settings import BatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.preparation.shards import PairBlock
from towernmt.input_source import GeneralQueueInput
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.optim.optimizer import LossScaleOptimizer, make_optimizer
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer

pytestmark = pytest.mark.thorough

STATE = ("loss_scale/scale", "loss_scale/good_updates", "loss_scale/skipped_updates")
COUNTERS = {"global_step", "random_clock", *STATE}
"""Variables that change also in a skipped update."""


class Pairs:
    """A corpus in memory: the target is the source."""

    num_blocks, length_ratio = 2, 1.0

    def read_block(self, index: int) -> PairBlock:
        random = np.random.default_rng(index)
        lengths = random.integers(1, 7, 60)
        words = random.integers(4, 20, lengths.sum()).astype(np.int32)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return PairBlock(words, ends, words, ends)


class Observer(MonitorBase):
    """Records scalars by name."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def process_scalar(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(float(value))


class Losses(Callback):
    """Records the loss of the first tower in each step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def _setup_graph(self) -> None:
        self._loss = self.trainer.towers.training()[0].get_tensor("nll")

    def _before_run(self, _: Any) -> list[Any]:
        return [self._loss]

    def _after_run(self, _: Any, values: Any) -> None:
        self.values.append(float(values.results[0]))


def train(directory, precision="float16", steps=6, towers=1, update_cycle=1, scaling=None, optimizer="adam",
          ema=0.0, clip=0.0, tie="all", every=1):
    """Train, and return the checkpoints' variables by step, the losses, and the scalars."""
    logging.getLogger("tensorpack").setLevel(logging.ERROR)
    observer, losses = Observer(), Losses()
    with tf.Graph().as_default():
        configure_graph(GraphSettings(seed=3, precision=precision, loss_scaling=scaling or LossScaling()))
        model = Transformer(TransformerSettings(
            hidden_size=16, filter_size=32, heads=2, encoder_layers=1, decoder_layers=1, source_vocab_size=20,
            target_vocab_size=20, tie_embeddings=tie))
        model.make_optimizer = partial(
            make_optimizer, OptimizerSettings(name=optimizer, learning_rate=0.003, ema_decay=ema), clip)
        data = GeneralQueueInput(Batches(Pairs(), BatchSettings(batch_tokens=60, seed=2)), feeders=1)
        saver = CheckpointSaver(directory, every_steps=every, keep=100)
        config = TrainConfig(model, data, update_cycle=update_cycle, monitors=[observer],
                             callbacks=[NaNGuard(), LossScaleMonitor(), losses, saver, StopAtStep(steps)])
        launch_train_with_config(config, SyncMultiGPUTrainer(towers=towers, update_cycle=update_cycle))
    return checkpoints(directory), losses.values, observer.values


def checkpoints(directory) -> dict[int, dict[str, np.ndarray]]:
    return {int(path.name[5:]): checkpoint_values(path) for path in directory.glob("step-*")}


def assert_same(a, b, leaving=frozenset()) -> None:
    assert set(a) == set(b)
    assert [name for name in a if name not in leaving and a[name].tobytes() != b[name].tobytes()] == []


def test_the_loss_falls_as_in_float32_and_only_float16_has_the_state(tmp_path):
    exact, losses, _ = train(tmp_path / "float32", "float32", steps=60, every=0)
    narrow, narrow_losses, scalars = train(tmp_path / "float16", steps=60, every=0)
    assert losses[-1] < 0.8 * losses[0]
    np.testing.assert_allclose(narrow_losses, losses, rtol=0.02)
    assert narrow_losses != losses
    assert set(narrow[60]) - set(exact[60]) == set(STATE)
    assert not set(STATE) & set(exact[60]) and "skipped_updates" not in scalars


@pytest.mark.parametrize("options", [
    {"optimizer": "lazyadam", "tie": "none"}, {"optimizer": "muon", "update_cycle": 2, "ema": 0.9},
    *(pytest.param(options, marks=pytest.mark.slow) for options in (
        {}, {"ema": 0.9, "clip": 1.0}, {"optimizer": "adamw", "towers": 2, "tie": "none"}, {"optimizer": "adafactor"},
        {"optimizer": "lamb"}, {"optimizer": "sgd", "update_cycle": 2, "ema": 0.9}))],
    ids=str)
def test_an_update_that_overflows_changes_nothing_and_the_scale_recovers(tmp_path, options):
    saved, _, scalars = train(tmp_path, steps=12, scaling=LossScaling(initial=2.0 ** 20), **options)
    skipped = [step for step in range(1, 13) if saved[step]["loss_scale/scale"] < saved[step - 1]["loss_scale/scale"]]
    updated = [step for step in range(1, 13) if step not in skipped]
    assert 1 in skipped and 12 in updated
    for step in skipped:
        assert_same(saved[step - 1], saved[step], COUNTERS)
        assert saved[step]["loss_scale/scale"] * 2 == saved[step - 1]["loss_scale/scale"]
    for step in updated:
        unchanged = [name for name in saved[step] if saved[step][name].tobytes() == saved[step - 1][name].tobytes()]
        directions = {name for name in unchanged if name.endswith("/Muon_direction")}      # of the previous update
        assert set(unchanged) - directions <= {"learning_rate", "loss_scale/scale", "loss_scale/skipped_updates"}
    assert saved[12]["loss_scale/skipped_updates"] == len(skipped) == scalars["skipped_updates"][-1]
    assert saved[12]["global_step"] == 12


def test_good_updates_in_a_row_double_the_scale(tmp_path):
    saved, _, scalars = train(tmp_path, steps=5, scaling=LossScaling(initial=64.0, growth_updates=2))
    assert [saved[step]["loss_scale/scale"] for step in range(6)] == [64, 64, 128, 128, 256, 256]
    assert [saved[step]["loss_scale/good_updates"] for step in range(6)] == [0, 1, 0, 1, 0, 1]
    assert scalars["loss_scale"] == [128, 256]


def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path):
    scaling = LossScaling(initial=2.0 ** 20, growth_updates=3)
    uninterrupted, _, _ = train(tmp_path / "whole", steps=12, scaling=scaling)
    shutil.copytree(tmp_path / "whole" / "step-5", tmp_path / "resumed" / "step-5")
    resumed, _, _ = train(tmp_path / "resumed", steps=12, scaling=scaling)
    assert_same(uninterrupted[12], resumed[12])
    assert uninterrupted[12]["loss_scale/skipped_updates"] > 0


def test_an_overflow_at_the_least_scale_is_a_divergence_that_says_what_to_do(tmp_path):
    with pytest.raises(DivergenceError, match=r"step 3: the gradient of .* scale has reached its minimum.*bfloat16"):
        train(tmp_path, scaling=LossScaling(initial=2.0 ** 42, least=2.0 ** 40))
    assert max(checkpoints(tmp_path)) == 2


def test_a_run_in_float32_resumes_in_float16_and_back(tmp_path):
    train(tmp_path, "float32", steps=2)
    saved, _, _ = train(tmp_path, steps=4, scaling=LossScaling(64.0))
    assert saved[4]["loss_scale/scale"] == 64
    saved, _, _ = train(tmp_path, "float32", steps=5)
    assert "loss_scale/scale" not in saved[5]


def test_gradients_are_those_of_the_loss_itself(graph):
    configure_graph(GraphSettings(loss_scaling=LossScaling(8.0)))
    table = tf1.get_variable("table", initializer=tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    w = tf1.get_variable("w", initializer=tf.constant([0.5, 0.25]))
    loss = tf.reduce_sum(tf.gather(table, [1, 1]) * w)
    optimizer = LossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0))
    (sparse, _), (dense, _) = optimizer.compute_gradients(loss, [table, w])
    assert isinstance(sparse, tf.IndexedSlices)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert session.run(dense).tolist() == [6.0, 8.0]
        assert session.run(sparse.values).tolist() == [[0.5, 0.25]] * 2


@pytest.mark.parametrize("values", [{"initial": 0.5}, {"least": 0.0}, {"growth_updates": 0}])
def test_values_that_cannot_work_are_refused_by_the_name_of_their_setting(values):
    with pytest.raises(SettingsError, match=r"(train\.loss_scale|growth_updates)="):
        LossScaling(**values)


@pytest.mark.slow       # tests/checkpoint/test_weights.py has variables that are not in a checkpoint
def test_any_other_missing_variable_is_refused(tmp_path):
    train(tmp_path, steps=1, optimizer="sgd")
    with pytest.raises(CheckpointError, match="is not in this checkpoint"):
        train(tmp_path, steps=2)
