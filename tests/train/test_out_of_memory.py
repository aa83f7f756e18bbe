"""Batches that run out of memory are skipped, named and counted, up to a limit."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tensorpack.train.interface import launch_train_with_config

from towernmt.callbacks.saver import CheckpointSaver
from towernmt.core.errors import FeederError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.input_source import GeneralQueueInput
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer

pytestmark = pytest.mark.thorough

ROWS = 4


class Numbered:
    """Batches of one shape; the first word of each is its number."""

    def __init__(self, count: int, broken: bool = False) -> None:
        self.count, self.broken = count, broken

    def batches_per_epoch(self) -> int:
        return self.count

    def read(self, position=None, start=0, step=1):
        for i in range((position.batch if position else 0) + start, self.count, step):
            words = np.full([ROWS, 3], 4 + i, np.int32)
            lengths = np.full([ROWS], 3, np.int32)
            yield Position(0, 0, i + 1), Batch(words, lengths, words, lengths, np.float32(3 * ROWS))
        if self.broken:
            raise OSError("the disk is gone")


class Hungry(Transformer):
    """A Transformer for which some batches are too large."""

    too_large: frozenset[int] = frozenset()
    trained: list[int]

    def build_graph(self, source, *other_inputs):
        def check(words):
            number = int(words[0, 0]) - 4
            if number in self.too_large:
                raise MemoryError(f"OOM when allocating batch {number}")
            self.trained.append(number)
            return words

        shape = source.shape
        source = tf1.py_func(check, [source], tf.int32, stateful=True)
        source.set_shape(shape)
        return super().build_graph(source, *other_inputs)


def train(directory, too_large=(), count=8, limit=3, update_cycle=1, broken=False):
    model = Hungry(TransformerSettings(hidden_size=8, filter_size=8, heads=2, encoder_layers=1, decoder_layers=1,
                                       source_vocab_size=20, target_vocab_size=20))
    model.too_large, model.trained = frozenset(too_large), []
    data = GeneralQueueInput(Numbered(count, broken), feeders=2)
    trainer = SyncMultiGPUTrainer(towers=1, update_cycle=update_cycle, skip_out_of_memory=limit)
    with tf.Graph().as_default():
        config = TrainConfig(model, data, callbacks=[CheckpointSaver(directory, every_steps=0)], monitors=[],
                             update_cycle=update_cycle)
        try:
            launch_train_with_config(config, trainer)
        finally:
            model.last_position = data.last_position
    reader = tf.train.load_checkpoint(str(CheckpointSaver(directory).latest() / "model"))
    return model, trainer, int(reader.get_tensor("global_step"))


def test_batches_without_memory_are_skipped_named_and_counted(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "tensorpack")
    model, trainer, step = train(tmp_path, too_large=[2, 3, 6])
    assert model.trained == [0, 1, 4, 5, 7]
    assert trainer.skipped_batches == 3 and step == 5
    assert Position.from_json(model.last_position) == Position(0, 0, 8)
    messages = dict.fromkeys(record.getMessage() for record in caplog.records)
    warnings = [message for message in messages if "ran out of memory" in message]
    assert len(warnings) == 3 and f"step 3: batch 1 after {Position(0, 0, 2).to_json()}" in warnings[0]
    assert "step 3: batch 2 after" in warnings[1] and "step 5: batch 1 after" in warnings[2]
    assert "OOM when allocating batch 2" in warnings[0] and "number 1 of at most 3" in warnings[0]


def test_one_more_skipped_batch_than_allowed_ends_training_with_a_message(tmp_path):
    with pytest.raises(SettingsError, match=r"step 2: .* out of memory .*recovery.skip_out_of_memory=1 allows no more"):
        train(tmp_path, too_large=[1, 2], limit=1)
    with pytest.raises(SettingsError, match="smaller"):
        train(tmp_path / "none", too_large=[0], limit=0)


def test_an_update_cycle_restarts_after_a_skipped_batch(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "tensorpack")
    model, trainer, step = train(tmp_path, too_large=[1, 3, 6], count=9, update_cycle=2)
    assert model.trained == [0, 2, 4, 5, 7, 8]     # 0 and 2 were collected, and went with 1 and 3
    assert trainer.skipped_batches == 3 and step == 2
    for skipped in ("step 1: batch 2 after the beginning", "step 1: batch 4 after the beginning",
                    f"step 2: batch 1 after {Position(0, 0, 6).to_json()}"):
        assert skipped in caplog.text


def test_a_broken_source_after_such_a_batch_is_an_error_all_the_same(tmp_path):
    with pytest.raises(FeederError, match="the disk is gone"):
        train(tmp_path, too_large=[1], count=4, broken=True)
