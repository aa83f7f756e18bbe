"""The picture of examples/train_transformer.py, which tests/integration/test_whole_chain.py runs completely."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "log").mkdir(parents=True)
    rows = [{"nll": 5 - step, "learning_rate": 0.1, "global_step": step} for step in range(1, 4)]
    (tmp_path / "run" / "log" / "stats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path / "run"


def test_the_curves_are_drawn_into_the_directory_of_the_run(example, run, capsys) -> None:
    pytest.importorskip("matplotlib")
    example("train_transformer").draw_run(str(run))
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"Learning curves:  {run}/curves.png\n"


def test_without_matplotlib_it_says_how_to_get_a_picture(example, run, capsys, monkeypatch) -> None:
    program = example("train_transformer")
    monkeypatch.setattr(program, "find_spec", lambda _: None)
    program.draw_run(str(run))
    assert "pip install 'towernmt[plot]', then towernmt plot" in capsys.readouterr().out
    assert not (run / "curves.png").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--test-source", "a", "--test-target", "b"], "--test-source and --test-target: the default corpus has its own"),
    (["--valid-source", "a"], "--valid-source: the default corpus has its own"),
    (["--test-target", "b"], "Pass both --test-source and --test-target, or neither of them")])
def test_files_that_would_not_be_read_are_refused(example, capsys, arguments: list[str], message: str) -> None:
    assert example("train_transformer").main(arguments) == 1
    assert message in capsys.readouterr().err
