"""Join the world that the environment names, and see what differs among its processes before they train."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from towernmt.cluster.description import Cluster, cluster_from_environment
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.world import World, in_world, present_world

MISSING = "(nothing)"
_joined: dict[Cluster, Any] = {}
"""The worlds of this process: TensorFlow cannot end a server, so a second training goes on with the first one's."""


@contextmanager
def joined_world(timeout: float, cpu_towers: int = 1) -> Iterator[World]:
    """The world of `TF_CONFIG` or SLURM; the present one where they name no other worker, or where it was joined.

    At the end all wait for each other, so that none is missing while another still needs it.

    Args:
        timeout: seconds that a process waits for the others.
        cpu_towers: towers on the CPU in this process, which share its processors.
    Raises:
        SettingsError: a cluster that cannot be understood, or a port that is taken.
        WorkerLostError: another process is gone.
    """
    cluster = cluster_from_environment(os.environ)
    if cluster is None or present_world().processes > 1:
        yield present_world()
        return
    from tensorpack.utils import logger  # imports TensorFlow

    from towernmt.cluster.tensorflow_world import TensorFlowWorld

    if cluster not in _joined:
        _joined[cluster] = TensorFlowWorld(cluster, timeout, cpu_towers, logger.info)
    world = _joined[cluster]
    with in_world(world), world.losses_named(), world.watched():
        try:
            yield world
        except DivergenceError:     # all have found it together
            world.part()
            raise
        world.agree(True)


def refuse_differences(facts: Mapping[str, object]) -> None:
    """Compare what this process trains with by what the others do; nothing is compared in a world of one process.

    Args:
        facts: what must be the same in every process, by name.
    Raises:
        SettingsError: in every process, where one differs from the first: which, in what.
        WorkerLostError: another process is gone.
    """
    from tensorpack.utils import logger  # imports TensorFlow

    from towernmt.cluster.tensorflow_world import TensorFlowWorld

    world = present_world()
    if not isinstance(world, TensorFlowWorld):
        return
    task = "writes for all" if world.is_chief else f"leaves writing to worker 0 ({world.cluster.workers[0]})"
    logger.info(f"Worker {world.process} of {world.processes} ({world.cluster.workers[world.process]}) {task}, and "
                f"waits {world.timeout:g} s at most for the others to begin.")
    texts = world.exchange(json.dumps({name: str(value) for name, value in facts.items()}, sort_keys=True).encode())
    found = [difference for i, text in enumerate(texts[1:], 1)
             for difference in differences(json.loads(texts[0]), json.loads(text), i)]
    if found:
        world.part()    # who ends first must not seem lost to who has not read everything yet
        raise SettingsError(f"The workers differ: {'; '.join(found)}: start all with the same code, data and settings, "
                            "and with the same directory of the run.")


def differences(first: Mapping[str, str], other: Mapping[str, str], index: int) -> list[str]:
    """What differs between worker 0 and another, each as a short text."""
    names = sorted(set(first) | set(other))
    return [f"{name} is {other.get(name, MISSING)} in worker {index} and {first.get(name, MISSING)} in worker 0"
            for name in names if first.get(name, MISSING) != other.get(name, MISSING)]
