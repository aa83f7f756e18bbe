"""The tutorial of docs/guide/multilingual.md on tiny data: the source prefix selects the language."""

from __future__ import annotations

import io
import json
import random
import shlex
import sys
from pathlib import Path

import pytest

from tests.manual_pages import SMALL_MODEL, code_blocks, on_one_tower, random_lines, shell_lines
from tests.run_command import run_command
from towernmt.evaluate.metrics import corpus_scores

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "multilingual.md"
SMALL = f"train.steps=150 schedule.warmup_steps=20 validation.steps=50 {SMALL_MODEL}"


def write_files() -> None:
    """Write the files of the page, in toy languages: German words are spelled backwards, Finnish ones end with -nen."""
    chance = random.Random(3)
    for language in ("de", "fi"):
        Path(language).mkdir()
        for name, count in (("train", 300), ("valid", 10), ("test", 20)):
            lines = random_lines(chance, count)
            targets = [[word[::-1] if language == "de" else f"{word}nen" for word in line] for line in lines]
            for side, text in (("en", lines), (language, targets)):
                Path(language, f"{name}.{side}").write_text("".join(f"{' '.join(line)}\n" for line in text))


def test_the_commands_of_the_page_translate_into_each_language(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()
    page = PAGE.read_text(encoding="utf-8")
    Path("corpora.yaml").write_text(code_blocks(page, "yaml")[0])
    commands = shell_lines(page)
    assert [shlex.split(line)[1] for line in commands[:4]] == ["prepare", "train", "translate", "evaluate"]
    for line in commands[:4]:
        small = on_one_tower(line).replace("train.minutes=30", SMALL)
        small = small.replace("--output data", "--vocab-kind word --output data")
        assert run_command(*shlex.split(small)[1:]) == 0, line
    assert "chrF" in capsys.readouterr().out
    finnish = Path("test.fi").read_text().splitlines()
    expected = Path("fi/test.fi").read_text().splitlines()
    lines = Path("fi/test.en").read_text().splitlines()
    reversed_words = [" ".join(word[::-1] for word in line.split()) for line in lines]
    assert corpus_scores(finnish, expected).chrf > 50 > corpus_scores(finnish, reversed_words).chrf

    text, _, command = commands[4].partition(" | ")
    request = json.loads(shlex.split(text)[1])
    request["text"] = "ba de"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(request).encode() + b"\n")))
    assert run_command(*shlex.split(command)[1:]) == 0
    words = json.loads(capsys.readouterr().out)["translation"].split()
    assert words and not any(word.endswith("nen") for word in words)
