"""The number of open files does not grow with epochs, shards or sources."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.batch_settings import BatchSettings, StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.batches.training_data import make_batches
from towernmt.dataflow.preparation import shards
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.preparation.shards import ShardInfo, write_shard
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

DESCRIPTORS = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="counts descriptors as Linux shows them")


def open_files() -> int:
    return len(os.listdir(DESCRIPTORS))


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """Limit this process to a few more open files than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(DESCRIPTORS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Shards(PreparedData):
    """Links to one shard under many names, without the rest of a preparation."""

    def __init__(self, directory: Path, number: int, pairs: int) -> None:
        self._files, self._verified, self._lock = directory, set(), threading.Lock()
        self._mapped = WeakValueDictionary()
        self.num_blocks, self.length_ratio, self.pairs = number, 1.0, number * pairs
        arrays = np.full(pairs, 3, np.int32).tobytes(), np.full(3 * pairs, 5, np.uint16).tobytes()
        with open(directory / "one", "wb") as file:
            info = write_shard(file, ShardInfo("one", pairs, 3 * pairs, 3 * pairs, 2, 0),
                               [arrays[0], arrays[0], arrays[1], arrays[1]])
        self._shards = [replace(info, file=f"shard-{index}") for index in range(number)]
        for shard in self._shards:
            os.link(directory / "one", directory / shard.file)


def test_300_epochs_map_the_only_shard_once(tmp_path: Path) -> None:
    batches = Batches(Shards(tmp_path, 1, 6), BatchSettings(batch_tokens=12), epochs=300)
    before = open_files()
    with at_most(20):
        readers = [batches.read(start=index, step=2) for index in range(2)]
        assert sum(open_files() <= before + 1 for _ in zip(*readers, strict=True)) == 300


def test_300_shards_are_read_with_20_files(tmp_path: Path) -> None:
    data = Shards(tmp_path, 300, 2)
    batches = Batches(data, BatchSettings(batch_tokens=8), epochs=2)
    with at_most(20):
        assert batches.batches_per_epoch() == 300
        assert batches.padding_waste().pairs == 600
        readers = [batches.read(start=index, step=4) for index in range(4)]
        assert sum(len(batch) for turn in zip(*readers, strict=True) for _, batch in turn) == 1200
    del batches, readers
    assert not data._mapped, "a shard that nobody reads is not mapped"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("text")
    lines = "".join(f"{'abcdefgh'[i % 8]} {'hgfedcba'[i // 8 % 8]} {'ab' * (i % 3 + 1)}\n" for i in range(240))
    (directory / "text").write_text(lines)
    prepare(PrepareSettings(source=str(directory / "text"), target=str(directory / "text"),
                            output=str(directory / "data"), vocab_size=40, vocab_kind="unigram", shard_pairs=20))
    return directory / "data"


@pytest.mark.parametrize("sampling", [False, True])
def test_prepared_data_open_few_files(prepared: Path, sampling: bool) -> None:
    settings = StreamBatchSettings(batch_tokens=40, window=10, subword_sampling=sampling, subword_alpha=0.5)
    batches = make_batches(PreparedData(prepared), settings, 8)
    before = open_files()
    with at_most(20):
        assert batches.estimated_batches_per_epoch() > 0        # type: ignore[union-attr]
        assert sum(len(batch) for _, batch in batches.read()) == 8 * 240
    assert open_files() <= before + 3


SOURCES = ["{directory}/text.{{s,t}}", "{directory}/text.{{s,t}}.gz", "{directory}/table.tsv",
           "{directory}/lines.jsonl", "{directory}/table.csv", "{directory}/many-*.tsv", "{directory}/table.parquet",
           "{directory}/memory.tmx?source_language=de&target_language=en",
           "sqlite:///{directory}/base.db?table=pairs"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import gzip
    import json

    directory = tmp_path_factory.mktemp("sources")
    pairs = [(f"a{i}", f"b{i}") for i in range(40)]
    for side in (0, 1):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (directory / f"text.{'st'[side]}").write_text(text)
        with gzip.open(directory / f"text.{'st'[side]}.gz", "wt") as file:
            file.write(text)
    (directory / "table.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    (directory / "table.csv").write_text("".join(f"{source},{target}\n" for source, target in pairs))
    (directory / "lines.jsonl").write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs))
    for index, pair in enumerate(pairs):
        (directory / f"many-{index}.tsv").write_text("\t".join(pair) + "\n")
    units = "".join(f"<tu><tuv xml:lang='de'><seg>{s}</seg></tuv><tuv xml:lang='en'><seg>{t}</seg></tuv></tu>"
                    for s, t in pairs)
    (directory / "memory.tmx").write_text(f"<tmx version='1.4'><header/><body>{units}</body></tmx>")
    with sqlite3.connect(directory / "base.db") as database:
        database.execute("create table pairs (id integer primary key, source text, target text)")
        database.executemany("insert into pairs (source, target) values (?, ?)", pairs)
    database.close()
    return directory


@pytest.mark.parametrize("uri", SOURCES)
def test_many_epochs_of_a_source_open_few_files(sources: Path, uri: str) -> None:
    if "parquet" in uri:
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        columns = {"source": [f"a{i}" for i in range(40)], "target": [f"b{i}" for i in range(40)]}
        parquet.write_table(pyarrow.table(columns), sources / "table.parquet")
    if "sqlite" in uri:
        pytest.importorskip("sqlalchemy")
    vocabulary = WordVocabulary([*SPECIAL_PIECES, *(f"{side}{i}" for side in "ab" for i in range(40))])
    source = open_source(uri.format(directory=sources))
    mixture = Mixture([Ingredient(source)], report=lambda _: None)
    batches = StreamBatches(mixture, vocabulary, vocabulary, StreamBatchSettings(batch_tokens=30, window=7), None, 40,
                            lambda _: None)
    counts: list[int] = []
    for _, batch in batches.read():
        counts += [open_files()] * len(batch)
    assert len(counts) == 40 * 40
    assert max(counts[400:]) <= max(counts[:400])
    del batches, mixture, source


@pytest.mark.parametrize("number, advice", [
    (errno.EMFILE, "Raise the limit on open files (ulimit -n), and start the same command again."),
    (errno.ENFILE, "Raise the limit on open files"), (errno.EACCES, "Make it readable for this user"),
    (errno.EIO, "Check the disk"), (errno.ENOMEM, "Free some memory"),
    (errno.ENOENT, "Prepare the data again with --overwrite.")])
def test_the_advice_fits_the_reason(prepared: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    data = PreparedData(prepared)
    monkeypatch.setattr(shards, "open", fail, raising=False)
    with pytest.raises(DataError) as error:
        data.read_block(0)
    assert os.strerror(number) in str(error.value) and str(error.value).count(". ") == 1
    assert advice in str(error.value) and ("Prepare" in advice) == ("Prepare" in str(error.value))


def test_a_limit_that_is_too_low_is_named(prepared: Path) -> None:
    data, descriptors = PreparedData(prepared), []
    with at_most(1):
        with suppress(OSError):
            while True:
                descriptors.append(os.dup(0))
        with pytest.raises(DataError, match=r"Too many open files\). Raise the limit on open files"):
            data.read_block(0)
        for descriptor in descriptors:
            os.close(descriptor)
    assert len(data.read_block(0))
