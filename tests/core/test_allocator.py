"""The environment variables that select an allocator for tensors."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from towernmt.core.allocator import TUNABLES, allocator_environment

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")
GLIBC = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}


def _has_tbb() -> bool:
    try:
        return bool(metadata.files("tbb"))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not _has_tbb(), reason="tbb is not installed")
def test_a_program_that_is_started_in_it_has_onetbbs_allocator():
    loaded = "print('tbbmalloc_proxy' in open('/proc/self/maps').read())"
    shell = f'env $("{sys.executable}" -m towernmt.core.allocator) "{sys.executable}" -c "{loaded}"'
    done = subprocess.run(["sh", "-c", shell], text=True, capture_output=True, cwd=Path(__file__).parents[2],
                          env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"})
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_without_onetbb_glibc_is_configured_to_keep_memory(monkeypatch):
    def files(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", files)
    assert allocator_environment() == GLIBC


def test_a_path_that_cannot_be_preloaded_is_none(tmp_path, monkeypatch):
    class File(type(Path())):
        def locate(self):
            return self

    library = tmp_path / "a folder"
    library.mkdir()
    for name in ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2"):
        (library / name).touch()
    monkeypatch.setattr(metadata, "files", lambda name: [File(path) for path in library.iterdir()])
    assert allocator_environment() == GLIBC
