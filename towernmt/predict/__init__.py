"""A trained tower to translations: search, the translator, streams of lines, scores."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "alignment.aligner": ["Aligner"],
    "alignment.word_alignment": ["WordAlignment"],
    "evaluate": ["Scores", "corpus_scores"],
    "decoding.search": ["SearchPredictor", "SearchResult", "beam_search", "build_predictor",
                        "build_search_predictor", "search_signature", "search_tower"],
    "decoding.inputs": ["decoding_signature"],
    "decoding.loop": ["Decoding", "decode"],
    "decoding.processors.processor": ["NEVER", "LogitsProcessor", "TokenFilter"],
    "decoding.settings": ["SearchSettings", "StreamSettings"],
    "decoding.step": ["History", "StepContext"],
    "decoding.strategies.strategy": ["Choice", "Decoded", "Strategy"],
    "ensemble.ensemble_model": ["EnsembleModel"],
    "ensemble.settings": ["EnsembleSettings"],
    "reranking.by_models": ["Judge", "ModelReranker"],
    "reranking.minimum_bayes_risk": ["MinimumBayesRisk"],
    "reranking.reranker": ["Reranker"],
    "hypotheses": ["Hypothesis", "Translation"],
    "lines.options": ["LineOptions"],
    "translator": ["Translator"],
})
