"""Restrict hooks to their own kinds of `session.run`, and refuse two hooks that feed the same tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from towernmt.callbacks.stateful import all_callbacks
from towernmt.core.errors import SettingsError
from towernmt.core.runs import Run, attribute_of, is_among, name_of, run_as, runs_of
from towernmt.core.tensors import Session, Tensor
from towernmt.core.tf_compat import tf, tf1


def separate_runs(hooks: Sequence[Any]) -> list[RunHook]:
    """Return the hooks of one session, each wrapped so that it is called only at its own runs.

    `MonitoredTrainingSession(hooks=separate_runs([...]))` calls each hook at the runs that it belongs to (see
    `towernmt.core.runs`): `with run_as(Run.DATA): session.run(batch)` calls no other hooks.

    A hook or callback may declare the tensors that it feeds in its attribute `feeds` (tensors or names). Two hooks
    that declare the same tensor are refused at once; undeclared feeds are refused at the first run with a conflict.

    Raises:
        SettingsError: two hooks feed the same tensor, or a hook belongs to something that is not a run.
    """
    refuse_shared_feeds(hooks)
    ledger = FeedLedger()
    return [RunHook(hook, ledger) for hook in hooks]


class RunHook(tf1.train.SessionRunHook):
    """A hook that is called only at the runs that it belongs to."""

    def __init__(self, hook: Any, ledger: FeedLedger) -> None:
        self.wrapped, self._runs, self._ledger = hook, runs_of(hook), ledger
        self._run_context: Any = None

    def begin(self) -> None:
        self.wrapped.begin()

    def after_create_session(self, session: Session, coord: Any) -> None:
        self.wrapped.after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        self._run_context = None
        if not is_among(self._runs, run_context.original_args.fetches):
            return None
        self._run_context = run_context
        request = self.wrapped.before_run(run_context)
        if request is not None and request.feed_dict:
            self._ledger.enter(run_context, self.wrapped, request.feed_dict)
        return request

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._run_context is run_context:
            self.wrapped.after_run(run_context, run_values)

    def end(self, session: Session) -> None:
        self.wrapped.end(session)


class RunSession:
    """A session for runs of one kind, which call the hooks of that kind.

    Args:
        session: the raw session.
        hooked: the monitored session that wraps it.
        kind: the kind of all runs.
    """

    def __init__(self, session: Session, hooked: Session, kind: Run) -> None:
        self._session, self._hooked, self.kind = session, hooked, kind
        self.graph = session.graph

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Call `Session.run` with the hooks of this kind, or without hooks after a hook has requested a stop."""
        if self._hooked.should_stop():
            return self._session.run(fetches, feed_dict, options, run_metadata)
        with run_as(self.kind):
            return self._hooked.run(fetches, feed_dict, options, run_metadata)

    def make_callable(self, fetches: Any, feed_list: Sequence[Any] = (), accept_options: bool = False) -> Any:
        """Return a function as `Session.make_callable` does, which runs with the hooks of this kind."""
        return lambda *values: self.run(fetches, dict(zip(feed_list, values, strict=True)))


def session_for(trainer: Any, kind: Run) -> Session:
    """Return the trainer's session for runs of one kind: the raw one, unless a callback belongs to that kind."""
    # In tensorpack's own group every callback sees every hooked run.
    separates_runs = getattr(trainer._callbacks, "separates_runs", False)
    if separates_runs and any(run is kind or not isinstance(run, Run)
                              for callback in all_callbacks(trainer) for run in _hooked_runs(callback)):
        return RunSession(trainer.sess, trainer.hooked_sess, kind)
    return trainer.sess


def _hooked_runs(callback: Any) -> tuple[Any, ...]:
    """Return the runs that must be hooked for `callback`; none if it only serves their input."""
    return () if attribute_of(callback, "serves_input", False) else runs_of(callback)


def refuse_shared_feeds(hooks: Iterable[Any]) -> None:
    """Check the fed tensors that hooks and callbacks declare.

    Raises:
        SettingsError: two declare the same tensor.
    """
    feeders: dict[str, Any] = {}
    for hook in hooks:
        for tensor in declared_feeds(hook):
            name = _name(tensor)
            if name in feeders:
                raise SettingsError(_conflict(feeders[name], name_of(hook), name))
            feeders[name] = name_of(hook)


def declared_feeds(hook: Any) -> list[Tensor | str]:
    """Return the fed tensors, or their names, that a hook or callback declares."""
    feeds = attribute_of(hook, "feeds", ())
    return list(feeds) if isinstance(feeds, (list, tuple, set, frozenset)) else [feeds]


class FeedLedger:
    """Records which hook feeds which tensor in the current run."""

    def __init__(self) -> None:
        self._context: Any = None
        self._feeders: dict[str, str] = {}

    def enter(self, context: Any, hook: Any, feeds: Mapping[Tensor | str, Any]) -> None:
        """Record the feeds of one hook.

        Raises:
            SettingsError: another hook or the caller of the run feeds the same tensor, or a tensor is a variable's
                handle.
        """
        if context is not self._context:
            self._context = context
            self._feeders = {_name(tensor): "the program itself, in this run,"
                             for tensor in context.original_args.feed_dict or {}}
        for tensor in feeds:
            name = _name(tensor)
            if name in self._feeders:
                raise SettingsError(_conflict(self._feeders[name], name_of(hook), name))
            self._feeders[name] = name_of(hook)
            if context.session.graph.as_graph_element(tensor).dtype == tf.resource:
                raise SettingsError(
                    f"{name_of(hook)} feeds '{name}', which is the handle of a variable, not its value: create the "
                    "variable with tf1.get_variable(..., use_resource=False), or assign to it.")


def _conflict(first_feeder: str, second_feeder: str, tensor: str) -> str:
    return (f"{first_feeder} and {second_feeder} both feed the tensor '{tensor}': remove one of them, or let them "
            "belong to different runs (belong_to).")


def _name(tensor: Tensor | str) -> str:
    name = tensor if isinstance(tensor, str) else tensor.name
    return name if ":" in name else f"{name}:0"
