"""Gradients of several towers and several batches, as one."""

from __future__ import annotations

from typing import Any

from towernmt.core.tf_compat import tf, tf1

GradsAndVars = list[tuple[Any, Any]]


def sum_over_towers(towers: list[GradsAndVars]) -> GradsAndVars:
    """The sum of each variable's gradients over the towers; sparse gradients stay sparse.

    Args:
        towers: for each tower its gradients and the shared variables, in the same order.
    """
    if len(towers) == 1:
        return towers[0]
    with tf1.name_scope("sum_over_towers"):
        return [(_sum([g for g, _ in column]), column[0][1]) for column in zip(*towers, strict=True)]


def _sum(gradients: list[Any]) -> Any:
    if all(isinstance(g, tf.IndexedSlices) for g in gradients):
        return tf.IndexedSlices(tf.concat([g.values for g in gradients], 0),
                                tf.concat([g.indices for g in gradients], 0), gradients[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(g) for g in gradients])


def scaled(gradient: Any, factor: Any) -> Any:
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

    def __init__(self, gradients: GradsAndVars, weight: Any) -> None:
        self._variables = [v for _, v in gradients]
        with tf1.name_scope("update_cycle"):
            self._weighted = [tf.convert_to_tensor(g) * weight for g, _ in gradients] + [weight]
            with tf1.variable_scope("update_cycle"):
                self._sums = [_sum_variable(v.op.name.replace("/", "."), v.shape) for v in self._variables]
                self._sums.append(_sum_variable("total_weight", []))
            pairs = list(zip(self._sums, self._weighted, strict=True))
            self.assign = tf.group(*[s.assign(w, read_value=False) for s, w in pairs])
            """Begin the sums with the present batch."""
            self.add = tf.group(*[s.assign_add(w, read_value=False) for s, w in pairs])
            """Add the present batch to the sums."""

    def with_current(self) -> GradsAndVars:
        """The gradients averaged over the tokens of the sums and of the present batch."""
        with tf1.name_scope("update_cycle_mean"):
            return self._mean([s + w for s, w in zip(self._sums, self._weighted, strict=True)])

    def without_current(self) -> GradsAndVars:
        """The gradients averaged over the tokens of the sums alone."""
        with tf1.name_scope("update_cycle_rest"):
            return self._mean([s.read_value() for s in self._sums])

    def _mean(self, totals: list[Any]) -> GradsAndVars:
        *gradients, weight = totals
        share = 1.0 / tf.maximum(weight, 1.0)
        return [(g * share, v) for g, v in zip(gradients, self._variables, strict=True)]


def _sum_variable(name: str, shape: Any) -> Any:
    return tf1.get_variable(name, shape, initializer=tf1.zeros_initializer(), trainable=False,
                            use_resource=True, collections=[tf1.GraphKeys.LOCAL_VARIABLES])
