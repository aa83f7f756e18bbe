"""The trials of `benchmarks/grid.py` are read, run once each, and listed in a table."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import grid
import pytest

from towernmt.core.errors import SettingsError

TRIALS = """
common: [train.steps=2]
trials:
  - {name: a, data: d, source: s, reference: r}
  - {name: b, data: d, source: s, reference: r, settings: [model.residual_dropout=0.3], tokenize: char}
"""


class Commands(list[tuple[str, tuple[str, ...]]]):
    """The commands of trials: the processor and the arguments of each.

    Attributes:
        steps: steps at which a training writes a checkpoint.
        best: steps of its best checkpoints.
    """

    steps: Sequence[int] = range(6)
    best: Sequence[int] = (4,)


@pytest.fixture
def commands(monkeypatch) -> Commands:
    """Replace the processes of trials by functions; each checkpoint has a different BLEU."""
    calls = Commands()

    def towernmt(*arguments: str, cpu: str) -> str:
        calls.append((cpu, arguments))
        if arguments[0] == "train":
            for directory, steps in (("checkpoints", calls.steps), ("best", calls.best)):
                for step in steps:
                    checkpoint = Path(arguments[4]) / directory / f"step-{step}"
                    checkpoint.mkdir(parents=True, exist_ok=True)
                    (checkpoint / "state.json").touch()
        if arguments[0] == "average":
            (Path(arguments[2]) / "averages" / f"last-{arguments[4]}" / "step-2").mkdir(parents=True)
        tested = arguments[4] if arguments[0] == "evaluate" else ""
        return json.dumps({"bleu": {"last": 10.126, "best": 9.5}.get(tested, 11.0), "chrf": 30.0})

    monkeypatch.setattr(grid, "towernmt", towernmt)
    return calls


def test_each_trial_is_trained_and_tested_once(tmp_path, commands, capsys):
    file = tmp_path / "trials.yaml"
    file.write_text(TRIALS)
    grid.main([str(file), "--work", str(tmp_path), "--cpus", "1"])
    assert {cpu for cpu, _ in commands} == {"1"} and len(commands) == 2 * 5
    trained = [words for _, words in commands if words[0] == "train"]
    assert trained[1][-2:] == ("train.steps=2", "model.residual_dropout=0.3")
    tested = [words for _, words in commands if words[0] == "evaluate"]
    assert [words[-2:] == ("--tokenize", "char") for words in tested] == 3 * [False] + 3 * [True]
    assert "| b | model.residual_dropout=0.3 | 10.13 | 9.50 | 11.00 |" in capsys.readouterr().out
    grid.main([str(file), "--work", str(tmp_path)])
    assert len(commands) == 2 * 5


def test_a_short_trial_averages_the_checkpoints_that_it_has_and_may_have_no_best_one(tmp_path, commands, capsys):
    file = tmp_path / "trials.yaml"
    file.write_text(TRIALS)
    commands.steps, commands.best = range(3), ()     # the initial values of step 0 are not averaged
    grid.main([str(file), "--work", str(tmp_path), "--cpus", "1"])
    assert [words[3:] for _, words in commands if words[0] == "average"] == [("--last", "2")] * 2
    assert "| a |  | 10.13 | - | 11.00 (of 2) |" in capsys.readouterr().out
    assert {result["averaged"] for result in grid.read_results(tmp_path / "results.jsonl").values()} == {2}


def test_trials_on_a_gpu_are_not_bound_to_a_processor(tmp_path, commands):
    file = tmp_path / "trials.yaml"
    file.write_text(TRIALS.replace("tokenize: char", "preset: mini"))
    grid.main([str(file), "--work", str(tmp_path), "--gpu", "2", "--at-once", "1"])
    assert {cpu for cpu, _ in commands} == {""} and len(commands) == 2 * 5
    first, second = ([*words[5:words.index("--set")]] for _, words in commands if words[0] == "train")
    assert first == ["--gpu", "2"] and second == ["--preset", "mini", "--gpu", "2"]


def test_a_result_that_was_written_by_half_is_made_again(tmp_path, commands):
    file, results = tmp_path / "trials.yaml", tmp_path / "results.jsonl"
    file.write_text(TRIALS)
    grid.main([str(file), "--work", str(tmp_path)])
    complete = grid.read_results(results)
    results.write_text(results.read_text()[:-20])
    assert list(grid.read_results(results)) == ["a"]
    shutil.rmtree(tmp_path / "runs" / "b" / "averages")
    grid.main([str(file), "--work", str(tmp_path)])
    assert grid.read_results(results) == complete
    results.write_text("name: a\n")
    with pytest.raises(SystemExit, match=r"results.jsonl, line 1: not a result; remove the line"):
        grid.main([str(file), "--work", str(tmp_path)])


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("dropout=0.3", "dropout=0.2", "b was run with settings train.steps=2 model.residual_dropout=0.3, but now "
     "has settings train.steps=2 model.residual_dropout=0.2: give the trial a new name"),
    ("[train.steps=2]", "[]", "a was run with settings train.steps=2, but now has settings (none): give"),
    ("{name: b, data: d, source: s", "{name: b, data: e, source: t", "b was run with data d, source s, but now "
     "has data e, source t: give"),
    ("{name: b, data: d, source: s, reference: r", "{name: b, data: d, source: s, reference: q", "reference r, but"),
    (", tokenize: char", "", "b was run with tokenize char, but now has tokenize (none): give")])
def test_a_trial_that_was_changed_does_not_keep_its_scores(tmp_path, commands, old, new, reason):
    file = tmp_path / "trials.yaml"
    file.write_text(TRIALS)
    grid.main([str(file), "--work", str(tmp_path)])
    file.write_text(TRIALS.replace(old, new))
    with pytest.raises(SystemExit, match=re.escape(reason)):
        grid.main([str(file), "--work", str(tmp_path)])
    assert len(commands) == 2 * 5


def test_a_result_of_before_counts_by_what_it_tells(tmp_path, commands, capsys):
    file, results = tmp_path / "trials.yaml", tmp_path / "results.jsonl"
    file.write_text(TRIALS)
    scores = {f"{name}_bleu": 20.0 for name in ("last", "best", "mean")}
    settings = {"a": ["train.steps=2"], "b": ["train.steps=2", "model.residual_dropout=0.3"]}
    results.write_text("".join(json.dumps({"name": name, "settings": settings[name], **scores}) + "\n"
                               for name in settings))
    grid.main([str(file), "--work", str(tmp_path)])
    assert not commands and "| b | model.residual_dropout=0.3 | 20.00 |" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "trials: [{name: a}]", "{}", "trials: [{name: a, data: d, source: s, reference: "
                                  "r}, {name: a, data: d, source: s, reference: r}]"])
def test_an_invalid_list_of_trials_is_refused(tmp_path, text):
    file = tmp_path / "trials.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match="trials"):
        grid.read_trials(file)


def test_a_command_that_fails_ends_all_with_its_words():
    with pytest.raises(SettingsError, match="missing"):
        grid.towernmt("train", cpu=str(min(os.sched_getaffinity(0))))
