"""How long this process has been in what all processes do together.

TensorFlow has a time limit of its own for collectives. It keeps a thread for each of them until the time is over,
whether it has ended or not: at ten a step and ten minutes, thousands, until the system has no more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from towernmt.core.tf_compat import tf1


class Waits:
    """The present wait for other processes, if there is one."""

    def __init__(self) -> None:
        self._since: float | None = None

    def seconds(self) -> float:
        """How long it has lasted; 0 outside of one. May be asked by any thread."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def begin(self) -> None:
        """From here on this process needs the others."""
        self._since = time.monotonic()

    def end(self) -> None:
        """The others have answered."""
        self._since = None

    @contextmanager
    def one(self) -> Iterator[None]:
        """A wait."""
        self.begin()
        try:
            yield
        finally:
            self.end()


class WaitHook(tf1.train.SessionRunHook):
    """Makes each run of a session a wait: a failed one lasts until the next wait, such as that for an agreement."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def before_run(self, run_context: Any) -> None:
        self._waits.begin()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._waits.end()
