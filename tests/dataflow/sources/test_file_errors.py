"""Files that are missing, damaged, changed or of another format: errors with file and line, and no silent end."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from towernmt.core.errors import DataError
from towernmt.dataflow.sources import line_files
from towernmt.dataflow.sources.column_files import Parquet
from towernmt.dataflow.sources.line_files import TabSeparated
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.sources.source import Pair, Source
from towernmt.dataflow.storage import stored_files
from towernmt.dataflow.storage.stored_files import LocalStorage, StoredFile
from towernmt.dataflow.text import text_lines

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}


def read_until_error(source: Source, message: str) -> list[Pair]:
    """Return the pairs before the error, which must occur and match."""
    pairs = []
    with pytest.raises(DataError, match=message):
        for _, pair in source.read(source.begin()):
            pairs.append(pair)
    return pairs


def source_of(folder: Path, **files: bytes) -> Source:
    """Write x.de and x.en, or x.tsv, ..., and open them."""
    for ending, content in files.items():
        (folder / f"x.{ending}").write_bytes(content)
    return open_source(f"{folder}/x." + ("{de,en}" if "de" in files else next(iter(files))))


def test_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.de").write_text("a\n")
    with pytest.raises(DataError, match=r"x\.en: the file does not exist"):
        open_source(f"{tmp_path}/x.{{de,en}}").begin()
    with pytest.raises(DataError, match=r"y-\*\.tsv: no file matches this pattern"):
        open_source(f"{tmp_path}/y-*.tsv").begin()
    with pytest.raises(DataError, match="this is a folder"):
        open_source(f"{tmp_path}?format=tsv").begin()


def test_a_lack_of_memory_is_not_reported_as_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pyarrow.table({"source": ["a"], "target": ["b"]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    source = open_source(f"{tmp_path}/x.parquet")

    def fail(*_: object) -> None:
        raise pyarrow.ArrowMemoryError("malloc of size 1 failed")

    monkeypatch.setattr(Parquet, "_check_columns", fail)
    for mixed in (source, Mixture([Ingredient(source)])):
        with pytest.raises(MemoryError):
            next(mixed.read(mixed.begin()))


def test_a_side_without_its_other_is_named(tmp_path: Path) -> None:
    for name in ("1.de", "1.en", "2.de", "2.en", "3.en"):
        (tmp_path / name).write_text("a\n")
    with pytest.raises(DataError, match=r"3\.en: the matching file of the other side \(.*\*\.de\) is missing"):
        open_source(f"{tmp_path}/*.{{de,en}}").begin()


@pytest.mark.parametrize("swapped", (False, True))
def test_unequal_lengths_tell_the_line(swapped: bool, tmp_path: Path) -> None:
    short, long = b"a\n" * 70_000, b"a\n" * 70_001
    source = source_of(tmp_path, de=long, en=short) if swapped else source_of(tmp_path, de=short, en=long)
    assert len(read_until_error(source, "ends at line 70000, but .* has more lines")) == 70_000
    with pytest.raises(DataError, match="70001 lines|70000 lines"):
        source.count()


def test_a_different_encoding_is_reported_with_file_line_and_byte(tmp_path: Path) -> None:
    bad = b"gut\n" * 90_000 + "früh\n".encode("latin-1") + b"gut\n"
    source = source_of(tmp_path, de=b"good\n" * 90_002, en=bad)
    assert len(read_until_error(source, r"x\.en line 90001: byte 3 of the line \(0xfc\) is not UTF-8")) == 90_000
    cursor, _ = next(islice(source.read(source.begin()), 80_000, None))
    with pytest.raises(DataError, match=r"x\.en line 90001: byte 3"):
        list(source.read(cursor))
    read_until_error(source_of(tmp_path, tsv="a\tb\n".encode("utf-16")), "the file is UTF-16")
    read_until_error(source_of(tmp_path, tsv=b"a\tb\n\x89PNG\0\n"), "line 2: this is binary data, but a text file")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_that_is_cut_off_anywhere_is_an_error(suffix: str, tmp_path: Path) -> None:
    text = "".join(f"eins {i}\tone {i}\n" for i in range(20)).encode()
    complete = COMPRESS[suffix](text) + COMPRESS[suffix](text)
    middle = len(complete) // 2        # at this length it is a complete file of one stream
    for length in {*range(len(complete))} - {middle}:
        (tmp_path / f"x.tsv{suffix}").write_bytes(complete[:length])
        source = open_source(f"{tmp_path}/x.tsv{suffix}")
        pairs = read_until_error(source, rf"x\.tsv{suffix} near line \d+: the \w+ data are damaged")
        assert pairs == [Pair(f"eins {i % 20}", f"one {i % 20}") for i in range(len(pairs))]
        with pytest.raises(DataError, match="damaged"):
            source.count()


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_flipped_bit_in_a_compressed_file_never_changes_pairs_silently(suffix: str, tmp_path: Path) -> None:
    text = "".join(f"eins {i}\tone {i}\n" for i in range(20)).encode()
    right = [Pair(f"eins {i}", f"one {i}") for i in range(20)]
    complete = COMPRESS[suffix](text)
    errors = 0
    for position in range(len(complete)):
        damaged = bytearray(complete)
        damaged[position] ^= 1 << position % 8
        (tmp_path / f"x.tsv{suffix}").write_bytes(damaged)
        source = open_source(f"{tmp_path}/x.tsv{suffix}")
        try:
            assert [pair for _, pair in source.read(source.begin())] == right
        except DataError as error:
            assert f"x.tsv{suffix}" in str(error)
            errors += 1
    assert errors > len(complete) * 0.7      # some bits of headers have no effect, such as gzip's time of modification


def test_bytes_after_a_gzip_stream_are_not_ignored(tmp_path: Path) -> None:
    complete = gzip.compress(b"a\tb\n")
    (tmp_path / "x.tsv.gz").write_bytes(complete + b"\0" * 512 + complete + b"\0\0")
    source = open_source(f"{tmp_path}/x.tsv.gz")
    assert len(list(source.read(source.begin()))) == 2
    (tmp_path / "x.tsv.gz").write_bytes(complete + b"garbage")
    assert len(read_until_error(source, "near line 2: the gzip data are damaged")) == 1


@pytest.mark.parametrize("change", ("touched", "replaced", "gone", "joined"))
def test_a_file_that_changed_since_is_refused(change: str, tmp_path: Path) -> None:
    for i in (1, 2):
        (tmp_path / f"x-{i}.tsv").write_text("a\tb\nc\td\n")
    source = open_source(f"{tmp_path}/x-*.tsv")
    running = source.read(source.begin())
    cursor, _ = next(running)
    path = tmp_path / "x-2.tsv"
    if change == "touched":
        os.utime(path, ns=(1, 1))
    elif change == "replaced":
        path.write_text("a\tb\nc\td\ne\tf\n")
    elif change == "gone":
        path.unlink()
    else:
        (tmp_path / "x-0.tsv").write_text("a\tb\n")
    with pytest.raises(DataError, match="the 2 files have changed since the pass over them began"):
        next(source.read(cursor))
    if change != "joined":
        with pytest.raises(DataError, match=r"x-2\.tsv: (the file has changed|the file does not exist)"):
            list(running)
    assert source.begin() != cursor[:3]


def test_a_cursor_of_something_else_is_refused(tmp_path: Path) -> None:
    source = source_of(tmp_path, tsv=b"a\tb\n")
    for cursor in (None, 7, [], ["x", 1, 0, 0], [*source.begin()[:-1], -1], {"id": 7}):
        with pytest.raises(DataError, match="is not a position in this source"):
            next(source.read(cursor))
    with pytest.raises(DataError, match="x.tsv near line 10: the file had 4 bytes when reading began"):
        next(source.read([*source.begin()[:-2], 9, 1000]))


class TamperedStorage(LocalStorage):
    """A storage that returns other bytes than were listed, or fails like a disk."""

    def __init__(self, content: bytes, fails: bool = False) -> None:
        self.content, self.fails = content, fails

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        stream = io.BytesIO(self.content[offset:])
        if self.fails:
            def read(size: int | None = -1, /) -> bytes:
                raise OSError(5, "Input/output error")
            stream.read = read      # type: ignore[method-assign]
        return stream


@pytest.mark.parametrize("content", (b"a\tb\n", b"a\tb\n" * 3))
def test_a_file_that_changed_since_it_was_listed_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(b"a\tb\n" * 2)
    source = TabSeparated("x", TamperedStorage(content), f"{tmp_path}/x.tsv")
    read_until_error(source, r"x\.tsv near line \d: the file had 8 bytes when reading began")
    (tmp_path / "x.parquet").write_bytes(b"PAR1" * 20)
    read_until_error(Parquet("x", TamperedStorage(content), f"{tmp_path}/x.parquet"), r"x\.parquet")


def test_a_failing_disk_is_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(b"a\tb\n" * 2)
    source = TabSeparated("x", TamperedStorage(b"", fails=True), f"{tmp_path}/x.tsv")
    read_until_error(source, r"x\.tsv near line 1: cannot be read at byte 0 \(Input/output error\)")


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "READ_BYTES", 1 << 10)
    for module in (text_lines, line_files):
        monkeypatch.setattr(module, "LONGEST_LINE", 1 << 20)
    source = source_of(tmp_path, tsv=b"a\tb\n" + b"x" * (1 << 22))
    assert len(read_until_error(source, "x.tsv line 2: the line is longer than 1 MiB")) == 1


@pytest.mark.parametrize(("line", "message"), (
    (b"a", r"x\.tsv line 3: the line has 1 tab-separated column, but column 1"),
    (b"", r"x\.tsv line 3: the line has 1 tab-separated column"),
))
def test_lines_with_too_few_columns_are_named(line: bytes, message: str, tmp_path: Path) -> None:
    source = source_of(tmp_path, tsv=b"a\tb\nc\td\te\n" + line + b"\nf\tg\n")
    assert read_until_error(source, message) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(("line", "message"), (
    ("{", r"x\.jsonl line 2: the line is not JSON"),
    ("{} {}", r"x\.jsonl line 2: the line is not JSON \(Extra data at character 4\)"),
    ("[1]", "line 2: the line is JSON, but not an object"),
    ("", "line 2: the line is empty"),
    ('{"source": "a"}', r"line 2: the field 'target' is missing or null \(the fields are: source\)"),
    ('{"source": "a", "target": null}', "line 2: the field 'target' is missing or null"),
    ('{"source": "a", "target": 7}', "line 2: the field 'target' contains int instead of text"),
    (r'{"source": "\ud83d\ude00 \ud83d", "target": "b"}', "line 2: an escape .* is unpaired"),
    ("[" * 100_000, "line 2: the JSON is nested too deeply"),
))
def test_lines_of_json_that_are_no_pair_are_named(line: str, message: str, tmp_path: Path) -> None:
    good = '{"source": "a", "target": "b"}\n'
    source = source_of(tmp_path, jsonl=f"{good}{line}\n{good}".encode())
    assert read_until_error(source, message) == [("a", "b")]


def test_columns_of_parquet_that_are_not_there_or_hold_no_text_are_named(tmp_path: Path) -> None:
    records = [{"de": f"a{i}", "en": None if i == 5 else "b", "n": i} for i in range(9)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "x.parquet", row_group_size=3)
    uri = f"{tmp_path}/x.parquet"
    read_until_error(open_source(uri), r"x\.parquet: column 'source' is missing; the columns are: de, en, n\.")
    read_until_error(open_source(f"{uri}?source=de&target=n"), "row group 0: a column contains int64 instead of text")
    source = open_source(f"{uri}?source=de&target=en")
    assert len(read_until_error(source, "row group 1 row 3: column 'en' is null")) == 5


def test_text_of_parquet_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"b", b"Gr\xf6\xdfe", b"c"]).view("string")      # as a careless writer stores it
    pyarrow.parquet.write_table(pyarrow.table({"source": ["s"] * 4, "target": texts}), tmp_path / "x.parquet")
    for options in ("", "?missing=skip"):
        source = open_source(f"{tmp_path}/x.parquet{options}")
        assert read_until_error(source, r"x\.parquet row group 0 row 3: column 'target' is not UTF-8\. Fix the file"
                                ) == [("s", "a"), ("s", "b")]


def test_compressed_parquet_is_refused_by_the_name_of_the_compression(tmp_path: Path) -> None:
    read_until_error(source_of(tmp_path, **{"parquet.gz": b"any"}), r"x\.parquet\.gz: .* through gzip\. Decompress")


def test_damaged_parquet_is_an_error(tmp_path: Path) -> None:
    table = pyarrow.table({"source": [f"eins {i}" for i in range(50)], "target": [f"one {i}" for i in range(50)]})
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=20, write_page_checksum=True, compression="none",
                                use_dictionary=False)
    complete = path.read_bytes()
    for length in range(0, len(complete), 97):
        path.write_bytes(complete[:length])
        read_until_error(open_source(str(path)), r"x\.parquet: the file cannot be read as Parquet")
    damaged = bytearray(complete)
    damaged[complete.index(b"eins 7") + 1] ^= 1
    path.write_bytes(damaged)
    read_until_error(open_source(str(path)), r"x\.parquet: the file cannot be read as Parquet \(.*CRC")


@pytest.mark.parametrize("name", ["x.tsv", "x.csv", "x.jsonl"])
def test_utf16_without_a_mark_is_refused_by_name_in_each_format_of_lines(name: str, tmp_path: Path) -> None:
    text = {"x.tsv": "a b\tc d\n", "x.csv": "a b,c d\n", "x.jsonl": '{"source": "a", "target": "b"}\n'}[name] * 9000
    (tmp_path / name).write_bytes(text.encode("utf-16-le"))
    source = open_source(f"{tmp_path}/{name}")
    with pytest.raises(DataError, match=f"{name} line 1: the text is UTF-16LE"):
        next(source.read(source.begin()))
