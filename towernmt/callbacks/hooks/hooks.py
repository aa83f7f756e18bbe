"""TensorFlow's hooks as callbacks, and callbacks as hooks of a plain `MonitoredTrainingSession`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.train.base import StopTraining
from tensorpack.utils import logger

from towernmt.callbacks.hooks.hook_trainer import HookTrainer
from towernmt.callbacks.hooks.run_hooks import FeedLedger, declared_feeds, refuse_shared_feeds
from towernmt.callbacks.lookup import EndOfTraining
from towernmt.core.errors import SettingsError
from towernmt.core.runs import belong_to, is_among, name_of, runs_of
from towernmt.core.tf_compat import tf, tf1

_SAVERS = tf1.GraphKeys.SAVERS


class HookToCallback(Callback):
    """Any `tf1.train.SessionRunHook` as a callback of any tensorpack trainer.

    As in TensorFlow, and other than with tensorpack's class of this name, the hook gets a coordinator (what
    asks it to stop ends training after the present step), its `StopIteration` ends training normally, and its `end`
    is called only if no error ended the training: a `CheckpointSaverHook` saves nothing that diverged.
    """

    _chief_only = False

    def __init__(self, hook: Any, runs: Sequence[Any] = ()) -> None:
        """
        Args:
            hook: the hook.
            runs: the runs that it belongs to (see `towernmt.core.runs`); by default what it says itself, else the
                train step.
        Raises:
            SettingsError: `hook` is none.
        """
        if not isinstance(hook, tf1.train.SessionRunHook):
            raise SettingsError(f"HookToCallback({hook!r}): give it an instance of tf.compat.v1.train.SessionRunHook.")
        self.wrapped = hook
        if runs:
            belong_to(self, *runs)

    def _setup_graph(self) -> None:
        with tf1.name_scope(None):      # a hook looks names up, and makes some, at the top
            self.wrapped.begin()
            if isinstance(self.wrapped, tf1.train.CheckpointSaverHook) and not tf1.get_collection(_SAVERS):
                tf1.add_to_collection(_SAVERS, tf1.train.Saver())      # a MonitoredTrainingSession brings one

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
        return StopTraining(f"{self}: {stop}" if str(stop) else f"{self} asked for the end")

    def _trigger_step(self) -> None:
        if self._coordinator.should_stop():
            self._coordinator.raise_requested_exception()
            raise StopTraining(f"{self} asked for the end")

    def _after_train(self) -> None:
        self._coordinator.request_stop()
        if not self._end.by_error():
            self.wrapped.end(self.trainer.sess)

    def __str__(self) -> str:
        return name_of(self)


class CallbackToHook(tf1.train.SessionRunHook):
    """Callbacks, in their order, as one hook of a plain `MonitoredTrainingSession`.

    They find what they look for in a trainer: the step, the session, each other, the monitors. A step is a run
    that advances the graph's global step, as the program's optimizer does it (`minimize(loss, global_step)`).
    `StopTraining` makes the session's `should_stop()` true.

    TensorFlow tells its hooks nothing when an error ends the session. Enter the hook inside the session, and the
    callbacks end then too (a checkpoint is saved, signals are let go):

        hook = CallbackToHook(NaNGuard(), CheckpointSaver(directory), monitors=[StatsWriter(directory)])
        with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session, hook:
            while not session.should_stop():
                session.run(train_op)
    """

    def __init__(self, *callbacks: Callback, monitors: Sequence[Any] = (), steps_per_epoch: int = 0) -> None:
        """
        Args:
            callbacks: in the order in which they act.
            monitors: tensorpack's, which get the scalars.
            steps_per_epoch: steps an epoch, for the callbacks that act by epochs; 0 for one epoch without an end.
        Raises:
            SettingsError: two callbacks name the same tensor as what they feed, or one is no callback.
        """
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise SettingsError(f"CallbackToHook({callback!r}): give it tensorpack callbacks.")
        refuse_shared_feeds(callbacks)
        self._trainer = HookTrainer([*callbacks], list(monitors), steps_per_epoch)
        self._callbacks = self._trainer.callbacks
        self._runs = [runs_of(callback) for callback in self._callbacks]
        self.belongs_to = tuple(dict.fromkeys(run for runs in self._runs for run in runs))
        self.feeds = [tensor for callback in callbacks for tensor in declared_feeds(callback)]
        self._present: list[Callback] = []
        self._ended = False

    def begin(self) -> None:
        self._trainer.setup()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Called again when TensorFlow made a new session after a lost one: training goes on then."""
        try:
            self._trainer.enter(session)
        except StopTraining as stop:
            logger.info(f"Training was stopped by {stop}.")
            coord.request_stop()

    def before_run(self, run_context: Any) -> Any:
        fetches: dict[int, Any] = {}
        feeds: dict[Any, Any] = {}
        options, ledger = tf1.RunOptions(), FeedLedger()
        self._present = []
        with self._trainer.entered():
            for index, callback in enumerate(self._callbacks):
                if not is_among(self._runs[index], run_context.original_args.fetches):
                    continue
                self._present.append(callback)
                request = self._ask(callback, run_context)
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

    def _ask(self, callback: Callback, run_context: Any) -> Any:
        try:
            return callback.before_run(run_context)
        except StopTraining as stop:        # TensorFlow's word for a normal end that comes before a run
            raise tf.errors.OutOfRangeError(None, None, str(stop)) from stop

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._present:
            return
        with self._trainer.entered():
            stepped = self._trainer.count_step(run_context.session)
            try:
                for index, callback in enumerate(self._callbacks):
                    if callback in self._present:
                        callback.after_run(run_context, tf1.train.SessionRunValues(
                            run_values.results.get(index), run_values.options, run_values.run_metadata))
                if stepped:
                    self._trainer.after_step()
            except StopTraining as stop:
                logger.info(f"Training was stopped by {stop}.")
                run_context.request_stop()

    def end(self, session: Any) -> None:
        """The callbacks' `after_train`; what the first of them raises is raised when all have ended."""
        if not self._ended:
            self._ended = True
            self._trainer.leave()

    def __enter__(self) -> CallbackToHook:
        return self

    def __exit__(self, *error: object) -> None:
        self.end(None)
