"""What is told of translations beside references: scores, significance, buckets, sentences, a page."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "comparison": ["Comparison", "SignificanceSettings", "System", "SystemScore", "compare"],
    "metrics": ["MetricSettings"],
    "page": ["html_page"],
    "report": ["Report", "ReportSettings", "as_json"],
})
