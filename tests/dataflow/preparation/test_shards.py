"""Shards: written arrays are read unchanged, and a file that is not the shard of its manifest is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.shards import ShardInfo, id_dtype, read_shard, write_shard
from towernmt.dataflow.preparation.tasks import atomic_output

Sentences = list[list[int]]


def _write(path: Path, chunks: list[list[tuple[list[int], list[int]]]], vocabulary: int) -> ShardInfo:
    return _write_annotated(path, [[([(id,) for id in source], target, []) for source, target in chunk]
                                   for chunk in chunks], vocabulary, 0, False)


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


@settings(max_examples=60, deadline=None)
@given(data=st.data(), vocabulary=st.sampled_from([10, 65537]), factors=st.integers(0, 3), linked=st.booleans())
def test_factors_and_links_stay_with_their_pairs(data: st.DataObject, vocabulary: int, factors: int, linked: bool,
                                                 tmp_path_factory: pytest.TempPathFactory) -> None:
    ids = st.integers(0, vocabulary - 1)
    pair = st.tuples(st.lists(st.tuples(*[ids] * (1 + factors)), max_size=5), st.lists(ids, max_size=5),
                     st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), max_size=5))
    chunks = data.draw(st.lists(st.lists(pair, max_size=4), max_size=5))
    directory = tmp_path_factory.mktemp("shard")
    info = _write_annotated(directory / "s.pairs", chunks, vocabulary, factors, linked)
    assert ShardInfo(**json.loads(json.dumps(dataclasses.asdict(info)))) == info
    assert (directory / "s.pairs").stat().st_size == info.bytes
    block = read_shard(directory, info)
    assert (block.source_factors is None) == (not factors) and (block.links is None) == (not linked)
    assert len(block) == sum(map(len, chunks))
    for i, (source, target, links) in enumerate(pair for chunk in chunks for pair in chunk):
        words = slice(*block.source_offsets[i:i + 2])
        streams = [block.source_ids[words], *(() if block.source_factors is None else block.source_factors[:, words])]
        assert list(zip(*(stream.tolist() for stream in streams), strict=True)) == source
        assert block.target_ids[slice(*block.target_offsets[i:i + 2])].tolist() == target
        if block.links is not None and block.link_offsets is not None:
            assert block.links[:, slice(*block.link_offsets[i:i + 2])].T.tolist() == [list(link) for link in links]


def _write_annotated(path: Path, chunks: list[list[Any]], vocabulary: int, factors: int, linked: bool) -> ShardInfo:
    dtype, pairs = id_dtype(vocabulary), [pair for chunk in chunks for pair in chunk]
    lengths = [np.array([len(pair[part]) for pair in pairs], np.int32) for part in range(3)]
    source = np.array([piece for pair in pairs for piece in pair[0]], dtype).reshape(-1, 1 + factors).T
    target = np.array([id for pair in pairs for id in pair[1]], dtype)
    links = np.array([link for pair in pairs for link in pair[2]], np.uint16).reshape(-1, 2).T
    info = ShardInfo(path.name, len(pairs), source.shape[1], len(target), 2 if dtype.itemsize == 2 else 4, 0, factors,
                     links.shape[1] if linked else None)
    arrays = [*lengths[:3 if linked else 2], source[0], target, *source[1:], *(links if linked else ())]
    assert [(array.dtype, len(array)) for array in arrays] == info.columns()
    with open(path, "wb") as file:
        return write_shard(file, info, [array.tobytes() for array in arrays])


def test_ids_take_two_bytes_where_they_fit_and_are_mapped_not_read(tmp_path: Path) -> None:
    for vocabulary, dtype in ((65536, np.uint16), (65537, np.int32)):
        info = _write(tmp_path / "s.pairs", [[([vocabulary - 1, 5], [7])]], vocabulary)
        block = read_shard(tmp_path, info)
        assert block.source_ids.dtype == dtype and block.source_offsets.dtype == np.int64
        assert isinstance(block.source_ids, np.memmap) and isinstance(block.target_ids, np.memmap)
        assert not block.source_ids.flags.writeable
        np.testing.assert_array_equal(block.source_lengths, [2])


@pytest.fixture(params=["plain", "with factors and links"])
def shard(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, ShardInfo]:
    if request.param != "plain":
        rows = [([(n, 5)] * 3, [n] * (n % 4 + 1), [(0, 0), (2, 1)] * (n % 2)) for n in range(4, 60)]
        return tmp_path / "s.pairs", _write_annotated(tmp_path / "s.pairs", [rows], 100, 1, True)
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
    for position in [*range(0, 56), *range(64, len(content), 13)]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(DataError, match="s.pairs.*Prepare the data again"):
            read_shard(path.parent, info)


def test_a_shard_of_another_preparation_is_refused(shard: tuple[Path, ShardInfo]) -> None:
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
    path, arrays = tmp_path / "s.pairs", [np.array([1], np.int32).tobytes()] * 2 + [np.array([1], "<u2").tobytes()] * 2
    with atomic_output(path) as unfinished, open(unfinished, "wb") as file:
        info = write_shard(file, ShardInfo(path.name, 1, 1, 1, 2, 0), arrays)
        assert not path.exists()
    assert _read(tmp_path, info) == [([1], [1])]
    with pytest.raises(KeyboardInterrupt), atomic_output(tmp_path / "t.pairs") as unfinished:
        unfinished.write_bytes(b"half")
        raise KeyboardInterrupt
    assert [file.name for file in tmp_path.iterdir()] == ["s.pairs"]
