"""Shards: what is written is read, and a file that is not the shard of its manifest is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.dataflow.shards import ShardInfo, ShardWriter, id_dtype, read_shard
from towernmt.errors import DataError

Sentences = list[list[int]]


def _write(path: Path, chunks: list[list[tuple[list[int], list[int]]]], vocabulary: int,
           buffer_bytes: int = 64) -> ShardInfo:
    dtype = id_dtype(vocabulary)
    writer = ShardWriter(path, dtype, buffer_bytes)
    for chunk in chunks:
        sides = [[pair[side] for pair in chunk] for side in (0, 1)]
        lengths = [np.array([len(s) for s in side], np.int32) for side in sides]
        ids = [np.array([id for s in side for id in s], dtype) for side in sides]
        writer.append(lengths[0], lengths[1], ids[0], ids[1])
    return writer.finish()


def _read(directory: Path, info: ShardInfo) -> list[tuple[list[int], list[int]]]:
    block = read_shard(directory, info)
    return [(block.source_ids[block.source_offsets[i]:block.source_offsets[i + 1]].tolist(),
             block.target_ids[block.target_offsets[i]:block.target_offsets[i + 1]].tolist())
            for i in range(len(block))]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), vocabulary=st.sampled_from([10, 65536, 65537, 1 << 31]))
def test_a_shard_reads_as_it_was_written(data: st.DataObject, vocabulary: int,
                                         tmp_path_factory: pytest.TempPathFactory) -> None:
    sentence = st.lists(st.integers(0, vocabulary - 1), max_size=5)
    chunks = data.draw(st.lists(st.lists(st.tuples(sentence, sentence), max_size=4), max_size=5))
    directory = tmp_path_factory.mktemp("shard")
    info = _write(directory / "s.pairs", chunks, vocabulary)
    assert _read(directory, info) == [pair for chunk in chunks for pair in chunk]
    assert [path.name for path in directory.iterdir()] == ["s.pairs"]
    assert (directory / "s.pairs").stat().st_size == info.bytes


def test_ids_take_two_bytes_where_they_fit_and_are_mapped_not_read(tmp_path: Path) -> None:
    for vocabulary, dtype in ((65536, np.uint16), (65537, np.int32)):
        info = _write(tmp_path / "s.pairs", [[([vocabulary - 1, 5], [7])]], vocabulary)
        block = read_shard(tmp_path, info)
        assert block.source_ids.dtype == dtype and block.source_offsets.dtype == np.int64
        assert isinstance(block.source_ids, np.memmap) and isinstance(block.target_ids, np.memmap)
        assert not block.source_ids.flags.writeable
        np.testing.assert_array_equal(block.source_lengths, [2])


@pytest.fixture
def shard(tmp_path: Path) -> tuple[Path, ShardInfo]:
    pairs = [([n, n + 1, n + 2], [n] * (n % 4 + 1)) for n in range(4, 60)]
    return tmp_path / "s.pairs", _write(tmp_path / "s.pairs", [pairs], 100)


def test_every_truncation_is_refused(shard: tuple[Path, ShardInfo]) -> None:
    path, info = shard
    content = path.read_bytes()
    for size in (0, 7, 63, 64, 200, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match="s.pairs"):
            read_shard(path.parent, info, verify=False)


def test_every_flipped_bit_is_found(shard: tuple[Path, ShardInfo]) -> None:
    path, info = shard
    content = path.read_bytes()
    for position in [*range(0, 44), *range(64, len(content), 13)]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(DataError, match="s.pairs.*Prepare the data again"):
            read_shard(path.parent, info)


def test_a_shard_of_another_preparation_is_refused(shard: tuple[Path, ShardInfo], tmp_path: Path) -> None:
    path, info = shard
    with pytest.raises(DataError, match="another preparation"):
        read_shard(path.parent, dataclasses.replace(info, crc32=info.crc32 ^ 1), verify=False)


def test_a_file_of_another_kind_and_a_missing_one_are_refused(shard: tuple[Path, ShardInfo]) -> None:
    path, info = shard
    path.write_bytes(b"Guten Morgen!\n" * 100)
    with pytest.raises(DataError, match="not a shard"):
        read_shard(path.parent, info)
    path.unlink()
    with pytest.raises(DataError, match="s.pairs: cannot read.*No such file"):
        read_shard(path.parent, info)


def test_an_unfinished_shard_has_not_its_name_yet(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "s.pairs", id_dtype(10), 1)
    one = np.array([1], np.int32)
    writer.append(one, one, one, one)
    assert not (tmp_path / "s.pairs").exists()
    writer.finish()
    assert (tmp_path / "s.pairs").exists()
