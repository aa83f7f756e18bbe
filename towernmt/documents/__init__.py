"""Documents: the segments of a text or a file, their translation, and the placement of marks in it."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "alignment.document_aligner": ["SentenceTexts", "align_sentences"],
    "formats.document_formats": ["opener_of"],
    "segments": ["plain_text"],
})
