"""Layers as functions over `get_variable`: they obey the rules of tower functions by construction."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "embeddings": ["embedding_table"],
    "normalization": ["layer_norm", "rms_norm"],
    "positions": ["sinusoids"],
    "projections": ["Projection", "linear"],
})
