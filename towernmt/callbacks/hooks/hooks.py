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
from towernmt.core.tensors import Session, Tensor
from towernmt.core.tf_compat import tf, tf1

_SAVERS = tf1.GraphKeys.SAVERS


class HookToCallback(Callback):
    """Any `tf1.train.SessionRunHook` as a callback of any tensorpack trainer.

    tensorpack has a class of this name, too. This one treats the hook as TensorFlow does. The hook gets a coordinator:
    when it is asked to stop, training ends after the present step. If the hook raises `StopIteration`, training ends
    normally. The hook's `end` is called only if no error ended the training, so a `CheckpointSaverHook` saves nothing
    that diverged.
    """

    _chief_only = False

    def __init__(self, hook: Any, runs: Sequence[Any] = ()) -> None:
        """
        Args:
            hook: the hook.
            runs: the runs that it belongs to (see `towernmt.core.runs`). By default those that the hook names itself,
                or else the train step.
        Raises:
            SettingsError: `hook` is not a session hook.
        """
        if not isinstance(hook, tf1.train.SessionRunHook):
            raise SettingsError(f"HookToCallback({hook!r}): give it an instance of tf.compat.v1.train.SessionRunHook.")
        self.wrapped = hook
        if runs:
            belong_to(self, *runs)

    def _setup_graph(self) -> None:
        with tf1.name_scope(None):      # hooks expect to be outside of name scopes
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

    Callbacks find in it what they need of a trainer: the step, the session, each other, the monitors. A run is a step
    if it advances the graph's global step, as the program's optimizer does (`minimize(loss, global_step)`).
    `StopTraining` makes the session's `should_stop()` true.

    TensorFlow does not tell its hooks when an error ends the session. Enter the hook inside the session, as below: then
    the callbacks end in that case, too (a checkpoint is saved, signal handlers are removed).

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
            steps_per_epoch: steps in an epoch, for callbacks that act by epochs; 0 for one endless epoch.
        Raises:
            SettingsError: two callbacks say that they feed the same tensor, or one is not a callback.
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

    def after_create_session(self, session: Session, coord: Any) -> None:
        """TensorFlow calls this again when it replaces a lost session. Training then goes on."""
        try:
            self._trainer.enter(session)
        except StopTraining as stop:
            logger.info(f"Training was stopped by {stop}.")
            coord.request_stop()

    def before_run(self, run_context: Any) -> Any:
        fetches: dict[int, Any] = {}
        feeds: dict[Tensor | str, Any] = {}
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
        except StopTraining as stop:        # TensorFlow takes this for a normal end
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

    def end(self, session: Session) -> None:
        """Call the callbacks' `after_train`. The first exception is raised after all of them have ended."""
        if not self._ended:
            self._ended = True
            self._trainer.leave()

    def __enter__(self) -> CallbackToHook:
        return self

    def __exit__(self, *error: object) -> None:
        self.end(None)
