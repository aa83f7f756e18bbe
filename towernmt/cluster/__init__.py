"""Train one model in several processes, on one machine or many, with TensorFlow's collectives."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "all_reduce": ["AllReduce"],
    "cluster_description": ["Cluster", "cluster_from_environment"],
    "joining": ["joined_world"],
    "tensorflow_world": ["TensorFlowWorld"],
})
