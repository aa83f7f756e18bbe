"""Gradients: their reduction over towers, processes and batches, and their health.

Gradient health means which gradients are watched, which steps may skip their update, and whether values are finite.
Optimizers set it, and callbacks such as `NaNGuard` read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Graph, Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World

GradsAndVars: TypeAlias = list[tuple[Tensor, Variable]]
"""Each gradient, dense or a `tf.IndexedSlices`, with its variable."""


class GradientReducer(ABC):
    """Reduction of the gradients of all towers in the world to the gradients of one update.

    A trainer calls it while it builds its graph. The cost of each tower is divided by the number of towers in the
    world, so the sum of the gradients is the gradient of the mean cost.
    """

    @abstractmethod
    def reduce(self, towers: Sequence[GradsAndVars], world: World) -> GradsAndVars:
        """Return the sum of each variable's gradients over all towers of all processes, once per update.

        Args:
            towers: gradients of each tower of this process, with the shared variables in the same order. With an update
                cycle, it is one tower, whose gradients are summed over towers and averaged over batches.
            world: the processes that train together.

        Returns:
            Gradients that are the same in every process.
        """

    @abstractmethod
    def total(self, number: Tensor, world: World) -> Tensor:
        """Return the sum over processes of a number, such as the target tokens that weight an update cycle.

        Args:
            number: float32 `[]`, of this process's towers.
            world: the processes that train together.

        Returns:
            float32 `[]`, the same in every process.
        """


class SumOverTowers(GradientReducer):
    """Reducer that sums over the towers of one process.

    Raises:
        SettingsError: there are several processes, whose models would diverge.
    """

    def reduce(self, towers: Sequence[GradsAndVars], world: World) -> GradsAndVars:
        _refuse_several(world)
        return sum_over_towers(towers)

    def total(self, number: Tensor, world: World) -> Tensor:
        _refuse_several(world)
        return number


def _refuse_several(world: World) -> None:
    if world.processes > 1:
        raise SettingsError(f"SumOverTowers adds the gradients of one process, and the world has {world.processes}: "
                            "give the trainer a reducer that adds over processes (SyncMultiGPUTrainer(reducer=...)).")


def sum_over_towers(towers: Sequence[GradsAndVars]) -> GradsAndVars:
    """Return the sum of each variable's gradients over the towers; sparse gradients stay sparse.

    Args:
        towers: gradients of each tower, with the shared variables in the same order.
    """
    if len(towers) == 1:
        return towers[0]
    with tf1.name_scope("sum_over_towers"):
        return [(_sum([g for g, _ in column]), column[0][1]) for column in zip(*towers, strict=True)]


def _sum(gradients: Sequence[Tensor]) -> Tensor:
    if all(isinstance(g, tf.IndexedSlices) for g in gradients):
        return tf.IndexedSlices(tf.concat([g.values for g in gradients], 0),
                                tf.concat([g.indices for g in gradients], 0), gradients[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(g) for g in gradients])


def dense_gradients(gradients: GradsAndVars) -> GradsAndVars:
    """Return gradients as tensors of the shapes of their variables, each on the device of its gradient."""
    dense = []
    for gradient, variable in gradients:
        with tf1.device(gradient.device if isinstance(gradient, tf.IndexedSlices) else None):
            dense.append((tf.convert_to_tensor(gradient), variable))
    return dense


def scaled(gradient: Tensor, factor: float | Tensor) -> Tensor:
    """Return a gradient times a number; a sparse gradient stays sparse."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


SMALL_GRADIENT = 1 << 14
"""Largest number of elements of a gradient that is stacked with others of its shape."""


class StackedGradients:
    """Gradients of an update, in which small ones of equal shape are stacked on a GPU, so that they share kernels.

    A Transformer has about 100 biases, scales and offsets of a few shapes, and starting a kernel for each takes longer
    than the kernel. On the CPU, nothing is stacked.

    Args:
        gradients: dense or sparse gradients.
    """

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self._gradients = list(gradients)
        alike: dict[tuple[Any, ...], list[int]] = {}
        for index, gradient in enumerate(gradients):
            if _is_small_on_gpu(gradient):
                alike.setdefault((gradient.device, gradient.dtype, *gradient.shape), []).append(index)
        self._stacks: dict[tuple[int, ...], Tensor] = {}
        for indices in alike.values():
            if len(indices) > 1:
                with tf1.device(gradients[indices[0]].device):
                    self._stacks[tuple(indices)] = tf.stack([gradients[index] for index in indices])

    def half_squared_norms(self) -> list[Tensor]:
        """Return half of the squared norm of each gradient, float32 `[]`."""
        def norms(stack: Tensor) -> Tensor:
            return tf.reduce_sum(tf.square(tf.cast(stack, tf.float32)), list(range(1, stack.shape.rank))) * 0.5

        return self._map_gradients(lambda gradient: half_squared_norms([gradient])[0], norms)

    def scaled(self, factor: Tensor) -> list[Tensor]:
        """Return each gradient times a number; sparse gradients stay sparse."""
        return self._map_gradients(lambda gradient: scaled(gradient, factor), lambda stack: stack * factor)

    def _map_gradients(self, of_gradient: Callable[[Tensor], Tensor], of_stack: Callable[[Tensor], Tensor]
                       ) -> list[Tensor]:
        """Return a result for each gradient: `of_stack` once for each stack, and `of_gradient` for all others."""
        results: dict[int, Tensor] = {}
        for indices, stack in self._stacks.items():
            with tf1.device(stack.device):
                results.update(zip(indices, tf.unstack(of_stack(stack)), strict=True))
        return [results[index] if index in results else of_gradient(gradient)
                for index, gradient in enumerate(self._gradients)]


def _is_small_on_gpu(gradient: Tensor) -> bool:
    return (not isinstance(gradient, tf.IndexedSlices) and "GPU" in gradient.device.upper()
            and gradient.shape.is_fully_defined() and gradient.shape.num_elements() <= SMALL_GRADIENT)


class Accumulator:
    """Sums of weighted gradients over the batches of an update cycle (THUMT's `update_cycle`).

    The sums are not saved, because checkpoints are written between updates, when the sums are empty.

    Args:
        gradients: gradients of the current batch, averaged over its tokens.
        weight: float32 `[]`, number of tokens of the current batch.
        device: the device of the sums; None for the one at hand.
        scope: variable scope of the sums.
    """

    def __init__(self, gradients: GradsAndVars, weight: Tensor, device: str | None = None, scope: str = "") -> None:
        self._variables, self._device = [v for _, v in gradients], device
        with tf1.device(device), tf1.name_scope("update_cycle"), tf1.variable_scope(scope):
            self._weighted = [tf.convert_to_tensor(g) * weight for g, _ in gradients] + [weight]
            with tf1.variable_scope("update_cycle"):
                self._sums = [_sum_variable(v.op.name.replace("/", "."), v.shape) for v in self._variables]
                self._sums.append(_sum_variable("total_weight", []))
            pairs = list(zip(self._sums, self._weighted, strict=True))
            self.assign: Operation = tf.group(*[s.assign(w, read_value=False) for s, w in pairs])
            """Begin the sums with the present batch."""
            self.add: Operation = tf.group(*[s.assign_add(w, read_value=False) for s, w in pairs])
            """Add the present batch to the sums."""

    def with_current(self) -> GradsAndVars:
        """Return the gradients averaged over the tokens of the sums and of the current batch."""
        with tf1.device(self._device), tf1.name_scope("update_cycle_mean"):
            return self._mean([s + w for s, w in zip(self._sums, self._weighted, strict=True)])

    def without_current(self) -> GradsAndVars:
        """Return the gradients averaged over the tokens of the sums without the current batch."""
        with tf1.device(self._device), tf1.name_scope("update_cycle_rest"):
            return self._mean([s.read_value() for s in self._sums])

    def _mean(self, totals: list[Tensor]) -> GradsAndVars:
        *gradients, weight = totals
        share = 1.0 / tf.maximum(weight, 1.0)
        return [(g * share, v) for g, v in zip(gradients, self._variables, strict=True)]


def _sum_variable(name: str, shape: Sequence[int]) -> Variable:
    return tf1.get_variable(name, shape, initializer=tf1.zeros_initializer(), trainable=False,
                            use_resource=True, collections=[tf1.GraphKeys.LOCAL_VARIABLES])


def watch_gradients(gradients: Sequence[tuple[Tensor | None, Variable]], squares: Sequence[Tensor] = ()) -> None:
    """Let `NaNGuard` check these gradients. Call it before they are clipped.

    Clipping by the global norm spreads a value that is not finite over all gradients. Without watched gradients, the
    guard checks the inputs of the optimizer's operations.

    Args:
        gradients: (gradient, variable) pairs; variables that are already watched are ignored.
        squares: the `half_squared_norms` of the gradients if the update computes them, so that the guard need not.
    """
    state = graph_state()
    watched = state.watched_gradients
    watched_names = {variable.name for _, variable in watched}
    for gradient, variable in gradients:
        if gradient is not None and variable.name not in watched_names:
            watched.append((gradient, variable))
    for (gradient, _), square in zip(gradients, squares, strict=False):
        if gradient is not None:
            state.half_squared_norms[_values(gradient).name] = square


def half_squared_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return half of the squared norm of each tensor, float32 `[]`, in one pass and without a copy."""
    squares = []
    for tensor in map(_values, tensors):
        with tf1.colocate_with(tensor):
            squares.append(tf.cast(tf.nn.l2_loss(tensor), tf.float32))
    return squares


def _values(gradient: Tensor) -> Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)


def allow_skipped_update(skipped: Tensor) -> None:
    """Declare which steps skip their update, so that `NaNGuard` accepts values that are not finite in them.

    Only the first call in a graph, which belongs to the train step, has an effect.

    Args:
        skipped: bool `[]`, computed with each step: whether its update is skipped.
    """
    state = graph_state()
    if state.update_skipped is None:
        state.update_skipped = skipped


def named_gradients(graph: Graph) -> list[tuple[str, Tensor]]:
    """Return (variable name, gradient) of the watched gradients, or of the inputs of the optimizer's operations."""
    watched = [(variable.op.name, gradient) for gradient, variable in graph_state(graph).watched_gradients]
    return watched or _optimizer_inputs(graph)


def _optimizer_inputs(graph: Graph) -> list[tuple[str, Tensor]]:
    """Return (variable name, gradient) of all operations with an input `var` and an input `grad` or `delta`."""
    gradients: dict[str, Tensor] = {}
    for operation in graph.get_operations():
        names = [argument.name for argument in operation.op_def.input_arg] if operation.op_def else []
        gradient = next((name for name in ("grad", "delta") if name in names), None)
        if "var" in names and gradient and len(names) == len(operation.inputs):
            variable = operation.inputs[names.index("var")].op.name
            gradients.setdefault(variable, operation.inputs[names.index(gradient)])
    return list(gradients.items())


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Return whether each tensor holds finite values only, bool `[tensors]`.

    A sum of squares that overflows counts as not finite. It would poison a global norm in the same way.
    """
    computed = graph_state().half_squared_norms
    with tf1.name_scope("finite"):
        values = [_values(tensor) for tensor in tensors]
        squares = [computed[value.name] if value.name in computed else half_squared_norms([value])[0]
                   for value in values]
        with tf1.device(first_gpu(squares)):
            return tf.math.is_finite(tf.stack(squares))


def first_gpu(tensors: Sequence[Tensor]) -> str | None:
    """Return the device of the first of these tensors that is on a GPU; None leaves the placement to TensorFlow."""
    return next((str(tensor.device) for tensor in tensors if "GPU" in str(tensor.device).upper()), None)
