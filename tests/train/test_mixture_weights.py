"""A callback changes the weights of a mixture in a training run that is stopped and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tensorpack.callbacks import Callback
from tensorpack.input_source import StagingInput
from tensorpack.train import ModelDesc, launch_train_with_config

from towernmt.callbacks import CheckpointSaver, StopAtStep
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.sources.source import Pair, Source
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.input_source import GeneralQueueInput
from towernmt.models.interface import batch_signature
from towernmt.train import SyncMultiGPUTrainer, TrainConfig

VOCABULARY = WordVocabulary([*SPECIAL_PIECES, "a", "b"])


class Letters(Source):
    """A source of many sentence pairs of one letter."""

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self) -> Any:
        return 0

    def read(self, cursor: Any) -> Iterator[tuple[Any, Pair]]:
        for number in range(cursor, 10_000):
            yield number + 1, Pair(" ".join([self.name] * (1 + number % 4)), self.name)

    def count(self) -> int:
        return 10_000


class Model(ModelDesc):
    def inputs(self) -> Any:
        return batch_signature(0)

    def build_graph(self, source: Any, source_length: Any, target: Any, target_length: Any, target_tokens: Any) -> Any:
        tf.identity(source, name="source_values")
        weight = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        return weight * tf.cast(tf.size(source), tf.float32) / target_tokens

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(0.1)


class Watch(Callback):
    """Sets the weights of the mixture at a step, and records the source words of each step."""

    def __init__(self, step: int) -> None:
        self._at, self.shares = step, []

    def _setup_graph(self) -> None:
        self._fetches = [t.get_tensor("source_values") for t in self.trainer.towers.training()]

    def _before_run(self, _: Any) -> Any:
        return self._fetches

    def _after_run(self, _: Any, values: Any) -> None:
        self.shares.append([shares.tolist() for shares in values.results])

    def _trigger_step(self) -> None:
        if self.global_step == self._at:
            self.trainer.data.batches.mixture.set_weights({"a": 1e-300, "b": 1})


def train(directory: Any, steps: int, towers: int = 1, staged: bool = False, change_at: int = 3) -> list[Any]:
    mixture = Mixture([Ingredient(Letters("a")), Ingredient(Letters("b"))], report=lambda _: None)
    settings = StreamBatchSettings(batch_tokens=16, window=160, seed=5)
    batches = StreamBatches(mixture, VOCABULARY, VOCABULARY, settings, report=lambda _: None)
    data = GeneralQueueInput(batches, capacity=2)
    watch = Watch(change_at)
    with tf.Graph().as_default():
        launch_train_with_config(TrainConfig(
            Model(), StagingInput(data) if staged else data,
            callbacks=[watch, CheckpointSaver(directory), StopAtStep(steps)],
            monitors=[], steps_per_epoch=100, max_epoch=1), SyncMultiGPUTrainer(towers=towers))
    return watch.shares


@pytest.mark.parametrize("towers, staged", [(1, False), (2, False), (1, True)])
def test_weights_that_a_callback_sets_hold_over_a_stop(tmp_path, towers, staged):
    uninterrupted = train(tmp_path / "whole", 80, towers, staged)
    letters = [{letter for share in step for row in share for letter in row} - {0, 1, 2, 3} for step in uninterrupted]
    assert len(letters[0] | letters[5]) == 2        # the window in which the weights are set stays
    assert letters[60:] == [letters[60]] * 20 and len(letters[60]) == 1
    assert train(tmp_path / "parts", 6, towers, staged) == uninterrupted[:6]
    assert train(tmp_path / "parts", 80, towers, staged) == uninterrupted[6:]
