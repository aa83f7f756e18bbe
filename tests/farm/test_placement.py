"""The resources of each worker on a cluster."""

from __future__ import annotations

import pytest

from towernmt.farm.ray_workers import Resources, max_worker_resources


@pytest.mark.parametrize("machines, workers, gpus, processors", [
    ([Resources(2, 0)], 2, 0, 1), ([Resources(8, 0)], 3, 0, 2), ([Resources(8, 0), Resources(8, 0)], 2, 0, 8),
    ([Resources(8, 0), Resources(4, 0)], 2, 0, 4), ([Resources(2, 0)], 5, 0, 1), ([], 1, 0, 1),
    ([Resources(64, 8), *[Resources(96, 0)] * 10], 4, 2, 16), ([Resources(8, 4), Resources(8, 4)], 2, 4, 8)])
def test_workers_share_the_processors_of_machines_that_have_the_gpus(
        machines: list[Resources], workers: int, gpus: int, processors: int) -> None:
    assert max_worker_resources(machines, workers, gpus) == Resources(processors, gpus)
