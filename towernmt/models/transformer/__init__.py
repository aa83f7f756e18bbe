"""The Transformer (Vaswani et al. 2017) and its parts."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "model": ["Transformer", "TransformerMemory"],
    "settings": ["PRESETS", "TransformerSettings"],
})
