"""The kinds of `session.run` that a program makes, and the kinds that a hook belongs to.

TensorFlow's hooked session calls every hook at every run. Here each run has a kind (`run_as`), and a callback or hook
declares the kinds it belongs to (`belong_to`). A hook is called only at runs of its kinds. The default of both is the
train step.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from towernmt.core.errors import SettingsError

T = TypeVar("T")


class Run(enum.Enum):
    """A kind of `session.run`. A hook or a callback sees only the kinds that it belongs to; see `belong_to`."""

    TRAIN_STEP = "train step"
    ACCUMULATION = "accumulation"
    """A batch of an update cycle before the last one: its gradients are only collected."""
    SAMPLING = "sampling"
    VALIDATION = "validation"
    DATA = "data"
    """A run that only fetches data for another run."""


_CURRENT_RUN: ContextVar[Run] = ContextVar("towernmt_run", default=Run.TRAIN_STEP)


@contextmanager
def run_as(kind: Run) -> Iterator[None]:
    """Set the kind of all runs inside the block: only the hooks that belong to it see them.

    Raises:
        SettingsError: `kind` is not a `Run`.
    """
    if not isinstance(kind, Run):
        raise SettingsError(f"run_as({kind!r}): name a kind of run, one of {_kinds()}.")
    token = _CURRENT_RUN.set(kind)
    try:
        yield
    finally:
        _CURRENT_RUN.reset(token)


def current_run() -> Run:
    """Return the current kind of runs."""
    return _CURRENT_RUN.get()


def belong_to(hook: T, *runs: Any) -> T:
    """Set the runs that a callback or hook belongs to, and return the hook.

    A class may define the attribute `belongs_to` instead.

    Args:
        hook: a tensorpack `Callback` or a `tf1.train.SessionRunHook`.
        runs: kinds of runs; or operations or tensors, which stand for each run of any kind that computes one of them.

    Raises:
        SettingsError: `runs` is empty, or contains other objects.
    """
    hook.belongs_to = tuple(runs)  # type: ignore[attr-defined]
    runs_of(hook)
    return hook


def runs_of(hook: Any) -> tuple[Any, ...]:
    """Return the runs that `hook` belongs to; by default the train step.

    Raises:
        SettingsError: its attribute `belongs_to` is empty, or contains other objects than runs and operations.
    """
    runs = attribute_of(hook, "belongs_to", (Run.TRAIN_STEP,))
    if not isinstance(runs, tuple) or not runs or not all(
            isinstance(run, Run) or hasattr(run, "graph") for run in runs):
        raise SettingsError(f"{name_of(hook)} belongs to {runs!r}: name one or more of {_kinds()}, or operations "
                            "that its runs compute (belong_to).")
    return runs


def attribute_of(hook: Any, attribute: str, default: Any) -> Any:
    """Return an attribute of a callback or hook, or of the object that it wraps."""
    while hook is not None:
        if hasattr(hook, attribute):
            return getattr(hook, attribute)
        hook = _inner(hook)
    return default


def is_among(runs: Iterable[Any], fetches: Any) -> bool:
    """Return whether the current run, with these `fetches`, is among `runs`."""
    from tensorpack.tfutils.dependency import dependency_of_fetches

    kind = current_run()
    return any(run is kind if isinstance(run, Run) else dependency_of_fetches(fetches, run) for run in runs)


def name_of(hook: Any) -> str:
    """Return the name of a callback or hook for messages; a wrapper has the name of the wrapped object."""
    inner = _inner(hook)
    return type(hook).__name__ if inner is None else name_of(inner)


def _inner(hook: Any) -> Any:
    """Return the wrapped hook of a wrapper of towernmt or tensorpack, or None."""
    for attribute in ("wrapped", "_cb", "_hook", "cb"):
        inner = getattr(hook, attribute, None)
        if hasattr(inner, "before_run"):
            return inner
    return None


def _kinds() -> str:
    return ", ".join(f"Run.{kind.name}" for kind in Run)
