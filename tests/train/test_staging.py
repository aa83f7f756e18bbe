"""Staged batches change nothing but the time of training."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.train.interface import launch_train_with_config
from tensorpack.train.model_desc import ModelDesc

from tests.variables import checkpoint_values
from tests.waiting import PATIENCE
from towernmt.callbacks.saver import CheckpointSaver
from towernmt.callbacks.stopping import StopAtStep
from towernmt.core.errors import FeederError
from towernmt.core.session import SessionCreator
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Position
from towernmt.input_source import GeneralQueueInput, InputStatistics
from towernmt.models.layers.randomness import set_seed
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer


class Numbered(NamedTuple):
    """Batch `number`, with unique values and a varying number of rows."""

    number: int

    def arrays(self) -> list[Any]:
        rows = 2 + self.number % 4
        values = np.arange(rows * 3, dtype=np.int32).reshape(rows, 3) % 7 + self.number
        return [values, np.full([rows], self.number, np.int32), np.float32(rows * 3)]


class NumberedBatches:
    """`count` batches; reading batch `broken` fails, and reading batch `late` waits for `release`."""

    def __init__(self, count: int = 1000, broken: int | None = None, late: int | None = None) -> None:
        self.count, self.broken, self.late, self.release = count, broken, late, threading.Event()

    def batches_per_epoch(self) -> int:
        return 1000

    def read(self, position=None, start=0, step=1):
        for i in range((position.batch if position else 0) + start, self.count, step):
            if i == self.broken:
                raise OSError(f"batch {i} is unreadable")
            if i == self.late:
                self.release.wait(PATIENCE)
            yield Position(0, 0, i + 1), Numbered(i)


class Follow(ModelDesc):
    """A model in which each update depends on all earlier ones; some batches are too large."""

    too_large: frozenset[int] = frozenset()
    processed: list[tuple[int, int]]

    def inputs(self):
        return [tf.TensorSpec([None, 3], tf.int32, "values"), tf.TensorSpec([None], tf.int32, "number"),
                tf.TensorSpec([], tf.float32, "target_tokens")]

    def build_graph(self, values, number, target_tokens):
        context = get_current_tower_context()

        def look(numbers):
            self.processed.append((context.index, int(numbers[0])))
            if context.index == context.total - 1 and numbers[0] in self.too_large:
                raise MemoryError(f"OOM when allocating batch {numbers[0]}")
            return numbers

        number = tf1.py_func(look, [number], tf.int32, stateful=True, name="look")
        weight = tf1.get_variable("followed", [3])
        far = tf.cast(values, tf.float32) + tf.cast(number[0], tf.float32) / 3 - weight
        return tf.reduce_sum(far * far) * context.total / target_tokens

    def optimizer(self):
        return tf1.train.AdamOptimizer(0.1)


class Trace(Callback):
    """Records the weights and the position after each step and at the end."""

    def __init__(self, data: GeneralQueueInput) -> None:
        self.data, self.steps = data, []

    def _setup_graph(self) -> None:
        self.weight = next(v for v in tf1.trainable_variables() if v.op.name == "followed")

    def _trigger_step(self) -> None:
        self.steps.append((self.trainer.sess.run(self.weight).tolist(), self.data.last_position))

    def _after_train(self) -> None:
        self._trigger_step()


class Result(NamedTuple):
    steps: list[Any]
    statistics: InputStatistics
    model: Follow
    trainer: SyncMultiGPUTrainer
    data: GeneralQueueInput

    def same_as(self, expected: Result) -> bool:
        """Return whether steps, positions and counts are equal to the last bit."""
        return (self.steps == expected.steps and self.data.last_position == expected.data.last_position
                and self.statistics.batches == expected.statistics.batches
                and self.statistics.target_tokens == expected.statistics.target_tokens
                and self.trainer.skipped_batches == expected.trainer.skipped_batches)


def train(staging: bool, batches: Any = None, towers: int = 1, update_cycle: int = 1, steps: int = 20, directory=None,
          callbacks=(), too_large=(), source=GeneralQueueInput, creator: Any = None,
          trainer=SyncMultiGPUTrainer, error: type[Exception] | None = None) -> Result:
    model = Follow()
    model.too_large, model.processed = frozenset(too_large), []
    with tf.Graph().as_default():
        set_seed(3)
        data = source(batches or NumberedBatches(), feeders=2)
        trace = Trace(data)
        saver = [CheckpointSaver(directory, every_steps=7)] if directory else []
        built = trainer(towers=towers, update_cycle=update_cycle, skip_out_of_memory=9, staging=staging)
        config = TrainConfig(model, data, callbacks=[trace, *callbacks, *saver, StopAtStep(steps)], monitors=[],
                             update_cycle=update_cycle, session_creator=creator or SessionCreator())
        if error is None:
            launch_train_with_config(config, built)
        else:
            with pytest.raises(error):
                launch_train_with_config(config, built)
        kinds = {operation.type for operation in tf1.get_default_graph().get_operations()}
    assert ("Stage" in kinds) == staging
    return Result(trace.steps, data.statistics(), model, built, data)


@pytest.mark.parametrize("update_cycle", [1, 3])
@pytest.mark.parametrize("towers", [1, 2])
def test_staging_changes_no_update_no_position_and_no_count(towers, update_cycle):
    staged = train(True, towers=towers, update_cycle=update_cycle)
    assert staged.same_as(train(False, towers=towers, update_cycle=update_cycle))
    assert staged.trainer.loop.global_step == 20 and staged.statistics.batches == 20 * update_cycle


@pytest.mark.parametrize("update_cycle", [1, 3, 5])
@pytest.mark.parametrize("towers", [1, 2])
def test_finite_data_are_trained_on_to_the_last_batch(towers, update_cycle):
    staged = train(True, NumberedBatches(10), towers, update_cycle, steps=99)
    assert staged.same_as(train(False, NumberedBatches(10), towers, update_cycle, steps=99))
    assert staged.statistics.batches == 10 and staged.trainer.loop.global_step == -(-10 // update_cycle)
    assert Position.from_json(staged.data.last_position) == Position(0, 0, 10)
    assert sorted(staged.model.processed) == [(tower, number) for tower in range(towers) for number in range(10)]


@pytest.mark.parametrize("update_cycle", [1, 3])
@pytest.mark.parametrize("broken", [0, 1, 5])
def test_a_broken_source_is_raised_where_it_is_without_staging(broken, update_cycle):
    results = [train(staging, NumberedBatches(broken=broken), 1, update_cycle, error=FeederError)
               for staging in (True, False)]
    assert results[0].same_as(results[1])
    assert results[0].model.processed == [(0, number) for number in range(broken)]
    assert f"batch {broken} is unreadable" in str(results[0].data.runner.error)


def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path):
    uninterrupted = train(False, towers=2, update_cycle=2)
    train(True, towers=2, update_cycle=2, directory=tmp_path / "run", steps=17)
    for step in ("step-17", "step-14"):
        shutil.rmtree(tmp_path / "run" / step)      # as if killed after step 7
    resumed = train(True, towers=2, update_cycle=2, directory=tmp_path / "run")
    assert resumed.steps == uninterrupted.steps[7:]


@pytest.mark.parametrize("towers, update_cycle", [(1, 1), (2, 1), (2, 2)])
def test_batches_that_run_out_of_memory_are_skipped_alone(towers, update_cycle):
    # the second of two towers fails, after or before the first one has taken its share
    arguments = {"towers": towers, "update_cycle": update_cycle, "too_large": [0, 3, 4, 8, 11], "steps": 99}
    staged, plain = (train(staging, NumberedBatches(12), **arguments) for staging in (True, False))
    assert staged.same_as(plain) and staged.trainer.skipped_batches == 5
    last = towers - 1
    of_last = [[n for tower, n in result.model.processed if tower == last] for result in (staged, plain)]
    assert of_last[0] == of_last[1]


def test_a_batch_that_runs_out_of_memory_on_its_way_to_the_towers_is_skipped_alone():
    class Full(GeneralQueueInput):
        def _share(self, index, total):
            def check(number):
                if index == 1 and number[0] in (0, 4, 5):
                    raise MemoryError("OOM when copying")
                return number

            values, number, tokens = super()._share(index, total)
            checked = tf1.py_func(check, [number], tf.int32, stateful=True)
            checked.set_shape(number.shape)
            return [values, checked, tokens]

    staged = train(True, NumberedBatches(8), towers=2, steps=99, source=Full)
    assert [n for tower, n in staged.model.processed if tower == 1] == [1, 2, 3, 6, 7]
    assert sorted(n for tower, n in staged.model.processed if tower == 0) == [1, 2, 3, 6, 7]
    assert staged.trainer.skipped_batches == 3
    assert Position.from_json(staged.data.last_position) == Position(0, 0, 8)


def test_the_next_batch_is_on_the_devices_before_a_step_asks_for_it():
    ahead = []

    class Look(Callback):
        def _trigger_step(self) -> None:
            (position, _), sizes = data().staging._next.result(PATIENCE), self.trainer.sess.run(data().staging._sizes)
            ahead.append((Position.from_json(data().last_position).batch, Position.from_json(position.decode()).batch,
                          [int(size) for size in sizes]))

    look = Look()

    def data():
        return look.trainer._input

    train(True, towers=2, callbacks=[look], steps=4)
    assert ahead == [(1, 2, [1, 1]), (2, 3, [1, 1]), (3, 4, [1, 1]), (4, 5, [1, 1])]


def test_a_step_does_not_wait_for_the_batch_after_its_own():
    batches = NumberedBatches(6, late=3)

    class Release(Callback):
        def _trigger_step(self) -> None:
            if self.trainer.loop.global_step == 3:      # batches 0, 1 and 2 are trained on
                batches.release.set()

    assert train(True, batches, callbacks=[Release()], steps=99).model.processed == [(0, number) for number in range(6)]


@pytest.mark.parametrize("staging", [False, True])
def test_a_wait_for_late_data_can_be_ended_from_another_thread(staging):
    batches = NumberedBatches(6, late=2)

    class Stop(Callback):
        def _trigger_step(self) -> None:
            if self.trainer.loop.global_step == 2:
                threading.Timer(0.2, self.trainer._input.stop).start()

    result = train(staging, batches, callbacks=[Stop()])
    assert Position.from_json(result.data.last_position) == Position(0, 0, 2) and result.trainer.loop.global_step == 2
    batches.release.set()


def test_a_run_of_one_towers_input_takes_the_batch_from_all():
    class Peeks(SyncMultiGPUTrainer):
        def run_step(self) -> None:
            self.hooked_sess.run(self.sess.graph.get_operation_by_name("tower1/look"))
            super().run_step()

    staged = train(True, NumberedBatches(6), towers=2, steps=99, trainer=Peeks)
    assert [n for tower, n in staged.model.processed if tower == 0] == [1, 3, 5]
    assert [n for tower, n in staged.model.processed if tower == 1] == [0, 1, 2, 3, 4, 5]


def test_a_pool_of_one_thread_is_enough(monkeypatch):
    config = tf1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    monkeypatch.setattr("towernmt.core.session.session_config", lambda *_: config)
    assert train(True, NumberedBatches(6), towers=2, update_cycle=2, steps=99).same_as(
        train(False, NumberedBatches(6), towers=2, update_cycle=2, steps=99))


def test_gpus_stage_by_default_each_its_own_share_and_the_cpu_does_not(monkeypatch, graph):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one", "two"])
    trainer = SyncMultiGPUTrainer(gpus=[0, 1])
    assert not SyncMultiGPUTrainer(gpus=[0], staging=False).staging and not SyncMultiGPUTrainer(towers=2).staging
    model = Follow()
    model.processed = []
    data = GeneralQueueInput(NumberedBatches())
    trainer.setup_graph(model.get_input_signature(), data, model.build_graph, model.get_optimizer)
    for kind in ("Stage", "Unstage", "StageSize"):
        devices = [operation.device for operation in graph.get_operations() if operation.type == kind]
        assert devices == ["/gpu:0", "/gpu:1"]
    put = data.staging.puts[1]
    assert all(tensor.op.device.lower().endswith("cpu:0") for tensor in put.inputs)


class Sentences(NumberedBatches):
    """Staging does not change the training of a Transformer."""

    def read(self, position=None, start=0, step=1):
        for batch_position, batch in super().read(position, start, step):
            values, _, tokens = batch.arrays()
            words, lengths = 4 + values % 13, np.full([len(values)], 3, np.int32)
            yield batch_position, Arrays([words, lengths, words[:, ::-1].copy(), lengths, tokens])


@dataclasses.dataclass
class Arrays:
    listed: list[Any]

    def arrays(self) -> list[Any]:
        return self.listed


@pytest.mark.thorough
def test_a_transformer_with_dropout_learns_the_same_to_the_last_bit(tmp_path):
    variables = []
    for staging in (True, False):
        tf.config.experimental.enable_op_determinism()
        with tf.Graph().as_default():
            set_seed(3)
            model = Transformer(TransformerSettings(
                hidden_size=8, filter_size=8, heads=2, encoder_layers=1, decoder_layers=1, source_vocab_size=17,
                target_vocab_size=17, residual_dropout=0.1))
            saver = CheckpointSaver(tmp_path / str(staging), every_steps=0)
            launch_train_with_config(
                TrainConfig(model, GeneralQueueInput(Sentences(10)), callbacks=[saver], monitors=[], update_cycle=3),
                SyncMultiGPUTrainer(towers=2, update_cycle=3, staging=staging))
        variables.append(checkpoint_values(saver.latest()))
    assert variables[0].keys() == variables[1].keys() and variables[0]["global_step"] == 4
    assert all(np.array_equal(variables[0][name], variables[1][name]) for name in variables[0])
