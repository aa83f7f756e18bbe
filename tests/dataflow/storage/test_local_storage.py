"""Files on disks: listing, opening at an offset, and paths that are not files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.column_files import SeekableFile
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.storage.stored_files import LocalStorage


def test_files_are_listed_by_name_with_size_and_version(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden.txt", "c.dat", "deep/er/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.txt").mkdir()
    storage = LocalStorage()
    assert [file.name for file in storage.list(f"{tmp_path}/*.txt")] == [f"{tmp_path}/{name}.txt" for name in "ab"]
    assert [Path(file.name).name for file in storage.list(f"{tmp_path}/**/?.txt")] == ["a.txt", "b.txt", "d.txt"]
    assert [Path(file.name).name for file in storage.list(f"{tmp_path}/**/er/**/?.txt")] == ["d.txt"]
    assert [Path(file.name).name for file in storage.list(f"{tmp_path}/**/**/d.txt")] == ["d.txt"]
    assert [Path(file.name).name for file in storage.list(f"{tmp_path}/[!a].*")] == ["b.txt", "c.dat"]
    file = storage.list(f"{tmp_path}/b.txt")[0]
    assert file == storage.list(f"{tmp_path}/b.txt")[0]
    assert file.size == 5
    (tmp_path / "b.txt").write_text("other")
    os.utime(tmp_path / "b.txt", ns=(0, 0))
    assert storage.list(f"{tmp_path}/b.txt")[0].version != file.version
    with pytest.raises(DataError, match=r"b\.txt: the file has changed since"):
        storage.open(file)


def test_a_folder_that_is_linked_into_itself_is_listed_once(tmp_path: Path) -> None:
    for name in ("a/x.de", "a/x.en", "x.de", "x.en"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "0").symlink_to(".")
    (tmp_path / "a" / "y.de").symlink_to("x.de")        # links to files are separate files
    names = [file.name for file in LocalStorage().list(f"{tmp_path}/**/?.de")]
    assert names == [f"{tmp_path}/{name}" for name in ("a/x.de", "a/y.de", "x.de")]
    source = open_source(f"{tmp_path}/**/x.{{de,en}}")
    assert [pair for _, pair in source.read(source.begin())] == [("a/x.de", "a/x.en"), ("x.de", "x.en")]


def test_reading_begins_at_any_byte(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(100)))
    storage = LocalStorage()
    file = storage.list(f"{tmp_path}/x")[0]
    for offset in (0, 1, 99, 100):
        with storage.open(file, offset) as opened:
            assert opened.read(1000) == bytes(range(offset, 100))
    with SeekableFile(storage, file) as sought:
        for offset, whence, position in ((-10, os.SEEK_END, 90), (5, os.SEEK_SET, 5), (7, os.SEEK_CUR, 15)):
            assert sought.seek(offset, whence) == position
            assert sought.read(3) == bytes(range(position, position + 3))
        assert sought.read() == bytes(range(18, 100))
        assert sought.read(5) == b""


def test_pipes_and_dangling_links_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tsv")
    with pytest.raises(DataError, match=r"pipe\.tsv: a pipe or a device can be read only once"):
        LocalStorage().list(f"{tmp_path}/pipe.tsv")
    (tmp_path / "link.tsv").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"link\.tsv: the file does not exist"):
        LocalStorage().list(f"{tmp_path}/link.tsv")


@pytest.mark.parametrize(("name", "package", "extra"), (("x.tsv.zst", "zstandard", "zstd"),
                                                        ("x.parquet", "pyarrow.parquet", "parquet")))
def test_a_package_that_is_not_installed_is_named_with_its_extra(
        name: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    source = open_source(f"{tmp_path}/{name}")
    with pytest.raises(DataError, match=rf"pip install 'towernmt\[{extra}\]'"):
        next(source.read(source.begin()))
