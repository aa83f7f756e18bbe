"""ConvS2S (Gehring et al. 2017) and convolution over time."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "model": ["ConvS2S", "ConvS2SMemory"],
    "settings": ["PRESETS", "ConvS2SSettings"],
})
