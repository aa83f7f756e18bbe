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
    "search.decoding_interfaces": ["Decoded", "LogitsProcessor", "StepChoice", "Strategy", "TokenFilter"],
    "search.decoding_loop": ["Decoding", "decode"],
    "search.decoding_tower": [
        "SearchPredictor", "SearchResult", "beam_search", "build_predictor", "build_search_predictor",
        "decoding_signature", "search_signature", "search_tower"],
    "search.distribution": ["NEG_INF"],
    "search.sampling_tower": ["SamplingSettings", "build_sampler"],
    "search.search_settings": ["EnsembleSettings", "SearchSettings", "StreamSettings"],
    "search.step_context": ["History", "StepContext"],
    "translator": ["Translator", "translation_config"],
})
