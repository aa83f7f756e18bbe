"""The training towers of this process: their devices, their indices in the world, their shared variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorpack.tfutils.common import get_global_step_var
from tensorpack.tfutils.tower import TrainTowerContext
from tensorpack.utils import logger
from tensorpack.utils.naming import MOVING_SUMMARY_OPS_KEY

from towernmt.check.tower_rules import why_no_cost
from towernmt.core.errors import SettingsError, TowerRuleError
from towernmt.core.gpus import with_gpu_numbers
from towernmt.core.machine import processors
from towernmt.core.session import missing_gpu, use_gpus, use_no_gpu
from towernmt.core.tensors import Graph, Operation, Optimizer, Tensor
from towernmt.core.terminal_log import DETAIL
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import TowerPosition, World
from towernmt.optim.gradients import GradsAndVars

CPU = "/cpu:0"
CPU_TOWERS = 64
"""Number of towers that are allowed on the CPU of any machine."""
_VARIABLE_OPS = ("VarHandleOp", "VariableV2")


def tower_devices(gpus: Sequence[int] | None, towers: int | None) -> list[str]:
    """Return TensorFlow's name of the device of each tower; the sessions of this process then see the GPUs.

    Raises:
        SettingsError: both or neither are set, a GPU is missing, or the number of towers is below 1 or too large.
    """
    if gpus is not None and towers is not None:
        raise SettingsError("--gpu and --towers exclude each other: --gpu runs a tower a GPU, "
                            "--towers N runs N towers on the CPU.")
    if gpus is None:
        if towers is None or towers < 1:
            raise SettingsError("a trainer needs at least one tower: pass gpus=[0, 1, ...] or towers=N.")
        most = max(CPU_TOWERS, 4 * processors())
        if towers > most:
            raise SettingsError(f"--towers {towers}: this machine with {processors()} processors allows {most} towers; "
                                "one tower per processor already uses them all.")
        use_no_gpu()
        return [CPU] * towers
    if not gpus:
        raise SettingsError("--gpu needs at least one GPU number, for example --gpu 0,1.")
    if missing := missing_gpu(gpus):
        raise SettingsError(f"--gpu {','.join(map(str, gpus))}: {missing}; use --towers {len(gpus)} to run the same "
                            "towers on the CPU.")
    return use_gpus(gpus)


def device_if_gpu(device: str) -> str | None:
    """Return a device if it is a GPU; None on the CPU, for which `tf1.device` changes nothing."""
    return device if "gpu" in device.lower() else None


def device_of_operations(device: str, variable_device: str) -> Callable[[Operation], str]:
    """Return the device function of a tower for `tf1.device`.

    The tower's operations go to `device`, and the variables that all towers share to `variable_device`. An operation
    that already has a device, by a `tf.device` inside the tower (such as the CPU for the input's shares), keeps it.
    """
    return lambda operation: operation.device or (variable_device if operation.type in _VARIABLE_OPS else device)


class WorldTowerContext(TrainTowerContext):
    """tensorpack's context of a training tower, whose `index` and `total` count the towers of all processes.

    The first tower of each process makes that process's variables and summaries; in tensorpack it is tower 0 alone.

    Args:
        name: the tower's name scope; "" for none.
        position: the tower's index among all towers of the world.
        first: whether it is the first tower of its process.
    """

    def __init__(self, name: str, position: TowerPosition, first: bool) -> None:
        super().__init__(name, index=position.index, total=position.total)
        self._first = first

    @property
    def is_main_training_tower(self) -> bool:
        return self._first

    @property
    def has_own_variables(self) -> bool:
        return self._first and not self._original_vs_reuse

    def _keys_to_freeze(self) -> list[str]:
        return [] if self._first else [tf1.GraphKeys.SUMMARIES, MOVING_SUMMARY_OPS_KEY]


def build_training_towers(tower_fn: Callable[[], GradsAndVars], devices: Sequence[str], world: World,
                          getter: Callable[[int], Any] | None = None) -> list[GradsAndVars]:
    """Return the gradients of each tower of this process, each built on its device by `tower_fn`.

    Variables are on the first device, under names that do not depend on the number of towers.

    Args:
        tower_fn: builds a tower and returns its gradients.
        devices: the device of each tower.
        world: the processes that train together.
        getter: called with the index of each tower in this process before it is built; returns the custom getter of
            its variables for `tf1.variable_scope`, or None. None: the towers share the variables of the first one.
    """
    return [_build_tower(tower_fn, index, devices, world, None if getter is None else getter(index))
            for index in range(len(devices))]


def _build_tower(tower_fn: Callable[[], GradsAndVars], index: int, devices: Sequence[str], world: World,
                 getter: Any) -> GradsAndVars:
    position = world.tower(index, len(devices))
    device = with_gpu_numbers(devices[index])
    logger.info(f"Building training tower {position.index + 1} of {position.total} on {device} ...", extra=DETAIL)
    name = f"tower{index}" if len(devices) > 1 else ""
    context = WorldTowerContext(name, position, first=index == 0)
    scope = tf1.variable_scope(tf1.get_variable_scope(), reuse=index > 0 or None, custom_getter=getter)
    with tf1.device(device_of_operations(devices[index], devices[0])), scope, context:
        return tower_fn()


def share_of_cost(cost_fn: Callable[..., Any], towers: int) -> Callable[..., Any]:
    """Return `cost_fn` divided by the number of towers, so that the sum of their gradients is that of the mean cost.

    Dividing the summed gradients instead would take another pass over all of them.

    Args:
        cost_fn: tensorpack's `get_cost_fn`, which makes the cost of a tower from its inputs. The returned function
            raises TowerRuleError if the result is not a cost.
        towers: the number of towers in the world.
    """
    def share(*inputs: Tensor) -> Any:
        cost = cost_fn(*inputs)
        if problem := why_no_cost(cost):
            raise TowerRuleError(f"The tower function breaks a rule: [cost] it returns {problem}.")
        return cost / towers if towers > 1 else cost

    return share


def outside_towers(get_opt_fn: Callable[[], Optimizer], count_flush: Operation) -> Callable[[], Optimizer]:
    """Return tensorpack's `get_opt_fn`, whose operations have the same names for any number of towers.

    tensorpack calls `get_opt_fn` in the first tower, after the cost. There an operation `learning_rate` would be named
    `tower0/learning_rate`, and a hook would not find it.

    Args:
        get_opt_fn: makes the optimizer.
        count_flush: counts the step of an update that runs no tower; it then waits for the optimizer's reads.
    """
    def make() -> Optimizer:
        before = len(tf1.get_default_graph().get_operations())
        with tf1.name_scope(None):
            optimizer = get_opt_fn()
        count_after_reading(count_flush, before)
        return optimizer

    return make


def count_after_reading(count_step: Operation, before: int) -> None:
    """Make `count_step` wait for the operations that read the global step.

    A learning rate or a cost that depends on the step then sees the number of updates before this one, as with
    `Optimizer.minimize`. Otherwise the order of the threads would decide.

    Args:
        count_step: the operation that adds one to the global step.
        before: the number of operations that the default graph had; `count_step` waits only for newer ones.
    """
    new_operations = tf1.get_default_graph().get_operations()[before:]
    count_step._add_control_inputs(_readers(get_global_step_var().handle, set(new_operations)))


_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_CALLS = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "PartitionedCall",
          "StatefulPartitionedCall")
_SWITCHES = ("Switch", "Enter")


def _readers(handle: Tensor, operations: set[Operation]) -> list[Operation]:
    """Return operations that complete only after a variable has been read.

    A branch, a loop or a function takes the handle of a variable and reads the variable inside. A control dependency on
    such an operation need not wait for the read, and in TensorFlow 1's control flow the read may not run at all. So the
    outside operations that consume the result are returned for both. The call of a function is returned as well,
    because TensorFlow's arithmetic optimizer may replace its consumers and drop the dependency.

    Args:
        handle: the handle of the variable.
        operations: the operations to search. Assignments are ignored, because waiting for them would run them.
    """
    readers: list[Operation] = []
    visited: set[Operation] = set()
    tensors = [handle]
    while tensors:
        for operation in tensors.pop().consumers():
            if operation not in operations or operation in visited or operation.type in _ASSIGNMENTS:
                continue
            visited.add(operation)
            inside = operation._get_control_flow_context() is not None
            if inside or operation.type in _CALLS + _SWITCHES:
                tensors += operation.outputs
            if not inside and operation.type not in _SWITCHES:
                readers.append(operation)
    return readers


def add_means_of_towers(towers: Sequence[Any]) -> None:
    """Add the means of the cost, `loss` and `nll` over the training towers, under the names of a single tower.

    With several towers the tensors are named `tower0/loss` and so on, and a hook that looks for `loss:0` would not find
    it. The means are computed only if a hook or callback fetches them.

    Args:
        towers: the handles of the training towers of this process.
    """
    if len(towers) < 2:
        return
    graph = tf1.get_default_graph()
    costs = [tower.output for tower in towers]
    scalars: dict[str, list[Any]] = {}
    if isinstance(costs[0], tf.Tensor):
        scalars[str(costs[0].op.name).removeprefix(f"{towers[0].ns_name}/")] = costs
    for name in ("loss", "nll"):
        tensors = [_find(graph, f"{tower.ns_name}/{name}:0") for tower in towers]
        if name not in scalars and all(t is not None and t.shape.rank == 0 for t in tensors):
            scalars[name] = tensors
    for name, tensors in scalars.items():
        if name and _find(graph, f"{name}:0") is None:
            with tf1.name_scope(None), tf1.device(CPU):
                tf.identity(tf.add_n(tensors, name=f"{name}_of_towers") / len(tensors), name=name)


def _find(graph: Graph, name: str) -> Tensor | None:
    try:
        return graph.get_tensor_by_name(name)
    except KeyError:
        return None
