"""The models: their interface, the architectures by name, layers and losses."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "architectures": [
        "ARCHITECTURES", "Architecture", "architecture", "architecture_of", "make_model", "name_of_model",
        "settings_and_presets"],
    "convs2s": ["ConvS2S", "ConvS2SMemory"],
    "interface": [
        "ConfiguredModel", "DecoderState", "NMTModel", "batch_signature", "sentence_log_probabilities", "shift_right"],
    "kernels": ["compute_dtype", "to_float32"],
    "layers.attention": ["Attended", "Attention"],
    "layers.embeddings": ["look_up", "shared_table"],
    "layers.multi_head": ["attend", "merge_heads", "split_heads"],
    "layers.projections": ["Projection", "linear_layer"],
    "layers.randomness": ["dropout", "start_clock"],
    "losses": ["LossBatch"],
    "model_settings": [
        "ConvS2SSettings", "RNNSearchSettings", "Seq2SeqSettings", "TransformerSettings", "with_guided_heads"],
    "rnnsearch": ["RNNSearch", "RNNSearchMemory"],
    "seq2seq": ["Seq2Seq", "Seq2SeqMemory"],
    "transformer": ["Transformer", "TransformerMemory"],
})
