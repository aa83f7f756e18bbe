"""`FedOperation`, compared with `Session.run` with a feed_dict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source.queue_runner import FedOperation


class Wrapped:
    """A session wrapper with only public methods, as debuggers use it."""

    def __init__(self, sess: Any) -> None:
        self._inner, self.runs = sess, 0

    def run(self, *args: Any, **named: Any) -> Any:
        self.runs += 1
        return self._inner.run(*args, **named)


class Queue:
    def __init__(self, sess: Any) -> None:
        self.sess = sess
        self.feeds = [tf1.placeholder(tf.int32, [None, None]), tf1.placeholder(tf.float32, []),
                      tf1.placeholder(tf.string, [])]
        self.queue = tf1.FIFOQueue(10, [feed.dtype for feed in self.feeds])
        self.enqueue = self.queue.enqueue(self.feeds)
        self.dequeue = self.queue.dequeue()

    def values(self, seed: int) -> dict[Any, np.ndarray]:
        random = np.random.default_rng(seed)
        return dict(zip(self.feeds, [random.integers(0, 9, [seed, 3], np.int32), np.float32(random.random()),
                                     np.asarray(f"Grüße {seed}", object)], strict=True))


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tf.Graph().as_default(), tf1.Session() as sess:
        yield Queue(sess)


@pytest.mark.parametrize("wrapped", [False, True])
def test_fed_values_arrive_as_through_session_run_for_any_shape(queue: Queue, wrapped: bool) -> None:
    operation = FedOperation(Wrapped(queue.sess) if wrapped else queue.sess, queue.enqueue)
    for seed in (2, 0, 5):
        operation(queue.values(seed))
        fed = queue.sess.run(queue.dequeue)
        queue.sess.run(queue.enqueue, feed_dict=queue.values(seed))
        expected = queue.sess.run(queue.dequeue)
        for arrived, value in zip(fed, expected, strict=True):
            np.testing.assert_array_equal(arrived, value)
            assert type(arrived) is type(value)


def test_a_session_that_wraps_another_is_run_itself(queue: Queue) -> None:
    wrapped = Wrapped(queue.sess)
    operation = FedOperation(wrapped, queue.enqueue)
    operation(queue.values(1))
    operation(queue.values(2))
    assert wrapped.runs == 2


def test_a_closed_queue_raises_what_session_run_raises(queue: Queue) -> None:
    queue.sess.run(queue.queue.close(cancel_pending_enqueues=True))
    with pytest.raises(tf.errors.CancelledError, match="is closed"):
        FedOperation(queue.sess, queue.enqueue)(queue.values(1))


def test_a_tensor_of_another_graph_is_refused_though_there_is_one_of_its_name_here(queue: Queue) -> None:
    with tf.Graph().as_default():
        foreign = [tf1.placeholder(feed.dtype, feed.shape) for feed in queue.feeds]
    assert [operation.name for operation in foreign] == [operation.name for operation in queue.feeds]
    feeds = dict(zip(foreign, queue.values(1).values(), strict=True))
    with pytest.raises(TypeError, match="not an element of this graph"):
        FedOperation(queue.sess, queue.enqueue)(feeds)


def test_a_tensor_that_must_not_be_fed_is_refused(queue: Queue) -> None:
    queue.sess.graph.prevent_feeding(queue.feeds[1])
    with pytest.raises(ValueError, match="may not be fed"):
        FedOperation(queue.sess, queue.enqueue)(queue.values(1))


def test_a_closed_session_raises_that_it_is_closed(queue: Queue) -> None:
    operation = FedOperation(queue.sess, queue.enqueue)
    operation(queue.values(1))
    queue.sess.close()
    with pytest.raises(tf.errors.CancelledError, match="Session has been closed"):
        operation(queue.values(2))
