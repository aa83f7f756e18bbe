"""Tasks that pass data to each other: the result does not depend on the division of the text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.dataflow.preparation.chunk_encoder import EncodedChunk
from towernmt.dataflow.preparation.corpus_statistics import Statistics
from towernmt.dataflow.preparation.encode_tasks import (
    FindDuplicates,
    GroupedFile,
    find_repeated_keys,
    group_by_lookup,
    group_by_shard,
    read_encoded_chunks,
    read_facts,
    write_encoded_chunks,
    write_grouped,
)
from towernmt.dataflow.preparation.tasks import PreparationJob
from towernmt.dataflow.text.text_lines import line_hash


def edges(items: int, parts: st.DataObject) -> list[int]:
    """Draw the boundaries of the parts of a text, from 0 to its end; each part has at least one item."""
    inner = parts.draw(st.sets(st.integers(1, items - 1))) if items > 1 else set()
    return [0, *sorted(inner), items]


def lookup_job(directory: Path, parts: int, lookups: int) -> PreparationJob:
    """Return a job with the fields that the search for duplicates needs."""
    return cast(PreparationJob, SimpleNamespace(
        parts=parts, lookups=lookups, keys=lambda part: directory / f"keys-{part}",
        repeated_keys=lambda number: directory / f"seen-{number}", lines=100))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 5), st.data())
def test_duplicates_are_those_that_a_set_finds_however_the_text_is_divided(values: list[int], lookups: int,
                                                                          data: st.DataObject) -> None:
    keys = line_hash(np.array(values), 3)       # spread over all bits, as keys are
    previous: set[int] = set()
    expected = [value in previous or previous.add(value) is not None for value in values]
    cuts = edges(len(values), data)
    with TemporaryDirectory() as name:
        job = lookup_job(Path(name), len(cuts) - 1, lookups)
        for part, (start, stop) in enumerate(pairwise(cuts)):
            write_grouped(job.keys(part), group_by_lookup(keys[start:stop], lookups), {})
        for number in range(lookups):
            FindDuplicates(job.repeated_keys(number), 0, job, number).run()
        repeated = [find_repeated_keys(job, part, stop - start) for part, (start, stop) in enumerate(pairwise(cuts))]
    assert np.concatenate(repeated).tolist() == expected


def chunk(first: int, pairs: list[tuple[list[int], list[int]]], linked: bool) -> EncodedChunk:
    """Return pairs of ids from line `first` on, with a factor for each source id and a link for each pair."""
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    lengths = [np.array([len(ids) for ids in side], np.int32) for side in sides]
    ids = [np.array([id for ids in side for id in ids], np.uint16) for side in sides]
    links = np.array([[line, line + 1] for line in range(first, first + len(pairs))], np.uint16).reshape(-1, 2).T
    return EncodedChunk(
        len(pairs), np.arange(first, first + len(pairs)), *lengths, *ids, {"empty source": np.array([first])},
        source_factors=ids[0][None] + 1 if linked else None,
        link_counts=np.ones(len(pairs), np.int32) if linked else None, links=links if linked else None)


_IDS = st.lists(st.integers(4, 60), min_size=1, max_size=4)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(_IDS, _IDS), min_size=1, max_size=30), st.integers(1, 4), st.booleans(), st.data())
def test_pairs_are_dealt_as_one_by_one_however_the_text_is_divided(
        pairs: list[tuple[list[int], list[int]]], shards: int, linked: bool, data: st.DataObject) -> None:
    shard_of_line = (line_hash(np.arange(1, len(pairs) + 1), 7) % np.uint64(shards)).tolist()
    cuts = edges(len(pairs), data)
    with TemporaryDirectory() as name:
        paths = [Path(name) / str(part) for part in range(len(cuts) - 1)]
        for path, (start, stop) in zip(paths, pairwise(cuts), strict=True):
            write_encoded_chunks(path.with_suffix(".npz"), [chunk(start + 1, pairs[start:stop], linked)])
            chunks = read_encoded_chunks(path.with_suffix(".npz"))
            write_grouped(path, list(group_by_shard(chunks, shards, 7)), {"part": path.name})
        assert [read_facts(path)["part"] for path in paths] == [path.name for path in paths]
        for shard in range(shards):
            files = [GroupedFile(path, shard) for path in paths]
            shard_pairs = [(line, pair) for line, pair in enumerate(pairs, 1) if shard_of_line[line - 1] == shard]
            columns: list[tuple[str, list[Any]]] = [
                ("<i4", [len(pair[0]) for _, pair in shard_pairs]), ("<i4", [len(pair[1]) for _, pair in shard_pairs]),
                *([("<i4", [1] * len(shard_pairs))] if linked else []),
                ("<u2", sum((pair[0] for _, pair in shard_pairs), [])),
                ("<u2", sum((pair[1] for _, pair in shard_pairs), []))]
            if linked:
                columns += [("<u2", [id + 1 for _, pair in shard_pairs for id in pair[0]]),
                            ("<u2", [line for line, _ in shard_pairs]), ("<u2", [line + 1 for line, _ in shard_pairs])]
            stored = [b"".join(file.read(column) for file in files) for column in range(len(columns))]
            assert stored == [np.array(values, dtype).tobytes() for dtype, values in columns]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(_IDS, _IDS), min_size=2, max_size=30), st.data())
def test_counts_of_parts_add_up_to_those_of_one_pass(pairs: list[tuple[list[int], list[int]]], data: st.DataObject
                                                     ) -> None:
    chunks = [chunk(start + 1, pairs[start:stop], True) for start, stop in pairwise(edges(len(pairs), data))]
    total, merged = Statistics(1, True), Statistics(1, True)
    for encoded in chunks:
        total.add(encoded)
    for start, stop in pairwise(edges(len(chunks), data)):
        part = Statistics(1, True)
        for encoded in chunks[start:stop]:
            part.add(encoded)
        merged.merge(part.state())
    assert merged.to_json() == total.to_json()
    assert merged.pair_lengths.to_text() == total.pair_lengths.to_text()
