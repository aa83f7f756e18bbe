"""Join the world that the environment describes, and refuse differences between its processes before training.

The fingerprint of the code is compared too, because workers with another version or a changed copy would train
different models.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from towernmt.cluster.cluster_description import Cluster, cluster_from_environment
from towernmt.core.errors import DataError, DivergenceError, SettingsError
from towernmt.core.world import World, current_world, in_world

MISSING = "(nothing)"
_joined: dict[Cluster, Any] = {}
"""The worlds of this process; TensorFlow cannot end a server, so further training uses the same world."""


class DifferentBatchesError(DataError):
    """The processes no longer read the same batches. All of them raise it, after the same step."""


@contextmanager
def joined_world(timeout: float, cpu_towers: int = 1) -> Iterator[World]:
    """Join the world of `TF_CONFIG` or SLURM, or keep the present world if they describe no other worker.

    At the end all processes wait for each other, so that none ends while another still needs it.

    Args:
        timeout: seconds that a process waits for the others.
        cpu_towers: number of towers on the CPU in this process; 0 if its towers are on the chosen GPUs.

    Yields:
        the world.

    Raises:
        SettingsError: the description of the cluster is invalid, or a port is in use.
        WorkerLostError: another process was lost.
    """
    cluster = cluster_from_environment(os.environ)
    if cluster is None or current_world().processes > 1:
        yield current_world()
        return
    from tensorpack.utils import logger  # imports TensorFlow

    from towernmt.cluster.tensorflow_world import TensorFlowWorld

    if cluster not in _joined:
        _joined[cluster] = TensorFlowWorld(cluster, timeout, cpu_towers, logger.info)
    world = _joined[cluster]
    with in_world(world), world.naming_lost_workers(), world.watching_workers():
        try:
            yield world
        except (DivergenceError, DifferentBatchesError):    # all processes raise it
            world.leave()
            raise
        world.agree(True)


def refuse_differences(facts: Mapping[str, object]) -> None:
    """Compare the code, data and settings of all processes; do nothing in a world of one process.

    Args:
        facts: values that must be the same in every process, by name.

    Raises:
        SettingsError: in every process, if one differs from the first; the message names worker and value.
        WorkerLostError: another process was lost.
    """
    from tensorpack.utils import logger  # imports TensorFlow

    from towernmt.cluster.tensorflow_world import TensorFlowWorld

    world = current_world()
    if not isinstance(world, TensorFlowWorld):
        return
    role = "writes the run" if world.is_chief else f"does not write; worker 0 ({world.cluster.workers[0]}) does"
    logger.info(f"Worker {world.process} of {world.processes} ({world.cluster.workers[world.process]}) {role}. It "
                f"waits up to {world.timeout:g} s for the others to start.")
    own_facts = json.dumps({name: str(value) for name, value in facts.items()}, sort_keys=True)
    first, *others = map(json.loads, world.exchange(own_facts.encode()))
    differences = [difference for index, other in enumerate(others, 1)
                   for difference in worker_differences(first, other, index)]
    if differences:
        world.leave()    # a process that ends early must not seem lost to one that is still reading
        raise SettingsError(f"The workers differ: {'; '.join(differences)}. Start all workers with the same code, "
                            "data, settings and run directory.")


def refuse_different_batches(position: str | None, step: int, world: World) -> None:
    """Compare the numbers of the epoch, the block and the batch of all processes, after the same update.

    The processes read a source each by itself. If it changes at that time, one of them may read more pairs.

    Args:
        position: JSON of the data position of this process; None if it has none.
        step: number of updates.
        world: the processes.

    Raises:
        DifferentBatchesError: in every process, if the numbers differ.
    """
    content = json.loads(position) if position else None
    if isinstance(content, dict):   # the rest, such as the time of change of a file, may differ between machines
        content = {name: value for name, value in content.items() if name not in ("cursor", "weights")}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    number = int.from_bytes(digest[:6], "big")      # a float64 represents it exactly
    if world.agree(number) != -world.agree(-number):
        raise DifferentBatchesError(
            f"At step {step}, the workers no longer read the same batches, since a source has changed while they read "
            f"it (worker {world.process} is at {json.dumps(content)}). Start all workers again to resume from the last "
            "checkpoint, and do not change the sources while several workers read them; or prepare the data.")


def worker_differences(first: Mapping[str, str], other: Mapping[str, str], index: int) -> list[str]:
    """Return a clause for each fact that differs.

    Args:
        first: facts of worker 0, by name.
        other: facts of another worker, by name.
        index: number of the other worker.
    """
    names = sorted(set(first) | set(other))
    return [f"{name} is {other.get(name, MISSING)} in worker {index} and {first.get(name, MISSING)} in worker 0"
            for name in names if first.get(name, MISSING) != other.get(name, MISSING)]


def code_fingerprint() -> str:
    """Return 16 hexadecimal digits for the names and contents of all Python files of towernmt."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
