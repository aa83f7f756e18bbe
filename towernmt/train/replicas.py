"""Copies of the weights on the GPUs of all towers, which sum their gradients by collectives and make equal updates.

Without copies, all weights go from the first GPU to the others in each step, and all gradients come back. With them,
only gradients travel, in an all-reduce: by NCCL, or by TensorFlow's ring of copies between GPUs (Patarasuk and Yuan
2009). Each GPU sends and receives 2 (N - 1) / N times the size of the gradients for each update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from towernmt.core.errors import SettingsError, TowerRuleError
from towernmt.core.gpus import has_nccl
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import DType, Operation, Optimizer, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World
from towernmt.models.kernels import compute_dtype
from towernmt.optim.gradients import Accumulator, GradientReducer, GradsAndVars, SumOverTowers
from towernmt.optim.optimizer import updates_all_rows

T = TypeVar("T")
COLLECTIVES = ("auto", "nccl", "ring", "sum")
"""Values of `train.collectives`."""
BUCKET_BYTES = 25 << 20
"""Size at which gradients are sent together, as in PyTorch's DistributedDataParallel."""
GROUP = 1
"""TensorFlow's key of the group of all towers."""


def chosen_transport(collectives: str, devices: Sequence[str], reducer: GradientReducer, world: World
                     ) -> str | None:
    """Return by what the towers of a process sum their gradients: "nccl", "ring", or None to add on the first device.

    Args:
        collectives: the value of `train.collectives`.
        devices: the devices of the towers.
        reducer: the reducer of the trainer; only `SumOverTowers` can be replaced by collectives.
        world: the processes; in several processes, gradients are added on the first device before they are sent.

    Raises:
        SettingsError: NCCL is requested and missing.
    """
    if collectives not in COLLECTIVES:
        raise SettingsError(f"train.collectives={collectives} is unknown: choose {', '.join(COLLECTIVES)}.")
    on_gpus = len(devices) > 1 and len({*devices}) == len(devices) and all("gpu" in device for device in devices)
    if not on_gpus or collectives == "sum" or world.processes > 1 or type(reducer) is not SumOverTowers:
        return None
    if collectives == "ring":
        return "ring"
    if has_nccl():
        return "nccl"
    if collectives == "nccl":
        raise SettingsError("train.collectives=nccl: libnccl.so.2 was not found; pip install 'towernmt[gpu]' installs "
                            "it. Set train.collectives=ring to sum gradients by copies between GPUs.")
    return None


class Replicas:
    """The copies of all weights for each tower after the first, and the updates of all towers.

    The first tower has the variables of the run, which checkpoints contain. The copies, and the copies of the
    optimizer's state, are local variables. Every update starts from equal values and applies equal sums of gradients,
    so copies stay equal without being sent again. `sync` makes them equal: before the first update, and after one that
    failed halfway.

    Args:
        devices: the device of each tower.
        transport: "nccl" or "ring".
        make_optimizer: makes the optimizer of the first tower.
        make_another: makes the optimizer of another tower, which has separate slots.
        bucket_bytes: size at which gradients are sent together.
    """

    def __init__(self, devices: Sequence[str], transport: str, make_optimizer: Callable[[], Optimizer],
                 make_another: Callable[[], Optimizer], bucket_bytes: int = BUCKET_BYTES) -> None:
        self._devices, self._transport, self._bucket_bytes = list(devices), transport, bucket_bytes
        self._make_optimizer, self._make_another = make_optimizer, make_another
        self._tower = 0     # which is being built
        self._optimizers: list[Optimizer] = []
        self._weights: list[dict[Any, Variable]] = [{}]     # of each tower, its copies by the weight's `ref()`
        self._originals: dict[str, Variable] = {}           # of the first tower's optimizer, by the requested name
        self._pairs: list[tuple[Variable, Variable]] = []   # each copy and its original
        self._order: list[int] = []
        self._keys = itertools.count(1)

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
                made = self._make_another() if self._tower else self._make_optimizer()
            if any(made is other for other in self._optimizers):
                raise SettingsError("The function that makes the optimizer returns the same one again, but each GPU "
                                    "needs a separate optimizer with its slots: make a new one in each call, or set "
                                    "train.collectives=sum.")
            self._optimizers.append(made)
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

    def order_by_backward_pass(self, gradients: GradsAndVars) -> None:
        """Send gradients in the order in which the backward pass of the first tower computes them.

        Args:
            gradients: the gradients of the first tower, from its backward pass.
        """
        at = {operation.name: index for index, operation in enumerate(tf1.get_default_graph().get_operations())}
        self._order = sorted(range(len(gradients)), key=lambda i: at[gradients[i][0].op.name])

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
        for tower, gradients in enumerate(self._sums(towers)):
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

    def _sums(self, towers: Sequence[GradsAndVars]) -> list[GradsAndVars]:
        """Return the sum of the gradients over all towers, on each tower's device."""
        wire = tf.bfloat16 if compute_dtype() == tf.bfloat16 else None
        with_rows = not updates_all_rows(self._optimizers[0])
        parts = []
        for tower, gradients in enumerate(towers):
            with tf1.device(self._devices[tower]), tf1.name_scope("all_reduce"):
                parts.append([_parts(gradients[i][0], gradients[i][1], with_rows, wire) for i in self._order])
        shapes = [[int(part.shape.num_elements()) for part in of_gradient] for of_gradient in parts[0]]
        sums = self._reduced([[part for of_gradient in tower for part in of_gradient] for tower in parts])
        results: list[GradsAndVars] = []
        for tower, gradients in enumerate(towers):
            flat = iter(sums[tower])
            found: dict[int, Tensor] = {}
            with tf1.device(self._devices[tower]), tf1.name_scope("all_reduce"):
                for i, lengths in zip(self._order, shapes, strict=True):
                    table, *touched = itertools.islice(flat, len(lengths))
                    found[i] = _gradient(table, touched, gradients[i][1])
            results.append([(found[i], variable) for i, (_, variable) in enumerate(gradients)])
        return results

    def _reduced(self, towers: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the sums over the towers of flat tensors, in buckets.

        On each device, a bucket waits for the one before, so that the order is the same on all devices.
        """
        results: list[list[Tensor]] = [[] for _ in towers]
        last: list[list[Tensor]] = [[] for _ in towers]
        buckets = list(_buckets(towers[0], self._bucket_bytes))
        for bucket in buckets:
            key, totals = next(self._keys), []
            for device, tensors, before in zip(self._devices, towers, last, strict=True):
                with tf1.device(device), tf1.name_scope("all_reduce"):
                    parts = tensors[bucket]
                    joined = parts[0] if len(parts) == 1 else tf.concat(parts, 0)
                    with tf1.control_dependencies(before):
                        totals.append(tf.raw_ops.CollectiveReduceV2(
                            input=joined, group_size=len(towers), group_key=GROUP, instance_key=key,
                            ordering_token=[], merge_op="Add", final_op="Id", communication_hint=self._transport))
            last = [[total] for total in totals]
            if bucket is buckets[-1]:
                # A run that fetches only the first tower's sums would otherwise wait for the others for ever.
                with tf1.device(self._devices[0]), tf1.control_dependencies(totals[1:]):
                    totals[0] = tf.identity(totals[0])
            for device, total, tensors, result in zip(self._devices, totals, towers, results, strict=True):
                lengths = [int(part.shape[0]) for part in tensors[bucket]]
                with tf1.device(device), tf1.name_scope("all_reduce"):
                    result += tf.split(total, lengths) if len(lengths) > 1 else [total]
        return results


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


def _parts(gradient: Tensor, variable: Variable, with_rows: bool, wire: DType | None) -> list[Tensor]:
    """Return a gradient as a flat tensor; for one of rows that stays sparse, also the count of each row's gradients."""
    parts = [tf.convert_to_tensor(gradient)]
    if with_rows and isinstance(gradient, tf.IndexedSlices):
        parts.append(tf.math.unsorted_segment_sum(tf.ones_like(gradient.indices, gradient.dtype), gradient.indices,
                                                  variable.shape[0]))
    return [_sent(part, variable.shape if at == 0 else variable.shape[:1], wire) for at, part in enumerate(parts)]


def _sent(tensor: Tensor, shape: Any, wire: DType | None) -> Tensor:
    if wire is not None and tensor.dtype == tf.float32:
        # Send a gradient that was computed in that dtype without casting it to float32 and back.
        narrow = tensor.op.type == "Cast" and tensor.op.inputs[0].dtype == wire
        tensor = tensor.op.inputs[0] if narrow else tf.cast(tensor, wire)
    return tf.reshape(tensor, [int(shape.num_elements())])


def _gradient(table: Tensor, touched: list[Tensor], variable: Variable) -> Tensor:
    """Return a gradient from its flat sum; as rows if the number of gradients of each row is known."""
    dense = tf.cast(tf.reshape(table, variable.shape), variable.dtype.base_dtype)
    if not touched:
        return dense
    rows = tf.where(touched[0] > 0)[:, 0]
    return tf.IndexedSlices(tf.gather(dense, rows), rows, tf.constant(variable.shape.as_list(), rows.dtype))


def _buckets(tensors: Sequence[Tensor], largest: int) -> Iterator[slice]:
    """Yield ranges of tensors of one dtype, which together have at least `largest` bytes where there are as many."""
    begin, size = 0, 0
    for end, tensor in enumerate(tensors, 1):
        size += int(tensor.shape[0]) * tensor.dtype.size
        if end == len(tensors) or size >= largest or tensors[end].dtype != tensor.dtype:
            yield slice(begin, end)
            begin, size = end, 0
