"""First values of variables, drawn from the seed and the variable's own name; see `randomness`."""

from __future__ import annotations

import zlib
from typing import Any

from towernmt.core.tensors import DType, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.layers.randomness import graph_seed


class StatelessUniform:
    """Initial values, uniform in [-limit, limit), drawn from the seed and the variable's own name.

    The same variable gets the same values whatever else the graph holds: one tower or four, with or
    without validation.
    """

    def __init__(self, limit: float, name: str) -> None:
        self.limit, self.name = limit, name

    def __call__(self, shape: Any, dtype: DType = tf.float32, partition_info: Any = None) -> Tensor:
        return tf.random.stateless_uniform(shape, _seed_of_variable(self.name), -self.limit, self.limit, dtype)


class StatelessNormal:
    """Initial values, normal with mean 0, drawn from the seed and the variable's own name."""

    def __init__(self, stddev: float, name: str) -> None:
        self.stddev, self.name = stddev, name

    def __call__(self, shape: Any, dtype: DType = tf.float32, partition_info: Any = None) -> Tensor:
        return tf.random.stateless_normal(shape, _seed_of_variable(self.name), 0.0, self.stddev, dtype)


def _seed_of_variable(name: str) -> list[int]:
    return [graph_seed(), zlib.crc32(f"{tf1.get_variable_scope().name}/{name}".encode())]
