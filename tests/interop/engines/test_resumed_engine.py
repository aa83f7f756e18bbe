"""`towernmt translate --resume` translates with the engine that began the output."""

from __future__ import annotations

import argparse
import shutil
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from towernmt.cli import translate
from towernmt.cli.translate_ranges import CommandRangeTranslator
from towernmt.cli.translation_output import text_answers
from towernmt.core.errors import DataError
from towernmt.predict.lines.resumable import ENGINE
from towernmt.predict.translator import Translator

LINES_BEFORE = 3


@pytest.fixture
def run(original_run: Path, tmp_path: Path, lines: list[str]) -> Path:
    """A run next to a text, `in`."""
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    return Path(shutil.copytree(original_run, tmp_path / "run"))


def arguments_of(run: Path, *options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    translate.add_translate_arguments(parser)
    files = ["--input", str(run.parent / "in"), "--output", str(run.parent / "out")]
    return parser.parse_args(["--model", str(run), "--cpu", "--window", "1", *files, *options])


def translate_text(run: Path, *options: str) -> None:
    assert translate.run_translate(arguments_of(run, *options)) == 0


def begin(run: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Translate the first lines of the text, wait until the run is exported, and stop."""

    def first_answers(*arguments: Any) -> Iterator[list[str]]:
        yield from islice(text_answers(*arguments), LINES_BEFORE)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(translate, "text_answers", first_answers)
        translate_text(run, *options)
    for thread in threading.enumerate():
        if thread.name == "export":
            thread.join()
    assert not (run.parent / "out").exists()


@pytest.mark.thorough
def test_the_graph_resumes_its_output_also_with_a_precision_of_ctranslate2(
        run: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    begin(run, monkeypatch, "--precision", "int8")
    assert Translator(run, device="cpu", precision="int8").engine.startswith("CTranslate2")     # exists now
    translate_text(run, "--precision", "int8", "--resume")
    expected = Translator(run, device="cpu", engine="graph").translate(lines)
    assert (run.parent / "out").read_text().splitlines() == expected
    worker = CommandRangeTranslator(arguments_of(run, "--precision", "int8"), {}, "graph")
    assert worker.description[ENGINE] == "graph"


def test_ctranslate2_resumes_its_output_also_without_its_export(
        run: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator(run, device="cpu", export_first=True)
    begin(run, monkeypatch)
    shutil.rmtree(run / "exports")
    with pytest.raises(DataError, match='engine: "CTranslate2 .*, and not with "graph": leave out --engine graph, or'):
        translate_text(run, "--engine", "graph", "--resume")
    translate_text(run, "--resume")
    assert (run.parent / "out").read_text().splitlines() == translator.translate(lines)
    assert (run / "exports").is_dir()
