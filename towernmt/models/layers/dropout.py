"""Dropout, of units and of words, whose masks are functions of (seed, clock, place); see `randomness`."""

from __future__ import annotations

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import UNK
from towernmt.models.layers.randomness import seed_of_place

_PHILOX = 1     # tf.random.Algorithm.PHILOX


def drop_words(ids: Tensor, rate: float, name: str) -> Tensor:
    """Word dropout: in a training tower each word becomes the unknown word with a probability (Bowman et al. 2016).

    Padding, BOS and EOS stay. For a dropped word the model has to use the other words, and the factors.

    Args:
        ids: int32 `[batch, length]`, or `[batch, length, 1 + factors]`, where factors stay.
        rate: the probability.
        name: the place, unique within the enclosing variable scope.
    Returns:
        int32 of the shape of `ids`; `ids` itself outside of training.
    """
    if rate == 0.0 or not get_current_tower_context().is_training:
        return ids
    if ids.shape.rank == 3:
        return tf.concat([drop_words(ids[:, :, 0], rate, name)[:, :, None], ids[:, :, 1:]], 2)
    dropped = tf.equal(dropout(tf.ones(tf.shape(ids)), rate, name), 0.0) & (ids > UNK)
    return tf.where(dropped, tf.fill(tf.shape(ids), UNK), ids)


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
        dropped = round(rate * 65536)
        keep = _random_bits16(tf.shape(x), seed_of_place(name)) >= dropped
        return _masked(tf.cast(x, tf.float32), keep, 65536.0 / (65536 - dropped))


def _masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """`x` times `scale` where `keep`, 0 elsewhere; what waits for the gradient is a byte an element."""

    @tf.custom_gradient
    def masked(x: Tensor) -> Tensor:
        def gradient(dy: Tensor) -> Tensor:
            # Without the dependency TensorFlow finds that the mask as float32 was there already, and keeps it.
            with tf1.control_dependencies([dy]):
                mask = tf.cast(keep, tf.float32)
            return dy * (mask * scale)

        return x * (tf.cast(keep, tf.float32) * scale), gradient

    return masked(x)


def _random_bits16(shape: Tensor, seed: Tensor) -> Tensor:
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
