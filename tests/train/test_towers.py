"""One tower, several towers and update cycles make the same update from the same target tokens."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tensorpack.train.interface import launch_train_with_config

from tests.train.random_pairs import RandomPairs
from tests.variables import checkpoint_values
from towernmt.callbacks.saver import CheckpointSaver
from towernmt.callbacks.stopping import StopAtStep
from towernmt.core.errors import FeederError, SettingsError
from towernmt.core.tf_compat import tf
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.dataflow.batches.batch_settings import BatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.input_source import GeneralQueueInput
from towernmt.models.layers.randomness import set_seed
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.optim.optimizer import make_optimizer
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer
from towernmt.train.training_towers import tower_devices

SIZES = {"hidden_size": 16, "filter_size": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1,
         "source_vocab_size": 50, "target_vocab_size": 50}
NO_DROPOUT = {"residual_dropout": 0.0, "embedding_dropout": 0.0}


def train(directory: Path, steps: int = 20, towers: int = 1, update_cycle: int = 1, batches=None, optimizer="adam",
          **model) -> tuple[dict[str, np.ndarray], GeneralQueueInput]:
    """Train, and return the variables of the last checkpoint and the input."""
    logging.getLogger("tensorpack").setLevel(logging.ERROR)
    with tf.Graph().as_default():
        set_seed(5)
        batches = batches or Batches(RandomPairs(3), BatchSettings(batch_tokens=120, seed=2))
        data = GeneralQueueInput(batches, feeders=2)
        settings = TransformerSettings(**{**SIZES, **NO_DROPOUT, **model})
        model = Transformer(settings)
        model.make_optimizer = partial(make_optimizer, OptimizerSettings(name=optimizer, learning_rate=0.005))
        config = TrainConfig(
            model, data,
            update_cycle=update_cycle, callbacks=[CheckpointSaver(directory, every_steps=0), StopAtStep(steps)],
            monitors=[])
        launch_train_with_config(config, SyncMultiGPUTrainer(towers=towers, update_cycle=update_cycle))
    return checkpoint_values(CheckpointSaver(directory).latest()), data


def assert_equal_variables(a: dict[str, np.ndarray], b: dict[str, np.ndarray], tolerance: float) -> None:
    assert set(a) == set(b)
    for name in a:
        scale = max(np.abs(a[name]).max(), 1e-3)
        assert np.abs(a[name] - b[name]).max() <= tolerance * scale, name


@pytest.fixture(scope="module")
def one_tower(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one"))[0]


@pytest.mark.parametrize("towers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_more_towers_make_the_same_updates_and_the_same_checkpoint_names(one_tower, towers, tmp_path):
    assert_equal_variables(one_tower, train(tmp_path, towers=towers)[0], 1e-5)


@pytest.mark.thorough
def test_a_share_without_a_row_counts_nothing(tmp_path):
    batches = lambda: Batches(RandomPairs(3), BatchSettings(batch_tokens=3, batch_type="sentences"))  # noqa: E731
    with_one_tower = train(tmp_path / "one", batches=batches(), steps=5)[0]
    assert_equal_variables(with_one_tower, train(tmp_path / "four", batches=batches(), steps=5, towers=4)[0], 1e-5)


@pytest.mark.thorough
def test_sparse_gradients_of_untied_embeddings_are_averaged_over_towers(tmp_path):
    with_one_tower = train(tmp_path / "one", tie_embeddings="none", steps=5)[0]
    assert_equal_variables(with_one_tower, train(tmp_path / "two", tie_embeddings="none", steps=5, towers=2)[0], 1e-5)


class Listed:
    """Batches from a list, once."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def batches_per_epoch(self) -> int:
        return len(self.batches)

    def read(self, position=None, start=0, step=1):
        first = position.batch if position else 0
        for i in range(first + start, len(self.batches), step):
            yield Position(0, 0, i + 1), self.batches[i]


def halves(batch: Batch) -> list[Batch]:
    """Return a batch split by rows into two batches of different size."""
    cut = max(1, len(batch.source) // 3)
    return [Batch(batch.source[rows], batch.source_length[rows], batch.target[rows], batch.target_length[rows],
                  np.float32(batch.target_length[rows].sum())) for rows in (slice(0, cut), slice(cut, None))]


def whole_batches(count: int) -> list[Batch]:
    stream = Batches(RandomPairs(3), BatchSettings(batch_tokens=120, seed=2)).read()
    return [next(stream)[1] for _ in range(count)]


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.slow)])
def test_an_update_cycle_averages_over_all_target_tokens_of_its_batches(tmp_path, optimizer):
    complete_batches = whole_batches(6)
    parts = [half for batch in complete_batches for half in halves(batch)]
    with_one_tower = train(tmp_path / "one", batches=Listed(complete_batches), steps=6, optimizer=optimizer)[0]
    cycled = train(tmp_path / "two", batches=Listed(parts), steps=6, update_cycle=2, optimizer=optimizer)[0]
    with_one_tower.pop("random_clock"), cycled.pop("random_clock")     # it counts batches, not updates
    assert_equal_variables(with_one_tower, cycled, 1e-4)


@pytest.mark.thorough
def test_data_that_ends_inside_an_update_cycle_is_trained_on_to_the_last_batch(tmp_path):
    complete_batches = whole_batches(3)
    parts = [half for batch in complete_batches for half in halves(batch)] + [complete_batches[0]]
    expected = train(tmp_path / "one", batches=Listed([*complete_batches, complete_batches[0]]), steps=99)[0]
    cycled, data = train(tmp_path / "two", batches=Listed(parts), steps=99, update_cycle=2)
    assert cycled["global_step"] == 4
    assert Position.from_json(data.last_position) == Position(0, 0, len(parts))
    expected.pop("random_clock"), cycled.pop("random_clock")
    assert_equal_variables(expected, cycled, 1e-4)


def test_a_gpu_that_is_not_there_is_refused_in_one_sentence():
    with pytest.raises(SettingsError, match=r"--gpu 0,1: GPU 0 was not found .*--towers 2"):
        tower_devices([0, 1], None)


def test_a_number_of_gpus_means_the_first_ones_as_in_tensorpack(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"] * 4)
    assert SyncMultiGPUTrainer(4).tower_devices == ["/gpu:0", "/gpu:1", "/gpu:2", "/gpu:3"]
    assert SyncMultiGPUTrainer(2).devices == [0, 1]


def test_towers_without_bound_are_refused_before_one_is_built():
    assert len(tower_devices(None, 64)) == 64
    with pytest.raises(SettingsError, match="--towers 1000000: this machine with .* processors allows .* towers"):
        tower_devices(None, 1_000_000)


@pytest.mark.parametrize("gpus, towers", [(0, None), (-1, None), (None, None), (None, 0), ([], None), ([0], 1)])
def test_a_trainer_without_clear_towers_is_refused(gpus, towers):
    with pytest.raises(SettingsError):
        SyncMultiGPUTrainer(gpus, towers)


@pytest.mark.thorough
@pytest.mark.parametrize("good", [3, 4])
def test_a_broken_source_inside_an_update_cycle_is_an_error_and_no_end(tmp_path, good):
    class Broken(Listed):
        def read(self, position=None, start=0, step=1):
            yield from super().read(position, start, step)
            raise OSError("the disk is gone")

    with pytest.raises(FeederError, match="the disk is gone"):
        train(tmp_path, batches=Broken(whole_batches(good)), update_cycle=2)
    assert CheckpointSaver(tmp_path).latest().name == f"step-{good // 2}"
