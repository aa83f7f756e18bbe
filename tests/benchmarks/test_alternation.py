"""Rounds, medians and ratios, and the program that runs commands in turn."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import compare_training
import pytest
from alternation import in_turn, last_record, summarize, table, take_turns

pytestmark = pytest.mark.thorough


def test_every_second_round_goes_the_other_way() -> None:
    order: list[str] = []

    def turn(name: str) -> float:
        order.append(name)
        return float(len(order))

    results = take_turns({"a": lambda: turn("a"), "b": lambda: turn("b")}, 3)
    assert "".join(order) == "abbaab"
    assert results == {"a": [1, 4, 5], "b": [2, 3, 6]}
    assert in_turn(["x", "y", "z"], 1) == ["z", "y", "x"]


def test_ratios_are_taken_within_rounds_and_their_median_counts() -> None:
    # The machine halves its speed in the second round; b takes 1.1 times as long as a in each round except the
    # disturbed one.
    summary = summarize({"a": [100.0, 50.0, 100.0], "b": [110.0, 55.0, 60.0]})
    assert summary["a"].ratio == 1.0
    assert summary["b"].ratio == pytest.approx(1.1)
    assert summary["b"].median == 60.0
    assert summary["a"].spread == pytest.approx(0.5)
    assert summary["b"].low == pytest.approx((0.6 + 1.1) / 2)
    assert summary["b"].rounds == 3


def test_one_round_has_no_spread() -> None:
    summary = summarize({"a": [2.0], "b": [3.0]})["b"]
    assert (summary.ratio, summary.low, summary.high, summary.spread) == (1.5, 1.5, 1.5, 0.0)


def test_the_last_line_that_is_an_object_is_the_record() -> None:
    assert last_record('{"peer": "a", "x": 1}\nnoise\n{"peer": "b", "x": 2}\n{broken\n[3]\n') == {"peer": "b", "x": 2}
    assert last_record("nothing\n") is None


def test_the_table_has_a_row_for_each_with_its_ratio() -> None:
    lines = table({"ours": [{"speed": 10.0, "rss": 5}], "peer": [{"speed": 8.0}]}, "speed", ["rss"]).splitlines()
    assert lines[0].split() == ["speed", "spread", "ratio", "quartiles", "rounds", "rss"]
    assert lines[1].split() == ["ours", "10", "0.0%", "1.000", "1.000", "to", "1.000", "1", "5"]
    assert lines[2].split() == ["peer", "8", "0.0%", "0.800", "0.800", "to", "0.800", "1", "-"]


def printing(speed: float) -> str:
    """Return a command that prints a record."""
    return shlex.join([sys.executable, "-c", f"import json; print(json.dumps(dict(peer=1, tgt_tok_s={speed})))"])


def test_commands_run_in_rounds_and_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    compare_training.main(["--rounds", "2", "--log", str(log), "--command", f"ours={printing(30.0)}",
                           "--command", f"peer={printing(15.0)}"])
    assert "0.500" in capsys.readouterr().out.splitlines()[-1]
    assert [line.split(",")[0] for line in log.read_text().splitlines()] == [
        '{"job": "ours"', '{"job": "peer"', '{"job": "peer"', '{"job": "ours"']


def test_a_command_without_the_figure_is_named() -> None:
    with pytest.raises(SystemExit, match=r"peer: .* ended with status 3 .*'tgt_tok_s'"):
        compare_training.main(["--rounds", "1", "--command", f"ours={printing(30.0)}", "--command",
                               f"peer={shlex.quote(sys.executable)} -c 'raise SystemExit(3)'"])
    with pytest.raises(SystemExit, match="NAME='COMMAND"):
        compare_training.main(["--command", "only-a-name"])
    with pytest.raises(SystemExit, match="at least two"):
        compare_training.main(["--command", "alone=true"])


def test_a_commit_is_there_with_its_own_program_and_gone_afterwards(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True,
                              text=True).stdout

    git("init", "-q")
    for version in ("old", "new"):
        for folder in ("towernmt", "benchmarks"):
            (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / "towernmt" / "__init__.py").write_text(f"version = '{version}'\n")
        (tmp_path / "benchmarks" / "train.py").write_text(
            "import json, sys, towernmt\n"
            "print(json.dumps({'tgt_tok_s': 1, 'version': towernmt.version, 'arguments': sys.argv[1:]}))\n")
        git("add", ".")
        git("commit", "-q", "-m", version)
    monkeypatch.setattr(compare_training, "ROOT", tmp_path)
    with compare_training.checked_out("HEAD~1") as folder:
        job = compare_training.commit_job("HEAD~1", folder, ["--config", "tiny"])
        record = compare_training.run_job(job, 60, "tgt_tok_s")
    assert (record["version"], record["arguments"]) == ("old", ["--config", "tiny"])
    assert not folder.exists()
    assert len(git("worktree", "list").splitlines()) == 1
    with pytest.raises(SystemExit, match="git worktree add"), compare_training.checked_out("no-such-commit"):
        pass
