"""A trained tower to translations: search, the translator, streams of lines, scores."""

from __future__ import annotations

from towernmt.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "beam": ["SearchResult", "beam_search"],
    "evaluate": ["Scores", "corpus_scores"],
    "search": ["SearchPredictor", "build_search_predictor", "search_signature", "search_tower"],
    "settings": ["SearchSettings", "StreamSettings"],
    "stream": ["Hypothesis"],
    "translator": ["Translator"],
})
