"""`GeneralQueueRunner`: many feeders, each with its own feed function, fill one queue.

TensorFlow's `QueueRunner` runs enqueue operations in threads, but their data must come from the graph.
Here each enqueue operation has a feed function, any Python that reads anything (a file, a database, an
object store), and the tensors that it feeds. The idea is ChappiebotAI's general queue runner; beyond
it, what enters the queue can be in a fixed order, and an end, an error, an empty source and a stop are
each something definite (see `GeneralQueueRunner`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tensorpack.utils import logger

from towernmt.core.errors import FeederError, SettingsError, TowerNMTError
from towernmt.core.tensors import Operation, Session, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source.fed_operation import FedOperation, Feeds
from towernmt.input_source.feed_values import feed_dict
from towernmt.input_source.feeding import FeederRecord, FeederRun

FeedFunctions = Sequence[Callable[[], Any] | None] | None

STOP_GRACE = 2.0  # seconds that a stop waits for feeders that are inside their feed function
DRAIN_CHECK = 0.05  # seconds between two looks at the queue while a Coordinator waits for its last elements
DRAIN_PATIENCE = 60.0  # seconds of that until the log says so


class GeneralQueueRunner(tf1.train.QueueRunner):
    """A queue runner whose enqueue operations are fed by Python functions, one thread each.

    * The end: a feed function raises `StopIteration`. When all have, the queue is closed; dequeuing
      delivers what is in it, then raises `OutOfRangeError`.
    * An error: whatever else a feed function raises, or a value that does not fit its tensor. It is kept
      in `error`, a `FeederError` that names the feeder and has the exception as its `__cause__`. What was
      enqueued before is delivered; then the Coordinator gets the error (its `join` raises it), then the
      queue is closed. Without a Coordinator the dequeuing side gets an `OutOfRangeError`, and asks
      `raise_error()` whether that was the end or an error.
    * Nothing at all from any feeder is an error too.
    * A stop (by the Coordinator, or `stop`) cancels the queue, wakes everybody who waits, and waits at
      most `STOP_GRACE` seconds for feeders that are inside their feed function; those that stay are named
      in the log and left to die with the process.

    `create_threads` returns one thread, which starts the feeders, looks after them and ends last: joining
    it is therefore bounded though a feeder may be blocked for ever. The feeders are always daemons.

    Args:
        queue: the `tf.queue.QueueBase` that the operations enqueue to.
        enqueue_ops: one enqueue operation per feeder; the same one may stand several times.
        feed_fns: one function per feeder, called without arguments in that feeder's thread, again and
            again: returns the values for its feed tensors, raises `StopIteration` at the end. It must not write
            to an array again that it returned: TensorFlow may hold it in the queue without copying. None, for one
            feeder or all of them: nothing is fed, as in TensorFlow's QueueRunner; the operation's own data end with
            its `OutOfRangeError`.
        feed_tensors: per feeder a tensor (its function returns one value), or a list of tensors (its
            function returns a list of as many values). None in a static shape stands for what varies.
        feed_dict_funcs: the same as `feed_fns`, as ChappiebotAI's queue runner calls it.
        in_order: enqueue strictly in rotation 0, 1, ..., N-1, 0, ... whatever the thread timing; a feeder
            that ended is left out of the rotation. Reading still goes on in parallel.
        names: what to call the feeders in errors and logs, best their sources.
        close_op, cancel_op, queue_closed_exception_types: as in `tf.train.QueueRunner`.

    Attributes:
        allow_empty: set to True before the threads are created if no item at all is a normal end.

    Raises:
        SettingsError: the lists' lengths differ, a list is empty, or a feed function cannot be called.
    """

    def __init__(self, queue: Any, enqueue_ops: Sequence[Operation], feed_fns: FeedFunctions = None,
                 feed_tensors: Sequence[Tensor | list[Tensor] | None] | None = None, in_order: bool = False,
                 names: Sequence[str] | None = None, close_op: Operation | None = None,
                 cancel_op: Operation | None = None, queue_closed_exception_types: tuple[type, ...] | None = None, *,
                 feed_dict_funcs: FeedFunctions = None) -> None:
        if feed_fns is not None and feed_dict_funcs is not None:
            raise SettingsError("A GeneralQueueRunner takes its feed functions as feed_fns or as feed_dict_funcs, not "
                                "as both.")
        nothing = [None] * len(enqueue_ops)
        feed_fns = feed_fns or feed_dict_funcs or nothing
        feed_tensors = feed_tensors or nothing
        self._names = list(names) if names is not None else [f"feeder {i}" for i in range(len(enqueue_ops))]
        _check_lengths(enqueue_ops, feed_fns, feed_tensors, self._names)
        closed_types = queue_closed_exception_types or (tf.errors.OutOfRangeError, tf.errors.CancelledError)
        with _queue_scope(queue):
            super().__init__(queue, list(enqueue_ops), close_op, cancel_op, closed_types)
            self._size, self._is_closed = queue.size(), queue.is_closed()
        self._feed_fns = list(feed_fns)
        self._feed_tensors = [list(t) if isinstance(t, (list, tuple)) else t for t in feed_tensors]
        self._in_order = in_order
        self.allow_empty = False
        self._latest: FeederRun | None = None
        self._runs: weakref.WeakKeyDictionary[Any, tuple[FeederRun, threading.Thread]] = (
            weakref.WeakKeyDictionary())

    @property
    def error(self) -> FeederError | None:
        """Why the feeders of the last session that was started failed; None if they did not."""
        return self._latest.error if self._latest else None

    @property
    def run(self) -> FeederRun | None:
        """The state of the feeders in the last session that was started."""
        return self._latest

    @property
    def records(self) -> list[FeederRecord]:
        """What each feeder did, in the last session that was started."""
        return self._latest.records if self._latest else []

    def raise_error(self) -> None:
        """Raise the feeders' error, if there is one: to be called when dequeuing met `OutOfRangeError`."""
        if self.error is not None:
            raise self.error

    def create_threads(self, sess: Session, coord: Any = None, daemon: bool = False, start: bool = False
                       ) -> list[threading.Thread]:
        """Create the thread that runs the feeders in a session (see the class), as TensorFlow calls it.

        Args:
            sess: the `Session`.
            coord: a Coordinator, or None.
            daemon: whether the program may exit while the returned thread runs.
            start: start it here; else the caller does.

        Returns:
            One thread; none if the feeders still run in this session.
        """
        with self._lock:
            if sess in self._runs:
                former, supervisor = self._runs[sess]
                if supervisor.is_alive() or (supervisor.ident is None and not former.stopping):
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
        """Cancel the queue and end the feeders in a session, within `STOP_GRACE` seconds or little more."""
        with self._lock:
            run, supervisor = self._runs.get(sess, (None, None))
        if run is None or supervisor is None:
            return
        run.request_stop()
        if supervisor.ident is not None:
            supervisor.join(STOP_GRACE + 1)
        self._run_quietly(sess, self._cancel_op)

    def to_proto(self, export_scope: str | None = None) -> Any:
        """Refused: a Python feed function cannot be written into a graph file.

        `tf.train.export_meta_graph` does not come here: it calls the base class's `to_proto` by itself and
        writes a plain QueueRunner, which on import fails at once, because nothing feeds it.
        """
        raise SettingsError(f"The queue runner of '{self.name}' cannot be written into a graph file, for its "
                            "feed functions are Python: build it again in the program that loads the graph.")

    def _supervise(self, sess: Session, run: FeederRun, coord: Any) -> None:
        feeders = [threading.Thread(target=self._feed, args=(sess, run, index), daemon=True,
                                    name=f"GeneralQueueRunner-{self.name}-{name}")
                   for index, name in enumerate(self._names)]
        for feeder in feeders:
            feeder.start()
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

    def _report(self, sess: Session, run: FeederRun, error: FeederError, coord: Any) -> None:
        logger.error("%s%s", error, " (What was enqueued before is delivered first.)" if run.enqueued else "")
        if not coord:
            self._exceptions_raised.append(error)
            return
        # The Coordinator must have the error when the dequeuing side sees the queue closed, but not
        # while elements wait in it: `while not coord.should_stop()` would leave them there.
        began, patience = time.monotonic(), DRAIN_PATIENCE
        while not run.stopping and (depth := self._depth(sess)) > 0:
            with run.changed:
                run.changed.wait(DRAIN_CHECK)
            if time.monotonic() - began > patience:
                patience *= 2
                logger.warning("The error is raised when the %d element(s) that wait in '%s' were taken out, for which "
                               "it has waited %.0f s.", depth, self.name, time.monotonic() - began)
        coord.request_stop((type(error), error, error.__traceback__))

    def _closed(self, sess: Session) -> bool:
        try:
            return bool(sess.run(self._is_closed))
        except (tf.errors.OpError, RuntimeError):  # and the session with it
            return True

    def _depth(self, sess: Session) -> int:
        try:
            return int(sess.run(self._size))
        except (tf.errors.OpError, RuntimeError):  # the session is closed: nobody dequeues any more
            return 0

    def _join(self, feeders: list[threading.Thread]) -> None:
        deadline = time.monotonic() + STOP_GRACE
        for feeder in feeders:
            feeder.join(max(0.0, deadline - time.monotonic()))
        stuck = [name for name, feeder in zip(self._names, feeders, strict=True) if feeder.is_alive()]
        if stuck:
            logger.warning("Stopped without waiting longer for feeders that are blocked in their source: %s.",
                           ", ".join(stuck))

    def _run_quietly(self, sess: Session, close_op: Operation) -> None:
        try:
            sess.run(close_op)
        except (tf.errors.OpError, RuntimeError):  # closed already: the queue, or the whole session
            pass

    def _feed(self, sess: Session, run: FeederRun, index: int) -> None:
        try:
            self._feed_all(sess, run, index)
        except BaseException as cause:      # of any kind: else the others would wait for this turn for ever
            run.fail(index, _named_error(self._names[index], cause))

    def _feed_all(self, sess: Session, run: FeederRun, index: int) -> None:
        record, feed_fn, tensors = run.records[index], self._feed_fns[index], self._feed_tensors[index]
        enqueue = FedOperation(sess, self._enqueue_ops[index])
        while not run.stopping and not run.error:
            feeds, ended, error = {}, False, None
            record.reading_since = begin = time.perf_counter()
            try:
                feeds = {} if feed_fn is None else feed_dict(tensors, feed_fn())
            except StopIteration:
                ended = True
            except BaseException as cause:  # SystemExit in a thread would be lost
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
        """Enqueue one item, and give the turn back; whether the feeder goes on."""
        try:
            enqueue(feeds)
        except self._queue_closed_exception_types as end:
            if self._feed_fns[index] is None and isinstance(end, tf.errors.OutOfRangeError) and not self._closed(sess):
                run.end(index)      # of what the operation reads in the graph
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
    """The error that a feeder's exception becomes: a sentence with the feeder's name, caused by it."""
    try:
        what = str(cause) if isinstance(cause, TowerNMTError) else f"{type(cause).__name__}: {cause}"
    except Exception as broken:     # an exception's own __str__ may be anybody's
        what = f"{type(cause).__name__}, whose message is unknown: its __str__ raises {type(broken).__name__}"
    error = FeederError(f"Feeding stopped at {name}: {what}")
    error.__cause__ = cause
    return error


def _session_is_closed(cause: Exception) -> bool:
    """Whether an exception says that the session was closed meanwhile: of `Session.run`, or of TensorFlow's C++."""
    return (isinstance(cause, RuntimeError) and "closed Session" in str(cause)) or (
        isinstance(cause, tf.errors.CancelledError) and "Session has been closed" in str(cause))


def _queue_scope(queue: Any) -> Any:
    """The name scope in which a queue was made, so that its close and size operations are in the same scope."""
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
        raise SettingsError("A GeneralQueueRunner takes one enqueue operation, feed function, entry of feed "
                            "tensors and name per feeder, and at least one feeder; given were "
                            + ", ".join(f"{count} {what}" for what, count in lengths.items()) + ".")
    for feed_fn, tensors, name in zip(feed_fns, feed_tensors, names, strict=True):
        if (feed_fn is None) != (tensors is None):
            raise SettingsError(f"{name} has " + ("feed tensors but no feed function" if feed_fn is None else
                                                  "a feed function but no feed tensors") + ": pass both or neither.")
        if feed_fn is not None and not callable(feed_fn):
            raise SettingsError(f"The feed function of {name} is a {type(feed_fn).__name__}, not a function. "
                                "For an iterator pass its __next__.")
