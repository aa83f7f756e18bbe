"""The tutorials in docs/extend: their files are written, their commands run, and the outputs compared.

`own-model.md` and `architecture.md` are run by tests/integration/test_own_model.py.
"""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.manual_pages import code_blocks, on_one_tower, shell_lines
from towernmt.cli.main import main
from towernmt.core.tf_compat import tf

pytestmark = pytest.mark.thorough

EXTEND = Path(__file__).resolve().parents[2] / "docs" / "extend"


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return code_blocks((EXTEND / page).read_text(encoding="utf-8"), language)


def write_files(page: str, place: Path) -> None:
    """Write the files that a page contains."""
    named = re.compile(r"[Ii]n\s`(\w+\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)^```", re.M | re.S)
    for name, text in named.findall((EXTEND / page).read_text(encoding="utf-8")):
        (place / name).write_text(text, encoding="utf-8")


def run_command(line: str) -> None:
    """Run a command of a page in this process, in the precision that is not measured for seconds."""
    quick = line.replace("--config toy.yaml", "--config toy.yaml --set train.precision=float32")
    words = shlex.split(on_one_tower(quick))
    with tf.Graph().as_default():       # each program has a separate graph
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
        else:
            assert words[0] == "towernmt" and main(words[1:]) == 0, line


def commands(page: str) -> list[str]:
    """Return the commands of a page, one per line."""
    return shell_lines((EXTEND / page).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with the toy data and the run of the index, in which the programs of all pages run."""
    place = tmp_path_factory.mktemp("tutorials")
    write_files("index.md", place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for line in commands("index.md"):
            run_command(line)
        yield place


@pytest.fixture
def output_of(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """Run all commands of a page, and return the lines on standard output."""
    def done(page: str) -> list[str]:
        write_files(page, place)
        for line in commands(page):
            run_command(line)
        return capsys.readouterr().out.splitlines()

    return done


def test_the_callback_ends_the_run_at_the_first_validation_that_is_good_enough(output_of) -> None:
    lines = [line for line in output_of("callback.md") if line.startswith("step ")]
    scores = [float(line.rpartition(" ")[2]) for line in lines]
    # The rounding of another processor changes a score, but hardly by 30 BLEU.
    assert scores and scores[-1] >= 60 > max(scores[:-1], default=0)
    assert len(lines) == len(blocks("callback.md", "text")[0].splitlines())


def test_the_source_can_be_sought_in_and_trained_on(output_of) -> None:
    assert output_of("source.md")[-1:] == blocks("source.md", "text")[0].splitlines()


def test_the_trainer_of_ones_own_learns_the_toy_language(output_of) -> None:
    assert output_of("trainer.md")[-1:] == blocks("trainer.md", "text")[0].splitlines()


def test_the_attentions_keep_the_rules_of_towers_and_one_learns_the_toy_language(output_of) -> None:
    lines = output_of("attention.md")
    assert [line.partition(" obeys the ")[0] for line in lines if " obeys the " in line] == [
        "grouped.py:Grouped", "alibi.py:Alibi"]
    (bleu,) = (float(line.split()[2]) for line in lines if line.startswith("BLEU"))
    assert bleu > 80


def test_the_decoding_rule_forbids_what_the_search_would_repeat(output_of) -> None:
    without, with_rule = output_of("decoding-rule.md")[-2:]
    assert without == blocks("decoding-rule.md", "text")[0].splitlines()[0]
    assert with_rule.startswith("with:    one two three ") and with_rule.split()[1:] != without.split()[1:]


def test_every_tutorial_is_run() -> None:
    elsewhere = {"own-model.md", "architecture.md", "tower-rules.md", "index.md"}
    run = set(re.findall(r'output_of\("([\w-]+\.md)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert run | elsewhere == {page.name for page in EXTEND.glob("*.md")}
