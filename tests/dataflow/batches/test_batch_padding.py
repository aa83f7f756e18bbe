"""`make_batch`, compared with a loop over sentences, at the ends of the corpus and with empty sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.batch import make_batch
from towernmt.dataflow.preparation.shards import PairBlock, select_pairs

Sentences = list[list[int]]

sentences = st.lists(st.lists(st.integers(4, 60_000), max_size=9), min_size=1, max_size=12)


def block_of(sentences: Sentences, dtype: type) -> PairBlock:
    ids = np.array([id for sentence in sentences for id in sentence], dtype)
    offsets = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
    ids.flags.writeable = False     # like those of a mapped shard
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


pairs = st.lists(st.tuples(st.lists(st.tuples(*[st.integers(4, 900)] * 3), max_size=6),
                           st.lists(st.integers(4, 900), max_size=6)), min_size=1, max_size=8)


@given(pairs=pairs, seed=st.integers(0, 99))
def test_factors_and_links_are_laid_out_as_a_loop_would(pairs: list[tuple[list[Any], list[int]]], seed: int) -> None:
    random = np.random.default_rng(seed)
    links = [[(s, t) for s in range(len(source)) for t in range(len(target)) if random.random() < 0.3]
             for source, target in pairs]
    pieces = np.array([piece for source, _ in pairs for piece in source], np.uint16).reshape(-1, 3)
    streams = np.ascontiguousarray(pieces.T)
    offsets = [np.cumsum([0, *map(len, column)]) for column in (*zip(*pairs, strict=True), links)]
    target_ids = np.array([id for _, target in pairs for id in target], np.uint16)
    flat_links = np.array([link for pair_links in links for link in pair_links], np.uint16).reshape(-1, 2).T
    block = PairBlock(streams[0], offsets[0], target_ids, offsets[1], streams[1:], flat_links, offsets[2])
    rows = random.integers(0, len(pairs), random.integers(1, 6))
    batch = make_batch(block, rows, alignments=True)
    lengths = [max(len(pairs[row][side]) for row in rows) + 1 for side in (0, 1)]
    expected = np.zeros((len(rows), lengths[0], 3), int)
    alignment = np.zeros((len(rows), lengths[1], lengths[0]), int)
    for index, row in enumerate(rows):
        for column, piece in enumerate(pairs[row][0]):
            expected[index, column] = piece
        expected[index, len(pairs[row][0])] = 2
        for source, target in links[row]:
            alignment[index, target, source] = 1
    assert batch.source.dtype == np.int32 and batch.alignment is not None and batch.alignment.dtype == np.uint8
    np.testing.assert_array_equal(batch.source, expected)
    np.testing.assert_array_equal(batch.alignment, alignment)
    assert batch.arrays()[5] is batch.alignment
    assert len(make_batch(block, rows).arrays()) == 5
    with pytest.raises(DataError, match="prepare --alignments"):
        make_batch(block_of([[5]], np.uint16), np.arange(1), alignments=True)


def test_pairs_with_several_factors_can_be_selected_and_then_padded() -> None:
    ids, offsets = np.arange(4, 16, dtype=np.uint16), np.array([0, 2, 5, 12])
    block = PairBlock(ids, offsets, ids, offsets, np.stack([ids + 100, ids + 200]))
    batch = make_batch(select_pairs(block, np.array([2, 0, 1])), np.array([1]))
    assert batch.source.tolist() == [[[4, 104, 204], [5, 105, 205], [2, 2, 2]]]


@pytest.mark.parametrize("sentences", [[[]], [[], []], [[5], []], [[5, 6, 7], [8]]])
def test_the_last_sentences_of_a_block_do_not_read_beyond_it(sentences: Sentences) -> None:
    batch = make_batch(block_of(sentences, np.uint16), np.arange(len(sentences)))
    longest = max(map(len, sentences))
    assert batch.source.tolist() == [ids + [2] + [0] * (longest - len(ids)) for ids in sentences]
