"""The world of a training: the processes that make each update together, which of them writes, and how they agree.

Most trainings have one process, which is the world unless `in_world` names another. A process belongs to one world at
a time. Call `current_world()` for it: no other function says which process writes or how many there are.
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
    """The next action that a process requests. The largest request of all processes counts (`World.agree`)."""

    CONTINUE = 0
    END = 1
    """End normally: at a limit, by a signal, without further improvement, or at the end of the data."""
    DIVERGED = 2
    """End with an error, because a value is not finite."""


@dataclass(frozen=True)
class TowerPosition:
    """Position of a tower among all towers of the world.

    Attributes:
        index: from 0 to `total - 1`. It determines the tower's rows of a batch, and its dropout.
        total: number of towers in all processes together.
    """

    index: int
    total: int


class World:
    """One process's view of all processes that train one model together.

    Every process has the same number of towers. A world of several processes derives from this class, and overrides
    `agree` and `exchange`. Its gradients are summed by a `GradientReducer` (`towernmt.optim.gradients`).

    Args:
        process: index of this process, from 0.
        processes: number of processes.

    Raises:
        SettingsError: the index is negative, or not below the number of processes.
    """

    def __init__(self, process: int = 0, processes: int = 1) -> None:
        if not 0 <= process < processes:
            raise SettingsError(f"There is no process {process} in a world of {processes}: number them from 0 to "
                                f"{max(0, processes - 1)}.")
        self.process, self.processes = process, processes

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints, events, logs and the run's directory. The others write no file."""
        return self.process == 0

    def tower(self, index: int, towers: int) -> TowerPosition:
        """Return the position of tower `index` of the `towers` of this process."""
        return TowerPosition(self.process * towers + index, self.processes * towers)

    def session_target(self, config: Any) -> str:
        """Return the address of the TensorFlow server of a training's session; "" for a session without a server.

        Args:
            config: the session's `ConfigProto`, to which a world of several processes adds their addresses.
        """
        return ""

    def run_hooks(self) -> list[Any]:
        """Return session hooks for the train step, which are called before the callbacks; none for one process."""
        return []

    def agree(self, request: T) -> T:
        """Return the largest request of all processes, which each of them then follows.

        Processes would diverge if one of them decided alone, so every such decision is made here. All processes must
        call this method equally often and in the same order, inside or outside of a session.

        Args:
            request: a `Decision`, a bool, or a number such as seconds; of the same type in every process.
        """
        return request

    def exchange(self, data: bytes) -> list[bytes]:
        """Return the data of all processes, in their order. All must call it equally often, as `agree`."""
        return [data]


_current_world = World()


def current_world() -> World:
    """Return the world of this process: a world of one process unless `in_world` sets another."""
    return _current_world


@contextmanager
def in_world(world: World) -> Iterator[World]:
    """Let all processes of `world` train together inside the block. Enter it before a run or trainer is created."""
    global _current_world
    enclosing, _current_world = _current_world, world
    try:
        yield world
    finally:
        _current_world = enclosing
