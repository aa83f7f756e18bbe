"""Precision of matrix products: float32, or bfloat16 with what must be exact in float32.

In bfloat16 the factors and results of each product are rounded, and so are the logits and the softmax over
the vocabulary, which stand between two products (a kernel sums in float32 inside). Parameters, optimizer,
gradients of parameters, residual stream, normalisation, attention weights and the summed loss are float32
(mixed precision, Micikevicius et al. 2018; bfloat16 has float32's range and needs no loss scaling,
Kalamkar et al. 2019).
"""

from __future__ import annotations

from typing import Any

from towernmt.tf_compat import tf, tf1

PRECISIONS = ("float32", "bfloat16")
_PRECISION = "towernmt/precision"


def set_precision(name: str) -> None:
    """Set the precision of the default graph's matrix products: one of `PRECISIONS`."""
    tf1.get_collection_ref(_PRECISION)[:] = [name]


def compute_dtype() -> Any:
    """The dtype that factors of products have in the default graph; float32 unless `set_precision` was called."""
    names = tf1.get_collection(_PRECISION)
    return tf.as_dtype(names[0]) if names else tf.float32


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """`tf.matmul` of the factors in the compute dtype; so is the result."""
    dtype = compute_dtype()
    return tf.matmul(tf.cast(a, dtype), tf.cast(b, dtype), transpose_a=transpose_a, transpose_b=transpose_b)


def to_float32(x: Any) -> Any:
    """`x` as float32; itself if it is."""
    return tf.cast(x, tf.float32)
