"""Corpora to positions to batches: text, vocabularies, prepared shards, batches. No TensorFlow here."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "order.batches": ["Batch", "Batches"],
    "sources.corpora": ["read_corpora"],
    "sources.mixture": ["Ingredient", "Mixture"],
    "prepared.pairs": ["PairBlock"],
    "order.position": ["Position"],
    "prepare.settings": ["PrepareSettings"],
    "prepared.prepared": ["PreparedData", "open_prepared"],
    "sources.open_source": ["open_source"],
    "order.stream": ["StreamBatches"],
    "order.streamed_corpus": ["StreamedCorpus"],
    "order.training_data": ["make_batches", "open_training_data"],
    "vocabulary.vocabulary": ["Vocabulary", "load_vocabulary"],
    "order.batch_settings": ["BatchSettings", "StreamSettings"],
})
