"""The tutorials that start from a trained model, on tiny data.

docs/guide/fine-tuning.md starts from a model in the format of OPUS-MT here, and docs/start/what-you-have.md from a run.
"""

from __future__ import annotations

import random
import re
import runpy
import shlex
from contextlib import chdir
from pathlib import Path

import pytest

from tests.interop.importing import opus
from tests.manual_pages import code_blocks, on_one_tower, shell_lines
from tests.run_command import run_command
from towernmt.core.files import CACHE_VARIABLE

pytestmark = pytest.mark.thorough

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "guide" / "fine-tuning.md"
TINY = ("train.precision=float32 model.hidden_size=16 model.filter_size=16 model.heads=2 model.encoder_layers=1 "
        "model.decoder_layers=1 data.batch_tokens=256 search.beam_size=2")


def run_line(line: str) -> int:
    """Run a line of a page, and return its status."""
    return run_command(*shlex.split(on_one_tower(line))[1:])


@pytest.mark.parametrize(("number", "names"), [
    (0, ["prepare", "train", "translate"]), (1, ["grow", "prepare", "prepare", "train"])])
def test_the_first_commands_of_the_page_adapt_a_model(number: int, names: list[str], tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    opus.write_opus(tmp_path / "opus-mt-de-en")
    for domain, lines in (("medical", slice(0, 4)), ("news", slice(2, 7))):
        for language, text in (("de", opus.GERMAN), ("en", opus.ENGLISH)):
            for name in (domain, f"{domain}-valid", f"{domain}-test"):
                Path(f"{name}.{language}").write_text("".join(f"{line}\n" for line in text[lines]))
    blocks = code_blocks(PAGE.read_text(encoding="utf-8"), "sh")
    commands = blocks[number].replace("\\\n", " ").replace("runs/de-en", "opus-mt-de-en").splitlines()
    assert [line.split()[1] for line in commands] == names
    for line in dict.fromkeys([*commands, blocks[0].splitlines()[-1]]):     # the last one translates
        assert run_line(line.replace("train.minutes=30", "train.steps=2 train.precision=float32")) == 0, line
    log = Path("runs/medical/log/log.log").read_text()
    assert "Validation at step 0: " in log and ("Validation of general at step 0: " in log) == (number == 1)
    assert len(Path("medical-test.hyp").read_text().splitlines()) == 4


SMALL = "--set train.precision=float32 data.batch_tokens=256 validation.steps=0"
"""Settings of the trainings that start from the first run."""


@pytest.fixture(scope="module")
def start_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a first run, `runs/en-de`, and with the files of `divide.py` of docs/start/what-you-have.md."""
    folder, chance = tmp_path_factory.mktemp("start"), random.Random(3)
    words = [first + second for first in "bdfgkl" for second in "aeio"]
    lines = list(dict.fromkeys(" ".join(chance.choices(words, k=chance.randint(2, 5))) for _ in range(320)))
    first_run, catalogue_lines = lines[:150], lines[150:300]       # corrected sentences do not count in the test set
    with chdir(folder):
        for language, text in (("en", first_run), ("de", [line[::-1] for line in first_run])):
            Path(f"first.{language}").write_text("".join(f"{line}\n" for line in text))
        first = "--source first.en --target first.de --valid-source first.en --valid-target first.de"
        assert run_line(f"towernmt prepare {first} --vocab-kind word --output runs/en-de/data") == 0
        assert run_line(f"towernmt train --data runs/en-de/data --logdir runs/en-de --set {TINY} train.steps=2 "
                        "validation.steps=0") == 0
        catalogue = Path("wagtail/admin/locale/de/LC_MESSAGES/django.po")
        catalogue.parent.mkdir(parents=True)
        catalogue.write_text('msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n' + "".join(
            f'\nmsgid "{line}"\nmsgstr "{line[::-1]}"\n' for line in catalogue_lines))
        program = re.search(r"In `divide.py`:\n\n```python\n(.*?)^```", start_page(), re.M | re.S)
        assert program is not None
        Path("divide.py").write_text(program[1])
        runpy.run_path("divide.py")
    return folder


def start_page() -> str:
    """Return the text of docs/start/what-you-have.md."""
    return (DOCS / "start" / "what-you-have.md").read_text(encoding="utf-8")


def start_commands() -> list[str]:
    """Return the commands of towernmt on that page."""
    commands = [line for line in shell_lines(start_page()) if line.startswith("towernmt ")]
    assert [line.split()[1] for line in commands] == ["prepare", "train", "evaluate", "adapt", "translate"]
    return commands


def test_the_commands_of_the_start_train_a_run_further_on_the_words_of_another_program(
        start_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(start_folder)
    prepare, train, evaluate, *_ = start_commands()
    assert run_line(prepare) == 0
    assert run_line(train.replace("--set train.minutes=5", f"{SMALL} train.steps=2")) == 0
    assert run_line(evaluate) == 0
    assert "\nnew " in capsys.readouterr().out


def test_the_commands_of_the_start_adapt_a_run_to_corrections(
        start_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(start_folder)
    *_, adapt, translate = start_commands()
    assert run_line(adapt) == 1       # a model that has learned nothing cannot judge the direction
    assert "the model of the other one, or --no-text-check if the direction is right" in capsys.readouterr().err
    status = run_line(f"{adapt} --no-text-check {SMALL} train.steps=2")
    assert "test set: " in capsys.readouterr().out and status == int(not Path("wagtail.towernmt.zip").exists())
    if status == 0:
        assert run_line(translate) == 0
