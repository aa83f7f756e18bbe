"""`GeneralQueueRunner`: several feeder threads, each with its own feed function, fill one TensorFlow queue.

TensorFlow's `QueueRunner` runs enqueue operations in threads, but their data must come from the graph. Here each
enqueue operation has a Python feed function, which may read a file, a database or an object store, and the tensors
that it feeds. The idea is from ChappiebotAI's general queue runner. In addition, the order of the queue's elements can
be fixed, and the end of the data, an error, an empty source and a stop have defined effects (see `GeneralQueueRunner`).
"""

from __future__ import annotations

import inspect
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from tensorpack.dataflow import DataFlow
from tensorpack.utils import logger

from towernmt.core.errors import FeederError, SettingsError, TowerNMTError, exhausted_resource
from towernmt.core.tensors import Operation, Session, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source.feed_values import feed_dict
from towernmt.input_source.feeding import FeederRecord, FeederRun

FeedFunctions = Sequence[Callable[[], Any] | Iterable[Any] | None] | None
FeedTensors = Sequence[Tensor | str | Sequence[Tensor | str] | None] | None

STOP_GRACE = 2.0  # seconds that a stop waits for feeders inside their feed functions
DRAIN_CHECK = 0.05  # seconds between checks whether the last elements were dequeued
DRAIN_PATIENCE = 60.0  # seconds until the log reports that elements still wait in the queue


class GeneralQueueRunner(tf1.train.QueueRunner):
    """A queue runner whose enqueue operations are fed by Python functions, one thread each.

    * End: a feed function raises `StopIteration`. When all have done so, the queue is closed; dequeuing returns the
      remaining elements, then raises `OutOfRangeError`.
    * Error: a feed function raises another exception, or a value does not fit its tensor. The error is kept in
      `error`, a `FeederError` that names the feeder and has the exception as its `__cause__`. Elements enqueued before
      are delivered; then the Coordinator gets the error (its `join` raises it), then the queue is closed. Without a
      Coordinator, dequeuing raises `OutOfRangeError`, and `raise_error()` distinguishes the end from an error.
    * Empty: no item from any feeder is an error too.
    * Stop (by the Coordinator or `stop`): the queue is cancelled, all waiting threads wake, and the stop waits at most
      `STOP_GRACE` seconds for feeders inside their feed functions. The log names feeders that still run, which end
      with the process.

    `create_threads` returns one thread, which starts the feeders and ends last. Joining it takes a bounded time even if
    a feeder is blocked for ever. The feeders are always daemon threads.

    Args:
        queue: the `tf.queue.QueueBase` that the operations enqueue to.
        enqueue_ops: one enqueue operation per feeder; an operation may occur several times.
        close_op, cancel_op, queue_closed_exception_types: as in `tf.train.QueueRunner`.
        feed_fns: one function, iterator or iterable per feeder. A function is called without arguments in that
            feeder's thread, repeatedly: it returns the values for its feed tensors, and raises `StopIteration` at the
            end. A generator function is called once. An iterable is read once to its end. A returned array must not be
            modified later, because TensorFlow may keep it in the queue without copying. None, for one feeder or for
            all: nothing is fed, as in TensorFlow's QueueRunner, and the operation's `OutOfRangeError` is its end.
        feed_tensors: per feeder one tensor (its function returns one value), or a list of tensors (its function returns
            a list or a dict with one value each). A tensor may be specified by name, `"x"` or `"x:0"`. None in a static
            shape is a dimension that varies.
        feed_dict_funcs: the same as `feed_fns`; the name in ChappiebotAI's queue runner.
        feed_names: the names of a feeder's tensors, for errors and keys of dicts, the same for all feeders; None: the
            names of the tensors.
        in_order: enqueue strictly in rotation 0, 1, ..., N-1, 0, ..., independently of thread timing; a feeder that has
            ended is skipped. Reading is still parallel.
        names: names of the feeders in errors and logs, preferably their sources.

    Attributes:
        allow_empty: set it to True before the threads are created if an empty input is a normal end.

    Raises:
        SettingsError: the lengths of the lists differ or are 0, a feed function can neither be called nor iterated
            over, or a feed tensor is not in the queue's graph.
    """

    def __init__(self, queue: Any, enqueue_ops: Sequence[Operation], close_op: Operation | None = None,
                 cancel_op: Operation | None = None, queue_closed_exception_types: tuple[type, ...] | None = None, *,
                 feed_fns: FeedFunctions = None, feed_tensors: FeedTensors = None, in_order: bool = False,
                 names: Sequence[str] | None = None, feed_dict_funcs: FeedFunctions = None,
                 feed_names: Sequence[str] | None = None) -> None:
        for argument, value in (("close_op", close_op), ("cancel_op", cancel_op)):
            if isinstance(value, (list, tuple)) or callable(value):
                raise SettingsError(f"GeneralQueueRunner({argument}={value!r}): {argument} must be an operation that "
                                    "closes the queue, as in tf.train.QueueRunner. Pass feed functions as "
                                    "feed_fns=[...] and their tensors as feed_tensors=[...].")
        if feed_fns is not None and feed_dict_funcs is not None:
            raise SettingsError("GeneralQueueRunner: pass either feed_fns or feed_dict_funcs, not both.")
        nothing = [None] * len(enqueue_ops)
        feed_fns = feed_fns or feed_dict_funcs or nothing
        feed_tensors = feed_tensors or nothing
        self._names = list(names) if names is not None else [f"feeder {i}" for i in range(len(enqueue_ops))]
        _check_lengths(enqueue_ops, feed_fns, feed_tensors, self._names)
        closed_types = queue_closed_exception_types or (tf.errors.OutOfRangeError, tf.errors.CancelledError)
        with _queue_scope(queue):
            super().__init__(queue, list(enqueue_ops), close_op, cancel_op, closed_types)
            self._size, self._is_closed = queue.size(), queue.is_closed()
        graph = queue.queue_ref.graph
        self._feed_fns = [_as_function(feed_fn, name) for feed_fn, name in zip(feed_fns, self._names, strict=True)]
        self._feed_tensors = [_in_graph(tensors, graph, name)
                              for tensors, name in zip(feed_tensors, self._names, strict=True)]
        self._feed_names = list(feed_names) if feed_names is not None else None
        self._in_order = in_order
        self.allow_empty = False
        self._latest: FeederRun | None = None
        self._runs: weakref.WeakKeyDictionary[Any, tuple[FeederRun, threading.Thread]] = weakref.WeakKeyDictionary()

    @property
    def error(self) -> FeederError | None:
        """The error of the feeders in the session started last, or None."""
        return self._latest.error if self._latest else None

    @property
    def run(self) -> FeederRun | None:
        """The state of the feeders in the session started last."""
        return self._latest

    @property
    def records(self) -> list[FeederRecord]:
        """One record per feeder, of the session started last."""
        return self._latest.records if self._latest else []

    def raise_error(self) -> None:
        """Raise the feeders' error, if there is one; call it when dequeuing has raised `OutOfRangeError`."""
        if self.error is not None:
            raise self.error

    def create_threads(self, sess: Session, coord: Any = None, daemon: bool = False, start: bool = False
                       ) -> list[threading.Thread]:
        """Create the thread that runs the feeders in a session, with TensorFlow's signature.

        Args:
            sess: the `Session`.
            coord: a Coordinator, or None.
            daemon: whether the program may exit while the returned thread runs.
            start: start the thread; otherwise the caller starts it.

        Returns:
            one thread; none if the feeders are still running in this session.
        """
        with self._lock:
            if sess in self._runs:
                previous, supervisor = self._runs[sess]
                if supervisor.is_alive() or (supervisor.ident is None and not previous.stopping):
                    return []
            run = FeederRun(self._names, self._in_order, self.allow_empty)
            supervisor = threading.Thread(target=self._supervise, args=(sess, run, coord), daemon=daemon,
                                          name=f"GeneralQueueRunner-{self.name}")
            self._runs[sess] = run, supervisor
            self._latest = run
            self._exceptions_raised: list[BaseException] = []
        if coord:
            coord.register_thread(supervisor)
        if start:
            supervisor.start()
        return [supervisor]

    def stop(self, sess: Session) -> None:
        """Cancel the queue and end the feeders in a session, within about `STOP_GRACE` seconds."""
        with self._lock:
            run, supervisor = self._runs.get(sess, (None, None))
        if run is None or supervisor is None:
            return
        run.request_stop()
        if supervisor.ident is not None:
            supervisor.join(STOP_GRACE + 1)
        self._run_quietly(sess, self._cancel_op)

    def to_proto(self, export_scope: str | None = None) -> Any:
        """Raise SettingsError, because Python feed functions cannot be written into a graph file.

        `tf.train.export_meta_graph` does not call this method, but that of the base class. It writes a plain
        QueueRunner, which fails at once after import, because nothing feeds it.
        """
        raise SettingsError(f"The queue runner of '{self.name}' cannot be written into a graph file, because its feed "
                            "functions are Python: create it again in the program that loads the graph.")

    def _supervise(self, sess: Session, run: FeederRun, coord: Any) -> None:
        feeders = [threading.Thread(target=self._feed, args=(sess, run, index), daemon=True,
                                    name=f"GeneralQueueRunner-{self.name}-{name}")
                   for index, name in enumerate(self._names)]
        self._start(feeders, run)
        if coord:
            threading.Thread(target=_stop_with, args=(coord, run), daemon=True,
                             name=f"GeneralQueueRunner-{self.name}-coordinator").start()
        run.wait_until_over()
        try:
            if run.error and not run.stopping:
                self._report(sess, run, run.error, coord)
        finally:
            self._run_quietly(sess, self._cancel_op if run.stopping else self._close_op)
        self._join(feeders)

    def _start(self, feeders: list[threading.Thread], run: FeederRun) -> None:
        """Start the feeders; if the system refuses a thread, end the run with an error, as training would wait."""
        for index, feeder in enumerate(feeders):
            try:
                feeder.start()
            except RuntimeError as cause:
                run.fail(index, _named_error(self._names[index], cause))
                return

    def _report(self, sess: Session, run: FeederRun, error: FeederError, coord: Any) -> None:
        logger.error("%s%s", error, " (Elements enqueued before are delivered first.)" if run.enqueued else "")
        if not coord:
            self._exceptions_raised.append(error)
            return
        # The Coordinator must have the error before the dequeuing side sees the closed queue, but only after the last
        # element was dequeued: `while not coord.should_stop()` would leave elements in the queue.
        start, patience = time.monotonic(), DRAIN_PATIENCE
        while not run.stopping and (depth := self._depth(sess)) > 0:
            with run.changed:
                run.changed.wait(DRAIN_CHECK)
            if time.monotonic() - start > patience:
                patience *= 2
                logger.warning("The error will be raised after the %d element(s) in '%s' are dequeued; it has waited "
                               "%.0f s.", depth, self.name, time.monotonic() - start)
        coord.request_stop((type(error), error, error.__traceback__))

    def _closed(self, sess: Session) -> bool:
        try:
            return bool(sess.run(self._is_closed))
        except (tf.errors.OpError, RuntimeError):  # the session is closed too
            return True

    def _depth(self, sess: Session) -> int:
        try:
            return int(sess.run(self._size))
        except (tf.errors.OpError, RuntimeError):  # the session is closed, so nothing will be dequeued
            return 0

    def _join(self, feeders: list[threading.Thread]) -> None:
        deadline = time.monotonic() + STOP_GRACE
        for feeder in feeders:
            if feeder.ident is not None:    # it was started
                feeder.join(max(0.0, deadline - time.monotonic()))
        stuck = [name for name, feeder in zip(self._names, feeders, strict=True) if feeder.is_alive()]
        if stuck:
            logger.warning("Stopped without waiting for feeders that are blocked in their sources: %s.",
                           ", ".join(stuck))

    def _run_quietly(self, sess: Session, close_op: Operation) -> None:
        try:
            sess.run(close_op)
        except (tf.errors.OpError, RuntimeError):  # the queue or the session is already closed
            pass

    def _feed(self, sess: Session, run: FeederRun, index: int) -> None:
        try:
            self._feed_all(sess, run, index)
        except BaseException as cause:      # otherwise the other feeders would wait for this turn for ever
            run.fail(index, _named_error(self._names[index], cause))

    def _feed_all(self, sess: Session, run: FeederRun, index: int) -> None:
        record, feed_fn, tensors = run.records[index], self._feed_fns[index], self._feed_tensors[index]
        enqueue = FedOperation(sess, self._enqueue_ops[index])
        while not run.stopping and not run.error:
            feeds, ended, error = {}, False, None
            record.reading_since = begin = time.perf_counter()
            try:
                feeds = {} if feed_fn is None else feed_dict(tensors, feed_fn(), self._feed_names)
            except StopIteration:
                ended = True
            except BaseException as cause:  # a thread would silently drop SystemExit
                error = _named_error(record.name, cause)
            read, record.reading_since = time.perf_counter(), None
            record.reading += read - begin
            if not run.take_turn(index):
                return
            turn = time.perf_counter()
            record.waiting_for_turn += turn - read
            if error is not None:
                run.fail(index, error)
            elif ended:
                run.end(index)
            else:
                ended = not self._enqueue(sess, enqueue, run, index, feeds)
                record.enqueuing += time.perf_counter() - turn
            if error is not None or ended:
                return

    def _enqueue(self, sess: Session, enqueue: FedOperation, run: FeederRun, index: int, feeds: Feeds) -> bool:
        """Enqueue one item, release the turn, and return whether the feeder continues."""
        try:
            enqueue(feeds)
        except self._queue_closed_exception_types as end:
            if self._feed_fns[index] is None and isinstance(end, tf.errors.OutOfRangeError) and not self._closed(sess):
                run.end(index)      # the data that the operation reads in the graph
            else:
                run.queue_closed(index)
        except Exception as cause:
            if run.stopping or _session_is_closed(cause):
                run.queue_closed(index)
            else:
                run.fail(index, _named_error(self._names[index], cause))
        else:
            run.enqueued_by(index)
            return True
        return False


def _named_error(name: str, cause: BaseException) -> FeederError:
    """Return a FeederError that names the feeder and has `cause` as its cause."""
    try:
        description = (str(cause) if isinstance(cause, TowerNMTError) else
                       exhausted_resource(cause) or f"{type(cause).__name__}: {cause}")
    except Exception as broken:     # the __str__ of a foreign exception may fail
        description = f"{type(cause).__name__}, whose message is unknown: its __str__ raises {type(broken).__name__}"
    error = FeederError(f"Feeding stopped at {name}: {description}")
    error.__cause__ = cause
    return error


def _session_is_closed(cause: Exception) -> bool:
    """Return whether the exception, of `Session.run` or of TensorFlow's C++, reports a closed session."""
    return (isinstance(cause, RuntimeError) and "closed Session" in str(cause)) or (
        isinstance(cause, tf.errors.CancelledError) and "Session has been closed" in str(cause))


def _queue_scope(queue: Any) -> Any:
    """Return the name scope of a queue, for its close and size operations."""
    scope = queue.queue_ref.op.name.rpartition("/")[0]
    return tf1.name_scope(scope + "/" if scope else None)


def _stop_with(coord: Any, run: FeederRun) -> None:
    coord.wait_for_stop()
    run.request_stop()


def _check_lengths(enqueue_ops: Sequence[Operation], feed_fns: Sequence[Any], feed_tensors: Sequence[Tensor],
                   names: Sequence[str]) -> None:
    lengths = {"enqueue_ops": len(enqueue_ops), "feed_fns": len(feed_fns), "feed_tensors": len(feed_tensors),
               "names": len(names)}
    if len(set(lengths.values())) > 1 or not enqueue_ops:
        raise SettingsError("GeneralQueueRunner needs at least one feeder, and for each one enqueue operation, feed "
                            "function, entry of feed tensors and name; got "
                            + ", ".join(f"{count} {argument}" for argument, count in lengths.items()) + ".")
    for feed_fn, tensors, name in zip(feed_fns, feed_tensors, names, strict=True):
        if (feed_fn is None) != (tensors is None):
            raise SettingsError(f"{name} has " + ("feed tensors but no feed function" if feed_fn is None else
                                                  "a feed function but no feed tensors") + ": pass both or neither.")


def _as_function(feed_fn: Any, name: str) -> Callable[[], Any] | None:
    """Return a feed function, or the `__next__` of an iterable."""
    if inspect.isgeneratorfunction(feed_fn):
        feed_fn = feed_fn()
    if feed_fn is None or callable(feed_fn):
        return feed_fn
    if isinstance(feed_fn, DataFlow):
        feed_fn.reset_state()
    try:
        return iter(feed_fn).__next__
    except TypeError:
        raise SettingsError(f"The feed function of {name} is a value of type {type(feed_fn).__name__}: pass a function "
                            "without arguments, an iterator or an iterable.") from None


def _in_graph(tensors: Any, graph: Any, name: str) -> Any:
    """Return a feeder's tensor or list of tensors, with names resolved in a graph."""
    if isinstance(tensors, (list, tuple)):
        return [_in_graph(tensor, graph, name) for tensor in tensors]
    if not isinstance(tensors, str):
        return tensors
    try:
        return graph.get_tensor_by_name(tensors if ":" in tensors else f"{tensors}:0")
    except (KeyError, ValueError):
        raise SettingsError(f"The feed tensor {tensors!r} of {name} is not in the graph of its queue: pass the tensor, "
                            "or a name such as 'x:0' of a placeholder in that graph.") from None


Feeds = dict[Tensor, np.ndarray]


class FedOperation:
    """Runs an operation as `sess.run(operation, feed_dict=feeds)` does, in a tenth of the time.

    `Session.run` analyses feeds and fetches at each call, which takes longer than enqueuing a batch. A private method
    of TensorFlow (used by Keras in graph mode) does this once. Sessions without that method, such as wrappers of
    another session, use `Session.run`.

    Args:
        sess: the session.
        operation: the operation to run.
    """

    def __init__(self, sess: Session, operation: Operation) -> None:
        self._sess, self._operation = sess, operation
        self._run: Callable[[Feeds], None] | None = None

    def __call__(self, feeds: Feeds) -> None:
        """Run the operation; each call must feed the same tensors in the same order, with fitting dtypes and shapes."""
        if self._run is None:
            self._run = self._prepared(list(feeds))
        self._run(feeds)

    def _prepared(self, tensors: list[Tensor]) -> Callable[[Feeds], None]:
        sess, operation = self._sess, self._operation
        make = getattr(sess, "_make_callable_from_options", None)
        if make is None or not isinstance(operation, tf.Operation) or any(
                part.graph is not sess.graph or not sess.graph.is_feedable(part) for part in tensors):
            return lambda feeds: sess.run(operation, feed_dict=feeds)
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        run = make(CallableOptions(feed=[tensor.name for tensor in tensors], target=[operation.name]))
        return lambda feeds: run(*feeds.values())
