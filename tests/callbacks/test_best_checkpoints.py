"""The best checkpoints: which ones are kept, and that a kill at any moment does not change the final result."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.callbacks.best_checkpoints import BestCheckpoints
from towernmt.checkpoint.averaging import best_checkpoints
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.run.directory import RunDirectory


class Monitors:
    def __init__(self):
        self.history = []

    def get_history(self, name):
        return [item for metric, item in self.history if metric == name]


class Loop:
    """A fake trainer with a score at each step and a checkpoint at every third step, of which it keeps two."""

    diverged = False

    def __init__(self, root: Path, keep: int = 2, metric: str = "validation_bleu", mode: str = "max"):
        self.directory = root / "checkpoints"
        self.monitors = Monitors()
        self.global_step = 0
        self.best = BestCheckpoints(root / "best", keep=keep, saver=self, metric=metric,
                                    mode=mode)
        self.best.trainer = self
        steps = sorted(int(p.name[5:]) for p in self.directory.glob("step-*"))
        if steps:
            self.global_step = steps[-1]
            state = json.loads((self.directory / f"step-{steps[-1]}" / "state.json").read_text())
            self.best.restore_state(state)

    def save_now(self):
        path = self.directory / f"step-{self.global_step}"
        if not path.exists():
            unfinished = self.directory / f".writing-{path.name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            (unfinished / "model").write_text(str(self.global_step))
            (unfinished / "state.json").write_text(json.dumps(self.best.state()))
            unfinished.rename(path)
            for old in sorted(self.directory.glob("step-*"), key=lambda p: int(p.name[5:]))[:-2]:
                shutil.rmtree(old)
        return path

    def run(self, scores: list[float]) -> Loop:
        self.best._before_train()
        self.best._before_epoch()
        while self.global_step < len(scores):
            self.global_step += 1
            score = scores[self.global_step - 1]
            self.monitors.history.append(("validation_bleu", (self.global_step, score)))
            self.best._trigger_step()
            if self.global_step % 3 == 0:
                self.save_now()
        return self


def tree(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in sorted((root / "best").rglob("*"))
            if p.is_file() and p.name != "state.json"}


def test_the_best_are_kept_with_their_record_and_log(tmp_path):
    best_checkpoints = Loop(tmp_path).run([1.0, 3.0, 2.0, 3.0, 0.5]).best
    assert [(e["step"], e["score"]) for e in best_checkpoints.entries] == [(4, 3.0), (2, 3.0)]
    assert json.loads((tmp_path / "best/record.json").read_text()) == [
        {"step": 4, "score": 3.0, "metric": "validation_bleu"},
        {"step": 2, "score": 3.0, "metric": "validation_bleu"}]
    assert (tmp_path / "best/log").read_text().splitlines() == [
        f"step {i} validation_bleu {s:.6f}" for i, s in enumerate([1.0, 3.0, 2.0, 3.0, 0.5], 1)]
    assert sorted(p.name for p in (tmp_path / "best").iterdir()) == [
        "checkpoint", "log", "record.json", "step-2", "step-4"]
    assert (tmp_path / "best/step-2/model").read_text() == "2"  # the saver has removed its own checkpoint by then


@settings(max_examples=25, deadline=None)
@given(scores=st.lists(st.integers(0, 6).map(float), min_size=1, max_size=10), keep=st.integers(1, 3))
def test_the_record_is_the_first_of_the_sorted_scores(scores, keep):
    with tempfile.TemporaryDirectory() as root:
        best_checkpoints = Loop(Path(root), keep).run(scores).best
        expected = sorted(enumerate(scores, 1), key=lambda item: (-item[1], -item[0]))[:keep]
        assert [(e["step"], e["score"]) for e in best_checkpoints.entries] == expected
        kept_names = {p.name for p in (Path(root) / "best").glob("step-*")}
        assert kept_names == {f"step-{step}" for step, _ in expected}


@pytest.mark.thorough
@settings(max_examples=50, deadline=None)
@given(scores=st.lists(st.integers(0, 4).map(float), min_size=2, max_size=8), keep=st.integers(1, 3),
       kills=st.lists(st.integers(1, 60), min_size=1, max_size=3))
def test_a_run_killed_at_any_file_operation_ends_like_an_uninterrupted_run(
        killed_after, scores, keep, kills):
    with tempfile.TemporaryDirectory() as uninterrupted, tempfile.TemporaryDirectory() as killed:
        Loop(Path(uninterrupted), keep).run(scores)
        for operations in kills:
            with killed_after(operations, [(os, "link"), (os, "fsync"), (shutil, "rmtree"), (Path, "rename"),
                                           (Path, "replace"), (Path, "mkdir")]):
                Loop(Path(killed), keep).run(scores)
        Loop(Path(killed), keep).run(scores)
        assert tree(Path(killed)) == tree(Path(uninterrupted))


def test_a_run_resumed_from_an_earlier_checkpoint_forgets_the_later_entries(tmp_path):
    Loop(tmp_path).run([1.0, 2.0, 3.0, 4.0, 5.0])
    for step in (4, 5):
        shutil.rmtree(tmp_path / f"checkpoints/step-{step}")
    shutil.copytree(tmp_path / "best/step-4", tmp_path / "checkpoints/step-3")
    (tmp_path / "checkpoints/step-3/model").write_text("3")
    (tmp_path / "checkpoints/step-3/state.json").write_text(json.dumps({
        "entries": [{"step": 3, "score": 3.0, "metric": "validation_bleu"}],
        "last": {"step": 3, "score": 3.0, "metric": "validation_bleu"}}))
    again = Loop(tmp_path)
    again.best._before_train()
    again.best._before_epoch()
    assert [e["step"] for e in again.best.entries] == [3]
    assert {p.name for p in (tmp_path / "best").glob("step-*")} == {"step-3"}
    assert (tmp_path / "best/log").read_text().splitlines()[-1] == "step 3 validation_bleu 3.000000"


def test_an_entry_without_its_directory_is_taken_off(tmp_path, caplog):
    Loop(tmp_path).run([3.0, 1.0, 2.0, 0.0, 0.0, 0.0])
    shutil.rmtree(tmp_path / "best/step-1")
    again = Loop(tmp_path)
    again.run([])
    assert [e["step"] for e in again.best.entries] == [3]
    assert "step-1" in caplog.text and "is no longer listed" in caplog.text


@pytest.mark.parametrize("removed", ["best", "best/record.json", "best/step-3", "best/step-1"])
@pytest.mark.parametrize("scores", [[], [0.0], [2.5]])
def test_a_checkpoint_removed_during_training_is_not_in_the_final_record(tmp_path: Path, removed: str,
                                                                         scores: list[float]) -> None:
    loop = Loop(tmp_path)
    loop.run([3.0, 1.0, 2.0])
    shutil.rmtree(tmp_path / removed, ignore_errors=True)
    (tmp_path / removed).unlink(missing_ok=True)
    for score in scores:
        loop.global_step += 1
        loop.monitors.history.append(("validation_bleu", (loop.global_step, score)))
        loop.best._trigger_step()
    loop.best._after_train()
    listed = json.loads((tmp_path / "best/record.json").read_text())
    assert listed and all((tmp_path / f"best/step-{entry['step']}").is_dir() for entry in listed)


def test_a_new_run_sets_the_best_of_an_older_one_aside(tmp_path):
    Loop(tmp_path).run([1.0, 2.0])
    shutil.rmtree(tmp_path / "checkpoints")
    Loop(tmp_path).run([0.5])
    assert (tmp_path / "best.1/step-2/model").read_text() == "2"
    assert json.loads((tmp_path / "best/record.json").read_text())[0]["step"] == 1


def test_another_metric_begins_a_new_record_and_moves_the_old_best_checkpoints_aside(tmp_path, caplog):
    Loop(tmp_path, keep=1).run([5.0, 2.0, 1.0])
    loop = Loop(tmp_path, keep=1, metric="validation_loss", mode="min")
    loop.monitors.history += [("validation_loss", (step, float(step))) for step in (4, 5)]
    loop.run([0.0] * 5)
    assert (tmp_path / "best.1/step-1/model").read_text() == "1"
    assert json.loads((tmp_path / "best/record.json").read_text()) == [
        {"step": 4, "score": 4.0, "metric": "validation_loss"}]
    assert "Moved the best checkpoints by validation_bleu from" in caplog.text


def test_scores_of_other_sentences_begin_a_new_record_and_move_the_old_best_checkpoints_aside(tmp_path, caplog):
    state = Loop(tmp_path, keep=1).run([5.0, 2.0, 1.0]).best.state()
    loop = Loop(tmp_path)
    loop.best = BestCheckpoints(tmp_path / "best", saver=loop)
    loop.best.trainer, loop.best.forgets_scores = loop, True
    loop.best.restore_state(state)
    loop.run([0.0, 0.0, 0.0, 3.0])
    assert (tmp_path / "best.1/step-1/model").read_text() == "1"
    assert [(entry["step"], entry["score"]) for entry in loop.best.entries] == [(4, 3.0)]
    assert (tmp_path / "best/log").read_text() == "step 4 validation_bleu 3.000000\n"
    assert "Moved the best checkpoints by scores of other validation sentences from" in caplog.text


def test_a_score_of_an_extra_validation_at_the_last_step_survives_a_resume(tmp_path):
    loop = Loop(tmp_path, keep=1).run([1.0, 2.0])
    loop.global_step = 3
    loop.save_now()  # the checkpoint is written before the score is known
    loop.monitors.history.append(("validation_bleu", (3, 9.0)))
    loop.best._after_train()
    again = Loop(tmp_path, keep=1).run([1.0, 2.0, 9.0, 3.0])
    assert [e["step"] for e in again.best.entries] == [3]


@pytest.fixture
def owing(tmp_path) -> Loop:
    """Return a resumed run that has just run the pending validation of step 3, before its first epoch."""
    loop = Loop(tmp_path).run([1.0, 3.0])
    loop.global_step = 3
    loop.save_now()
    again = Loop(tmp_path)
    again.best._before_train()
    again.monitors.history.append(("validation_bleu", (3, 2.0)))
    return again


def test_a_score_that_stops_a_resumed_run_before_its_first_epoch_is_kept(owing, tmp_path):
    owing.best._after_train()
    assert [e["step"] for e in owing.best.entries] == [2, 3]
    assert (tmp_path / "best/step-3/model").read_text() == "3"
    assert (tmp_path / "best/log").read_text().splitlines()[-1] == "step 3 validation_bleu 2.000000"


def test_an_error_before_the_first_epoch_leaves_the_best_alone(owing, tmp_path):
    before = tree(tmp_path)
    try:
        raise CheckpointError("the disk is full")
    except CheckpointError:
        owing.best._after_train()
    assert tree(tmp_path) == before


ENTRY = {"step": 1, "score": 1.0, "metric": "validation_bleu"}


@pytest.mark.parametrize("record, field", [
    ("[{", "cannot be read"), ("", "cannot be read"), ("[" * 100_000, "nested too deeply"),
    ("{}", "it holds an object where a list is expected"), ("[7]", "`[0]` holds 7"),
    (json.dumps([{**ENTRY, "step": "../../../etc"}]), "`[0].step` holds"),
    (json.dumps([ENTRY, {**ENTRY, "step": -1}]), "`[1].step` holds -1 where 0 or more"),
    (json.dumps([{"step": 1, "score": 1.0}]), "`[0].metric` is missing"),
    (json.dumps([{**ENTRY, "score": "high"}]), "`[0].score` holds \"high\"")])
def test_a_damaged_record_is_reported_with_file_and_field_by_all_readers(tmp_path, record, field):
    Loop(tmp_path).run([1.0])
    (tmp_path / "best/record.json").write_text(record)
    for read in (lambda: Loop(tmp_path).run([1.0]), RunDirectory(tmp_path).checkpoint,
                 lambda: best_checkpoints(RunDirectory(tmp_path), 1)):
        with pytest.raises(CheckpointError, match=re.escape(field)) as refused:
            read()
        assert str(tmp_path / "best/record.json") in str(refused.value)


@pytest.mark.parametrize("state", [5, {}, {"entries": 1, "last": None}, {"entries": [{}], "last": None},
                                   {"entries": [], "last": 7}, {"entries": [], "last": {"step": 1}}])
def test_a_damaged_state_of_best_checkpoints_is_refused(tmp_path, state):
    with pytest.raises((TypeError, KeyError, ValueError)):      # the saver reports it with file and field
        BestCheckpoints(tmp_path).restore_state(state)


def test_scores_that_are_not_numbers_are_logged_and_never_kept(tmp_path):
    loop = Loop(tmp_path)
    loop.run([float("nan"), 1.0, float("inf")])
    assert [e["step"] for e in loop.best.entries] == [2] and json.loads((tmp_path / "best/record.json").read_text())
    Loop(tmp_path).best.restore_state(loop.best.state())
    assert (tmp_path / "best/log").read_text().startswith("step 1 validation_bleu nan")


def test_a_trainer_without_a_saver_is_refused(train, tmp_path):
    with pytest.raises(SettingsError, match="CheckpointSaver"):
        train([BestCheckpoints(tmp_path / "best")], steps=1)
