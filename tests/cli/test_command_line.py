"""The command line itself: mistyped words, help, completion, and readers that go away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from towernmt.cli.commands import COMMANDS
from towernmt.cli.main import main, make_parser
from towernmt.core.terminal.broken_pipe import BROKEN_PIPE
from towernmt.models import settings_and_presets

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("line, suggestion", [
    ("trian --data d", "towernmt: there is no command trian, did you mean train?"),
    ("translte", "did you mean translate?"),
    ("xyz", "there is no command xyz; the commands are prepare, load, inspect"),
    ("train --dta d", "towernmt train: there is no option --dta, did you mean --data?"),
    ("train --dta=d", "there is no option --dta, did you mean --data?"),
    ("prepare --vocabsize 8000", "towernmt prepare: there is no option --vocabsize, did you mean --vocab-size?"),
    ("prepare --source a --target b --outptu c", "there is no option --outptu, did you mean --output?"),
    ("translate --mod runs/x", "there is no option --mod, did you mean --model?"),     # an abbreviation is none
    ("evaluate --refrence x", "there is no option --refrence, did you mean --reference?"),
    ("--verison", "towernmt: there is no option --verison, did you mean --version?"),
    ("check model --qqq", "there is no option --qqq; `towernmt check --help` tells more."),
])
def test_mistyped_words_suggest_the_nearest_in_one_sentence(line, suggestion, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    error = capsys.readouterr().err
    assert ended.value.code == 2 and suggestion in error and error.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_the_command_takes(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and f"example:\n  towernmt {command} " in shown
    _, parsers = make_parser([command])
    for word in COMMANDS[command].example.split():
        assert not word.startswith("--") or word in parsers[command]._option_string_actions


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_every_command_and_option(shell, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in [*COMMANDS, "--vocab-size", "--n-best", "--help-settings"]:
        assert word in script


def test_completion_without_its_package_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'towernmt[completion]'" in capsys.readouterr().err


def run_into_a_closed_pipe(*command: str) -> subprocess.CompletedProcess[str]:
    """A program whose standard output is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, *command], stdout=writer, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": ""}, timeout=100, check=False)
    finally:
        os.close(writer)


@pytest.mark.parametrize("line", ["train --help-settings", "inspect pairs.tsv"])
def test_a_reader_that_has_gone_ends_a_command_quietly_with_the_usual_status(line, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a b\tc d\n")
    ended = run_into_a_closed_pipe("-m", "towernmt.cli.main", *line.replace("pairs.tsv", str(pairs)).split())
    assert (ended.returncode, ended.stderr) == (BROKEN_PIPE, "") and BROKEN_PIPE == 141


def test_another_broken_pipe_is_an_error():
    with pytest.raises(BrokenPipeError):
        from towernmt.core.terminal.broken_pipe import until_the_reader_has_gone

        def fail() -> int:
            raise BrokenPipeError(32, "a server's")

        until_the_reader_has_gone(fail)


def help_settings(capsys, *arguments: str) -> str:
    status = main(["train", "--help-settings", *arguments])
    printed = capsys.readouterr()
    return printed.out if status == 0 else printed.err


def test_settings_are_listed_by_group_or_part_of_a_name(capsys):
    everything, schedule, dropout = (help_settings(capsys, *part) for part in ((), ("schedule",), ("Dropout",)))
    keys = re.findall(r"^([a-z_.0-9]+)=", everything, re.M)
    assert len(keys) > 80 and len(keys) == len(set(keys))
    assert re.findall(r"^([a-z_.0-9]+)=", schedule, re.M) == [key for key in keys if "schedule" in key]
    assert re.findall(r"^([a-z_.0-9]+)=", dropout, re.M) == [key for key in keys if "dropout" in key]
    assert "no setting has that in its name; did you mean schedule?" in help_settings(capsys, "shedule")


def test_each_preset_is_listed_with_what_it_sets(capsys):
    shown = help_settings(capsys, "model")
    for name, values in settings_and_presets("transformer")[1].items():
        line = next(line for line in shown.splitlines() if line.startswith(f"  --preset {name}: "))
        assert all(f" {key}={value}" in line for key, value in values.items())
    assert "--preset big: residual_dropout=0.3 embedding_dropout=0.3" in help_settings(capsys, "dropout")
    assert "--preset" not in help_settings(capsys, "schedule")


def test_settings_are_listed_without_tensorflow():
    program = ("import sys\nfrom towernmt.cli.main import main\nmain(['train', '--help-settings'])\n"
               "sys.exit('tensorflow' in sys.modules or 'numpy' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0
