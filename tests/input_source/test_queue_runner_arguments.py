"""The GeneralQueueRunner as ChappiebotAI's is called, without feed functions, and with feeders that break down."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from towernmt.core.errors import FeederError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueRunner, queue_runner

LONG = 20000   # milliseconds; a wait of a test that reaches it has failed
SAMPLES = np.transpose(np.tile(np.arange(11, dtype=np.int32), [5, 1]))


@pytest.fixture(autouse=True)
def fresh_graph(graph):
    yield graph


def test_the_program_of_the_article_on_queue_runners_runs():
    index = [0]

    def read_func():
        sample = SAMPLES[index[0] % len(SAMPLES)]
        index[0] += 1
        return np.reshape(sample, -1).tobytes()

    serialized = tf1.placeholder(tf.string, name="tf_example")
    tf_example = tf1.parse_single_example(serialized, {"x": tf1.FixedLenFeature([], tf.string)})
    queue = tf1.FIFOQueue(capacity=20, dtypes=[tf.string], name="fifo_queue")
    enqueue_op = queue.enqueue(tf_example["x"], name="enqueue")
    value = queue.dequeue()
    tf1.train.add_queue_runner(GeneralQueueRunner(
        queue=queue, enqueue_ops=[enqueue_op, enqueue_op], feed_dict_funcs=[read_func, read_func],
        feed_tensors=[tf_example["x"], tf_example["x"]]))
    decoded = tf.reshape(tf1.decode_raw(value, tf.int32), [5])
    batch = tf1.train.shuffle_batch([decoded], batch_size=4, capacity=24, num_threads=1, min_after_dequeue=6)
    with tf1.Session() as session:
        coordinator = tf1.train.Coordinator()
        threads = tf1.train.start_queue_runners(session, coord=coordinator)
        for _ in range(5):
            rows = session.run(batch, options=tf1.RunOptions(timeout_in_ms=LONG))
            assert rows.shape == (4, 5) and (rows == rows[:, :1]).all()
        coordinator.request_stop()
        coordinator.join(threads)


@pytest.mark.parametrize("fed_too", [False, True])
def test_without_feed_functions_operations_read_in_the_graph_to_their_end(fed_too):
    queue, item = tf1.FIFOQueue(4, [tf.int32]), tf1.placeholder(tf.int32, [])
    dataset = tf1.data.Dataset.range(5).map(lambda x: tf.cast(x, tf.int32))
    enqueue, out = queue.enqueue(tf1.data.make_one_shot_iterator(dataset).get_next()), queue.dequeue()
    if fed_too:
        runner = GeneralQueueRunner(queue, [enqueue, queue.enqueue(item)], [None, iter([7, 8]).__next__], [None, item])
    else:
        runner = GeneralQueueRunner(queue, [enqueue])
    with tf1.Session() as session:
        runner.create_threads(session, daemon=True, start=True)
        found = []
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                found.append(int(session.run(out, options=tf1.RunOptions(timeout_in_ms=LONG))))
    assert sorted(found) == [0, 1, 2, 3, 4] + [7, 8] * fed_too
    assert runner.error is None


def test_a_queue_that_is_closed_from_outside_ends_feeders_without_functions():
    queue = tf1.FIFOQueue(2, [tf.int32])
    runner, close = GeneralQueueRunner(queue, [queue.enqueue(1)] * 2), queue.close(cancel_pending_enqueues=True)
    with tf1.Session() as session:
        (thread,) = runner.create_threads(session, daemon=True, start=True)
        session.run(close)
        thread.join(LONG / 1000)
        assert not thread.is_alive() and runner.error is None


@pytest.mark.parametrize("functions, tensors, what", [
    ({"feed_fns": [int], "feed_dict_funcs": [int]}, "item", "as both"),
    ({"feed_fns": [int]}, None, "feeder 0 has a feed function but no feed tensors"),
    ({}, "item", "feeder 0 has feed tensors but no feed function"),
])
def test_arguments_that_contradict_each_other_are_refused(functions, tensors, what):
    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    with pytest.raises(SettingsError, match=what):
        GeneralQueueRunner(queue, [queue.enqueue(item)], feed_tensors=[item] if tensors else None, **functions)


class Evil(Exception):
    def __str__(self):
        raise AttributeError("broken __str__")


@pytest.mark.parametrize("in_order", [False, True])
def test_an_exception_that_cannot_be_told_ends_the_feeders_with_a_sentence(in_order):
    def evil():
        raise Evil

    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    runner = GeneralQueueRunner(queue, [queue.enqueue(item)] * 2, [evil, threading.Event().wait], [item] * 2,
                                in_order=in_order, names=["a.txt", "b.txt"])
    out = queue.dequeue()
    with tf1.Session() as session:
        runner.create_threads(session, daemon=True, start=True)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(out, options=tf1.RunOptions(timeout_in_ms=LONG))
        with pytest.raises(FeederError, match="Feeding stopped at a.txt: Evil, whose message is unknown"):
            runner.raise_error()


def test_a_feeder_that_breaks_down_anywhere_gives_its_turn_back(monkeypatch):
    def broken(*_):
        raise SystemError("no memory for the feeds")

    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    runner = GeneralQueueRunner(queue, [queue.enqueue(item)] * 2, [lambda: 1] * 2, [item] * 2, in_order=True)
    out = queue.dequeue()
    monkeypatch.setattr(queue_runner, "FedOperation", broken)
    with tf1.Session() as session:
        runner.create_threads(session, daemon=True, start=True)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(out, options=tf1.RunOptions(timeout_in_ms=LONG))
        with pytest.raises(FeederError, match="no memory for the feeds"):
            runner.raise_error()


def test_an_error_that_waits_for_the_last_elements_says_so(monkeypatch, caplog):
    monkeypatch.setattr(queue_runner, "DRAIN_PATIENCE", 0.0)
    queue, item = tf1.FIFOQueue(4, [tf.int32]), tf1.placeholder(tf.int32, [])
    items = iter([1])
    told = threading.Event()

    class Told:
        def filter(self, record):
            if "wait in" in record.getMessage():
                told.set()
            return True

    def feed():
        for one in items:
            return one
        raise OSError("the disk is gone")

    runner, out = GeneralQueueRunner(queue, [queue.enqueue(item)], [feed], [item]), queue.dequeue()
    watch = Told()
    queue_runner.logger._logger.addFilter(watch)
    try:
        with tf1.Session() as session:
            coordinator = tf1.train.Coordinator()
            threads = runner.create_threads(session, coordinator, daemon=True, start=True)
            assert told.wait(LONG / 1000)
            assert session.run(out) == 1
            with pytest.raises(FeederError, match="the disk is gone"):
                coordinator.join(threads)
    finally:
        queue_runner.logger._logger.removeFilter(watch)
