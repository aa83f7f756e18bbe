"""Corpora to positions to batches: text, vocabularies, prepared shards, batches. No TensorFlow here."""

from __future__ import annotations

from towernmt.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {
    "batches": ["Batch", "Batches", "BatchSettings"],
    "pairs": ["PairBlock"],
    "position": ["Position"],
    "prepare_settings": ["PrepareSettings"],
    "prepared": ["PreparedData"],
    "vocabulary": ["Vocabulary", "load_vocabulary"],
})
