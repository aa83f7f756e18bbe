"""Runs beside each other: what they recorded, what differs between them, as pictures, as a page, as a table."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "differences": ["Difference", "differences"],
    "page": ["html_page"],
    "picture": ["PictureSettings", "draw"],
    "recorded_run": ["RecordedRun", "read_run"],
})
