"""A program starts itself anew once, as itself, with the allocator's settings."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from towernmt.allocator import TUNABLES

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_transformer.py"

PROGRAM = """
import os, sys
print("start", os.getpid(), *sys.argv[1:], flush=True)
from towernmt.allocator import restart_with_tunables
restart_with_tunables()
print("end", os.environ.get("GLIBC_TUNABLES"), flush=True)
"""


def lines_of(path, *arguments, **environment):
    path.write_text(PROGRAM, encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, str(path), *arguments], env=inherited | environment, text=True,
                          capture_output=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")
def test_a_program_starts_anew_once_with_its_arguments_in_the_same_process(tmp_path):
    first, second, end = lines_of(tmp_path / "program.py", "--set", "a b")
    assert first == second and first.endswith("--set a b")
    assert end == "end " + ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())


def test_tunables_of_the_users_own_stay(tmp_path):
    start, end = lines_of(tmp_path / "program.py", GLIBC_TUNABLES="glibc.malloc.arena_max=7")
    assert start.startswith("start") and end == "end glibc.malloc.arena_max=7"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")
@pytest.mark.parametrize("program", [["-m", "towernmt.cli.main", "--version"], [str(EXAMPLE), "--help"]],
                         ids=["command", "example"])
def test_the_command_and_the_main_example_start_anew(tmp_path, program):
    (tmp_path / "sitecustomize.py").write_text("print('interpreter')", encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, *program], env=inherited | {"PYTHONPATH": str(tmp_path)}, text=True,
                          capture_output=True, check=True)
    assert done.stdout.splitlines().count("interpreter") == 2
