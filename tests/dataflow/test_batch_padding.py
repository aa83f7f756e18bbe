"""make_batch against a loop over sentences, at the ends of the corpus and with empty sentences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.dataflow.batches import make_batch
from towernmt.dataflow.pairs import PairBlock

Sentences = list[list[int]]

sentences = st.lists(st.lists(st.integers(4, 60_000), max_size=9), min_size=1, max_size=12)


def block_of(sentences: Sentences, dtype: type) -> PairBlock:
    ids = np.array([id for sentence in sentences for id in sentence], dtype)
    offsets = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
    ids.flags.writeable = False     # as a mapped shard
    return PairBlock(ids, offsets, ids, offsets)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
@given(sentences=sentences, seed=st.integers(0, 99))
def test_any_pairs_of_any_block_are_padded_as_a_loop_would(dtype: type, sentences: Sentences, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(0, len(sentences), random.integers(1, 6))
    batch = make_batch(block_of(sentences, dtype), rows)
    longest = max(len(sentences[row]) for row in rows)
    expected = [sentences[row] + [2] + [0] * (longest - len(sentences[row])) for row in rows]
    for ids, lengths in ((batch.source, batch.source_length), (batch.target, batch.target_length)):
        assert ids.dtype == lengths.dtype == np.int32
        assert ids.tolist() == expected
        assert lengths.tolist() == [len(sentences[row]) + 1 for row in rows]
    assert batch.target_tokens == np.float32(batch.target_length.sum())


@pytest.mark.parametrize("sentences", [[[]], [[], []], [[5], []], [[5, 6, 7], [8]]])
def test_the_last_sentences_of_a_block_do_not_read_beyond_it(sentences: Sentences) -> None:
    batch = make_batch(block_of(sentences, np.uint16), np.arange(len(sentences)))
    longest = max(map(len, sentences))
    assert batch.source.tolist() == [ids + [2] + [0] * (longest - len(ids)) for ids in sentences]
