"""Other systems: exports, imports, CTranslate2 as an engine, and packages."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "model_card": ["CardText"],
    "package_build": ["PackageOptions", "package_run"],
})
