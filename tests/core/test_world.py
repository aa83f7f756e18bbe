"""The index of this process in its world, and agreements with the other processes."""

from __future__ import annotations

import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.world import Decision, TowerPosition, World, current_world, in_world


def test_one_process_is_a_world_that_writes_and_decides_alone() -> None:
    world = current_world()
    assert (world.process, world.processes, world.is_chief) == (0, 1, True)
    assert [world.tower(i, 2) for i in range(2)] == [TowerPosition(0, 2), TowerPosition(1, 2)]
    assert [world.agree(decision) for decision in Decision] == list(Decision)
    assert world.agree(2.5) == 2.5 and world.agree(False) is False


def test_towers_are_counted_over_all_processes() -> None:
    tower_places = [World(process, 3).tower(i, 2) for process in range(3) for i in range(2)]
    assert tower_places == [TowerPosition(index, 6) for index in range(6)]
    assert [World(process, 3).is_chief for process in range(3)] == [True, False, False]


def test_a_world_holds_until_it_is_left_also_by_an_error() -> None:
    with pytest.raises(KeyError), in_world(World(1, 2)) as world:
        assert current_world() is world
        raise KeyError
    assert current_world().processes == 1


@pytest.mark.parametrize("process, processes", [(2, 2), (-1, 2), (0, 0)])
def test_a_process_that_cannot_be_is_refused(process: int, processes: int) -> None:
    with pytest.raises(SettingsError, match="There is no process"):
        World(process, processes)
