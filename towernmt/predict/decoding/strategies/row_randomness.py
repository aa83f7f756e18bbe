"""Random numbers of hypotheses: each a function of a seed, the sentence, the number of the sample, and the step.

A sentence draws the same numbers wherever it stands in whatever batch. TensorFlow's stateless generators give the rows
of a batch different numbers by their place in it, so the numbers are hashed here, by the finalizer of SplitMix64
(Steele et al. 2014).
"""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf

_GOLDEN = 0x9E3779B97F4A7C15    # 2**64 over the golden ratio, made odd
_BITS = 52                      # of a number: a float64 times 1 - 2**-52 is less than itself


def sample_keys(seed: Tensor, source: Tensor, source_length: Tensor, samples: int) -> Tensor:
    """A key for each sample of each sentence, int64 `[batch, samples]`.

    Args:
        seed: int64 `[]`.
        source: int32 `[batch, source length]`, or `[batch, source length, streams]`; padding counts for nothing.
        source_length: int32 `[batch]`.
        samples: how many of a sentence; the k-th key is the same whatever it is.
    """
    length = tf.shape(source)[1]
    streams = tf.reshape(source, [tf.shape(source)[0], length, source.shape[2] if source.shape.rank == 3 else 1])
    place = tf.reshape(tf.range(tf.size(streams[:1])), tf.shape(streams)[1:])       # [source length, streams]
    there = tf.sequence_mask(source_length, length)[:, :, None]
    token = _mixed(_unsigned(streams) + _GOLDEN * _unsigned(place + 1))
    sentence = tf.reduce_sum(tf.where(there, tf.bitcast(token, tf.int64), tf.zeros([], tf.int64)), axis=[1, 2])
    sentence = _joined(tf.bitcast(tf.cast(seed, tf.int64), tf.uint64), tf.bitcast(sentence, tf.uint64))
    return tf.bitcast(_joined(sentence[:, None], _unsigned(tf.range(samples))[None]), tf.int64)


def uniform(keys: Tensor, step: Tensor) -> Tensor:
    """A number from 0 to below 1 for each key and this step, float64 in the shape of `keys`.

    Args:
        keys: int64.
        step: int32 `[]`.
    """
    bits = tf.bitwise.right_shift(_joined(tf.bitcast(keys, tf.uint64), _unsigned(step)), _constant(64 - _BITS))
    return tf.cast(tf.bitcast(bits, tf.int64), tf.float64) * 2.0 ** -_BITS


def _joined(key: Tensor, value: Tensor) -> Tensor:
    """A new key from a key and a value, uint64."""
    return _mixed(key + _GOLDEN * (value + 1))


def _mixed(bits: Tensor) -> Tensor:
    """uint64 in which every bit depends on all bits of `bits`, uint64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _constant(shift))) * _constant(factor)
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _constant(31)))


def _unsigned(value: Tensor) -> Tensor:
    return tf.cast(value, tf.uint64)


def _constant(value: int) -> Tensor:
    return tf.constant(value, tf.uint64)
