"""From corpora to batches: text, storage, sources, vocabularies, prepared data, batches. Never imports TensorFlow."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "batches.batch": ["Batch", "Position", "pad_sentences"],
    "batches.batch_settings": ["BatchSettings", "StreamBatchSettings"],
    "batches.batches": ["Batches"],
    "batches.stream_batches": ["StreamBatches"],
    "batches.training_data": ["StreamedCorpus", "TrainingData", "make_batches", "open_training_data"],
    "preparation.prepare_settings": ["PrepareSettings"],
    "preparation.prepared_data": ["PreparedData", "open_prepared"],
    "preparation.shards": ["PairBlock"],
    "sources.corpora": ["Corpora", "read_corpora"],
    "sources.default_corpus": ["default_corpus"],
    "sources.mixture": ["Ingredient", "Mixture"],
    "sources.open_source": ["open_source"],
    "sources.source": ["Pair", "Source"],
    "text.text_lines": ["read_lines"],
    "text.validation_set": ["ValidationFiles"],
    "vocabulary.base": ["EOS", "PAD", "Vocabulary"],
    "vocabulary.vocabulary_files": ["load_vocabulary", "save_vocabularies"],
})
