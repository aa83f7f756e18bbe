"""From corpora to batches: text, vocabularies, storage, sources, prepared data, batches. Never imports TensorFlow."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "order.batch": ["Batch"],
    "order.batch_settings": ["BatchSettings", "StreamBatchSettings"],
    "order.batches": ["Batches"],
    "order.position": ["Position"],
    "order.stream_batches": ["StreamBatches"],
    "order.streamed_corpus": ["StreamedCorpus"],
    "order.training_data": ["make_batches", "open_training_data"],
    "prepare.prepare_settings": ["PrepareSettings"],
    "prepared.pair_block": ["PairBlock"],
    "prepared.prepared_data": ["PreparedData", "open_prepared"],
    "sources.corpora": ["Corpora", "read_corpora"],
    "sources.mixture": ["Ingredient", "Mixture"],
    "sources.open_source": ["open_source"],
    "sources.source": ["Pair", "Source"],
    "text.validation_set": ["ValidationFiles"],
    "vocabulary.base": ["Vocabulary"],
    "vocabulary.vocabulary_files": ["load_vocabulary"],
})
