"""Layers: functions over `get_variable`."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "embeddings": ["embedding_table", "sinusoids"],
    "feed_forward": ["layer_norm", "rms_norm"],
    "projections": ["Projection", "linear_layer"],
})
