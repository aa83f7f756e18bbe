"""TensorFlow's hooks as callbacks, and callbacks as hooks of a plain `MonitoredTrainingSession`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorpack.callbacks import Callback, Callbacks, Monitors
from tensorpack.callbacks.hooks import HookToCallback as TensorpackHookToCallback
from tensorpack.callbacks.monitor import MonitorBase
from tensorpack.train.base import StopTraining, Trainer
from tensorpack.utils import logger

from towernmt.callbacks.run_hooks import FeedLedger, declared_feeds, refuse_shared_feeds
from towernmt.callbacks.stateful import EndOfTraining, with_inner_callbacks
from towernmt.core.errors import SettingsError
from towernmt.core.runs import belong_to, is_among, name_of, runs_of
from towernmt.core.session import ResumableLoop
from towernmt.core.tensors import Session, Tensor
from towernmt.core.tf_compat import tf, tf1

_NO_END = 9999999
"""tensorpack's `max_epoch` for training without a limit."""


class HookTrainer(Trainer):
    """tensorpack's `Trainer` without a loop: its owner reports each step, and it calls the callbacks as a loop does.

    Args:
        callbacks: the callbacks, in their order.
        monitors: tensorpack monitors, which receive the scalars.
        steps_per_epoch: steps per epoch; 0: one endless epoch.

    Attributes:
        in_update: whether training has ended after an update whose step was not counted, as if Ctrl-C interrupts a run.
    """

    def __init__(self, callbacks: list[Callback], monitors: list[Any], steps_per_epoch: int) -> None:
        super().__init__()
        self.monitors = Monitors(monitors)
        self.callbacks: list[Any] = [*callbacks, *monitors, self.monitors]
        self._callbacks = Callbacks(self.callbacks)
        self.loop = ResumableLoop()
        self._epoch_steps = steps_per_epoch
        self._running = False
        self._started: list[Callback] = []      # their `before_train` was called
        self.diverged = self.in_update = False

    def setup(self) -> None:
        """Set up the callbacks in the default graph, for a training that begins."""
        self._started, self.diverged, self.in_update = [], False, False
        self._step = tf1.train.get_or_create_global_step()
        self._callbacks.setup_graph(self)     # the step of a callback is available even after training

    def enter(self, session: Session) -> None:
        """Start training in `session`, or continue in it if it replaces a lost session."""
        self.sess = self.hooked_sess = session
        with session.as_default():
            self.loop._global_step = int(session.run(self._step))
            if self._running:
                return
            self._running = True
            steps = self._epoch_steps or _NO_END
            self.loop.config(steps, self.loop._global_step // steps + 1, _NO_END)
            for callback in self.callbacks:
                self._started.append(callback)
                callback.before_train()
            self.loop._global_step = int(session.run(self._step))
            self._begin_epoch(self.loop.starting_epoch)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the session the default session, as callbacks expect."""
        with self.sess.as_default():
            yield

    def count_step(self, session: Session) -> bool:
        """Read the global step, and return whether the run was a training step."""
        self.sess = self.hooked_sess = session
        previous_step, self.loop._global_step = self.loop._global_step, int(session.run(self._step))
        return self.loop._global_step > previous_step

    def after_step(self) -> None:
        """Call the callbacks after a step, and after the last step of an epoch."""
        self._callbacks.trigger_step()
        if self._epoch_steps and self.loop._global_step % self._epoch_steps == 0:
            self._callbacks.after_epoch()
            logger.info(f"Epoch {self.loop.epoch_num} (global_step {self.loop.global_step}) finished, time:"
                        f"{time.monotonic() - self._epoch_began:.3g} seconds.")
            self._callbacks.trigger_epoch()
            self._begin_epoch(self.loop.epoch_num + 1)
        else:
            self.loop._local_step += 1

    def leave(self) -> None:
        """Call the `after_train` of the callbacks whose `before_train` was called.

        Raises:
            Exception: the first exception of a callback, after all callbacks have ended.
        """
        if not self._running:
            return
        self._running = False
        errors: list[Exception] = []
        with self.entered():
            self.in_update = self._has_uncounted_step()
            for callback in self._started:
                try:
                    callback.after_train()
                except Exception as error:
                    errors.append(error)
        for further_error in errors[1:]:
            logger.error(f"At the end of training: {further_error}")
        if errors:
            raise errors[0]

    def _has_uncounted_step(self) -> bool:
        try:
            return int(self.sess.run(self._step)) > self.loop._global_step
        except (tf.errors.OpError, RuntimeError):       # the session is lost or closed
            return False

    def _begin_epoch(self, number: int) -> None:
        self._epoch_began = time.monotonic()
        self.loop._epoch_num = number
        self._callbacks.before_epoch()
        self.loop._local_step = 0       # of the next step: callbacks read it before that step


_SAVERS = tf1.GraphKeys.SAVERS


class HookToCallback(Callback):
    """A `tf1.train.SessionRunHook` as a callback of any tensorpack trainer.

    Unlike tensorpack's class of this name, it treats the hook as TensorFlow does. The hook gets a coordinator; a stop
    request to it ends training after the current step. `StopIteration` from the hook ends training normally. The hook's
    `end` is called only if no error has ended training, so a `CheckpointSaverHook` does not save diverged values.

    Args:
        hook: the hook.
        runs: the runs that the hook belongs to (see `towernmt.core.runs`). The default is the declaration of the hook,
            or the train step.

    Raises:
        SettingsError: `hook` is not a session hook.
    """

    _chief_only = False

    def __init__(self, hook: Any, runs: Sequence[Any] = ()) -> None:
        if not isinstance(hook, tf1.train.SessionRunHook):
            raise SettingsError(f"HookToCallback({hook!r}): pass an instance of tf.compat.v1.train.SessionRunHook.")
        self.wrapped = hook
        if runs:
            belong_to(self, *runs)

    def _setup_graph(self) -> None:
        with tf1.name_scope(None):      # hooks build their operations outside of name scopes
            self.wrapped.begin()
            if isinstance(self.wrapped, tf1.train.CheckpointSaverHook) and not tf1.get_collection(_SAVERS):
                tf1.add_to_collection(_SAVERS, tf1.train.Saver())      # as a MonitoredTrainingSession does

    def _before_train(self) -> None:
        self._end = EndOfTraining()
        self._coordinator = tf1.train.Coordinator()
        self.wrapped.after_create_session(self.trainer.sess, self._coordinator)

    def _before_run(self, context: Any) -> Any:
        try:
            return self.wrapped.before_run(context)
        except StopIteration as stop:
            raise self._end_by(stop) from stop

    def _after_run(self, context: Any, values: Any) -> None:
        try:
            self.wrapped.after_run(context, values)
        except StopIteration as stop:
            raise self._end_by(stop) from stop

    def _end_by(self, stop: StopIteration) -> StopTraining:
        return StopTraining(f"{self}: {stop}" if str(stop) else f"{self} ended training")

    def _trigger_step(self) -> None:
        if self._coordinator.should_stop():
            self._coordinator.raise_requested_exception()
            raise StopTraining(f"{self} ended training")

    def _after_train(self) -> None:
        self._coordinator.request_stop()
        if not self._end.by_error():
            self.wrapped.end(self.trainer.sess)

    def __str__(self) -> str:
        return name_of(self)


def refuse_unusable_callbacks(callbacks: Iterable[Any]) -> None:
    """Refuse objects that are not callbacks, monitors, and tensorpack's `HookToCallback`, also inside another callback.

    Raises:
        SettingsError: one is among the callbacks. With tensorpack's `HookToCallback`, TensorFlow 2 would fail with an
            unrelated error on name scopes.
    """
    for callback in with_inner_callbacks(callbacks):
        if not isinstance(callback, Callback):
            fix = ("pass HookToCallback(HOOK) of towernmt.callbacks" if isinstance(callback, tf1.train.SessionRunHook)
                   else "pass an instance of a class derived from tensorpack's Callback")
            raise SettingsError(f"{callback!r} is not a callback: {fix}.")
        if isinstance(callback, MonitorBase):
            raise SettingsError(f"{type(callback).__name__} is a monitor: pass it in the argument monitors=[...], not "
                                "among the callbacks.")
        if isinstance(callback, TensorpackHookToCallback):
            name = type(callback).__name__
            raise SettingsError(f"{name} of tensorpack does not work with TensorFlow 2. Use HookToCallback of "
                                "towernmt.callbacks, and import it after `from tensorpack import *` or `from "
                                "tensorpack.callbacks import *`, which overwrite the name.")


class CallbackToHook(tf1.train.SessionRunHook):
    """Callbacks, in their order, as one hook of a plain `MonitoredTrainingSession`.

    The hook acts as the callbacks' trainer: it has the step, the session, the callbacks and the monitors. A run is a
    training step if it advances the graph's global step, as the program's optimizer does
    (`minimize(loss, global_step)`). `StopTraining` makes the session's `should_stop()` true.

    TensorFlow does not notify its hooks when an error ends the session. Enter the hook inside the session, as below, so
    that the callbacks also end in that case: they save a checkpoint and remove signal handlers.

        hook = CallbackToHook(NaNGuard(), CheckpointSaver(directory), monitors=[StatsWriter(directory)])
        with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session, hook:
            while not session.should_stop():
                session.run(train_op)

    Args:
        callbacks: the callbacks, in the order in which they act.
        monitors: tensorpack monitors, which receive the scalars.
        steps_per_epoch: steps per epoch, for callbacks that act by epochs; 0: one endless epoch.

    Raises:
        SettingsError: two callbacks declare the same fed tensor, or an argument is not a callback.
    """

    def __init__(self, *callbacks: Callback, monitors: Sequence[Any] = (), steps_per_epoch: int = 0) -> None:
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise SettingsError(f"CallbackToHook({callback!r}): pass tensorpack callbacks.")
        refuse_unusable_callbacks(callbacks)
        refuse_shared_feeds(callbacks)
        self._trainer = HookTrainer([*callbacks], list(monitors), steps_per_epoch)
        self._callbacks = self._trainer.callbacks
        self._runs = [runs_of(callback) for callback in self._callbacks]
        self.belongs_to = tuple(dict.fromkeys(run for runs in self._runs for run in runs))
        self.feeds = [tensor for callback in callbacks for tensor in declared_feeds(callback)]
        self._active_callbacks: list[Callback] = []
        self._has_ended = False

    def begin(self) -> None:
        self._has_ended = False
        self._trainer.setup()

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Start training, or continue if TensorFlow calls this again because it has replaced a lost session.

        If a callback fails, the callbacks before it end, so that no lock or signal handler remains.
        """
        try:
            self._trainer.enter(session)
        except StopTraining as stop:
            logger.info(f"Training ends: {stop}.")
            coord.request_stop()
        except BaseException:
            try:
                self.end(session)
            except Exception as error:
                logger.error(f"At the end of training: {error}")
            raise

    def before_run(self, run_context: Any) -> Any:
        fetches: dict[int, Any] = {}
        feeds: dict[Tensor | str, Any] = {}
        options, ledger = tf1.RunOptions(), FeedLedger()
        self._active_callbacks = []
        with self._trainer.entered():
            for index, callback in enumerate(self._callbacks):
                if not is_among(self._runs[index], run_context.original_args.fetches):
                    continue
                self._active_callbacks.append(callback)
                request = self._request_of(callback, run_context)
                if request is None:
                    continue
                if request.fetches is not None:
                    fetches[index] = request.fetches
                if request.feed_dict:
                    ledger.enter(run_context, callback, request.feed_dict)
                    feeds.update(request.feed_dict)
                if request.options is not None:
                    options.MergeFrom(request.options)
        return tf1.train.SessionRunArgs(fetches, feeds, options)

    def _request_of(self, callback: Callback, run_context: Any) -> Any:
        try:
            return callback.before_run(run_context)
        except StopTraining as stop:        # a normal end for TensorFlow
            raise tf.errors.OutOfRangeError(None, None, str(stop)) from stop

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._active_callbacks:
            return
        with self._trainer.entered():
            is_training_step = self._trainer.count_step(run_context.session)
            try:
                for index, callback in enumerate(self._callbacks):
                    if callback in self._active_callbacks:
                        callback.after_run(run_context, tf1.train.SessionRunValues(
                            run_values.results.get(index), run_values.options, run_values.run_metadata))
                if is_training_step:
                    self._trainer.after_step()
            except StopTraining as stop:
                logger.info(f"Training ends: {stop}.")
                run_context.request_stop()

    def end(self, session: Session) -> None:
        """Call the callbacks' `after_train`, and raise the first exception after all of them have ended."""
        if not self._has_ended:
            self._has_ended = True
            self._trainer.leave()

    def __enter__(self) -> CallbackToHook:
        return self

    def __exit__(self, *error: object) -> None:
        self.end(None)
