"""Corpora to positions to batches: text, vocabularies, prepared shards, batches. No TensorFlow here."""

from __future__ import annotations

from towernmt.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "batches": ["Batch", "Batches"],
    "corpora": ["read_corpora"],
    "mixture": ["Ingredient", "Mixture"],
    "pairs": ["PairBlock"],
    "position": ["Position"],
    "prepare_settings": ["PrepareSettings"],
    "prepared": ["PreparedData", "open_prepared"],
    "sources.open_source": ["open_source"],
    "stream": ["StreamBatches"],
    "streamed_corpus": ["StreamedCorpus"],
    "training_data": ["make_batches", "open_training_data"],
    "vocabulary": ["Vocabulary", "load_vocabulary"],
    "batch_settings": ["BatchSettings", "StreamSettings"],
})
