"""A run that a command writes (grown, imported): either complete, or without files that obstruct the next attempt."""

from __future__ import annotations

import os
import signal

import pytest

from towernmt.core.errors import SettingsError
from towernmt.run.directory import RunDirectory

MAKE = """
import os, signal, sys
from towernmt.run.directory import RunDirectory

run = RunDirectory(sys.argv[1])
with run.making("towernmt grow"):
    for number, part in enumerate(["vocabulary/source.txt", "checkpoints/step-0/model.index", "imported/readme"]):
        if number == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        place = run.path / part
        place.parent.mkdir(parents=True)
        place.write_text(sys.argv[2])
    if sys.argv[2] == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    run.settings_file.write_text("x")
"""


@pytest.mark.processes
def test_the_same_command_works_after_it_was_killed_anywhere(tmp_path, start_program):
    place = tmp_path / "grown"
    for killed_at in range(4):
        assert start_program(MAKE, place, killed_at).wait().status == -signal.SIGKILL
        assert not (place / "settings.yaml").exists()
    assert start_program(MAKE, place, 9).wait().status == 0
    assert {path.read_text() for path in place.rglob("*") if path.is_file() and path.name != "settings.yaml"} == {"9"}
    assert not list(place.glob(".*"))
    with pytest.raises(SettingsError, match="already contains a run"), RunDirectory(place).making("towernmt grow"):
        pass


def test_a_failed_attempt_leaves_the_files_of_the_user(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    run = RunDirectory(tmp_path)
    with pytest.raises(OSError, match="full"), run.making("towernmt import"):
        for folder in (run.vocabulary, run.code):       # of a grown run of a custom model
            folder.mkdir()
            (folder / "file").write_text("new")
        raise OSError("full")
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("part", ["vocabulary/source.txt", "checkpoints/step-1/model.index", "best/x", "averaged/x",
                                  "imported/notes.txt", "code/mine.py"])
def test_parts_that_another_command_made_are_not_replaced(tmp_path, part):
    (tmp_path / part).parent.mkdir(parents=True)
    (tmp_path / part).write_text("kept")
    with pytest.raises(SettingsError, match="already exists, and would be overwritten"):
        with RunDirectory(tmp_path).making("towernmt grow"):
            pass
    assert (tmp_path / part).read_text() == "kept"
