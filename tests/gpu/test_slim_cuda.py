"""The code of other GPUs in a library is replaced by zeros; the library stays loadable, and its parts restore it."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import struct
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "slim_cuda.py"


@pytest.fixture(scope="module")
def slim_cuda() -> ModuleType:
    spec = importlib.util.spec_from_file_location("slim_cuda", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(kind: int, architecture: int, content: bytes) -> bytes:
    """Return the code of an architecture with its header."""
    header = struct.pack("<HHIQ", kind, 1, 64, len(content)).ljust(28, b"\0") + struct.pack("<I", architecture)
    return header.ljust(64, b"\0") + content


def group(*listed: bytes) -> bytes:
    """Return a group of codes with its header, padded to 8 bytes."""
    content = b"".join(listed)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a library with two groups of codes, and a function."""
    if shutil.which("cc") is None:
        pytest.skip("the library needs a C compiler")
    section = (group(code(1, 80, b"old text"), code(2, 80, b"old code"), code(2, 90, b"new code")) + bytes(16)
               + group(code(2, 90, b"more new"), code(1, 90, b"new text")))
    values = ",".join(map(str, section))
    source = (f'__attribute__((section(".nv_fatbin"), used)) static unsigned char codes[] = {{{values}}};\n'
              "int answer(void) { return codes[0] ? 42 : 0; }\n")
    path = tmp_path / "libcode.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source.encode(), check=True)
    return path


def test_only_the_machine_code_of_one_architecture_stays(slim_cuda: ModuleType, library: Path, tmp_path: Path) -> None:
    sizes = slim_cuda.slim(library, 90, tmp_path / "slim.so")
    assert sizes == {"ptx sm_80": 8, "elf sm_80": 8, "elf sm_90": 16, "ptx sm_90": 8}
    content = (tmp_path / "slim.so").read_bytes()
    assert b"new code" in content and b"more new" in content
    assert not any(text in content for text in (b"old text", b"old code", b"new text"))
    assert ctypes.CDLL(str(tmp_path / "slim.so")).answer() == 42


def test_a_library_without_the_architecture_is_refused(slim_cuda: ModuleType, library: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no machine code for sm_70, only elf sm_80"):
        slim_cuda.slim(library, 70, tmp_path / "slim.so")


@pytest.mark.parametrize("program", [True, False])
def test_the_parts_are_an_archive(slim_cuda: ModuleType, library: Path, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch, program: bool) -> None:
    if not program:
        monkeypatch.setattr(slim_cuda.shutil, "which", lambda name: None)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("target")
    parts = slim_cuda.pack([library, folder], tmp_path / "parts", 1000)
    assert len(parts) > 1 and all(part.stat().st_size == 1000 for part in parts[:-1])
    joined = b"".join(part.read_bytes() for part in parts)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "--extract", "--xz", "--directory", str(tmp_path / "unpacked")], input=joined, check=True)
    assert (tmp_path / "unpacked/libcode.so").read_bytes() == library.read_bytes()
    assert (tmp_path / "unpacked/folder/link").readlink() == Path("target")


def test_a_failed_archive_is_an_error(slim_cuda: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="tar or xz failed"):
        slim_cuda.pack([tmp_path / "missing"], tmp_path / "parts", 1000)
