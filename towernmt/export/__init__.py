"""A trained model to files for other programs."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "exporter": ["export_model"],
    "formats": ["FORMATS", "ExportFormat"],
    "job": ["ExportJob"],
})
