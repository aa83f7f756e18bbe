"""Room for workers on a Ray cluster: what each gets, and how many there is room for now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError

_SHORT = 2      # seconds in which room that there is, is found


class Machine(NamedTuple):
    """What a machine of the cluster has.

    Attributes:
        processors: as Ray counts them.
        gpus: the same.
    """

    processors: int
    gpus: int


class Share(NamedTuple):
    """What each worker gets.

    Attributes:
        processors: at least 1.
        gpus: 0 for towers on the CPU.
    """

    processors: int
    gpus: int

    def __str__(self) -> str:
        gpus = f", {self.gpus} {'GPU' if self.gpus == 1 else 'GPUs'}" if self.gpus else ""
        return f"{self.processors} {'processor' if self.processors == 1 else 'processors'}{gpus}"


def largest_share(machines: Sequence[Machine], workers: int, gpus: int) -> Share:
    """The most processors that each of so many workers can have; 1 if there is no room for them all.

    Args:
        gpus: that each worker needs.
    """
    def room(processors: int) -> int:
        return sum(min(machine.processors // processors, machine.gpus // gpus if gpus else workers)
                   for machine in machines)

    most = max((machine.processors for machine in machines), default=1)
    return Share(next((count for count in range(most, 1, -1) if room(count) >= workers), 1), gpus)


def machines_of_cluster() -> list[Machine]:
    """The machines of the cluster that this process is connected to."""
    import ray

    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Machine(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in there]


def find_room(most: int, least: int, share: Share, seconds: float, watch: Callable[[], None],
              say: Callable[[str], None]) -> tuple[Any, int]:
    """Room for as many workers as possible, side by side on as few machines as have it.

    Args:
        most: workers.
        least: workers.
        seconds: that the cluster has for the largest number, since machines may be about to come or to get free.
        watch: is called again and again meanwhile; what it raises ends the search.
        say: is called where that takes long.
    Returns:
        the placement group, and how many workers it has room for.
    Raises:
        SettingsError: there is not even room for the least number.
    """
    from ray.util import placement_group, remove_placement_group

    bundle = {"CPU": share.processors, **({"GPU": share.gpus} if share.gpus else {})}
    for count in range(most, least - 1, -1):
        group = placement_group([bundle] * count, strategy="PACK")
        try:
            if _ready(group, min(_SHORT, seconds), watch):
                return group, count
            if count == most and seconds > _SHORT:
                say(f"Waiting {seconds:g} s at most for room for {most} workers of {share} ...")
                if _ready(group, seconds - _SHORT, watch):
                    return group, count
        except BaseException:
            with suppress(Exception):   # the first is what matters
                remove_placement_group(group)
            raise
        remove_placement_group(group)
    there = ", ".join(str(Share(*machine)) for machine in machines_of_cluster()) or "none"
    raise SettingsError(f"Within {seconds:g} s the Ray cluster had no room for {least} "
                        f"{'worker' if least == 1 else 'workers'} of {share} (its machines: {there}): ask for fewer "
                        "workers, or for less for each, or wait longer (--min-workers, --cpus, --wait).")


def _ready(group: Any, seconds: float, watch: Callable[[], None]) -> bool:
    end = time.monotonic() + seconds
    while not group.wait(timeout_seconds=1):
        watch()
        if time.monotonic() > end:
            return False
    return True
