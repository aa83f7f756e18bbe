"""Evaluate translations: metrics, comparison with significance tests, reports.

The package can be called: `towernmt.evaluate(hypotheses, references)` returns BLEU and chrF.
"""

from __future__ import annotations

from towernmt.core.startup import lazy_exports, make_callable

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "comparison": ["Comparison", "SignificanceSettings", "System", "SystemScore", "compare"],
    "metrics": ["MetricSettings", "Scores", "corpus_scores"],
    "report": ["Report", "ReportSettings", "report_as_json"],
    "report_page": ["report_html"],
})
make_callable(__name__, "towernmt.evaluate.metrics", "corpus_scores")
