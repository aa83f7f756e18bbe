"""Read, draw and compare the learning curves that runs have recorded."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "curve_page": ["curves_html"],
    "picture": ["PictureSettings", "draw_curves"],
    "recorded_runs": ["Difference", "RecordedRun", "differences", "read_run"],
})
