"""`towernmt plot`: the files that it writes, and refused arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from towernmt.cli.main import main


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a", "runs/b"):
        (tmp_path / name / "log").mkdir(parents=True)
        (tmp_path / name / "settings.yaml").write_text(f"architecture: transformer\nmodel: {{size: {ord(name[-1])}}}\n")
        (tmp_path / name / "log" / "stats.jsonl").write_text("".join(
            json.dumps({"nll": 9 - step, "learning_rate": 0.1, "global_step": step}) + "\n" for step in range(1, 4)))
    (tmp_path / "runs" / "data").mkdir()


def test_a_page_and_a_picture_of_runs_by_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["plot", "runs/*", "--output", "page.html", "--x", "tokens"]) == 0
    assert capsys.readouterr().err == "No run in runs/data.\n"
    assert "model.size" in Path("page.html").read_text() and '"axis":"tokens"' in Path("page.html").read_text()
    assert main(["plot", "new=runs/b", "--output", "one.svg", "--panels", "rate", "--no-table"]) == 0
    assert "learning rate" in Path("one.svg").read_text()


@pytest.mark.parametrize(("arguments", "message"), [
    (["runs/a", "--output", "a.pdf"], "--output a.pdf: expected a file that ends in .png, .svg, .html."),
    (["runs/a", "--output", "a.svg", "--smooth", "-1"], "--smooth -1"),
    (["runs/a", "--output", "a.html", "--panels", "rate", "--no-table"], "--panels and --no-table: an .html page has"),
    (["runs/c", "--output", "a.svg"], "runs/c: the directory does not exist"),
    (["runs/a", "--output", "runs/a"], "--output runs/a is the same directory as RUNS runs/a")])
def test_mistakes_are_one_sentence(arguments, message, capsys) -> None:
    assert main(["plot", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_runs_without_any_figures_make_an_empty_page_but_no_picture(capsys) -> None:
    pytest.importorskip("matplotlib")
    Path("runs/a/log/stats.jsonl").unlink()
    assert main(["plot", "runs/a", "--output", "a.html"]) == 0
    assert "nothing is recorded yet" in Path("a.html").read_text()
    assert main(["plot", "runs/a", "--output", "a.png"]) == 1
    assert "until training logs its first figures" in capsys.readouterr().err
