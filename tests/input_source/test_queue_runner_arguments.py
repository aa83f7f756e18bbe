"""`GeneralQueueRunner` with ChappiebotAI's arguments, without feed functions, and with feeders that fail."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tensorpack.dataflow import DataFromList

from tests.waiting import PATIENCE
from towernmt.core.errors import FeederError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueRunner, queue_runner

LONG = int(1000 * PATIENCE)     # milliseconds
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
        runner = GeneralQueueRunner(queue, [enqueue, queue.enqueue(item)],
                                    feed_fns=[None, iter([7, 8]).__next__], feed_tensors=[None, item])
    else:
        runner = GeneralQueueRunner(queue, [enqueue])
    with tf1.Session() as session:
        runner.create_threads(session, daemon=True, start=True)
        values = []
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                values.append(int(session.run(out, options=tf1.RunOptions(timeout_in_ms=LONG))))
    assert sorted(values) == [0, 1, 2, 3, 4] + [7, 8] * fed_too
    assert runner.error is None


def test_a_queue_that_is_closed_from_outside_ends_feeders_without_functions():
    queue = tf1.FIFOQueue(2, [tf.int32])
    runner, close = GeneralQueueRunner(queue, [queue.enqueue(1)] * 2), queue.close(cancel_pending_enqueues=True)
    with tf1.Session() as session:
        (thread,) = runner.create_threads(session, daemon=True, start=True)
        session.run(close)
        thread.join(LONG / 1000)
        assert not thread.is_alive() and runner.error is None


@pytest.mark.parametrize("functions, tensors, message", [
    ({"feed_fns": [int], "feed_dict_funcs": [int]}, "item", "not both"),
    ({"feed_fns": [int]}, None, "feeder 0 has a feed function but no feed tensors"),
    ({}, "item", "feeder 0 has feed tensors but no feed function"),
])
def test_arguments_that_contradict_each_other_are_refused(functions, tensors, message):
    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    with pytest.raises(SettingsError, match=message):
        GeneralQueueRunner(queue, [queue.enqueue(item)], feed_tensors=[item] if tensors else None, **functions)


class Evil(Exception):
    def __str__(self):
        raise AttributeError("broken __str__")


@pytest.mark.parametrize("in_order", [False, True])
def test_an_exception_without_a_message_ends_the_feeders(in_order):
    def evil():
        raise Evil

    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    runner = GeneralQueueRunner(queue, [queue.enqueue(item)] * 2, feed_fns=[evil, threading.Event().wait],
                                feed_tensors=[item] * 2, in_order=in_order, names=["a.txt", "b.txt"])
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
    runner = GeneralQueueRunner(queue, [queue.enqueue(item)] * 2, feed_fns=[lambda: 1] * 2, feed_tensors=[item] * 2,
                                in_order=True)
    out = queue.dequeue()
    monkeypatch.setattr(queue_runner, "FedOperation", broken)
    with tf1.Session() as session:
        runner.create_threads(session, daemon=True, start=True)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(out, options=tf1.RunOptions(timeout_in_ms=LONG))
        with pytest.raises(FeederError, match="no memory for the feeds"):
            runner.raise_error()


def test_an_error_that_waits_for_the_last_elements_is_reported(monkeypatch):
    monkeypatch.setattr(queue_runner, "DRAIN_PATIENCE", 0.0)
    queue, item = tf1.FIFOQueue(4, [tf.int32]), tf1.placeholder(tf.int32, [])
    items = iter([1])
    reported = threading.Event()

    class Watch:
        def filter(self, record):
            if "it has waited" in record.getMessage():
                reported.set()
            return True

    def feed():
        for item in items:
            return item
        raise OSError("the disk is gone")

    runner = GeneralQueueRunner(queue, [queue.enqueue(item)], feed_fns=[feed], feed_tensors=[item])
    out = queue.dequeue()
    watch = Watch()
    queue_runner.logger._logger.addFilter(watch)
    try:
        with tf1.Session() as session:
            coordinator = tf1.train.Coordinator()
            threads = runner.create_threads(session, coordinator, daemon=True, start=True)
            assert reported.wait(LONG / 1000)
            assert session.run(out) == 1
            with pytest.raises(FeederError, match="the disk is gone"):
                coordinator.join(threads)
    finally:
        queue_runner.logger._logger.removeFilter(watch)


def read_to_the_end(runner: GeneralQueueRunner, out) -> list:
    values = []
    with tf1.Session() as session:
        (thread,) = runner.create_threads(session, daemon=True, start=True)
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                values.append(session.run(out, options=tf1.RunOptions(timeout_in_ms=LONG)))
        thread.join(LONG / 1000)
    runner.raise_error()
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def test_the_positional_arguments_are_those_of_tensorflows_queue_runner():
    queue = tf1.FIFOQueue(2, [tf.int32])
    close, cancel = queue.close(), queue.close(cancel_pending_enqueues=True)
    ours = GeneralQueueRunner(queue, [queue.enqueue(1)], close, cancel, (tf.errors.CancelledError,))
    theirs = tf1.train.QueueRunner(queue, [queue.enqueue(1)], close, cancel, (tf.errors.CancelledError,))
    assert (ours.close_op, ours.cancel_op) == (theirs.close_op, theirs.cancel_op) == (close, cancel)
    assert ours.queue_closed_exception_types == theirs.queue_closed_exception_types


@pytest.mark.parametrize("third", [[int], int, (int,)])
def test_feed_functions_passed_as_close_op_are_refused(third):
    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    with pytest.raises(SettingsError, match=r"close_op must be an operation .* Pass feed functions as feed_fns"):
        GeneralQueueRunner(queue, [queue.enqueue(item)], third)
    with pytest.raises(TypeError):
        GeneralQueueRunner(queue, [queue.enqueue(item)], None, None, None, [int])    # the rest is keyword-only


def generator():
    yield from (3, 4)


@pytest.mark.parametrize("source", [
    lambda: iter([3, 4]).__next__, lambda: iter([3, 4]), lambda: [3, 4], lambda: (3, 4), lambda: range(3, 5),
    lambda: np.array([3, 4]), lambda: generator, generator, lambda: (n for n in (3, 4)), lambda: {3: 0, 4: 0}.keys()])
def test_any_iterable_feeds_to_its_end(source):
    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    runner = GeneralQueueRunner(queue, [queue.enqueue(item)], feed_fns=[source()], feed_tensors=[item])
    assert read_to_the_end(runner, queue.dequeue()) == [3, 4]


def test_a_dataflow_feeds_a_list_of_tensors():
    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    flow = DataFromList([[3], [4]], shuffle=True)    # which needs its reset_state
    runner = GeneralQueueRunner(queue, [queue.enqueue(item)], feed_fns=[flow], feed_tensors=[[item]])
    assert sorted(read_to_the_end(runner, queue.dequeue())) == [3, 4]


@pytest.mark.parametrize("invalid", [5, 1.5, object()])
def test_a_feed_that_is_neither_callable_nor_iterable_is_refused(invalid):
    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [])
    with pytest.raises(SettingsError, match="b.db is a value of type .*: pass a function without arguments, an iter"):
        GeneralQueueRunner(queue, [queue.enqueue(item)] * 2, feed_fns=[int, invalid], feed_tensors=[item] * 2,
                           names=["a.db", "b.db"])


@pytest.mark.parametrize("tensors", [["x:0", "y:0"], ["x", "y"], ["x", None]])
def test_feed_tensors_are_found_by_name(tensors):
    queue = tf1.FIFOQueue(2, [tf.int32, tf.int32])
    x, y = tf1.placeholder(tf.int32, [], "x"), tf1.placeholder(tf.int32, [], "y")
    tensors = [name or y for name in tensors]
    runner = GeneralQueueRunner(queue, [queue.enqueue([x, y])], feed_fns=[[(3, 4)]], feed_tensors=[tensors])
    with tf.Graph().as_default():   # the queue's graph counts, not the current one
        runner = GeneralQueueRunner(queue, runner.enqueue_ops, feed_fns=[[(3, 4)]], feed_tensors=[tensors])
    assert read_to_the_end(runner, queue.dequeue()[1]) == [4]


@pytest.mark.parametrize("invalid", ["z", "z:0", "x:1", "", "x:a"])
def test_a_feed_tensor_that_is_not_in_the_graph_is_refused_by_name(invalid):
    queue, item = tf1.FIFOQueue(2, [tf.int32]), tf1.placeholder(tf.int32, [], "x")
    with pytest.raises(SettingsError, match=f"The feed tensor '{invalid}' of a.db is not in the graph of its queue"):
        GeneralQueueRunner(queue, [queue.enqueue(item)], feed_fns=[int], feed_tensors=[invalid], names=["a.db"])


@pytest.mark.parametrize("keys", [("x", "y"), ("x:0", "y:0"), ("y", "x")])
def test_a_dict_feeds_its_tensors_by_name(keys):
    queue = tf1.FIFOQueue(2, [tf.int32, tf.int32])
    x, y = tf1.placeholder(tf.int32, [], "x"), tf1.placeholder(tf.int32, [], "y")
    values = {key: 3 if key.startswith("x") else 4 for key in keys}
    runner = GeneralQueueRunner(queue, [queue.enqueue([x, y])], feed_fns=[[values]], feed_tensors=[[x, y]])
    assert read_to_the_end(runner, queue.dequeue()[1]) == [4]
