"""A line that never ends (/dev/zero) is refused by every reader of lines before it fills the memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.checkpoint.embedding_rows import read_embeddings
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import load_yaml
from towernmt.dataflow.sources.corpora import read_corpora
from towernmt.dataflow.sources.line_files import line_blocks
from towernmt.dataflow.storage.stored_files import StoredFile
from towernmt.dataflow.text import text_lines
from towernmt.dataflow.text.text_lines import clean_lines, read_chunks, read_lines
from towernmt.predict.lines.line_options import read_requests
from towernmt.predict.lines.resumable import LineOutput, resumable_output
from towernmt.predict.lines.terminology import Terminology
from towernmt.predict.lines.text_io import open_input, read_text
from towernmt.predict.search.lexical_table import table_lines


class Endless(io.RawIOBase):
    """A stream of NULs, which counts what was read of it."""

    def __init__(self) -> None:
        self.pairs_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        buffer[:] = bytes(len(buffer))      # the part that was read may contain a line end
        self.pairs_read += len(buffer)
        assert self.pairs_read < 4 * text_lines.LONGEST_LINE, "a reader does not stop"
        return len(buffer)


def test_a_stream_is_read_to_the_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 1 << 20)
    with pytest.raises(DataError, match="stdin line 1: the line is longer than"):
        list(clean_lines(io.BufferedReader(Endless()), "stdin"))
    with pytest.raises(DataError, match="stdin line 1: the line is longer than"):
        list(read_requests(LineOutput(io.BytesIO()).lines_of(io.BufferedReader(Endless()), "stdin"), "stdin"))


def _resumed(path: Path) -> Iterable[bytes]:
    with resumable_output(str(path.with_name("out")), 10, {}, False) as output, open_input(path) as stream:
        yield from output.lines_of(stream, str(path))


def _blocks(path: Path) -> Iterable[Any]:
    from towernmt.dataflow.sources.open_source import open_storage

    storage, pattern = open_storage(str(path))
    files: list[StoredFile] = list(storage.list(pattern))
    return line_blocks(storage, files[0])


@pytest.mark.parametrize("read", [read_text, read_chunks, read_lines, _resumed, _blocks, Terminology.read, table_lines,
                                  lambda path: read_embeddings(path, SimpleNamespace(size=0), 4)])  # type: ignore[arg-type]
def test_every_reader_names_the_line(read: Callable[[Path], Any], tmp_path: Path) -> None:
    file = tmp_path / "text"
    with file.open("wb") as stream:
        stream.truncate(text_lines.LONGEST_LINE + (1 << 20))
    with pytest.raises(DataError, match=r"text line 1: the line is longer than 16 MiB\. Check"):
        found = read(file)
        list(found)


def test_a_line_of_the_limit_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 8)
    (tmp_path / "text").write_text("a\n1234567\nb")
    assert read_text(tmp_path / "text") == ["a", "1234567", "b"] == list(read_lines(tmp_path / "text"))
    (tmp_path / "text").write_text("a\n12345678\nb")
    with pytest.raises(DataError, match="line 2"):
        read_text(tmp_path / "text")


@pytest.mark.parametrize("read", [load_yaml, lambda path: read_corpora(str(path))])
def test_yaml_without_end_is_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    with pytest.raises(SettingsError, match="endless.yaml: not valid YAML.*larger than 16 MiB"):
        read(tmp_path / "endless.yaml")


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"text": "a", "id": ' + b"1" * 5_000 + b"}"])
def test_json_that_python_cannot_hold_is_refused_with_its_line(line: bytes) -> None:
    with pytest.raises(DataError, match="in line 1: this is not JSON"):
        list(read_requests([line], "in"))
