"""Gradients of several towers, processes and batches, as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World

GradsAndVars: TypeAlias = list[tuple[Tensor, Variable]]
"""Each gradient, dense or a `tf.IndexedSlices`, with its variable."""


class GradientReducer(ABC):
    """How the gradients of all towers of the world become the gradients of one update.

    A trainer calls it while it builds its graph, with its world. The cost of each tower is divided by the number of
    towers in the world, so that the sum is the gradient of the mean.
    """

    @abstractmethod
    def reduce(self, towers: Sequence[GradsAndVars], world: World) -> GradsAndVars:
        """The sum of each variable's gradients over all towers of all processes: computed once an update.

        Args:
            towers: for each tower of this process its gradients and the shared variables, in the same order. With an
                update cycle they are summed over towers and averaged over batches already, and stand here as one tower.
            world: how many processes there are, and which one this is.
        Returns:
            the same in every process.
        """

    @abstractmethod
    def total(self, number: Tensor, world: World) -> Tensor:
        """The sum of a number that each process has for itself: its target tokens, by which an update cycle weights.

        Args:
            number: float32 `[]`, of this process's towers.
        Returns:
            float32 `[]`, the same in every process.
        """


class SumOverTowers(GradientReducer):
    """The sum over the towers of one process.

    Raises:
        SettingsError: there are several processes, which would train models that differ.
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
    """The sum of each variable's gradients over the towers; sparse gradients stay sparse.

    Args:
        towers: for each tower its gradients and the shared variables, in the same order.
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


def scaled(gradient: Tensor, factor: float | Tensor) -> Tensor:
    """A gradient times a number; a sparse one stays sparse."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


class Accumulator:
    """Sums of weighted gradients over the batches of an update cycle (THUMT's `update_cycle`).

    The sums are not saved: checkpoints are written between updates, where they hold nothing.

    Args:
        gradients: of the present batch, averaged over its tokens.
        weight: float32 `[]`, the tokens of the present batch.
    """

    def __init__(self, gradients: GradsAndVars, weight: Tensor) -> None:
        self._variables = [v for _, v in gradients]
        with tf1.name_scope("update_cycle"):
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
        """The gradients averaged over the tokens of the sums and of the present batch."""
        with tf1.name_scope("update_cycle_mean"):
            return self._mean([s + w for s, w in zip(self._sums, self._weighted, strict=True)])

    def without_current(self) -> GradsAndVars:
        """The gradients averaged over the tokens of the sums alone."""
        with tf1.name_scope("update_cycle_rest"):
            return self._mean([s.read_value() for s in self._sums])

    def _mean(self, totals: list[Tensor]) -> GradsAndVars:
        *gradients, weight = totals
        share = 1.0 / tf.maximum(weight, 1.0)
        return [(g * share, v) for g, v in zip(gradients, self._variables, strict=True)]


def _sum_variable(name: str, shape: Sequence[int]) -> Variable:
    return tf1.get_variable(name, shape, initializer=tf1.zeros_initializer(), trainable=False,
                            use_resource=True, collections=[tf1.GraphKeys.LOCAL_VARIABLES])
