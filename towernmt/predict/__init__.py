"""Translate with trained models: search, translators, streams of lines, scores."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "aligner": ["Aligner"],
    "ensemble": ["EnsembleModel"],
    "lines.hypotheses": ["Hypothesis", "Translation", "WordAlignment"],
    "lines.line_options": ["LineOptions", "LineRequest"],
    "lines.terminology": ["Terminology"],
    "lines.text_io": ["read_text"],
    "minimum_bayes_risk": ["MinimumBayesRisk"],
    "model_reranker": ["Judge", "ModelReranker"],
    "reranking": ["Reranker"],
    "search.decoding_interfaces": [
        "StepChoice", "Decoded", "History", "LogitsProcessor", "NEG_INF", "StepContext", "Strategy", "TokenFilter"],
    "search.decoding_loop": ["Decoding", "decode"],
    "search.decoding_tower": [
        "SamplingSettings", "SearchPredictor", "SearchResult", "beam_search", "build_predictor", "build_sampler",
        "build_search_predictor", "decoding_signature", "search_signature", "search_tower"],
    "search.search_settings": ["EnsembleSettings", "SearchSettings", "StreamSettings"],
    "translator": ["Translator", "translation_config"],
})
