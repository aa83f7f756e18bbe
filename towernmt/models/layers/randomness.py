"""Random values without hidden state.

Initial values by (seed, name), draws and dropout masks by (seed, clock, place).

TensorFlow's stateful generators are in no checkpoint, so a resumed run would differ from an uninterrupted one. Here
the only state is the *clock*: one int64 variable, saved with the model, that counts the batches that training towers
have seen.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.errors import TowerRuleError
from towernmt.core.graph_state import Clock, configure_graph, graph_state
from towernmt.core.tensors import DType, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import UNK


class StatelessUniform:
    """Initializer, uniform in [-limit, limit), that depends only on the seed and the variable's name.

    A variable has the same initial values with any number of towers, with or without validation.
    """

    def __init__(self, limit: float, name: str) -> None:
        self.limit, self.name = limit, name

    def __call__(self, shape: Any, dtype: DType = tf.float32, partition_info: Any = None) -> Tensor:
        return tf.random.stateless_uniform(shape, _seed_of_variable(self.name), -self.limit, self.limit, dtype)


class StatelessNormal:
    """Initializer, normal with mean 0, that depends only on the seed and the variable's name."""

    def __init__(self, stddev: float, name: str) -> None:
        self.stddev, self.name = stddev, name

    def __call__(self, shape: Any, dtype: DType = tf.float32, partition_info: Any = None) -> Tensor:
        return tf.random.stateless_normal(shape, _seed_of_variable(self.name), 0.0, self.stddev, dtype)


def _seed_of_variable(name: str) -> list[int]:
    return [graph_seed(), zlib.crc32(f"{tf1.get_variable_scope().name}/{name}".encode())]


def set_seed(seed: int) -> None:
    """Set the seed of the default graph, for initial parameters and all random values of its towers.

    TensorFlow's random operations, which a custom model may use, get the seed too, because op determinism requires it.
    """
    configure_graph(replace(graph_state().settings, seed=int(seed)))


def graph_seed() -> int:
    """Return the seed of the default graph (0 by default)."""
    return graph_state().settings.seed


def start_clock(batch_tensor: Tensor) -> None:
    """Create the clock of the graph, which counts the trained batches.

    An operation in `UPDATE_OPS`, which tensorpack's trainers run with each step, advances the clock after it was read
    and after the batch has arrived. A step that fails at the end of the data does not advance it.

    Args:
        batch_tensor: any tensor that depends on the batch, such as an input of the tower.
    """
    state = graph_state()
    if state.clock is not None:
        return
    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE), tf1.device("/cpu:0"):
        variable = tf1.get_variable("random_clock", [], tf.int64, initializer=tf1.zeros_initializer(),
                                    trainable=False, use_resource=True)
        value = tf.identity(variable.read_value(), name="random_clock_now")
        with tf1.control_dependencies([value, batch_tensor]):
            advance = variable.assign_add(1, read_value=False, name="random_clock_advance")
    state.clock = Clock(variable, value, advance)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, advance)


def random_members(size: int, share: float, name: str) -> Tensor:
    """Return a random subset of `size` elements, bool `[size]`, with each element at the probability `share`.

    Args:
        size: number of elements.
        share: probability of each element, exact to 1/65536.
        name: the place, unique within the enclosing variable scope.
    """
    return tf.cast(_random_bits16(tf.constant([size]), name), tf.int32) < round(share * 65536)


_PHILOX = 1     # tf.random.Algorithm.PHILOX


def drop_words(ids: Tensor, rate: float, name: str) -> Tensor:
    """Replace words by the unknown word at random in a training tower (word dropout, Bowman et al. 2016).

    Padding, BOS and EOS stay. The model has to infer a dropped word from the other words and the factors.

    Args:
        ids: int32 `[batch, length]`, or `[batch, length, 1 + factors]`, where factors stay.
        rate: probability of a replacement.
        name: name of the operation, unique within the enclosing variable scope.

    Returns:
        int32 of the shape of `ids`; `ids` itself in towers that do not train.
    """
    if rate == 0.0 or not get_current_tower_context().is_training:
        return ids
    if ids.shape.rank == 3:
        return tf.concat([drop_words(ids[:, :, 0], rate, name)[:, :, None], ids[:, :, 1:]], 2)
    is_dropped = tf.equal(dropout(tf.ones(tf.shape(ids)), rate, name), 0.0) & (ids > UNK)
    return tf.where(is_dropped, tf.fill(tf.shape(ids), UNK), ids)


def dropout(x: Tensor, rate: float, name: str) -> Tensor:
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
        threshold = round(rate * 65536)
        keep = _random_bits16(tf.shape(x), name) >= threshold
        return _masked(tf.cast(x, tf.float32), keep, 65536.0 / (65536 - threshold))


def _masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """Return `x * scale` where `keep` is true, and 0 elsewhere; one byte per element is stored for the gradient."""

    @tf.custom_gradient
    def masked(x: Tensor) -> Tensor:
        def gradient(dy: Tensor) -> Tensor:
            # Without the dependency TensorFlow finds that the mask as float32 was there already, and keeps it.
            with tf1.control_dependencies([dy]):
                mask = tf.cast(keep, tf.float32)
            return dy * (mask * scale)

        return x * (tf.cast(keep, tf.float32) * scale), gradient

    return masked(x)


def _random_bits16(shape: Tensor, name: str) -> Tensor:
    """Return uniform uint16 of `shape`, which depend on the place (variable scope, name and tower) and on the batch.

    The key of Philox is the place. The clock is the high word of its counter, and the low word counts the blocks
    within one tensor. With the clock in the low word, each batch would get the values of the previous batch, shifted
    by a few elements. All places have the same counter, so that TensorFlow computes it once.

    Args:
        shape: int32 `[rank]`.
        name: the place, unique within the enclosing variable scope.
    """
    clock = graph_state().clock
    if clock is None:
        raise TowerRuleError("Dropout and other random values of a tower need a clock: begin build_graph with "
                             "start_clock(TENSOR) of towernmt.models, where TENSOR is an input, or call the parent's "
                             "build_graph.")
    tower = getattr(get_current_tower_context(), "index", 0)
    location = f"{tf1.get_variable_scope().name}/{name}/{tower}/{graph_seed()}"
    size = tf.reduce_prod(shape)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[(size + 1) // 2], key=tf.constant([zlib.crc32(location.encode())], tf.uint64),
        counter=tf.bitcast(tf.stack([tf.zeros([], tf.int64), clock.now]), tf.uint64), alg=_PHILOX, dtype=tf.uint32)
    return tf.reshape(tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:size], shape)
