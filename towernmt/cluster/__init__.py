"""Several processes, on one machine or many, that train one model together on TensorFlow's own collectives."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "all_reduce": ["AllReduce"],
    "description": ["Cluster", "cluster_from_environment"],
    "tensorflow_world": ["TensorFlowWorld"],
    "joined": ["joined_world"],
})
