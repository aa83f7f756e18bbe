"""Checkpoints on disk are complete or absent, whenever the process is killed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from towernmt.checkpoint.checkpoint_files import (
    checkpoint_steps,
    keep_last,
    latest_checkpoint,
    read_state,
    remove_unfinished,
    write_checkpoint,
    write_state,
)
from towernmt.core.errors import CheckpointError


class FakeSaver:
    """Writes three files, as a `tf1.train.Saver` does; `session` is their content."""

    def save(self, session, prefix, write_meta_graph, write_state):
        for suffix in (".data-00000-of-00001.tempstate", ".index"):
            Path(prefix + suffix).write_text(session)
        os.rename(prefix + ".data-00000-of-00001.tempstate", prefix + ".data-00000-of-00001")


OPERATIONS = [(os, name) for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open")]


def state(step: int, position: str) -> dict[str, object]:
    return {"step": step, "position": position, "callbacks": {}}


def write(directory: Path, step: int) -> None:
    write_checkpoint(FakeSaver(), f"values {step}", directory, step, state(step, "old"))


def save(directory: Path) -> None:
    """Act as the saver at step 3: write a checkpoint, keep the last two, update the state."""
    write(directory, 3)
    keep_last(directory, 2)
    write_state(directory, 3, state(3, "new"))


def pointed_at(directory: Path) -> int:
    """Return the last step in TensorFlow's file `checkpoint`."""
    first = (directory / "checkpoint").read_text().splitlines()[0]
    return int(first.removeprefix('model_checkpoint_path: "step-').removesuffix('/model"'))


def assert_all_complete(directory: Path) -> None:
    for step in checkpoint_steps(directory):
        path = directory / f"step-{step}"
        assert read_state(path).step == step
        for suffix in (".data-00000-of-00001", ".index"):
            assert (path / f"model{suffix}").read_text() == f"values {step}"


def test_a_process_that_dies_at_any_operation_leaves_complete_checkpoints_only(tmp_path, killed_after):
    moment, died, latest = 0, True, set()
    while died:
        directory = tmp_path / str(moment)
        for step in (1, 2):
            write(directory, step)
        with killed_after(moment, OPERATIONS) as remaining_operations:
            save(directory)
        died = remaining_operations[0] < 0
        assert_all_complete(directory)
        latest.add(checkpoint_steps(directory)[-1])
        remove_unfinished(directory)            # the next start
        assert all(path.name.startswith(("step-", "checkpoint")) for path in directory.iterdir())
        assert (directory / f"step-{pointed_at(directory)}").is_dir()
        save(directory)
        assert checkpoint_steps(directory) == [2, 3]
        assert read_state(directory / "step-3").position == "new"
        assert pointed_at(directory) == 3
        moment += 1
    assert moment > 15
    assert latest == {2, 3}


def test_a_checkpoint_without_a_state_is_none(tmp_path):
    write(tmp_path, 4)
    (tmp_path / "step-9").mkdir()
    (tmp_path / "step-x").mkdir()
    (tmp_path / ".writing-step-12").mkdir()
    assert latest_checkpoint(tmp_path).name == "step-4"
    assert latest_checkpoint(tmp_path / "none") is None


def test_checkpoints_are_ordered_by_number(tmp_path):
    for step in (9, 100, 20):
        write(tmp_path, step)
    assert checkpoint_steps(tmp_path) == [9, 20, 100]
    keep_last(tmp_path, 2)
    assert checkpoint_steps(tmp_path) == [20, 100]


def test_a_damaged_state_is_one_sentence(tmp_path):
    write(tmp_path, 4)
    (tmp_path / "step-4" / "state.json").write_text('{"step": 4')
    with pytest.raises(CheckpointError, match="remove .*step-4 to resume from the previous checkpoint"):
        read_state(tmp_path / "step-4")


def test_a_checkpoint_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path):
    class FullDisk(FakeSaver):
        def save(self, session, prefix, write_meta_graph, write_state):
            Path(prefix + ".index").write_text("half")
            raise OSError(28, "No space left on device")

    write(tmp_path, 4)
    with pytest.raises(CheckpointError, match=r"step-5: the checkpoint could not be written \(No space left") as error:
        write_checkpoint(FullDisk(), "", tmp_path, 5, {})
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "step-4"]
    assert_all_complete(tmp_path)


def refuse_to_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the deletion of removed checkpoints fail, as on NFS while a process of this machine reads their files."""
    delete = shutil.rmtree

    def refuse(path, ignore_errors=False, **options):
        if Path(path).name.startswith(".removing-"):
            if ignore_errors:
                return
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        delete(path, ignore_errors=ignore_errors, **options)

    monkeypatch.setattr(shutil, "rmtree", refuse)


def test_training_continues_if_an_old_checkpoint_cannot_be_deleted(tmp_path, monkeypatch, caplog):
    for step in (1, 2, 3):
        write(tmp_path, step)
    with monkeypatch.context() as patch:
        refuse_to_delete(patch)
        keep_last(tmp_path, 1)
    assert checkpoint_steps(tmp_path) == [3]
    assert "step-1 could not be removed (Directory not empty)" in caplog.text
    keep_last(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "step-3"]


def test_a_checkpoint_replaces_one_of_its_step_before_that_is_deleted(tmp_path, monkeypatch):
    write(tmp_path, 4)
    refuse_to_delete(monkeypatch)
    write_checkpoint(FakeSaver(), "values 4", tmp_path, 4, state(4, "new"))
    assert_all_complete(tmp_path)
    assert read_state(tmp_path / "step-4").position == "new"


def test_a_state_is_replaced_completely(tmp_path):
    write(tmp_path, 4)
    write_state(tmp_path, 4, {"step": 4, "callbacks": {"a": 1}})
    state = json.loads((tmp_path / "step-4" / "state.json").read_text())
    assert state.pop("checksum") and state == {"format": 1, "step": 4, "callbacks": {"a": 1}}
    assert len(list((tmp_path / "step-4").iterdir())) == 3
