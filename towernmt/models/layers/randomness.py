"""Randomness without hidden state: every draw is a function of (seed, clock, place).

TensorFlow's stateful generators are in no checkpoint, so a resumed run would differ from one that was
never stopped. Here the only state is the *clock*: one int64 variable, saved with the model, that counts
the batches that training towers have seen.
"""

from __future__ import annotations

import zlib
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.tf_compat import tf, tf1

CLOCK_ADVANCE = "towernmt/random_clock_advance"
"""Graph collection: the operation that advances the clock by one batch."""
_CLOCK = "towernmt/random_clock"
_PHILOX = 1     # tf.random.Algorithm.PHILOX
_SEED = "towernmt/random_seed"


def set_seed(seed: int) -> None:
    """Set the seed of the default graph: of initial parameters and of every draw in its towers.

    TensorFlow's own random operations, which a model of yours may use, get it too: under op determinism they
    refuse to be without one.
    """
    tf1.get_collection_ref(_SEED)[:] = [int(seed)]
    tf1.set_random_seed(int(seed))


def graph_seed() -> int:
    """The seed of the default graph (0 unless `set_seed` was called)."""
    seeds = tf1.get_collection(_SEED)
    return int(seeds[0]) if seeds else 0


def start_clock(batch_tensor: Any) -> None:
    """Make the clock of the graph, which advances by one with each batch that is trained on.

    It is advanced by `UPDATE_OPS`, which tensorpack's trainers run with each step, after it was read and
    after the batch arrived: a step that fails for want of data leaves it as it was.

    Args:
        batch_tensor: any tensor that cannot be computed before the batch is there.
    """
    if tf1.get_collection(_CLOCK):
        return
    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE), tf1.device("/cpu:0"):
        variable = tf1.get_variable("random_clock", [], tf.int64, initializer=tf1.zeros_initializer(),
                                    trainable=False, use_resource=True)
        now = tf.identity(variable.read_value(), name="random_clock_now")
        with tf1.control_dependencies([now, batch_tensor]):
            advance = variable.assign_add(1, read_value=False, name="random_clock_advance")
    tf1.add_to_collection(_CLOCK, now)
    for collection in (CLOCK_ADVANCE, tf1.GraphKeys.UPDATE_OPS):
        tf1.add_to_collection(collection, advance)


def dropout(x: Any, rate: float, name: str) -> Any:
    """Dropout (Srivastava et al. 2014) in a training tower; the identity elsewhere.

    Each element takes 16 random bits of Philox (Salmon et al. 2011), so that one draw serves two; the rate
    is exact to 1/65536, and the scale is that of the rate in effect.

    Args:
        x: float tensor of any shape.
        rate: the share of elements set to zero; the others are scaled by 1 / (1 - rate).
        name: the place, unique within the enclosing variable scope.
    Returns:
        float32 of the shape of `x` where elements are dropped; `x` itself elsewhere.
    """
    context = get_current_tower_context()
    if rate == 0.0 or context is None or not context.is_training:
        return x
    with tf1.name_scope(name):
        dropped = round(rate * 65536)
        keep = _random_bits16(tf.shape(x), _seed_of_place(name)) >= dropped
        return _masked(tf.cast(x, tf.float32), keep, 65536.0 / (65536 - dropped))


def _masked(x: Any, keep: Any, scale: float) -> Any:
    """`x` times `scale` where `keep`, 0 elsewhere; what waits for the gradient is a byte an element."""

    @tf.custom_gradient
    def masked(x: Any) -> Any:
        def gradient(dy: Any) -> Any:
            # Without the dependency TensorFlow finds that the mask as float32 was there already, and keeps it.
            with tf1.control_dependencies([dy]):
                mask = tf.cast(keep, tf.float32)
            return dy * (mask * scale)

        return x * (tf.cast(keep, tf.float32) * scale), gradient

    return masked(x)


def _random_bits16(shape: Any, seed: Any) -> Any:
    """uint16 of `shape`, uniform.

    The place is Philox's key, and the clock the high word of its counter. The low word counts the blocks of one
    draw: a clock there would make each draw the last one, moved on by a few elements.
    """
    size = tf.reduce_prod(shape)
    words = tf.bitcast(seed, tf.uint64)     # taken apart by slices: to unstack uint64 there is no kernel for a GPU
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[(size + 1) // 2], key=words[:1], counter=tf.concat([tf.zeros([1], tf.uint64), words[1:]], 0),
        alg=_PHILOX, dtype=tf.uint32)
    return tf.reshape(tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:size], shape)


def _seed_of_place(name: str) -> Any:
    """int64 `[2]`: which place (variable scope, name, tower) and which batch."""
    context = get_current_tower_context()
    clock = tf1.get_collection(_CLOCK)
    if not clock:
        raise RuntimeError("dropout needs start_clock() earlier in the tower; NMTModel.build_graph calls it.")
    place = f"{tf1.get_variable_scope().name}/{name}/{getattr(context, 'index', 0)}/{graph_seed()}"
    return tf.stack([tf.constant(zlib.crc32(place.encode()), tf.int64), clock[0]])


class StatelessUniform:
    """Initial values, uniform in [-limit, limit), drawn from the seed and the variable's own name.

    The same variable gets the same values whatever else the graph holds: one tower or four, with or
    without validation.
    """

    def __init__(self, limit: float, name: str) -> None:
        self.limit, self.name = limit, name

    def __call__(self, shape: Any, dtype: Any = tf.float32, partition_info: Any = None) -> Any:
        return tf.random.stateless_uniform(shape, _seed_of_variable(self.name), -self.limit, self.limit, dtype)


class StatelessNormal:
    """Initial values, normal with mean 0, drawn from the seed and the variable's own name."""

    def __init__(self, stddev: float, name: str) -> None:
        self.stddev, self.name = stddev, name

    def __call__(self, shape: Any, dtype: Any = tf.float32, partition_info: Any = None) -> Any:
        return tf.random.stateless_normal(shape, _seed_of_variable(self.name), 0.0, self.stddev, dtype)


def _seed_of_variable(name: str) -> list[int]:
    return [graph_seed(), zlib.crc32(f"{tf1.get_variable_scope().name}/{name}".encode())]
