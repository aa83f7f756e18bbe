"""A loop over time with a hand-written gradient: the loop of every recurrent layer that no kernel fuses.

TensorFlow's own gradient of a loop keeps each intermediate value of each step and adds to the gradient of each weight
matrix at each step. Here a step keeps its state, its matrix products and the values that its `StepOperation`s
request, as lists of tensors that are never copied; the backward pass computes the cheap rest again, and the gradients
of the matrices are one product over all steps, after the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from towernmt.core.tensors import DType, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import compute_dtype, matmul, on_gpu, product_over_rows, to_float32


class StepOperation(NamedTuple):
    """An operation of a step with a hand-written gradient, which needs fewer operations than TensorFlow's gradient.

    Attributes:
        outputs: number of outputs.
        stored_count: number of further tensors that it stores for its gradient.
        forward: maps the arguments to (outputs, stored tensors), two sequences of float32 tensors.
        backward: maps (arguments, outputs, stored tensors, gradients of the outputs) to the gradients of the arguments.
    """

    outputs: int
    stored_count: int
    forward: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]]
    backward: Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


def apply_now(operation: StepOperation, *args: Tensor) -> list[Tensor]:
    """Return the outputs of an operation outside a loop."""
    return list(operation.forward(*args)[0])


class Step(NamedTuple):
    """Arguments of a step function.

    Attributes:
        inputs: slice of each input for this step.
        state: state before the step.
        multiply: `multiply(a, i)` returns float32 `a @ matrices[i]`, `multiply(a, i, b)` adds `b`. A step calls it once
            for each i, in any order.
        apply: `apply(operation, *args)` returns the list of outputs of an operation. A step calls it in the order of
            `operations`.
        shared: tensors that are the same at every step and have a gradient (a sum over the steps).
        fixed: tensors that are the same at every step and have no gradient (masks).
    """

    inputs: Sequence[Tensor]
    state: Sequence[Tensor]
    multiply: Callable[..., Tensor]
    apply: Callable[..., list[Tensor]]
    shared: Sequence[Tensor]
    fixed: Sequence[Tensor]


StepFunction = Callable[[Step], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""Maps a `Step` to (state after the step, emitted tensors). It must not create variables."""


def scan(step: StepFunction, emits: int, inputs: Sequence[Tensor], start: Sequence[Tensor], matrices: Sequence[Tensor],
         shared: Sequence[Tensor] = (), fixed: Sequence[Tensor] = (), operations: Sequence[StepOperation] = ()
         ) -> list[Tensor]:
    """Run `step` over the first dimension of `inputs`.

    Args:
        step: one step of the recurrence; all its tensors are float32, except inputs in the compute dtype.
        emits: number of tensors that it emits.
        inputs: each `[time, ...]`, time at least 1.
        start: the state before the first step.
        matrices: second factors of products, each `[input depth, depth]` or `[groups, input depth, depth]`
            (then the first factor is `[groups, rows, input depth]`). They are rounded to the compute dtype.
        shared: see `Step`.
        fixed: see `Step`.
        operations: operations that the step applies, in this order.

    Returns:
        The emitted tensors, each `[time, ...]`.
    """
    groups = _Groups([len(inputs), len(start), len(matrices), len(shared), len(fixed)])

    @tf.custom_gradient
    def run(*tensors: Tensor) -> Tensor:
        inputs, start, matrices, shared, fixed = groups.split(tensors)
        forward = _forward(step, emits, inputs, start, matrices, shared, fixed, operations)

        def gradient(*d_emitted: Tensor) -> list[Tensor]:
            grads = _backward(step, matrices, shared, fixed, forward, d_emitted)
            return [*grads, *[None] * len(fixed)]

        return tuple(forward.emitted), gradient

    tensors = [tf.convert_to_tensor(t) for group in (inputs, start, matrices, shared, fixed) for t in group]
    if on_gpu(tensors[0]):
        # The read of a variable names no device, and a loop would send its value from the first GPU at each step.
        tensors = [t if t.device else tf.identity(t) for t in tensors]
    return list(run(*tensors))


class _Groups:
    """A flat list of tensors in groups of known sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes

    def split(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        groups, start = [], 0
        for size in self._sizes:
            groups.append(list(tensors[start:start + size]))
            start += size
        return groups


class _Series(NamedTuple):
    """A tensor for each time step, with the static shape of one tensor."""

    array: Tensor
    shape: Tensor

    def read(self, time: Tensor) -> Tensor:
        return _shaped(self.array.read(time), self.shape)

    def stack(self) -> Tensor:
        """Return the values of all steps, `[time, ...]`."""
        return _shaped(self.array.stack(), [None, *self.shape])


class _Forward(NamedTuple):
    emitted: list[Tensor]          # each [time, ...]
    inputs: list[_Series]
    states: list[_Series]       # before each step
    products: list[_Series]
    factors: list[_Series]      # first factors of the products, in the compute dtype
    results: list[_Series]      # outputs and stored tensors of the operations, in their order
    length: Tensor                 # int32 []


def _forward(step: StepFunction, emits: int, inputs: list[Tensor], start: list[Tensor], matrices: list[Tensor],
             shared: list[Tensor], fixed: list[Tensor], operations: Sequence[StepOperation]) -> _Forward:
    compute = _in_compute_dtype(matrices)

    def run_step(time_inputs: list[Tensor], state: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        products: list[Tensor] = [None] * len(matrices)
        factors: list[Tensor] = [None] * len(matrices)
        results: list[Tensor] = []

        def multiply(a: Tensor, i: int, *addends: Tensor) -> Tensor:
            factors[i] = tf.cast(a, compute_dtype())
            products[i] = to_float32(matmul(factors[i], compute[i]))
            for b in addends:
                products[i] += to_float32(b)
            return products[i]

        def apply(operation: StepOperation, *args: Tensor) -> list[Tensor]:
            outputs, stored = operation.forward(*args)
            results.extend([*outputs, *stored])
            return list(outputs)

        state_after, emitted = step(Step(time_inputs, state, multiply, apply, shared, fixed))
        return list(state_after), [*emitted, *state, *products, *factors, *results]

    sizes = [emits, len(start), len(matrices), len(matrices), sum(op.outputs + op.stored_count for op in operations)]
    dtypes = [tf.float32] * sum(sizes[:3]) + [compute_dtype()] * sizes[3] + [tf.float32] * sizes[4]
    arriving, length = _unstack(inputs), tf.shape(inputs[0])[0]
    series = _loop(run_step, arriving, length, start, dtypes)[1]
    emitted, states, products, factors, results = _Groups(sizes).split(series)
    return _Forward([x.stack() for x in emitted], arriving, states, products, factors, results, length)


def _backward(step: StepFunction, matrices: list[Tensor], shared: list[Tensor], fixed: list[Tensor], forward: _Forward,
              d_emitted: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of `inputs`, `start`, `matrices` and `shared` of `scan`, in this order."""
    compute = _in_compute_dtype(matrices)
    arriving = [forward.inputs, forward.states, forward.products, forward.results, _unstack(d_emitted)]
    arrivals = _Groups([len(group) for group in arriving])
    carried = _Groups([len(forward.states), len(shared)])
    product_of_input: dict[int, int] = {}
    """The product to which an input is added, if the input has no other use: their gradients are equal."""

    def run_step(arrived: list[Tensor], carry: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        time_inputs, state, products, results, d_out = arrivals.split(arrived)
        d_after, sums = carried.split(carry)
        shared_now = [tf.identity(s) for s in shared]
        d_products: list[Tensor] = [None] * len(matrices)

        def multiply(a: Tensor, i: int, *addends: Tensor) -> Tensor:
            def recorded(*_: Tensor) -> Tensor:
                def gradient(d: Tensor) -> list[Tensor]:
                    d_products[i] = tf.cast(d, compute_dtype())
                    d_a = to_float32(matmul(d_products[i], compute[i], transpose_b=True))
                    return [d_a, *[d if b.dtype == d.dtype else d_products[i] for b in addends]]

                return tf.identity(products[i]), gradient

            return tf.custom_gradient(recorded)(a, *addends)

        def apply(operation: StepOperation, *args: Tensor) -> list[Tensor]:
            outputs, stored = results[:operation.outputs], results[operation.outputs:][:operation.stored_count]
            del results[:operation.outputs + operation.stored_count]

            def recorded(*args: Tensor) -> Tensor:
                return (tuple(tf.identity(y) for y in outputs),
                        lambda *d: list(operation.backward(args, outputs, stored, d)))

            return list(tf.custom_gradient(recorded)(*args))

        state_after, emitted = step(Step(time_inputs, state, multiply, apply, shared_now, fixed))
        sources = [*state, *shared_now, *time_inputs]
        grads = tf1.gradients([*state_after, *emitted], sources, [*d_after, *d_out])
        grads = [tf.zeros_like(x) if g is None else tf.convert_to_tensor(g)
                 for g, x in zip(grads, sources, strict=True)]
        d_products = [tf.zeros_like(p, compute_dtype()) if d is None else d
                      for d, p in zip(d_products, products, strict=True)]
        d_state, d_shared, d_inputs = _Groups([len(state), len(shared), len(time_inputs)]).split(grads)
        product_of_input.update((i, j) for i, d in enumerate(d_inputs) for j, d_product in enumerate(d_products)
                                if d is d_product)
        sums = [total + d for total, d in zip(sums, d_shared, strict=True)]
        return [*d_state, *sums], [*[None if i in product_of_input else d for i, d in enumerate(d_inputs)],
                                   *d_products]

    zeros = [tf.zeros_like(s.read(0)) for s in forward.states] + [tf.zeros_like(s) for s in shared]
    dtypes = [x.array.dtype for x in forward.inputs] + [compute_dtype()] * len(matrices)
    last_carry, stored = _loop(run_step, [x for group in arriving for x in group], forward.length, zeros, dtypes,
                               backwards=True)
    d_start, d_shared = carried.split(last_carry)
    input_series, product_series = _Groups([len(forward.inputs), len(matrices)]).split(stored)
    d_products = [x.stack() for x in product_series]
    d_inputs = [d_products[product_of_input[i]] if i in product_of_input else x.stack()
                for i, x in enumerate(input_series)]
    d_matrices = [_gradient_of_matrix(a.stack(), d, m)
                  for a, d, m in zip(forward.factors, d_products, matrices, strict=True)]
    return [*d_inputs, *d_start, *d_matrices, *d_shared]


def _gradient_of_matrix(a: Tensor, d_product: Tensor, matrix: Tensor) -> Tensor:
    """Return the gradient of a matrix, summed over time and rows.

    Args:
        a: first factors, `[time, (groups,) rows, input depth]`.
        d_product: gradients of the products, `[time, (groups,) rows, depth]`.
        matrix: the matrix.
    """
    if matrix.shape.rank == 2:
        a, d_product = (tf.reshape(x, [-1, size]) for x, size in zip((a, d_product), tf.unstack(tf.shape(matrix)),
                                                                     strict=True))
    else:
        a, d_product = (_time_into_rows(x) for x in (a, d_product))
    return to_float32(product_over_rows(tf.cast(a, d_product.dtype), d_product))


def _time_into_rows(x: Tensor) -> Tensor:
    """Reshape `[time, groups, rows, depth]` to `[groups, time * rows, depth]`."""
    x = tf.transpose(x, [1, 0, 2, 3])
    shape = tf.shape(x)
    return tf.reshape(x, [shape[0], shape[1] * shape[2], shape[3]])


_LoopStep = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]
"""Maps (inputs of the step, carried tensors) to (carried tensors for the next step, tensors to store)."""


def loop_over_time(run_step: _LoopStep, inputs: Sequence[Tensor], start: list[Tensor], stored_count: int,
                   backwards: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Call `run_step` for each step over the first dimension of `inputs`, carrying tensors from `start`.

    Args:
        run_step: function of a step.
        inputs: tensors `[time, ...]`.
        start: carried tensors before the first step.
        stored_count: number of float32 tensors that each step stores.
        backwards: whether to start from the last step.

    Returns:
        The carried tensors after the last step, and the stored tensors, each `[time, ...]`.
    """
    last_carry, stored = _loop(run_step, _unstack(inputs), tf.shape(inputs[0])[0], start,
                               [tf.float32] * stored_count, backwards)
    return last_carry, [x.stack() for x in stored]


def _loop(run_step: _LoopStep, inputs: Sequence[_Series], length: Tensor, start: list[Tensor], dtypes: list[DType],
          backwards: bool = False) -> tuple[list[Tensor], list[_Series]]:
    """Run `loop_over_time` for `length` steps on series; `dtypes` are those of the stored tensors.

    A step may return None instead of a tensor to store.
    """
    shapes: list[Tensor] = []

    def body(count: Tensor, carry: list[Tensor], stored: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        time = length - 1 - count if backwards else count
        carry_after, emitted = run_step([x.read(time) for x in inputs], carry)
        carry_after = [_shaped(new, initial.shape) for new, initial in zip(carry_after, start, strict=True)]
        shapes[:] = [None if x is None else x.shape for x in emitted]
        return count + 1, carry_after, [array if x is None else array.write(time, x)
                                        for array, x in zip(stored, emitted, strict=True)]

    _, last_carry, stored = tf1.while_loop(
        lambda count, *_: count < length, body,
        [tf.constant(0), start, [tf.TensorArray(dtype, length) for dtype in dtypes]], back_prop=False)
    return last_carry, [_Series(array, shape) for array, shape in zip(stored, shapes, strict=True)]


def _unstack(tensors: Sequence[Tensor]) -> list[_Series]:
    return [_Series(tf.TensorArray(x.dtype, tf.shape(x)[0]).unstack(x), x.shape[1:]) for x in tensors]


def _shaped(x: Tensor, shape: Tensor) -> Tensor:
    """Return `x` after setting its static shape."""
    x.set_shape(shape)
    return x


def _in_compute_dtype(matrices: list[Tensor]) -> list[Tensor]:
    return [tf.cast(matrix, compute_dtype()) for matrix in matrices]
