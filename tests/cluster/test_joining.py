"""Comparing the data positions of several processes."""

from __future__ import annotations

from typing import Any

import pytest

from towernmt.cluster.joining import refuse_different_batches
from towernmt.core.errors import DataError
from towernmt.core.world import World
from towernmt.dataflow.batches.batch import Position


class Recorded(World):
    """A world whose other process makes the requests that were recorded before."""

    def __init__(self, process: int, others: list[int]) -> None:
        super().__init__(process, 2)
        self.requests: list[int] = []
        self._others = iter(others)

    def agree(self, request: Any) -> Any:
        self.requests.append(request)
        return max(request, next(self._others, request))


POSITION = Position(3, 4, 5, {"draw": 7}).to_json()


@pytest.mark.parametrize(("other", "same"), [
    (POSITION, True), (Position(3, 4, 5, {"draw": 8}, [1.0]).to_json(), True), (Position(3, 4, 6).to_json(), False),
    (Position(4).to_json(), False), (None, False), ('{"datapoints": 12}', False)])
def test_processes_with_different_positions_are_all_ended(other: str | None, same: bool) -> None:
    first = Recorded(0, [])
    refuse_different_batches(POSITION, 100, first)
    second = Recorded(1, first.requests)
    if same:
        refuse_different_batches(other, 100, second)
        return
    for world, position in ((second, other), (Recorded(0, second.requests), POSITION)):
        with pytest.raises(DataError, match=f"At step 100, the workers no longer read .*worker {world.process} is at"):
            refuse_different_batches(position, 100, world)
