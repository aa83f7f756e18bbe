"""What each worker gets of a cluster."""

from __future__ import annotations

import pytest

from towernmt.jobs.attempt import Machine, Share, largest_share


@pytest.mark.parametrize("machines, workers, gpus, processors", [
    ([Machine(2, 0)], 2, 0, 1), ([Machine(8, 0)], 3, 0, 2), ([Machine(8, 0), Machine(8, 0)], 2, 0, 8),
    ([Machine(8, 0), Machine(4, 0)], 2, 0, 4), ([Machine(2, 0)], 5, 0, 1), ([], 1, 0, 1),
    ([Machine(64, 8), *[Machine(96, 0)] * 10], 4, 2, 16), ([Machine(8, 4), Machine(8, 4)], 2, 4, 8)])
def test_workers_share_the_processors_of_machines_that_have_the_gpus(
        machines: list[Machine], workers: int, gpus: int, processors: int) -> None:
    assert largest_share(machines, workers, gpus) == Share(processors, gpus)
