"""The tutorial of docs/guide/monolingual-text.md on tiny data: back-translation, then a student of an ensemble."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.manual_pages import SMALL_MODEL, code_blocks, on_one_tower, random_lines, shell_lines
from tests.run_command import run_command
from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.cli.main import main
from towernmt.jobs import monolingual_training
from towernmt.run.directory import RunDirectory

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "monolingual-text.md"
SMALL = f"train.steps=40 schedule.warmup_steps=10 {SMALL_MODEL}"


def write_files() -> None:
    """Write the files of the page, in a toy language whose words are spelled backwards."""
    chance = random.Random(3)
    for name, count in (("train", 200), ("valid", 10), ("test", 5), ("news", 60)):
        lines = [" ".join(words) for words in random_lines(chance, count)]
        Path(f"{name}.de").write_text("".join(f"{line}\n" for line in lines))
        Path(f"{name}.en").write_text("".join(f"{line[::-1]}\n" for line in lines))


def test_the_program_of_the_page_divides_the_default_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    for language in ("de", "en"):
        for name in ("train", "valid", "test"):
            Path(f"corpus/{name}.{language}").write_text("".join(f"{name} {language} {n}\n" for n in range(9)))
    monkeypatch.setattr("towernmt.dataflow.default_corpus", lambda pair: SimpleNamespace(directory=Path("corpus")))
    exec(code_blocks(PAGE.read_text(encoding="utf-8"), "python")[0], {})
    numbers = {name: list(range(9)) for name in ("valid", "test")} | {"train": [0, 7], "news": [1, 2, 3, 4, 5, 6, 8]}
    for language in ("de", "en"):
        for name, kept in numbers.items():
            text = [f"{'train' if name == 'news' else name} {language} {n}" for n in kept]
            assert Path(f"{name}.{language}").read_text().splitlines() == text


def test_the_commands_of_the_page_train_with_text_of_either_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()
    commands = shell_lines(PAGE.read_text(encoding="utf-8"))
    assert [line.split()[1] for line in commands] == ["prepare", "train", "translate", "train"]
    for line in commands:
        small = on_one_tower(line).replace("train.minutes=60", SMALL)
        small = small.replace("--output data", "--vocab-kind word --output data")
        small = small.replace("runs/a runs/b", "runs/de-en runs/de-en/checkpoints/step-40")     # an ensemble
        assert run_command(*shlex.split(small)[1:]) == 0, line
    back, forward = Path("runs/de-en/monolingual"), Path("runs/student/monolingual")
    assert len(Path("test.hyp").read_text().splitlines()) == 5
    assert len((back / "translations").read_text().splitlines()) == 60
    assert checkpoint_steps(RunDirectory(back / "model").checkpoints)[-1] == 20     # half of the steps
    assert not (forward / "model").exists()
    manifest = json.loads((forward / "data" / "manifest.json").read_text())
    assert 0 < manifest["pairs"] <= 60

    wrong = ["train", "--towers", "1", "--data", "data/de-en", "--logdir", "runs/wrong", "--teacher", "runs/de-en"]
    assert main([*wrong, "--monolingual", "news.en", "--set", *SMALL.split()]) == 1
    assert ("--teacher runs/de-en does not translate into the source language of data/de-en: pass a model of the other "
            "direction, or --no-text-check if the direction is right.") in capsys.readouterr().err
    assert not Path("runs/wrong").exists()
    assert main([*wrong, "--monolingual", "news.de", "--set", *SMALL.split()]) == 1
    assert "--monolingual news.de: 100% of its tokens are unknown to the target vocabulary" in capsys.readouterr().err
    with monkeypatch.context() as patch:        # the training on accepted text is that of the page
        patch.setattr(monolingual_training, "train_resolved_settings", lambda *_: 0)
        assert main([*wrong, "--monolingual", "news.en", "--no-text-check", "--set", *SMALL.split()]) == 0
    assert len(Path("runs/wrong/monolingual/translations").read_text().splitlines()) == 60
