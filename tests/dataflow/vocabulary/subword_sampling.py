"""Samples of a separate process, for the tests that compare processes.

    python subword_sampling.py draws MODEL...            # a digest of the segmentations by each vocabulary
    python subword_sampling.py batches CORPORA MODEL [POSITION...]
                                                         # position and digest of each batch from each position on
    python subword_sampling.py prepared DIRECTORY [POSITION]                # the same of prepared data
"""

from __future__ import annotations

import hashlib
import random
import sys

from towernmt.dataflow.batches.batch import Position
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.batches.training_data import make_batches
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.sources.corpora import read_corpora
from towernmt.dataflow.vocabulary.base import Sampling
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabulary

_CHANCE = random.Random(2)
_WORDS = ["".join(_CHANCE.choices("abcdefgh", k=_CHANCE.randint(3, 9))) for _ in range(300)]  # as in test_sampling.py
TEXTS = [" ".join([*_CHANCE.choices(_WORDS, k=5), "ab" * (number % 40), f"ü{number}"]) for number in range(300)]
SAMPLINGS = (Sampling(0.1), Sampling(0.5), Sampling(0.3, 8))


def digests(path: str) -> list[str]:
    """Return a digest of the samples for each of SAMPLINGS."""
    vocabulary = load_vocabulary(path)
    return [hashlib.sha256(repr([vocabulary.sample_batch(TEXTS, sampling, 5, 1000),
                                 vocabulary.sample_with_words(TEXTS, sampling, 6)]).encode()).hexdigest()
            for sampling in SAMPLINGS]


def batches(corpora: str, model: str, position: str | None = None) -> list[str]:
    """Return a line for each batch: the position after it, and a digest of its arrays."""
    vocabulary = load_vocabulary(model)
    settings = StreamBatchSettings(batch_tokens=600, window=700, subword_sampling=True, seed=3)
    stream = StreamBatches(read_corpora(corpora).mixture(), vocabulary, vocabulary, settings, epochs=2,
                           report=lambda _: None)
    return _lines(stream, position)


def prepared(directory: str, position: str | None = None) -> list[str]:
    """Return the lines of `batches` for prepared data."""
    settings = StreamBatchSettings(batch_tokens=150, window=40, subword_sampling=True, seed=3)
    return _lines(make_batches(PreparedData(directory), settings, 2), position)


def _lines(stream: Batches | StreamBatches, position: str | None) -> list[str]:
    begin = None if position is None else Position.from_json(position)
    return [f"{after.to_json()} {hashlib.sha256(b''.join(array.tobytes() for array in batch.arrays())).hexdigest()}"
            for after, batch in stream.read(begin)]


if __name__ == "__main__":
    if sys.argv[1] == "draws":
        for name in sys.argv[2:]:
            print(*digests(name))
    elif sys.argv[1] == "prepared":
        print(*prepared(*sys.argv[2:]), "", sep="\n")
    else:
        for begin in sys.argv[4:] or [None]:
            print(*batches(*sys.argv[2:4], begin), "", sep="\n")
