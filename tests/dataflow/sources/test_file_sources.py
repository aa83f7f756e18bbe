"""Files of pairs in every format and compression: their pairs, and resuming from any cursor."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import BinaryIO

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.sources import column_files
from towernmt.dataflow.sources.line_files import ParallelFiles
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.sources.source import Cursor, Pair, Source
from towernmt.dataflow.storage import stored_files
from towernmt.dataflow.storage.stored_files import LocalStorage, StoredFile

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}
FORMATS = ("x-*.{de,en}", "x-*.tsv?columns=2,1", "x-*.jsonl?source=t.de&target=en", "x-*.parquet?source=t.de&target=en")
TEXTS = st.text(st.one_of(st.sampled_from("aß漢\U0001f600\u2028\x0b\x85\r "),
                          st.characters(codec="utf-8", exclude_characters="\n\t")), max_size=8).map(
    lambda text: text.replace("\ufeff", "").rstrip("\r"))
CORPORA = st.lists(st.lists(st.tuples(TEXTS, TEXTS).map(lambda texts: Pair(*texts)), max_size=6),
                   min_size=1, max_size=3)


def write(folder: Path, format: str, files: Sequence[Sequence[Pair]], suffix: str = "", end: str = "\n",
          last_end: bool = True, streams: int = 1, row_group: int = 2) -> str:
    """Write x-0, x-1, ... and return the URI that reads them."""
    for i, pairs in enumerate(files):
        if ".parquet" in format:
            schema = pyarrow.schema([("t", pyarrow.struct([("de", pyarrow.string())])), ("en", pyarrow.string())])
            records = [{"t": {"de": pair.source}, "en": pair.target} for pair in pairs]
            table = pyarrow.Table.from_pylist(records, schema)
            pyarrow.parquet.write_table(table, folder / f"x-{i}.parquet", row_group_size=row_group)
            continue
        columns = {".de": [pair.source for pair in pairs], ".en": [pair.target for pair in pairs]}
        if ".tsv" in format:
            columns = {".tsv": [f"0\t{pair.target}\t{pair.source}\t3" for pair in pairs]}
        elif ".jsonl" in format:
            columns = {".jsonl": [json.dumps({"t": {"de": pair.source}, "en": pair.target}) for pair in pairs]}
        for name, lines in columns.items():
            text = "".join(line + end for line in lines)
            if not last_end and lines and lines[-1]:
                text = text.removesuffix(end)
            data = text.encode()
            cuts = [len(data) * k // streams for k in range(streams + 1)]
            content = b"".join(COMPRESS[suffix](data[a:b]) for a, b in zip(cuts, cuts[1:], strict=False))
            (folder / f"x-{i}{name}{suffix}").write_bytes(content)
    pattern, _, options = format.partition("?")
    if ".parquet" not in format:
        pattern += suffix
    return f"{folder}/{pattern}" + (f"?{options}" if options else "")


def saved(cursor: Cursor) -> Cursor:
    """Return a cursor after saving and loading it as JSON, as a checkpoint does."""
    return json.loads(json.dumps(cursor))


def read(source: Source) -> list[Pair]:
    return [pair for _, pair in source.read(source.begin())]


@pytest.mark.parametrize(("format", "suffix"), [
    (format, suffix) for format in FORMATS for suffix in COMPRESS if ".parquet" not in format or not suffix])
@settings(max_examples=25, deadline=None)
@given(files=CORPORA, end=st.sampled_from(["\n", "\r\n"]), last_end=st.booleans(), streams=st.integers(1, 3),
       size=st.sampled_from([1, 2, 7, 1000]), row_group=st.integers(1, 4), data=st.data())
def test_reading_resumes_at_every_cursor_with_exactly_the_rest(
        format: str, suffix: str, files: list[list[Pair]], end: str, last_end: bool, streams: int, size: int,
        row_group: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    uri = write(tmp_path_factory.mktemp("files"), format, files, suffix, end, last_end, streams, row_group)
    source = open_source(uri)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_files, "READ_BYTES", size)
        patch.setattr(stored_files, "_COMPRESSED_BYTES", size)
        patch.setattr(column_files, "BATCH_ROWS", min(size, 3))
        begin = saved(source.begin())
        everything = list(source.read(begin))
        assert [pair for _, pair in everything] == [pair for pairs in files for pair in pairs]
        assert source.count() == len(everything)
        k = data.draw(st.integers(0, len(everything)))
        cursor = everything[k - 1][0] if k else begin
        assert saved(cursor) == cursor
        assert list(open_source(uri).read(saved(cursor))) == everything[k:]


def test_a_zstd_file_with_a_large_window_is_read(tmp_path: Path) -> None:
    text, log_of_window = b"a\tb\n", 28     # as `zstd --long=28` writes it
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(log_of_window - 10) << 3])
    last_raw_block = (len(text) << 3 | 1).to_bytes(3, "little")
    (tmp_path / "x.tsv.zst").write_bytes(header + last_raw_block + text)
    assert read(open_source(f"{tmp_path}/x.tsv.zst")) == [("a", "b")]


@pytest.mark.parametrize("size", (1 << 12, 1 << 18))
def test_cursors_do_not_depend_on_the_size_of_what_is_read_at_once(
        size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(write(tmp_path, FORMATS[0], [[Pair(f"größe {i}", "size " * (i % 7)) for i in range(5000)]]))
    everything = list(source.read(source.begin()))
    monkeypatch.setattr(stored_files, "READ_BYTES", size)
    assert list(source.read(everything[2999][0])) == everything[3000:]


class CountingStorage(LocalStorage):
    """A storage that counts the bytes that are read from files."""

    def __init__(self) -> None:
        self.bytes = 0

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        opened = super().open(file, offset)
        storage = self

        class Counting:
            def __enter__(self) -> Counting:
                return self

            def __exit__(self, *_: object) -> None:
                opened.close()

            def read(self, size: int) -> bytes:
                data = opened.read(size)
                storage.bytes += len(data)
                return data

        return Counting()       # type: ignore[return-value]


def test_resuming_in_plain_text_is_a_seek(tmp_path: Path) -> None:
    uri = write(tmp_path, FORMATS[0], [[Pair("eins zwei drei " * 5, str(i)) for i in range(50_000)]])
    storage = CountingStorage()
    source = ParallelFiles("x", storage, uri)
    cursors = [cursor for cursor, _ in source.read(source.begin())]
    for k in (500, 25_000, 49_500):
        storage.bytes = 0
        assert next(source.read(cursors[k]))[1].target == str(k + 1)
        assert storage.bytes <= 2 * stored_files.READ_BYTES


@pytest.mark.parametrize("suffix", ("", ".gz"))
def test_memory_does_not_grow_with_the_file(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "READ_BYTES", 1 << 15)
    random = Random(1)
    pairs = [Pair(random.randbytes(40).hex(), random.randbytes(20).hex()) for _ in range(30_000)]
    uri = write(tmp_path, FORMATS[0], [pairs], suffix)
    source = open_source(uri)
    tracemalloc.start()
    try:
        assert sum(1 for _ in source.read(source.begin())) == 30_000
        assert tracemalloc.get_traced_memory()[1] < 2 << 20     # of 3.6 MB of text
    finally:
        tracemalloc.stop()


def test_several_iterators_read_at_once(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, FORMATS[0], [[Pair(str(i), str(-i)) for i in range(1, 100)]]))
    iterators = [source.read(source.begin()) for _ in range(3)]
    assert all(len({cursor[3] for cursor, _ in step}) == 1 for step in zip(*iterators, strict=True))


def test_a_byte_order_mark_is_skipped_and_counted_in_places(tmp_path: Path) -> None:
    (tmp_path / "x.de").write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    (tmp_path / "x.en").write_bytes(b"c\nd\n")
    source = open_source(f"{tmp_path}/x.{{de,en}}")
    everything = list(source.read(source.begin()))
    assert [pair for _, pair in everything] == [("a", "c"), ("\ufeffb", "d")]
    assert everything[0][0][3:] == [1, 5, 2]
    assert list(source.read(everything[0][0])) == everything[1:]


def test_sides_pair_up_by_what_wildcards_stand_for(tmp_path: Path) -> None:
    for folder, names in (("de", "ba"), ("en", "ab")):
        for name in names:
            path = tmp_path / folder / f"part-{name}" / f"{name}.{folder}.txt"
            path.parent.mkdir(parents=True)
            path.write_text(f"{folder} {name}\n")
    for uri in ("{de,en}/**/*.{de,en}.txt", "{de,en}/part-?/[ab].{de,en}.txt",
                "{de/part-b/b.de.txt,en/part-b/b.en.txt}"):
        pairs = read(open_source(f"{tmp_path}/{uri}"))
        assert pairs == [("de a", "en a"), ("de b", "en b")][-len(pairs):]
    assert len(pairs) == 1


def test_a_single_file_of_each_side_pairs_up_only_if_its_wildcards_do(tmp_path: Path) -> None:
    (tmp_path / "part-1.de").write_text("eins\n")
    (tmp_path / "part-2.en").write_text("two\n")
    with pytest.raises(DataError, match="part-1.de: the matching file of the other side .* is missing"):
        open_source(f"{tmp_path}/part-*.{{de,en}}").begin()
    assert read(open_source(f"{tmp_path}/part-{{*.de,2.en}}")) == [("eins", "two")]
    (tmp_path / "part-2.en").rename(tmp_path / "part-1.en")
    assert read(open_source(f"{tmp_path}//part-*.{{de,en}}")) == [("eins", "two")]


def test_headers_are_passed_over_in_each_file(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"x-{i}.tsv").write_text(f"de\ten\n{i}\tone\nb\ttwo\n")
    (tmp_path / "x-2.tsv").write_text("")
    source = open_source(f"{tmp_path}/x-*.tsv?header=true")
    everything = list(source.read(source.begin()))
    assert [pair.source for _, pair in everything] == ["0", "b", "1", "b"]
    assert source.count() == 4
    for k, (cursor, _) in enumerate(everything):
        assert list(source.read(cursor)) == everything[k + 1:]


def test_rows_without_one_side_can_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a\tb\nc\n\nd\te\nf\n")
    (tmp_path / "x.jsonl").write_text('{"source": "a", "target": "b"}\n\n{"source": null, "target": "c"}\n'
                                      '{"source": "d", "target": "e"}\n{"source": "f"}\n')
    records = [{"source": a, "target": b} for a, b in (("a", "b"), (None, "c"), ("d", "e"), ("f", None))]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "x.parquet")
    for name in ("x.tsv", "x.jsonl", "x.parquet"):
        source = open_source(f"{tmp_path}/{name}?missing=skip")
        everything = list(source.read(source.begin()))
        assert [pair for _, pair in everything] == [("a", "b"), ("d", "e")]
        assert source.count() == 2
        assert list(source.read(everything[0][0])) == everything[1:]
        assert list(source.read(everything[1][0])) == []


def test_files_that_are_added_after_the_cursor_wait_for_the_next_pass(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, FORMATS[0], [[Pair("a", "b")], [Pair("c", "d")]]))
    everything = list(source.read(source.begin()))
    for side in ("de", "en"):
        (tmp_path / f"x-9.{side}").write_text("new\n")
    assert list(source.read(everything[0][0])) == everything[1:]
    assert len(read(source)) == 3
