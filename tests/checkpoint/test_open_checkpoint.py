"""Reading a checkpoint of any name, while others are written and removed, with the correct reason of each failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from towernmt.checkpoint.checkpoint_files import checkpoint_path, keep_last, latest_checkpoint, write_checkpoint
from towernmt.checkpoint.checkpoint_reader import CheckpointRemoved, OpenCheckpoint, repeat_if_removed
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.core.errors import CheckpointError
from towernmt.core.tf_compat import tf, tf1

NAMES = ["a[1]", "[", "]", "back\\slash", "star*", "what?", "new\nline", "two words", "über", "{a,b}",
         "%41", "~", "a:b"]


def write(directory: Path, step: int) -> Path:
    """Write a checkpoint of one variable with the value 1,000 * step."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("v", [1000]).load(np.full(1000, step, np.float32), session)
        state = {"step": step, "position": None, "callbacks": {}}
        return write_checkpoint(tf1.train.Saver(), session, directory, step, state)


def restored(checkpoint: OpenCheckpoint | Path) -> float:
    with tf.Graph().as_default(), tf1.Session() as session:
        v = tf1.get_variable("v", [1000])
        init = RestoreCheckpoint(checkpoint / "model" if isinstance(checkpoint, Path) else checkpoint)
        init._setup_graph()
        init._run_init(session)
        return float(session.run(v)[-1])


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_may_have_any_name(tmp_path, name):
    path = write(tmp_path / name / "checkpoints", 3)
    assert latest_checkpoint(tmp_path / name / "checkpoints") == path
    assert restored(path) == 3.0
    assert OpenCheckpoint(path / "model").value("v")[0] == 3.0


def test_a_checkpoint_that_is_removed_while_it_is_read_is_read_to_its_end(tmp_path):
    held = OpenCheckpoint(write(tmp_path, 1) / "model")
    write(tmp_path, 2)
    keep_last(tmp_path, 1)
    assert not checkpoint_path(tmp_path, 1).exists()
    assert restored(held) == 1.0


def test_a_checkpoint_that_is_removed_before_it_is_opened_is_chosen_anew(tmp_path):
    write(tmp_path, 1)
    steps = iter([2, 3])

    def choose_as_a_run_goes_on() -> OpenCheckpoint:
        chosen = latest_checkpoint(tmp_path)
        if step := next(steps, None):
            write(tmp_path, step)
            keep_last(tmp_path, 1)
        return OpenCheckpoint(chosen / "model")

    assert restored(repeat_if_removed(choose_as_a_run_goes_on)) == 3.0


def test_a_missing_checkpoint_is_never_reported_as_damaged(tmp_path):
    with pytest.raises(CheckpointRemoved, match="step-7: the checkpoint does not exist") as error:
        repeat_if_removed(lambda: OpenCheckpoint(tmp_path / "step-7" / "model"))
    assert "remove it" not in str(error.value)


def test_a_checkpoint_whose_removal_has_begun_is_removed_and_not_damaged(tmp_path, monkeypatch):
    """Its removal has deleted the data and `state.json` when the reader lists the open directory."""
    path = write(tmp_path, 1)
    list_directory = os.listdir

    def list_after_removal_has_begun(directory):
        removing = path.rename(tmp_path / ".removing-step-1")
        (removing / "state.json").unlink()
        (removing / "model.data-00000-of-00001").unlink()
        return list_directory(directory)

    monkeypatch.setattr(os, "listdir", list_after_removal_has_begun)
    with pytest.raises(CheckpointRemoved):
        OpenCheckpoint(path / "model")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list open files")
def test_a_missing_directory_for_temporary_files_is_reported_with_its_fix(tmp_path, monkeypatch):
    path = write(tmp_path, 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(CheckpointError, match=r"step-1: a temporary directory .* \(No such file.*set TMPDIR"):
        OpenCheckpoint(path / "model")
    assert not [link for link in Path("/proc/self/fd").iterdir() if str(path) in os.path.realpath(link)]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list open files")
def test_the_next_process_removes_the_links_of_a_killed_reader(tmp_path, monkeypatch):
    path, temporary = write(tmp_path, 1), tmp_path / "temporary"
    temporary.mkdir()
    code = ("import sys\nfrom towernmt.checkpoint.checkpoint_reader import OpenCheckpoint\n"
            f"held = OpenCheckpoint({str(path / 'model')!r})\nprint(held.prefix, flush=True)\nsys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"TMPDIR": str(temporary)})
    prefix = Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()
    assert prefix.parent.is_dir() and temporary in prefix.parents
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    OpenCheckpoint(path / "model").close()
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list open files")
def test_the_files_of_a_checkpoint_are_closed_after_the_values_were_read(tmp_path):
    path = write(tmp_path, 1)
    init = RestoreCheckpoint(path / "model")
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("v", [1000])
        init._setup_graph()
        init._run_init(session)
    assert not Path(init._checkpoint.prefix).parent.exists()
    assert not [link for link in Path("/proc/self/fd").iterdir() if str(path) in os.path.realpath(link)]


@pytest.mark.parametrize("suffix, keep, reason", [
    (".data-00000-of-00001", 500, "Read less bytes than requested"), (".data-00000-of-00001", 0, "Read less bytes"),
    (".index", 40, "sstable"), (".index", 0, "too short")])
def test_a_truncated_checkpoint_is_refused_with_the_reason(tmp_path, suffix, keep, reason):
    path = write(tmp_path, 1)
    os.truncate(path / f"model{suffix}", keep)
    with pytest.raises(CheckpointError, match=reason) as error:
        restored(path)
    assert str(path) in str(error.value) and "Graph execution error" not in str(error.value)
    assert str(tmp_path.parent) in str(error.value) and "/towernmt-" not in str(error.value)


def test_a_checkpoint_without_its_data_file_is_damaged(tmp_path):
    path = write(tmp_path, 1)
    (path / "model.data-00000-of-00001").unlink()
    with pytest.raises(CheckpointError, match="damaged or incomplete .*No such file"):
        restored(path)


def test_files_of_two_checkpoints_that_changed_places_are_never_mixed(tmp_path):
    """The directory is opened once, and its files are opened in it."""
    first, second = write(tmp_path / "a", 5), write(tmp_path / "b", 6)
    held = OpenCheckpoint(first / "model")
    shutil.rmtree(first)
    second.rename(first)
    assert restored(held) == 5.0
