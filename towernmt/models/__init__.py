"""The models: their interface, the architectures by name, layers and losses."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "architectures": [
        "ARCHITECTURES", "Architecture", "architecture", "architecture_of", "make_model", "name_of_model",
        "settings_and_presets"],
    "convs2s": ["ConvS2S", "ConvS2SMemory"],
    "interface": ["DecoderState", "NMTModel"],
    "layers.projections": ["Projection"],
    "losses": ["LossBatch"],
    "model_settings": ["ConvS2SSettings", "RNNSearchSettings", "Seq2SeqSettings", "TransformerSettings"],
    "rnnsearch": ["RNNSearch", "RNNSearchMemory"],
    "seq2seq": ["Seq2Seq", "Seq2SeqMemory"],
    "transformer": ["Transformer", "TransformerMemory"],
})
