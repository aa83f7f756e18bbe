"""Reading the records of a run: after resumes, during training, and from a damaged file."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.core.directories import LOCK_FILE, DirectoryLock
from towernmt.core.errors import SettingsError
from towernmt.plots.recorded_runs import read_named_runs, read_rows, read_run, short_names


@given(st.lists(st.integers(0, 30), max_size=40))
def test_repeated_steps_of_a_resumed_run_count_once_and_steps_rise(steps: list[int]) -> None:
    lines = [json.dumps({"global_step": step, "line": number}) for number, step in enumerate(steps)]
    rows, damaged, unfinished = read_rows("\n".join(lines))
    # A line is obsolete if any later line has the same step or an earlier one.
    final = [(step, number) for number, step in enumerate(steps) if all(later > step for later in steps[number + 1:])]
    assert [(row["global_step"], row["line"]) for row in rows] == final and not damaged and not unfinished


def test_scalars_of_one_step_are_one_row() -> None:
    rows, _, _ = read_rows('{"global_step": 5, "nll": 2.0}\n{"global_step": 5, "validation_bleu": 30}\n')
    assert rows == [{"global_step": 5, "nll": 2.0, "validation_bleu": 30}]


def test_damage_is_left_out_and_counted() -> None:
    text = ('{"global_step": 1, "nll": NaN, "loss": 2.0}\n\x00\x00\n[1]\n{"nll": 1}\n'
            '{"global_step": 2, "nll": "x"}\n{"glo')
    rows, damaged, unfinished = read_rows(text)
    assert rows == [{"global_step": 1, "loss": 2.0}, {"global_step": 2}] and (damaged, unfinished) == (3, True)


def test_notes_tell_of_damage_and_of_nothing(make_run, rows) -> None:
    path = make_run("run", rows)
    with (path / "log" / "stats.jsonl").open("a") as file:
        file.write('{"nll": 2.')
    assert read_run(path, "r").notes == ["the last line of stats.jsonl is incomplete, and ignored"]
    empty = read_run(make_run("empty"), "e")
    assert empty.rows == [] and empty.last_step == 0 and empty.notes == ["nothing is recorded yet"]


def test_recorded_totals_stand_as_they_are_and_lie_between_where_they_are_missing(make_run, rows) -> None:
    rows = [*rows[:4], {"validation_bleu": 1.0, "global_step": 270}, *rows[4:],
            {"validation_bleu": 9.0, "global_step": 630}]
    run = read_run(make_run("run", rows), "r")
    assert not run.notes
    at = {row["global_step"]: row for row in run.rows}
    assert at[240]["minutes_trained"] == 4 and at[600]["minutes_trained"] == 11
    assert at[270]["minutes_trained"] == 4.5 and at[270]["target_tokens_trained"] == 270_000
    assert at[630]["minutes_trained"] == pytest.approx(11 * 630 / 600)


def test_a_run_that_is_written_is_still_training(make_run, rows) -> None:
    path = make_run("run", rows)
    with DirectoryLock(path, "train"):
        assert read_run(path, "r").notes == ["still training"]
    assert read_run(path, "r").notes == []
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    (path / LOCK_FILE).write_text(json.dumps({"process": gone, "host": socket.gethostname()}))    # it was killed
    assert read_run(path, "r").notes == []
    (path / LOCK_FILE).write_text("")
    assert read_run(path, "r").notes == []


def test_runs_are_named_by_patterns_each_once_and_other_directories_are_reported(make_run, tmp_path: Path) -> None:
    make_run("runs/a"), make_run("runs/b")
    (tmp_path / "runs" / "data").mkdir()
    runs, without_run = read_named_runs([f"{tmp_path}/runs/b", f"{tmp_path}/runs/*"])
    assert [run.name for run in runs] == ["b", "a"] and without_run == [f"{tmp_path}/runs/data"]
    assert [run.name for run in read_named_runs([f"base={tmp_path}/runs/b", f"{tmp_path}/runs/a"])[0]] == ["base", "a"]
    for texts in ([f"{tmp_path}/runs/*", f"base={tmp_path}/runs/a"], [f"base={tmp_path}/runs/a", f"{tmp_path}/runs/*"]):
        assert [run.name for run in read_named_runs(texts)[0]] == ["base", "b"]


def test_a_path_or_a_pattern_may_contain_an_equals_sign(make_run, tmp_path: Path) -> None:
    make_run("runs/lr=1"), make_run("runs/lr=2")
    for texts in ([f"{tmp_path}/runs/lr=*"], [f"{tmp_path}/runs/lr=1", f"{tmp_path}/runs/lr=2"]):
        assert [run.name for run in read_named_runs(texts)[0]] == ["lr=1", "lr=2"]
    assert [run.name for run in read_named_runs([f"base={tmp_path}/runs/lr=1"])[0]] == ["base"]


@pytest.mark.parametrize(("texts", "message"), [
    (["none"], "none: the directory does not exist"), (["no/*"], "no/*: the directory does not exist"),
    (["data"], "data: no run here"), (["x=runs/*"], "2 runs cannot have the same name"),
    (["x=runs/a", "x=runs/b"], "x: two runs have this name")])
def test_arguments_that_name_no_runs_are_refused(make_run, tmp_path, monkeypatch, texts, message) -> None:
    make_run("runs/a"), make_run("runs/b")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as error:
        read_named_runs(texts)
    assert message in str(error.value)


def test_short_names_are_as_long_as_they_must() -> None:
    assert short_names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert short_names([Path("/x/1/run"), Path("/x/2/run")]) == ["1/run", "2/run"]
    assert short_names([Path("/x/run"), Path("/y/run"), Path("/y/other")]) == ["x/run", "y/run", "y/other"]
