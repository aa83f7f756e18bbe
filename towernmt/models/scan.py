"""A loop over time whose gradient is written out: the one loop under every recurrent layer that no kernel fuses.

TensorFlow's own gradient of a loop keeps each intermediate value of each step and adds to the gradient of each
weight matrix at each step. Here a step keeps its state and its matrix products; on the way back it computes
the cheap rest again, and the gradients of the matrices are one product over all steps, after the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from towernmt.models.precision import compute_dtype, matmul, to_float32
from towernmt.tf_compat import tf, tf1


class Step(NamedTuple):
    """What a step function sees.

    Attributes:
        inputs: this step's slice of each input.
        state: the state before the step.
        multiply: `multiply(a, i)` is float32 `a @ matrices[i]`; once for each i, in any order.
        shared: tensors that are the same at every step and have a gradient (a sum over the steps).
        fixed: tensors that are the same at every step and have none (masks).
    """

    inputs: Sequence[Any]
    state: Sequence[Any]
    multiply: Callable[[Any, int], Any]
    shared: Sequence[Any]
    fixed: Sequence[Any]


StepFunction = Callable[[Step], tuple[Sequence[Any], Sequence[Any]]]
"""From a `Step` to the state after it and to what it emits. It must not create variables."""


def scan(step: StepFunction, emits: int, inputs: Sequence[Any], start: Sequence[Any], matrices: Sequence[Any],
         shared: Sequence[Any] = (), fixed: Sequence[Any] = ()) -> list[Any]:
    """Run `step` over the first dimension of `inputs`.

    Args:
        step: one step of the recurrence; all its tensors are float32.
        emits: how many tensors it emits.
        inputs: each `[time, ...]`, time at least 1.
        start: the state before the first step.
        matrices: second factors of products, each `[input depth, depth]` or `[groups, input depth, depth]`
            (then the first factor is `[groups, rows, input depth]`). They are rounded to the compute dtype.
        shared, fixed: see `Step`.
    Returns:
        what the steps emitted, each `[time, ...]`.
    """
    groups = _Groups([len(inputs), len(start), len(matrices), len(shared), len(fixed)])

    @tf.custom_gradient
    def run(*tensors: Any) -> Any:
        inputs, start, matrices, shared, fixed = groups.split(tensors)
        forward = _forward(step, emits, inputs, start, matrices, shared, fixed)

        def gradient(*d_emitted: Any) -> list[Any]:
            grads = _backward(step, inputs, matrices, shared, fixed, forward, d_emitted)
            return [*grads, *[None] * len(fixed)]

        return tuple(forward.emitted), gradient

    return list(run(*[tf.convert_to_tensor(t) for group in (inputs, start, matrices, shared, fixed)
                      for t in group]))


class _Groups:
    """A flat list of tensors in groups of known sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes

    def split(self, tensors: Sequence[Any]) -> list[list[Any]]:
        groups, place = [], 0
        for size in self._sizes:
            groups.append(list(tensors[place:place + size]))
            place += size
        return groups


class _Forward(NamedTuple):
    emitted: list[Any]      # each [time, ...]
    states: list[Any]       # each [time, ...], before each step
    products: list[Any]     # each [time, ...]


def _forward(step: StepFunction, emits: int, inputs: list[Any], start: list[Any], matrices: list[Any],
             shared: list[Any], fixed: list[Any]) -> _Forward:
    compute = _in_compute_dtype(matrices)

    def one(time_inputs: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        products: list[Any] = [None] * len(matrices)

        def multiply(a: Any, i: int) -> Any:
            products[i] = to_float32(matmul(a, compute[i]))
            return products[i]

        after, emitted = step(Step(time_inputs, state, multiply, shared, fixed))
        return list(after), [*emitted, *state, *products]

    sizes = [emits, len(start), len(matrices)]
    return _Forward(*_Groups(sizes).split(loop_over_time(one, inputs, start, sum(sizes))[1]))


def _backward(step: StepFunction, inputs: list[Any], matrices: list[Any], shared: list[Any], fixed: list[Any],
              forward: _Forward, d_emitted: Sequence[Any]) -> list[Any]:
    """Gradients of inputs, start, matrices and shared, in this order."""
    compute = _in_compute_dtype(matrices)
    arriving = _Groups([len(inputs), len(forward.states), len(matrices), len(d_emitted)])
    carried = _Groups([len(forward.states), len(shared)])

    def one(arrived: list[Any], carry: list[Any]) -> tuple[list[Any], list[Any]]:
        time_inputs, state, products, d_out = arriving.split(arrived)
        d_after, sums = carried.split(carry)
        factors: list[Any] = [None] * len(matrices)
        leaves: list[Any] = [None] * len(matrices)
        shared_now = [tf.identity(s) for s in shared]

        def multiply(a: Any, i: int) -> Any:
            factors[i] = a
            leaves[i] = _known_product(a, products[i], compute[i])
            return leaves[i]

        after, emitted = step(Step(time_inputs, state, multiply, shared_now, fixed))
        wanted = [*state, *shared_now, *time_inputs, *leaves]
        grads = tf1.gradients([*after, *emitted], wanted, [*d_after, *d_out])
        grads = [tf.zeros_like(x) if g is None else tf.convert_to_tensor(g)
                 for g, x in zip(grads, wanted, strict=True)]
        d_state, d_shared, d_rest = _Groups([len(state), len(shared), len(inputs) + len(leaves)]).split(grads)
        sums = [total + d for total, d in zip(sums, d_shared, strict=True)]
        return [*d_state, *sums], [*d_rest, *factors]

    nothing = [tf.zeros_like(s[0]) for s in forward.states] + [tf.zeros_like(s) for s in shared]
    sizes = [len(inputs), len(matrices), len(matrices)]
    last, kept = loop_over_time(one, [*inputs, *forward.states, *forward.products, *d_emitted], nothing, sum(sizes),
                                backwards=True)
    d_start, d_shared = carried.split(last)
    d_inputs, d_products, factors = _Groups(sizes).split(kept)
    d_matrices = [_gradient_of_matrix(a, d, m)
                  for a, d, m in zip(factors, d_products, matrices, strict=True)]
    return [*d_inputs, *d_start, *d_matrices, *d_shared]


def _known_product(a: Any, product: Any, matrix: Any) -> Any:
    """`a @ matrix`, which was computed before, as a function of `a`."""

    @tf.custom_gradient
    def known(a: Any) -> Any:
        return tf.identity(product), lambda d: to_float32(matmul(d, matrix, transpose_b=True))

    return known(a)


def _gradient_of_matrix(a: Any, d_product: Any, matrix: Any) -> Any:
    """The gradient of a matrix, summed over time and rows.

    Args:
        a: `[time, (groups,) rows, input depth]`, the first factors.
        d_product: `[time, (groups,) rows, depth]`.
    """
    if matrix.shape.rank == 2:
        a, d_product = (tf.reshape(x, [-1, size]) for x, size in zip((a, d_product), tf.unstack(tf.shape(matrix)),
                                                                     strict=True))
    else:
        a, d_product = (_time_into_rows(x) for x in (a, d_product))
    return to_float32(matmul(a, d_product, transpose_a=True))


def _time_into_rows(x: Any) -> Any:
    """`[time, groups, rows, depth]` as `[groups, time * rows, depth]`."""
    x = tf.transpose(x, [1, 0, 2, 3])
    shape = tf.shape(x)
    return tf.reshape(x, [shape[0], shape[1] * shape[2], shape[3]])


def loop_over_time(one: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]], inputs: Sequence[Any],
                   start: list[Any], keeps: int, backwards: bool = False) -> tuple[list[Any], list[Any]]:
    """Carry `start` through `one` over the first dimension of `inputs`.

    Returns:
        the last carry, and the `keeps` tensors that each step kept, each `[time, ...]`.
    """
    length = tf.shape(inputs[0])[0]
    arrays = [tf.TensorArray(x.dtype, length).unstack(x) for x in inputs]
    shapes: list[Any] = []

    def body(count: Any, carry: list[Any], kept: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        time = length - 1 - count if backwards else count
        arrived = [_shaped(array.read(time), x.shape[1:]) for array, x in zip(arrays, inputs, strict=True)]
        after, keep = one(arrived, carry)
        after = [_shaped(new, old.shape) for new, old in zip(after, start, strict=True)]
        shapes[:] = [x.shape for x in keep]
        return count + 1, after, [array.write(time, x) for array, x in zip(kept, keep, strict=True)]

    _, last, kept = tf1.while_loop(
        lambda count, *_: count < length, body,
        [tf.constant(0), start, [tf.TensorArray(tf.float32, length) for _ in range(keeps)]], back_prop=False)
    return last, [_shaped(array.stack(), [None, *shape]) for array, shape in zip(kept, shapes, strict=True)]


def _shaped(x: Any, shape: Any) -> Any:
    """`x`, with what is known of its shape."""
    x.set_shape(shape)
    return x


def _in_compute_dtype(matrices: list[Any]) -> list[Any]:
    return [tf.cast(matrix, compute_dtype()) for matrix in matrices]
