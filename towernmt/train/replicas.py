"""Copies of the weights on the GPUs of all towers, which sum their gradients by collectives and make equal updates.

Without copies, all weights go from the first GPU to the others in each step, and all gradients come back. With them,
only gradients travel, once for each update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from towernmt.core.errors import SettingsError, TowerRuleError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Operation, Optimizer, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradients import Accumulator, GradsAndVars
from towernmt.optim.optimizer import updates_all_rows
from towernmt.train.collectives import Collectives

T = TypeVar("T")


class Replicas:
    """The copies of all weights for each tower after the first, and the updates of all towers.

    The first tower has the variables of the run, which checkpoints contain. The copies, and the copies of the
    optimizer's state, are local variables. Every update starts from equal values and applies equal sums of gradients,
    so copies stay equal without being sent again. `sync` makes them equal: before the first update, after one that
    failed halfway, and after other operations have assigned weights.

    Args:
        devices: the device of each tower.
        collectives: sums the gradients of the towers.
        make_optimizer: makes the optimizer of the first tower.
        make_another: makes the optimizer of another tower, which has separate slots.

    Attributes:
        collectives: sums the gradients of the towers.
    """

    def __init__(self, devices: Sequence[str], collectives: Collectives, make_optimizer: Callable[[], Optimizer],
                 make_another: Callable[[], Optimizer]) -> None:
        self._devices, self.collectives = list(devices), collectives
        self._make_optimizer, self._make_another = make_optimizer, make_another
        self._tower = 0     # which is being built
        self._optimizers: list[Optimizer] = []
        self._weights: list[dict[Any, Variable]] = [{}]     # of each tower, its copies by the weight's `ref()`
        self._originals: dict[str, Variable] = {}           # of the first tower's optimizer, by the requested name
        self._pairs: list[tuple[Variable, Variable]] = []   # each copy and its original

    def getter(self, tower: int) -> Callable[..., Variable] | None:
        """Return the custom getter for the variable scope of a tower, which is built next."""
        self._tower = tower
        if tower == 0:
            return None
        copies = {variable.ref(): self._copy(variable, tower) for variable in tf1.trainable_variables()}
        self._weights.append(copies)

        def get(getter: Callable[..., Variable], name: str, *arguments: Any, **options: Any) -> Variable:
            variable = getter(name, *arguments, **options)
            return copies.get(variable.ref(), variable) if hasattr(variable, "ref") else variable

        return get

    def _copy(self, variable: Variable, tower: int) -> Variable:
        dtype, maps = variable.dtype.base_dtype, graph_state().maps_in_kernel
        with tf1.device(self._devices[tower]), tf1.name_scope(None):
            copy = tf1.Variable(lambda: tf.zeros(variable.shape, dtype), trainable=False, use_resource=True,
                                name=f"{_scope(tower)}/{variable.op.name}", dtype=dtype,
                                collections=[tf1.GraphKeys.LOCAL_VARIABLES])
        self._pairs.append((copy, variable))
        if variable.op.name in maps:
            maps[copy.op.name] = maps[variable.op.name]
        return copy

    def optimizer(self) -> Any:
        """Return the optimizer of the tower that is being built, for the variables of the first tower."""
        if self._tower == len(self._optimizers):
            with self._state_of(self._tower):
                new_optimizer = self._make_another() if self._tower else self._make_optimizer()
            if any(new_optimizer is previous for previous in self._optimizers):
                raise SettingsError("The function that makes the optimizer returns the same one again, but each GPU "
                                    "needs a separate optimizer with its slots: make a new one in each call, or set "
                                    "train.collectives=sum.")
            self._optimizers.append(new_optimizer)
        optimizer = self._optimizers[self._tower]
        return optimizer if self._tower == 0 else _OptimizerOfCopies(optimizer, self._weights[self._tower])

    @contextmanager
    def _state_of(self, tower: int) -> Iterator[None]:
        """Make the variables that an optimizer creates inside those of a tower."""
        prefix, state = f"{_scope(tower)}/", graph_state()

        def keep(create: Callable[..., Variable], **options: Any) -> Variable:
            variable = create(**options)
            self._originals.setdefault(str(options.get("name")), variable)
            return variable

        def make_local(create: Callable[..., Variable], **options: Any) -> Variable:
            name = str(options.get("name")).removeprefix(prefix)
            if name not in self._originals:
                raise SettingsError(f"The optimizer makes the variable '{name}' for a second GPU and not for the "
                                    "first: set train.collectives=sum.")
            copy = create(**{**options, "trainable": False, "collections": [tf1.GraphKeys.LOCAL_VARIABLES]})
            self._pairs.append((copy, self._originals[name]))
            return copy

        state.is_replica = tower > 0
        try:
            with tf1.variable_creator_scope(make_local if tower else keep):
                yield
        finally:
            state.is_replica = False

    def accumulators(self, towers: Sequence[GradsAndVars], weight: Tensor) -> list[Accumulator]:
        """Return the sums of gradients over the batches of an update cycle, on each tower's device."""
        return [Accumulator(gradients, weight, self._devices[tower], _scope(tower) if tower else "")
                for tower, gradients in enumerate(towers)]

    def update(self, towers: Sequence[GradsAndVars], name: str) -> Operation:
        """Return the operation that sums the gradients of the towers, and updates each tower's weights.

        Args:
            towers: gradients of each tower, with the variables of the first tower, in the same order.
            name: name of the operation.
        """
        _refuse_missing(towers)
        updates = []
        sums = self.collectives.sums(towers, with_rows=not updates_all_rows(self._optimizers[0]))
        for tower, gradients in enumerate(sums):
            with tf1.device(self._devices[tower]), self._state_of(tower):
                if tower == 0:
                    updates.append(self._optimizers[0].apply_gradients(gradients, name=f"{name}_of_tower0"))
                    continue
                copies = self._weights[tower]
                with tf1.name_scope(f"{_scope(tower)}/"):
                    updates.append(self._optimizers[tower].apply_gradients(
                        [(gradient, copies[variable.ref()]) for gradient, variable in gradients],
                        name=f"{name}_of_tower{tower}"))
        return tf.group(*updates, name=name)

    def sync(self) -> Operation:
        """Return the operation that assigns the values of the first tower to all copies; call it after `update`."""
        with tf1.name_scope("sync_replicas"):
            return tf.group(*[copy.assign(original.read_value(), read_value=False) for copy, original in self._pairs])


def uncached(function: Callable[[], T]) -> Callable[[], T]:
    """Return a function or method without the cache of tensorpack's or Python's memoizing decorators."""
    while hasattr(function, "__wrapped__"):
        owner = getattr(function, "__self__", None)
        function = function.__wrapped__ if owner is None else partial(function.__wrapped__, owner)
    return function


class _OptimizerOfCopies:
    """An optimizer that computes the gradients of a tower's copies and names them by the first tower's variables."""

    def __init__(self, optimizer: Optimizer, copies: dict[Any, Variable]) -> None:
        self._optimizer, self._copies = optimizer, copies

    def compute_gradients(self, loss: Tensor, var_list: Sequence[Variable], **options: Any) -> GradsAndVars:
        """Return the gradient of `loss` for the copy of each variable, with the variable itself."""
        pairs = self._optimizer.compute_gradients(
            loss, var_list=[self._copies[variable.ref()] for variable in var_list], **options)
        return [(gradient, variable) for (gradient, _), variable in zip(pairs, var_list, strict=True)]


def _scope(tower: int) -> str:
    return f"replica{tower}"


def _refuse_missing(towers: Sequence[GradsAndVars]) -> None:
    first = [variable.op.name for _, variable in towers[0]]
    for tower, gradients in enumerate(towers[1:], 1):
        names = {variable.op.name for _, variable in gradients}
        if missing := [name for name in first if name not in names]:
            raise TowerRuleError(
                f"The gradient of '{missing[0]}' exists in the first tower, but not in tower {tower}: the tower "
                "function must get its variables by tf1.get_variable in each call, or set train.collectives=sum.")
