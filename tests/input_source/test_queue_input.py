"""The GeneralQueueInput under real tensorpack trainers: shares, positions, ends, errors."""

from __future__ import annotations

import logging
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.input_source import StagingInput
from tensorpack.train import (
    ModelDesc,
    SimpleTrainer,
    SyncMultiGPUTrainerParameterServer,
    TrainConfig,
    launch_train_with_config,
)
from tensorpack.utils import logger

from tests.waiting import PATIENCE
from towernmt.core.errors import DataError, FeederError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Position
from towernmt.input_source import GeneralQueueInput, InputStatistics, QueueMonitor, queue_runner
from towernmt.input_source.input_callback import InputCallback

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(autouse=True)
def fixed_log() -> Iterator[None]:
    """Fix a log call of tensorpack's main loop, which passes an argument without a placeholder for it.

    pytest's log capture would raise a TypeError instead of the failure.
    """

    def fix(record: logging.LogRecord) -> bool:
        if record.msg == "Training failed at global_step=":
            record.msg += "%s"
        return True

    logger._logger.addFilter(fix)
    yield
    logger._logger.removeFilter(fix)


class FakeBatch:
    """Batch `number`, with rows of different lengths and values that are unique over all batches."""

    def __init__(self, number: int, rows: int) -> None:
        self.source = 1000 * number + np.arange(rows * (1 + number % 3), dtype=np.int32).reshape(rows, -1)
        self.target = -np.arange(rows * (2 + number % 2), dtype=np.int32).reshape(rows, -1)
        self.lengths = np.full(rows, 3, np.int32)

    def arrays(self) -> list[Any]:
        tokens = np.float32(self.lengths.sum())
        return [self.source, self.lengths, self.target, self.lengths, tokens]


class FakeBatches:
    """`count` batches; reading batch `broken` raises OSError, and reading batch `stuck` never returns."""

    def __init__(self, count: int, broken: int | None = None, stuck: int | None = None, rows: int = 5
                 ) -> None:
        self.count, self.broken, self.stuck, self.rows = count, broken, stuck, rows
        self.blocked, self.release = threading.Event(), threading.Event()

    def read(self, position: Position | None = None, start: int = 0, step: int = 1
             ) -> Iterator[tuple[Position, FakeBatch]]:
        first = position.batch if position else 0
        for number in range(first + start, self.count, step):
            if number == self.broken:
                raise OSError(f"batch {number} is unreadable")
            if number == self.stuck:
                self.blocked.set()
                self.release.wait(PATIENCE)
            yield Position(batch=number + 1), FakeBatch(number, self.rows)

    def batches_per_epoch(self) -> int:
        return self.count


class Model(ModelDesc):
    def inputs(self) -> list[Any]:
        ids, lengths = [None, None], [None]
        return [tf.TensorSpec(ids, tf.int32, "source"), tf.TensorSpec(lengths, tf.int32, "source_length"),
                tf.TensorSpec(ids, tf.int32, "target"), tf.TensorSpec(lengths, tf.int32, "target_length"),
                tf.TensorSpec([], tf.float32, "target_tokens")]

    def build_graph(self, source: Any, source_length: Any, target: Any, target_length: Any, target_tokens: Any
                    ) -> Any:
        inputs = [source, source_length, target, target_length, target_tokens]
        assert [tensor.shape.rank for tensor in inputs] == [2, 1, 2, 1, 0]
        weight = tf1.get_variable("weight", [])
        return weight * tf.reduce_sum(tf.cast(source, tf.float32)) / target_tokens

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(1e-9)


class Recorder(Callback):
    """Records each tower's share at each step, and the position after it."""

    def __init__(self, queue_input: GeneralQueueInput, towers: int) -> None:
        self._input, self._towers = queue_input, towers
        self.steps: list[list[list[np.ndarray]]] = []
        self.positions: list[str | None] = []
        self.ended = False

    def _setup_graph(self) -> None:
        graph = tf1.get_default_graph()
        names = ["source", "source_length", "target", "target_length", "target_tokens"]
        self._shares = [[graph.get_tensor_by_name(f"GeneralQueueInput/share_{i}/{name}:0") for name in names]
                        for i in range(self._towers)]

    def _before_run(self, _: Any) -> Any:
        return tf1.train.SessionRunArgs(self._shares)

    def _after_run(self, _: Any, values: Any) -> None:
        self.steps.append(values.results)

    def _trigger_step(self) -> None:
        self.positions.append(self._input.last_position)

    def _after_train(self) -> None:
        self.ended = True


def train(data: Any, callbacks: list[Any], trainer: Any = None, steps: int = 1000) -> Any:
    trainer = trainer or SimpleTrainer()
    launch_train_with_config(
        TrainConfig(model=Model(), data=data, callbacks=callbacks, extra_callbacks=[], monitors=[],
                    steps_per_epoch=steps, max_epoch=1), trainer)
    return trainer


def sources(recorder: Recorder) -> list[list[list[int]]]:
    """Return the source rows of all towers for each step."""
    return [np.concatenate([share[0] for share in step]).tolist() for step in recorder.steps]


def expected(numbers: range, rows: int = 5) -> list[list[list[int]]]:
    return [FakeBatch(number, rows).source.tolist() for number in numbers]


def after(number: int) -> str:
    return Position(batch=number).to_json()


@pytest.mark.parametrize("feeders", [1, 2, 3, 5])
def test_training_sees_every_batch_in_order_and_ends_normally(feeders: int) -> None:
    data = GeneralQueueInput(FakeBatches(11), feeders, capacity=3)
    recorder = Recorder(data, 1)
    train(data, [recorder])
    assert sources(recorder) == expected(range(11))
    assert recorder.positions == [after(number + 1) for number in range(11)]
    assert data.last_position == after(11)


@pytest.mark.parametrize("towers", [1, 2, 4])
@pytest.mark.parametrize("rows", [3, 8])
def test_each_tower_gets_its_rows_of_one_global_batch(towers: int, rows: int) -> None:
    data = GeneralQueueInput(FakeBatches(6, rows=rows))
    recorder = Recorder(data, towers)
    train(data, [recorder], SyncMultiGPUTrainerParameterServer(list(range(towers)), ps_device="cpu"))
    assert len(recorder.steps) == 6
    for number, step in enumerate(recorder.steps):
        global_batch = FakeBatch(number, rows).arrays()
        for tower, share in enumerate(step):
            part = slice(tower * rows // towers, (tower + 1) * rows // towers)
            for tower_array, array in zip(share, global_batch, strict=True):
                np.testing.assert_array_equal(tower_array, array[part] if array.ndim else array)
    assert recorder.positions == [after(number + 1) for number in range(6)]


def test_staged_input_keeps_the_position_of_the_batch_that_was_trained_on() -> None:
    data = GeneralQueueInput(FakeBatches(8))
    recorder = Recorder(data, 1)  # records what was dequeued in the step: one ahead of training
    train(StagingInput(data, nr_stage=1), [recorder])
    assert sources(recorder) == expected(range(1, 8))
    assert recorder.positions == [after(number + 1) for number in range(7)]


@pytest.mark.parametrize("broken", [0, 1, 2, 5])
def test_staged_input_raises_the_feeders_error(broken: int) -> None:
    data = GeneralQueueInput(FakeBatches(8, broken=broken))
    with pytest.raises(FeederError, match=f"batch {broken} is unreadable"):
        train(StagingInput(data), [])


def test_a_run_that_does_not_train_takes_no_batch() -> None:
    class Idle(SimpleTrainer):
        def run_step(self) -> None:
            self.hooked_sess.run([])
            super().run_step()

    data = GeneralQueueInput(FakeBatches(6))
    positions: list[str | None] = []

    class Positions(Callback):
        def _trigger_step(self) -> None:
            positions.append(data.last_position)

    train(data, [Positions()], Idle())
    assert positions == [after(number + 1) for number in range(6)]


@pytest.mark.parametrize("feeders", [1, 2, 3])
def test_training_resumes_from_a_position(feeders: int) -> None:
    data = GeneralQueueInput(FakeBatches(9), feeders)
    data.start_from(after(4))
    assert data.last_position == after(4)
    recorder = Recorder(data, 1)
    train(data, [recorder])
    assert sources(recorder) == expected(range(4, 9))


def test_a_position_at_the_end_of_the_data_is_a_normal_end() -> None:
    data = GeneralQueueInput(FakeBatches(5), position=Position(batch=5))
    recorder = Recorder(data, 1)
    train(data, [recorder])
    assert recorder.steps == [] and recorder.ended and data.last_position == after(5)


def test_a_position_cannot_be_set_once_training_started() -> None:
    data = GeneralQueueInput(FakeBatches(3))
    train(data, [])
    with pytest.raises(SettingsError, match="before training starts"):
        data.start_from(after(1))


def test_a_position_that_is_none_is_refused() -> None:
    with pytest.raises(DataError):
        GeneralQueueInput(FakeBatches(3)).start_from("{}")


@pytest.mark.parametrize("feeders, capacity", [(0, 3), (2, 0)])
def test_settings_that_cannot_work_are_refused(feeders: int, capacity: int) -> None:
    with pytest.raises(SettingsError, match="both must be at least 1"):
        GeneralQueueInput(FakeBatches(3), feeders, capacity)


@pytest.mark.parametrize("feeders", [1, 2, 3])
@pytest.mark.parametrize("broken", [0, 1, 4])
def test_a_broken_source_stops_training_with_its_error_after_all_before_it(feeders: int, broken: int) -> None:
    data = GeneralQueueInput(FakeBatches(9, broken=broken), feeders, name="s3://bucket/corpus")
    recorder = Recorder(data, 1)
    with pytest.raises(FeederError, match=f"s3://bucket/corpus.*batch {broken} is unreadable") as caught:
        train(data, [recorder])
    assert isinstance(caught.value.__cause__, OSError) and data.runner and caught.value is data.runner.error
    assert sources(recorder) == expected(range(broken))
    assert recorder.ended
    data.raise_feeder_error()  # it was raised already, so not a second time


def test_a_trainer_that_met_the_closed_queue_can_ask_for_the_error() -> None:
    data = GeneralQueueInput(FakeBatches(9, broken=2), feeders=1)
    data.setup(Model().inputs())
    tensors = data.get_input_tensors()
    with tf1.Session() as sess, pytest.raises(FeederError, match="batch 2"):
        data.start(sess)
        hooks = [callback for callback in data.get_callbacks() if hasattr(callback, "counts")]
        try:
            while True:  # like a trainer with custom steps, without the hooks that would have waited
                sess.run(tensors)
                hooks[0].counts = hooks[0].counts.consumed(1.0)
        except tf.errors.OutOfRangeError:
            data.raise_feeder_error()


def test_an_empty_source_stops_training_with_an_error() -> None:
    with pytest.raises(FeederError, match="empty"):
        train(GeneralQueueInput(FakeBatches(0)), [])


def test_an_error_that_training_did_not_come_to_does_not_fail_it() -> None:
    data = GeneralQueueInput(FakeBatches(9, broken=5))
    recorder = Recorder(data, 1)
    train(data, [recorder], steps=3)
    assert sources(recorder) == expected(range(3))


def test_training_ends_soon_though_a_feeder_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_runner, "STOP_GRACE", 0.3)
    batches = FakeBatches(9, stuck=3)
    data = GeneralQueueInput(batches)

    class UntilBlocked(Callback):
        def _trigger_epoch(self) -> None:
            assert batches.blocked.wait(PATIENCE)

    train(data, [UntilBlocked()], steps=3)
    assert any(thread.name.startswith("GeneralQueueRunner-") for thread in threading.enumerate())   # still blocked
    batches.release.set()


def test_the_size_of_the_input_is_an_epochs_batches() -> None:
    assert GeneralQueueInput(FakeBatches(17)).size() == 17


def test_statistics_count_what_went_through() -> None:
    data = GeneralQueueInput(FakeBatches(10))
    trainer = train(data, [QueueMonitor(data)], steps=7)
    statistics = data.statistics()
    assert (statistics.batches, statistics.target_tokens) == (7, 7 * 15)
    assert 0 < statistics.seconds and 0 <= statistics.wait_share <= 1
    assert trainer.monitors.get_latest("input/queue_depth") <= 3
    assert 0 <= trainer.monitors.get_latest("input/wait_share") <= 1
    assert trainer.monitors.get_latest("input/target_tokens_per_second") > 0


def test_the_wait_for_a_late_batch_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is released when training has waited for it for its `patience`."""
    batches = FakeBatches(4, stuck=2)
    data = GeneralQueueInput(batches)

    class Late(Callback):
        def _trigger_step(self) -> None:
            if self.local_step == 1:
                assert batches.blocked.wait(PATIENCE)
                data.patience = 0.3

    monkeypatch.setattr(InputCallback, "_report_wait", lambda *_: batches.release.set())
    train(data, [Late()])
    statistics = data.statistics()
    assert 0.29 < statistics.wait_seconds < statistics.seconds
    assert statistics.feeder_reading_seconds > 0.29


def test_statistics_of_an_interval_are_a_difference() -> None:
    earlier = InputStatistics(begin=1.0, seconds=10.0, batches=5, target_tokens=100.0, queue_depth=9,
                              wait_seconds=1.0, feeder_blocked_seconds=3.0, feeder_reading_seconds=2.0)
    later = InputStatistics(begin=1.0, seconds=14.0, batches=8, target_tokens=180.0, queue_depth=2,
                            wait_seconds=3.0, feeder_blocked_seconds=4.0, feeder_reading_seconds=2.5)
    between = later - earlier
    assert between == InputStatistics(
        begin=1.0, seconds=4.0, batches=3, target_tokens=80.0, queue_depth=2, wait_seconds=2.0,
        feeder_blocked_seconds=1.0, feeder_reading_seconds=0.5)
    assert between.wait_share == 0.5 and between.target_tokens_per_second == 20.0


@pytest.mark.processes
def test_a_training_script_with_a_broken_source_exits_with_an_error(start_program: Any) -> None:
    result = start_program(textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
        from test_queue_input import FakeBatches, GeneralQueueInput, train
        train(GeneralQueueInput(FakeBatches(50, broken=7), name="corpus.db"), [])
        print("the end was taken for a normal one")
        """)).wait()
    assert result.status == 1, result.text
    assert ("FeederError: Feeding stopped at corpus.db (feeder 2 of 2): OSError: batch 7 is unreadable"
            in result.errors)
    assert "normal one" not in result.output
