"""Recurrent models: seq2seq (Luong et al. 2015) and RNNSearch (Bahdanau et al. 2015), and recurrence itself."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "rnnsearch": ["RNNSearch", "RNNSearchMemory"],
    "rnnsearch_settings": ["RNNSearchSettings"],
    "seq2seq": ["Seq2Seq", "Seq2SeqMemory"],
    "seq2seq_settings": ["Seq2SeqSettings"],
})
