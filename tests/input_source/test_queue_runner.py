"""The GeneralQueueRunner in plain TensorFlow: order, ends, errors, stops."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.waiting import PATIENCE, wait_until
from towernmt.core.errors import FeederError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueRunner, queue_runner


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    """Set a new default graph, and wait for the end of feeders, which the next test would count."""
    with tf.Graph().as_default() as graph:
        yield graph
    wait_until(lambda: not feeder_threads())


class Line:
    """A FIFO queue of one int32 tensor, its runner, and a way to read it to its end."""

    def __init__(self, feed_fns: list[Callable[[], Any]], capacity: int = 4, shape: tuple[Any, ...] = (),
                 **options: Any) -> None:
        self.placeholder = tf1.placeholder(tf.int32, shape, name="item")
        self.queue = tf1.FIFOQueue(capacity, [tf.int32], name="line")
        enqueue = self.queue.enqueue(self.placeholder)
        self.runner = GeneralQueueRunner(self.queue, [enqueue for _ in feed_fns], feed_fns=feed_fns,
                                         feed_tensors=[self.placeholder for _ in feed_fns], **options)
        self.out = self.queue.dequeue()

    def read_all(self, sess: Any) -> list[int]:
        items = []
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                items.append(sess.run(self.out).tolist())
        return items


def numbers(first: int, step: int, count: int) -> Callable[[], int]:
    return iter([first + step * i for i in range(count)]).__next__


def failing(after: list[int], error: BaseException) -> Callable[[], int]:
    def items() -> Iterator[int]:
        yield from after
        raise error

    return items().__next__


def feeder_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("GeneralQueueRunner-line-")
            and not t.name.endswith("-coordinator")]


def in_rotation(lists: list[list[int]]) -> list[int]:
    """Return the expected order: one item from each list in turn, without exhausted lists."""
    remaining, order = [list(items) for items in lists], []
    while any(remaining):
        for items in remaining:
            if items:
                order.append(items.pop(0))
    return order


@pytest.mark.parametrize("feeders", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_is_the_rotation_for_any_timing_of_the_feeders(feeders: int, seed: int) -> None:
    count = 30
    gates = [threading.Event() for _ in range(count)]

    def gated(feeder: int) -> Callable[[], int]:
        items = iter(range(feeder, count, feeders))

        def feed() -> int:
            item = next(items)
            assert gates[item].wait(PATIENCE)
            return item

        return feed

    line = Line([gated(i) for i in range(feeders)], in_order=True)

    def open_in_any_order() -> None:
        for gate in random.Random(seed).sample(gates, count):
            gate.set()

    with tf1.Session() as sess:
        line.runner.create_threads(sess, start=True)
        opener = threading.Thread(target=open_in_any_order)
        opener.start()
        assert line.read_all(sess) == list(range(count))
        opener.join()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any), st.integers(1, 4))
def test_feeders_that_end_are_left_out_of_the_rotation(lengths: list[int], capacity: int) -> None:
    lists = [[100 * i + k for k in range(length)] for i, length in enumerate(lengths)]
    with tf.Graph().as_default(), tf1.Session() as sess:
        line = Line([iter(items).__next__ for items in lists], capacity, in_order=True)
        line.runner.create_threads(sess, start=True)
        assert line.read_all(sess) == in_rotation(lists)
        assert [r.items for r in line.runner.records] == lengths


def test_without_order_every_item_comes_once() -> None:
    line = Line([numbers(0, 3, 20), numbers(1, 3, 20), numbers(2, 3, 5)])
    with tf1.Session() as sess:
        line.runner.create_threads(sess, start=True)
        items = line.read_all(sess)
    assert sorted(items) == sorted([*range(0, 60, 3), *range(1, 60, 3), *range(2, 17, 3)])
    assert line.runner.error is None


def test_an_error_comes_after_everything_before_it_in_the_order() -> None:
    cause = OSError("connection lost")
    line = Line([numbers(0, 3, 9), failing([1, 4], cause), numbers(2, 3, 9)], capacity=2, in_order=True,
                names=["a.txt", "b.db", "c.txt"])
    with tf1.Session() as sess:
        line.runner.create_threads(sess, start=True)
        assert line.read_all(sess) == [0, 1, 2, 3, 4, 5, 6]
        with pytest.raises(FeederError, match="b.db.*OSError: connection lost") as caught:
            line.runner.raise_error()
    assert caught.value.__cause__ is cause
    assert line.runner.exceptions_raised == [caught.value]


def test_a_feeder_whose_thread_cannot_start_is_an_error_and_not_an_endless_wait(
        monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse_second_feeder(thread: threading.Thread) -> None:
        if "feeder 1" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_second_feeder)
    line = Line([numbers(0, 2, 3), numbers(1, 2, 3)], in_order=True)
    with tf1.Session() as sess:
        thread, = line.runner.create_threads(sess, daemon=True, start=True)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        line.read_all(sess)
        with pytest.raises(FeederError, match="feeder 1: no further thread or process can be started. End other"):
            line.runner.raise_error()


def test_a_feeder_without_memory_states_what_has_run_out() -> None:
    line = Line([failing([], MemoryError())])
    with tf1.Session() as sess:
        line.runner.create_threads(sess, daemon=True, start=True)
        line.read_all(sess)
        with pytest.raises(FeederError, match="feeder 0: out of memory. Use a machine with more memory."):
            line.runner.raise_error()


def test_an_error_wakes_feeders_that_wait_for_their_turn() -> None:
    second_has_an_item = threading.Event()

    def first() -> int:
        assert second_has_an_item.wait(PATIENCE)
        raise ValueError("first item is broken")

    def second() -> int:
        second_has_an_item.set()
        return 1

    line = Line([first, second], in_order=True)
    with tf1.Session() as sess:
        [thread] = line.runner.create_threads(sess, start=True)
        assert line.read_all(sess) == []
        thread.join(PATIENCE)
        assert not thread.is_alive() and feeder_threads() == []
    assert isinstance(line.runner.error, FeederError)


def test_without_order_the_other_feeders_items_are_delivered_before_the_error() -> None:
    others_done = threading.Event()

    def waiting() -> int:
        assert others_done.wait(PATIENCE)
        raise ValueError("late")

    def three() -> Iterator[int]:
        yield from [1, 2, 3]
        others_done.set()

    line = Line([waiting, three().__next__], capacity=8)
    with tf1.Session() as sess:
        line.runner.create_threads(sess, start=True)
        assert line.read_all(sess) == [1, 2, 3]
        assert "late" in str(line.runner.error)


def test_the_coordinator_gets_the_very_error_after_the_last_item() -> None:
    cause = KeyError("column")
    line = Line([numbers(0, 2, 50), failing(list(range(1, 21, 2)), cause)], capacity=50, in_order=True)
    tf1.train.add_queue_runner(line.runner)
    items = []
    with tf1.Session() as sess:
        coord = tf1.train.Coordinator()
        threads = tf1.train.start_queue_runners(sess, coord)
        try:
            while not coord.should_stop():
                items.append(int(sess.run(line.out)))
        except tf.errors.OutOfRangeError:
            pass
        with pytest.raises(FeederError) as caught:
            coord.request_stop()
            coord.join(threads)
    assert items == list(range(21))
    assert caught.value is line.runner.error and caught.value.__cause__ is cause


def test_a_monitored_session_delivers_all_and_ends_normally() -> None:
    line = Line([numbers(0, 2, 10), numbers(1, 2, 10)], in_order=True)
    tf1.train.add_queue_runner(line.runner)
    items = []
    with tf1.train.MonitoredSession() as sess:
        while not sess.should_stop():
            items.append(int(sess.run(line.out)))
    assert items == list(range(20))


def test_a_monitored_session_raises_the_feeders_error_after_the_last_item() -> None:
    line = Line([numbers(0, 2, 10), failing([1, 3], OSError("bad sector"))], in_order=True)
    tf1.train.add_queue_runner(line.runner)
    items = []
    with pytest.raises(FeederError, match="bad sector"):
        with tf1.train.MonitoredSession() as sess:
            while not sess.should_stop():
                items.append(int(sess.run(line.out)))
    assert items == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("in_order", [True, False])
def test_an_empty_source_is_an_error_that_names_it(in_order: bool) -> None:
    line = Line([numbers(0, 1, 0), numbers(0, 1, 0)], in_order=in_order, names=["x.tsv", "y.tsv"])
    with tf1.Session() as sess:
        line.runner.create_threads(sess, start=True)
        assert line.read_all(sess) == []
        with pytest.raises(FeederError, match="empty.*x.tsv, y.tsv"):
            line.runner.raise_error()


def test_one_empty_source_of_two_is_no_error() -> None:
    line = Line([numbers(0, 1, 0), numbers(0, 1, 3)], in_order=True)
    with tf1.Session() as sess:
        line.runner.create_threads(sess, start=True)
        assert line.read_all(sess) == [0, 1, 2]
        assert line.runner.error is None


def test_a_stop_does_not_wait_for_a_blocked_feeder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_runner, "STOP_GRACE", 0.3)
    never, blocked = threading.Event(), threading.Event()

    def stuck() -> int:
        blocked.set()
        never.wait(PATIENCE)
        return 0

    line = Line([stuck, numbers(1, 1, 5)], in_order=True, names=["socket", "file"])
    with tf1.Session() as sess:
        line.runner.create_threads(sess, start=True)
        assert blocked.wait(PATIENCE)
        line.runner.stop(sess)
        # 'file' waited for its turn, and ends
        wait_until(lambda: feeder_threads() == ["GeneralQueueRunner-line-socket"])
        assert line.runner.error is None
    never.set()


def test_a_monitored_session_closes_soon_though_a_feeder_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_runner, "STOP_GRACE", 0.3)
    blocked, never = threading.Event(), threading.Event()

    def one_then_stuck() -> Iterator[int]:
        yield 7
        blocked.set()
        never.wait(PATIENCE)

    line = Line([one_then_stuck().__next__])
    tf1.train.add_queue_runner(line.runner)
    with tf1.train.MonitoredSession() as sess:
        assert sess.run(line.out) == 7
        assert blocked.wait(PATIENCE)
    assert len(feeder_threads()) == 1       # it is still blocked
    never.set()


def test_a_stop_wakes_feeders_that_wait_on_a_full_queue() -> None:
    full = threading.Event()

    def endless() -> Iterator[int]:
        for item in range(1_000_000):
            if item == 3:  # 0 and 1 are in the queue, 2 waits for the queue, and 3 is never read
                raise AssertionError("the queue holds two")
            if item == 2:
                full.set()
            yield item

    line = Line([endless().__next__], capacity=2, in_order=True)
    with tf1.Session() as sess:
        [thread] = line.runner.create_threads(sess, start=True)
        assert full.wait(PATIENCE)
        line.runner.stop(sess)
        assert not thread.is_alive() and feeder_threads() == []
        assert line.runner.error is None


def test_a_queue_closed_from_outside_ends_the_feeders_quietly() -> None:
    line = Line([numbers(0, 1, 1000)], capacity=2)
    close = line.queue.close(cancel_pending_enqueues=True)
    with tf1.Session() as sess:
        [thread] = line.runner.create_threads(sess, start=True)
        assert sess.run(line.out) == 0
        sess.run(close)
        thread.join(PATIENCE)
        assert not thread.is_alive() and line.runner.error is None


def test_a_closed_session_ends_the_feeders_quietly() -> None:
    line = Line([numbers(0, 1, 10**6)], capacity=2)
    sess = tf1.Session()
    [thread] = line.runner.create_threads(sess, start=True)
    assert sess.run(line.out) == 0
    sess.close()
    thread.join(PATIENCE)
    assert not thread.is_alive() and line.runner.error is None


def test_threads_are_created_once_per_session() -> None:
    gate = threading.Event()

    def gated() -> int:
        assert gate.wait(PATIENCE)
        raise StopIteration

    line = Line([gated], in_order=True)
    with tf1.Session() as sess:
        threads = line.runner.create_threads(sess, daemon=True)
        assert len(threads) == 1 and not threads[0].is_alive() and threads[0].daemon
        assert line.runner.create_threads(sess) == []
        threads[0].start()
        assert line.runner.create_threads(sess, start=True) == []
        gate.set()
        threads[0].join(PATIENCE)


def test_feeders_with_tensors_of_their_own_share_one_queue() -> None:
    queue = tf1.FIFOQueue(10, [tf.int32, tf.string, tf.float32])
    ids, text, weight = (tf1.placeholder(tf.int32, [None]), tf1.placeholder(tf.string, []),
                         tf1.placeholder(tf.float32, [2]))
    number = tf1.placeholder(tf.int32, [], name="number")
    from_list = queue.enqueue([ids, text, weight])
    from_one = queue.enqueue([tf.range(number), tf.as_string(number), tf.zeros([2])])
    ragged = iter([[[1, 2, 3], "drei", [0.5, 1.5]], [[], b"null", np.ones(2, np.float32)]])
    runner = GeneralQueueRunner(queue, [from_list, from_one], feed_fns=[ragged.__next__, iter([4, 2]).__next__],
                                feed_tensors=[[ids, text, weight], number], in_order=True)
    out = queue.dequeue()
    with tf1.Session() as sess:
        runner.create_threads(sess, start=True)
        dequeued = [[value.tolist() if isinstance(value, np.ndarray) else value for value in sess.run(out)]
                    for _ in range(4)]
    assert dequeued == [[[1, 2, 3], b"drei", [0.5, 1.5]], [[0, 1, 2, 3], b"4", [0, 0]],
                        [[], b"null", [1, 1]], [[0, 1], b"2", [0, 0]]]


@pytest.mark.parametrize("ops, fns, tensors, names", [(1, 2, 2, 2), (2, 1, 2, 2), (2, 2, 1, 2), (2, 2, 2, 1),
                                                      (0, 0, 0, 0)])
def test_lists_of_different_lengths_are_refused(ops: int, fns: int, tensors: int, names: int) -> None:
    queue = tf1.FIFOQueue(3, [tf.int32])
    tensor = tf1.placeholder(tf.int32, [])
    enqueue = queue.enqueue(tensor)
    counts = f"{ops} enqueue_ops, {fns} feed_fns, {tensors} feed_tensors, {names} names"
    with pytest.raises(SettingsError, match=counts):
        GeneralQueueRunner(queue, [enqueue] * ops, feed_fns=[lambda: 0] * fns, feed_tensors=[tensor] * tensors,
                           names=["n"] * names)


def test_a_runner_refuses_to_be_written_into_a_graph_file() -> None:
    with pytest.raises(SettingsError, match="cannot be written into a graph file"):
        Line([numbers(0, 1, 1)]).runner.to_proto()


def test_the_operations_are_in_the_name_scope_of_the_queue() -> None:
    with tf1.name_scope("input"):
        queue = tf1.FIFOQueue(3, [tf.int32], name="queue")
    tensor = tf1.placeholder(tf.int32, [])
    runner = GeneralQueueRunner(queue, [queue.enqueue(tensor)], feed_fns=[lambda: 0], feed_tensors=[tensor])
    assert runner.close_op.name.startswith("input/") and runner.cancel_op.name.startswith("input/")
