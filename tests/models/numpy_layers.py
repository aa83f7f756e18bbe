"""Functions of the papers in NumPy, for the references that tests compare models with."""

from __future__ import annotations

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def standardized(x: np.ndarray) -> np.ndarray:
    """Return `x` with mean 0 and variance 1 along its last axis, as layer normalisation without scale and offset."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def embedding_name(tie_embeddings: str, role: str) -> str:
    """Return the variable that is the table of a role (source, target or softmax), without the model's scope."""
    if tie_embeddings == "all":
        return "embedding"
    return "target_embedding" if tie_embeddings == "target" and role != "source" else f"{role}_embedding"
