"""The training towers of this process: each knows its place in the world, and all read the same variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorpack.tfutils.tower import TrainTowerContext
from tensorpack.utils import logger
from tensorpack.utils.naming import MOVING_SUMMARY_OPS_KEY

from towernmt.core.tensors import Tensor
from towernmt.core.terminal.terminal_log import DETAIL
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import TowerPlace, World
from towernmt.optim.gradients import GradsAndVars
from towernmt.train.devices import device_of_operations


class WorldTowerContext(TrainTowerContext):
    """tensorpack's context of a training tower, whose `index` and `total` count the towers of all processes.

    The first tower of each process makes that process's variables and summaries; in tensorpack it is tower 0 alone.

    Args:
        name: the tower's name scope; "" for none.
        place: among all towers of the world.
        first: whether it is the first of its process.
    """

    def __init__(self, name: str, place: TowerPlace, first: bool) -> None:
        super().__init__(name, index=place.index, total=place.total)
        self._first = first

    @property
    def is_main_training_tower(self) -> bool:
        return self._first

    @property
    def has_own_variables(self) -> bool:
        return self._first and not self._original_vs_reuse

    def _keys_to_freeze(self) -> list[str]:
        return [] if self._first else [tf1.GraphKeys.SUMMARIES, MOVING_SUMMARY_OPS_KEY]


def build_towers(tower_fn: Callable[[], GradsAndVars], devices: Sequence[str], world: World) -> list[GradsAndVars]:
    """What `tower_fn` returns in each tower of this process, on the devices given.

    Variables stand on the first one, under names that do not depend on the number of towers.
    """
    return [_build_tower(tower_fn, index, devices, world) for index in range(len(devices))]


def _build_tower(tower_fn: Callable[[], GradsAndVars], index: int, devices: Sequence[str], world: World
                 ) -> GradsAndVars:
    place = world.tower(index, len(devices))
    logger.info(f"Building training tower {place.index + 1} of {place.total} on {devices[index]} ...", extra=DETAIL)
    name = f"tower{index}" if len(devices) > 1 else ""
    context = WorldTowerContext(name, place, first=index == 0)
    scope = tf1.variable_scope(tf1.get_variable_scope(), reuse=index > 0 or None)
    with tf1.device(device_of_operations(devices[index], devices[0])), scope, context:
        return tower_fn()


def share_of_cost(cost_fn: Callable[..., Any], towers: int) -> Callable[..., Any]:
    """The cost divided by the number of towers, so that the sum of their gradients is the gradient of the mean.

    To divide the sum instead would be one more pass over all gradients.

    Args:
        cost_fn: tensorpack's `get_cost_fn`, which makes the cost of a tower from its inputs.
        towers: of the world.
    """
    def share(*inputs: Tensor) -> Any:
        cost = cost_fn(*inputs)
        return cost / towers if isinstance(cost, tf.Tensor) and towers > 1 else cost

    return share
