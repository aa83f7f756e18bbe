"""A program starts itself anew once, as itself, with another allocator."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from towernmt.core.machine.allocator import TUNABLES

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_transformer.py"
CHOICES = ("LD_PRELOAD", "GLIBC_TUNABLES")
INHERITED = {name: value for name, value in os.environ.items() if name not in CHOICES}
on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")
on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="oneTBB is installed on x86-64 only")

PROGRAM = """
import os, sys
print("start", os.getpid(), *sys.argv[1:], flush=True)
{before}
from towernmt.core.machine.allocator import restart_with_allocator
restart_with_allocator()
print("end", os.environ.get("GLIBC_TUNABLES"), os.environ.get("TBB_MALLOC_SET_HUGE_SIZE_THRESHOLD"), flush=True)
print("tbbmalloc_proxy" in open("/proc/self/maps").read())
"""
WITHOUT_TBB = """
from importlib import metadata
def files(name):
    raise metadata.PackageNotFoundError(name)
metadata.files = files
"""


def lines_of(path, *arguments, before="", **environment):
    path.write_text(PROGRAM.format(before=before), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path), *arguments], env=INHERITED | environment, text=True,
                          capture_output=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@on_glibc
@on_x86_64
def test_a_program_starts_anew_once_with_its_arguments_in_the_same_process_on_onetbb(tmp_path):
    first, second, end, loaded = lines_of(tmp_path / "program.py", "--set", "a b")
    assert first == second and first.endswith("--set a b")
    assert (end, loaded) == ("end None 1048576", "True")


@on_glibc
def test_without_onetbb_glibc_is_told_to_keep_memory(tmp_path):
    first, second, end, loaded = lines_of(tmp_path / "program.py", before=WITHOUT_TBB)
    assert first == second and loaded == "False"
    assert end == "end " + ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items()) + " None"


@on_glibc
def test_a_path_that_cannot_be_preloaded_is_none(tmp_path):
    library = tmp_path / "a folder"
    library.mkdir()
    for name in ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2"):
        (library / name).touch()
    before = f"""
from importlib import metadata
from pathlib import Path
class File(type(Path())):
    def locate(self):
        return self
metadata.files = lambda name: [File(path) for path in Path({str(library)!r}).iterdir()]
"""
    assert lines_of(tmp_path / "program.py", before=before)[2].startswith("end glibc.malloc.")


@on_glibc
@pytest.mark.parametrize("choice", [{"GLIBC_TUNABLES": "glibc.malloc.arena_max=7"}, {"LD_PRELOAD": ""}],
                         ids=["tunables", "preload"])
def test_a_choice_of_the_users_own_stays(tmp_path, choice):
    start, end, loaded = lines_of(tmp_path / "program.py", **choice)
    assert start.startswith("start") and end == f"end {choice.get('GLIBC_TUNABLES')} None" and loaded == "False"


@on_glibc
@pytest.mark.parametrize("program, starts", [
    (["-m", "towernmt.cli.main", "prepare"], 2), (["-m", "towernmt.cli.main", "--version"], 1),
    ([str(EXAMPLE), "--help"], 2)], ids=["command", "what computes nothing", "example"])
def test_the_command_and_the_main_example_start_anew(tmp_path, program, starts):
    (tmp_path / "sitecustomize.py").write_text("print('interpreter')", encoding="utf-8")
    done = subprocess.run([sys.executable, *program], env=INHERITED | {"PYTHONPATH": str(tmp_path)}, text=True,
                          capture_output=True)
    assert done.stdout.splitlines().count("interpreter") == starts
