"""The world of a training: the processes that make each update together, which of them writes, and how they agree.

Most trainings have one process, which is the world unless `in_world` names another. A process belongs to one world at
a time. Call `present_world()` for it: no other function says which process writes or how many there are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from towernmt.core.errors import SettingsError

T = TypeVar("T", bound=float)


class Decision(enum.IntEnum):
    """What a process wants to do next. The largest wish of all processes counts (`World.agree`)."""

    GO_ON = 0
    SKIP_BATCH = 1
    """Leave a batch out that does not fit into memory."""
    END = 2
    """End normally: at a limit, by a signal, without further improvement, at the end of the data."""
    DIVERGED = 3
    """End by an error: a value is not finite."""


@dataclass(frozen=True)
class TowerPlace:
    """Where a tower stands among all towers of the world.

    Attributes:
        index: from 0 to `total - 1`. It decides which rows of a batch the tower gets, and which dropout.
        total: towers in all processes together.
    """

    index: int
    total: int


class World:
    """One process's view of all processes that train one model together.

    Every process has the same number of towers. A world of several processes derives from this class: it says how they
    `agree`. Its gradients are summed by a `GradientReducer` (`towernmt.optim.gradients`).

    Args:
        process: which one this is, from 0.
        processes: how many there are.

    Raises:
        SettingsError: there is no such process.
    """

    def __init__(self, process: int = 0, processes: int = 1) -> None:
        if not 0 <= process < processes:
            raise SettingsError(f"There is no process {process} in a world of {processes}: number them from 0 to "
                                f"{max(0, processes - 1)}.")
        self.process, self.processes = process, processes

    @property
    def is_chief(self) -> bool:
        """Whether this process writes: checkpoints, events, logs, the run's directory. The others write no file."""
        return self.process == 0

    def tower(self, index: int, towers: int) -> TowerPlace:
        """The place of tower `index` of the `towers` of this process."""
        return TowerPlace(self.process * towers + index, self.processes * towers)

    def session_target(self, config: Any) -> str:
        """The TensorFlow server that a training's session belongs to; "" for a session of this process alone.

        Args:
            config: the session's `ConfigProto`; a world of several processes sets in it how they find each other.
        """
        return ""

    def run_hooks(self) -> list[Any]:
        """TensorFlow's hooks for the session of the train step, called before the callbacks'; none in one process."""
        return []

    def agree(self, wish: T) -> T:
        """The largest wish of all processes: what each of them then does.

        Every decision that would take the processes apart goes through here. All processes must call it equally often
        and in the same order; it may be called inside and outside of a session. One process decides alone.

        Args:
            wish: a `Decision`, a bool, or a number such as seconds; of the same kind in every process.
        """
        return wish

    def exchange(self, data: bytes) -> list[bytes]:
        """What each process gives, in their order. All must call it equally often, as `agree`."""
        return [data]


_present = World()


def present_world() -> World:
    """The world of this process; a world of one process unless `in_world` names another."""
    return _present


@contextmanager
def in_world(world: World) -> Iterator[World]:
    """Trainings inside are made by all processes of `world`. Enter it before a run or trainer is made."""
    global _present
    before, _present = _present, world
    try:
        yield world
    finally:
        _present = before
