"""The trainer of several workers: the synchronous one, whose gradients are summed over all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towernmt.cluster.all_reduce import AllReduce
from towernmt.train.trainer import SyncMultiGPUTrainer


class DistributedTrainer(SyncMultiGPUTrainer):
    """One update from the towers of all workers of the present world, made and used inside of `joined_world`.

        with joined_world(timeout=600):
            launch_train_with_config(config, DistributedTrainer(towers=1))

    `towernmt.run.train`, and so `towernmt train`, join the world by themselves, and need no other trainer. In a world
    of one process it is `SyncMultiGPUTrainer`.

    Args:
        gpus, towers, others: as `SyncMultiGPUTrainer` takes them; every worker has as many towers.
        wire, transport: how gradients travel; see `AllReduce`.
    """

    def __init__(self, gpus: Sequence[int] | int | None = None, towers: int | None = None, *, wire: str = "float32",
                 transport: str = "ring", **others: Any) -> None:
        super().__init__(gpus, towers, **{"reducer": AllReduce(wire, transport), **others})
