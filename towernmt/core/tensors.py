"""Types of TensorFlow objects for annotations, without importing TensorFlow (which ships no types)."""

from __future__ import annotations

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""A `tf.Tensor` (or what TensorFlow converts to one); docstrings give its dtype and shape."""
Variable: TypeAlias = Any
"""A `tf.Variable`."""
Operation: TypeAlias = Any
"""A `tf.Operation`."""
Nest: TypeAlias = Any
"""Tensors in tuples, lists and dictionaries, as `tf.nest` knows them; or one tensor."""
TensorSpec: TypeAlias = Any
"""A `tf.TensorSpec`: shape, dtype and name of an input."""
DType: TypeAlias = Any
"""A `tf.DType`."""
Graph: TypeAlias = Any
"""A `tf.Graph`."""
Session: TypeAlias = Any
"""A `tf1.Session`, or one of TensorFlow's that wrap it, with hooks."""
Optimizer: TypeAlias = Any
"""A `tf1.train.Optimizer`."""
