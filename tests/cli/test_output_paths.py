"""No command overwrites its input or the output of another command: all commands, all pairs of path options."""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from towernmt.cli.commands import COMMANDS
from towernmt.cli.main import main, make_parser
from towernmt.cli.output_paths import NO_PATHS, check_output_paths, path_options
from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.lines.output_file import descriptor_of

PATHS = {"None", "('SOURCE', 'REFERENCE')", "DATA", "DIR", "DIRECTORY", "FILE",
         "FILE.py:FUNCTION", "KEY=VALUE", "MODEL", "PATH",
         "REFERENCE", "RUN", "RUN[:WEIGHT]", "SHORTLIST", "TABLE", "TEXT|FILE", "URI", "[DIRECTION=]MODEL",
         "[NAME=]RUN", "[NAME=]RUN_OR_FILE"}
"""The metavars of options whose values may be paths."""
PARSERS = make_parser(COMMANDS)[1]
WRITTEN = {name: command.outputs for name, command in COMMANDS.items()}
OUTPUTS = [(command, option) for command, options in WRITTEN.items() for option in options]
PAIRS = [(command, written, other) for command, written in OUTPUTS for other in path_options(PARSERS[command])
         if other != written]


def options(command: str, **values: object) -> argparse.Namespace:
    """Return the parsed options of a command line with only these options."""
    parser = PARSERS[command]
    defaults = {action.dest: action.default for action in parser._actions}
    for action in parser._actions:
        if action.dest in values and (isinstance(action.default, list) or action.nargs in ("+", "*")
                                      or isinstance(action, argparse._AppendAction)):
            values[action.dest] = [values[action.dest]]
    return argparse.Namespace(**{**defaults, **values})


def test_every_declared_option_exists_and_every_kind_of_option_is_declared():
    for command, parser in PARSERS.items():
        declared, destinations = COMMANDS[command], {action.dest for action in parser._actions}
        assert set(WRITTEN[command]) <= set(path_options(parser))
        assert {declared.instead_of_stdout, *declared.instead_of_stdin} - {""} <= destinations
        for action in parser._actions:
            if action.nargs != 0 and action.choices is None and action.type in (None, str):
                assert str(action.metavar) in PATHS | NO_PATHS, (command, action.dest, action.metavar)


def test_every_option_that_names_an_output_is_among_them():
    named = {(command, action.dest) for command, parser in PARSERS.items() for action in parser._actions
             if action.dest in ("output", "logdir", "html", "hypothesis", "glossaries", "work_directory", "plot")}
    assert named <= {(command, written) for command, written in WRITTEN.items() for written in written}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "text"
    file.write_text("ein Haus\n")
    (tmp_path / "link").symlink_to(file)
    os.link(file, tmp_path / "hard")
    return file


@pytest.mark.parametrize("command, written, other_option", PAIRS)
def test_an_output_that_is_another_path_of_the_command_is_refused(command, written, other_option, text):
    names = path_options(PARSERS[command])
    for path in ("text", "./text", str(text), "link", "hard", "../" + text.parent.name + "/text"):
        for output in ("text", "link"):
            with pytest.raises((DataError, SettingsError)) as error:
                check_output_paths(command, PARSERS[command], options(command, **{written: output, other_option: path}))
            assert names[written] in str(error.value) and "is the same" in str(error.value)
    fresh = options(command, **{written: "fresh", other_option: "text"})
    if written not in ("keys", "glossaries") and other_option != "work_directory":
        check_output_paths(command, PARSERS[command], fresh)


@pytest.mark.parametrize("command, written, other_option", PAIRS)
def test_an_output_that_is_a_directory_of_the_command_is_refused(command, written, other_option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "place").mkdir()
    for path in ("place", "place/", str(tmp_path / "place"), "./place/."):
        with pytest.raises((DataError, SettingsError), match="is the same directory as"):
            check_output_paths(command, PARSERS[command], options(command, **{written: "place", other_option: path}))


@pytest.mark.parametrize("value", ["name=text", "text:0.5", "reverse=text", "other+text", "text?separator=x", "te*",
                                   "?ext", "{text,other}", "te{xt,st}", "x=other+text", "./{link,z}"])
def test_a_path_inside_a_value_is_seen(value, text):
    with pytest.raises(DataError, match="--html text is the same file as"):
        check_output_paths("evaluate", PARSERS["evaluate"], options("evaluate", html="text", system=value))


@pytest.mark.parametrize("command", [command for command, written in WRITTEN.items() if written])
@pytest.mark.parametrize("kind, marks", [
    ("a run", {"settings.yaml": "", "checkpoints/x": ""}), ("a run", {"checkpoints/step-1/model.index": ""}),
    ("a checkpoint", {"model.index": "", "state.json": ""}), ("prepared data", {".preparing/x": ""}),
    ("prepared data", {"manifest.json": '"towernmt-prepared"'}),
    ("an export", {"towernmt.json": "{}"}), ("an unpacked package", {"towernmt-package.json": "{}"})])
def test_only_its_own_command_writes_into_a_directory_of_another_command(command, kind, marks, tmp_path):
    for name, content in marks.items():
        (tmp_path / "made" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made" / name).write_text(content)
    for written, declaration in WRITTEN[command].items():
        for name_inside in ("automatic.yaml", "settings.yaml", "new/file"):
            with pytest.raises(SettingsError, match=f"lies in {kind}"):
                check_output_paths(command, PARSERS[command],
                                   options(command, **{written: str(tmp_path / "made" / name_inside)}))
        if kind in declaration.owned:
            check_output_paths(command, PARSERS[command], options(command, **{written: str(tmp_path / "made")}))
        if kind == "a run" and command == "average":
            for name_inside in ("averages", "averages/new"):
                path = tmp_path / "made" / name_inside
                check_output_paths(command, PARSERS[command], options(command, output=str(path)))


@pytest.mark.parametrize(("command", "values", "message"), [
    ("train", {"config": ""}, "--config is empty: pass a path, or leave out --config."),
    ("train", {"monolingual": ""}, "--monolingual is empty: pass a path, or leave out --monolingual."),
    ("train", {"source_monolingual": ""}, "--source-monolingual is empty: pass a path, or leave out"),
    ("train", {"start": ""}, "--start is empty: pass a path, or leave out --start."),
    ("train", {"teacher": ""}, "--teacher is empty: pass a path, or leave out --teacher."),
    ("adapt", {"model": ""}, "--model is empty: pass a path."), ("import", {"path": ""}, "PATH is empty: pass a path."),
    ("translate", {"input": ""}, "--input is empty: pass a path, or leave out --input.")])
def test_an_empty_path_is_not_a_missing_option(command, values, message):
    """The variable of a shell that is not set must not change what a command does."""
    with pytest.raises(SettingsError) as error:
        check_output_paths(command, PARSERS[command], options(command, **values))
    assert message in str(error.value)


def test_places_outside_the_disk_are_no_paths(text):
    for output in ("-", "s3://bucket/text", "postgresql://host/text", "/dev/null", "/dev/stdout"):
        check_output_paths("translate", PARSERS["translate"], options("translate", output=output, input="text"))
    with pytest.raises(DataError, match="is the same file as --source"):
        check_output_paths("load", PARSERS["load"], options("load", output="sqlite:///text?table=t", source="text"))


def test_a_table_can_be_loaded_into_another_one_of_the_same_database(text, capsys):
    pytest.importorskip("sqlalchemy")
    with sqlite3.connect("pairs.db") as connection:
        connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, source TEXT NOT NULL, target TEXT NOT NULL)")
        connection.execute("INSERT INTO a (source, target) VALUES ('ein Haus', 'a house')")
    assert main(["load", "--source", "sqlite:///pairs.db?table=a", "--output", "sqlite:///pairs.db?table=b"]) == 0
    with sqlite3.connect("pairs.db") as connection:
        assert connection.execute("SELECT source, target FROM b").fetchall() == [("ein Haus", "a house")]
    assert main(["load", "--source", "sqlite:///pairs.db?table=a", "--output", "sqlite:///pairs.db?table=a"]) == 1
    assert "is the table sqlite:///pairs.db?table=a itself" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [
    "lexicon --data d --source text --target other --output text",
    "lexicon --model r --output r/vocabulary/source.model",
    "translate --model r --shortlist text --output text", "translate --model r --output r/automatic.yaml",
    "translate --model r --input other --output new --alignments new",
    "evaluate --reference other --hypothesis-file text --html text",
    "compare r --source other --reference text --html text", "plot r --output r/checkpoints/curves.svg",
    "rerank --mbr chrf --input text --output text", "rerank --mbr chrf --input other --source text --output text",
    "align --links text --gold other --output text", "package --model r --card text --output text",
    "export --model r --format savedmodel --output r/exported", "grow --model r --vocabulary other --output r/grown",
    "load --source text --output sqlite:///r/pairs.db?table=t",
    "score --model r --source other --target text --output text",
    "serve --model r --keys text --glossaries text", "import text --from marian --output text"])
def test_the_commands_refuse_in_one_sentence_and_change_nothing(arguments, text, capsys):
    for name in ("settings.yaml", "vocabulary/source.model", "checkpoints/step-1/model.index", "automatic.yaml"):
        (text.parent / "r" / name).parent.mkdir(parents=True, exist_ok=True)
        (text.parent / "r" / name).write_text("x: 1\n")
    Path("other").write_text("a house\n")
    before = {path: path.read_bytes() for path in text.parent.rglob("*") if path.is_file()}
    assert main(arguments.split()) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("is the same file as" in error or "lies in a run" in error)
    assert {path: path.read_bytes() for path in text.parent.rglob("*") if path.is_file()} == before


@pytest.mark.processes
def test_standard_output_that_is_an_input_is_refused(text):
    command = [sys.executable, "-m", "towernmt", "rerank", "--mbr", "chrf", "--input", "text"]
    with text.open("ab") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "standard output is the same file as --input text" in done.stderr
    assert text.read_text() == "ein Haus\n"


def shell(line: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which `towernmt` is this package."""
    program = f"towernmt() {{ {sys.executable} -m towernmt \"$@\"; }}; {line}"
    return subprocess.run(["bash", "-c", program], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True)


@pytest.mark.processes
@pytest.mark.parametrize("line, said", [
    ("towernmt translate --model r --input text >&-", "the results of towernmt translate would be lost"),
    ("towernmt translate --model r <&-", "towernmt translate has nothing to read: pass --input FILE"),
    ("towernmt rerank --mbr chrf --input text >&-", "redirect it to a file, or pass --output FILE"),
    ("towernmt rerank --mbr chrf <&-", "towernmt rerank has nothing to read"),
    ("towernmt evaluate --reference text --hypothesis-file text >&-", "or pass --html FILE"),
    ("towernmt completion bash >&-", "the results of towernmt completion would be lost"),
    ("towernmt serve-keys add anna --keys keys >&-", "the results of towernmt serve-keys would be lost"),
    ("towernmt completion bash > /dev/full", "No space left on device"),
    ("towernmt evaluate --reference text --hypothesis-file text > /dev/full", "No space left on device"),
    ("towernmt rerank --mbr chrf --input nbest > /dev/full", "No space left on device"),
])
def test_results_that_cannot_be_written_and_input_that_is_closed_are_errors(line, said, text, tmp_path):
    (tmp_path / "nbest").write_text("0 ||| a house ||| -1.0\n")
    done = shell(line, tmp_path)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "keys").exists()


@pytest.mark.processes
@pytest.mark.parametrize("line", ["towernmt evaluate --reference text --hypothesis-file text --html page.html >&-",
                                  "towernmt rerank --mbr chrf --input nbest --output best >&- 2>&- <&-"])
def test_a_closed_stream_that_is_not_needed_does_not_matter(line, text, tmp_path):
    (tmp_path / "nbest").write_text("0 ||| a house ||| -1.0\n")
    assert shell(line, tmp_path).returncode == 0


@pytest.mark.parametrize("path", ["missing/../x", "./missing/../x", "missing/deep/../../x", "text/../x"])
@pytest.mark.parametrize("command, written", OUTPUTS)
def test_a_way_through_a_directory_that_is_missing_is_refused_before_the_work(command, written, path, text):
    with pytest.raises(SettingsError, match=r"the directory .* does not exist: create it, or write the path without"):
        check_output_paths(command, PARSERS[command], options(command, **{written: path}))
    (text.parent / "there").mkdir()
    check_output_paths(command, PARSERS[command], options(command, **{written: "there/../x"}))


@pytest.mark.parametrize("command, written, other_option", [
    (command, written, other_option) for command, written, other_option in PAIRS
    if other_option not in WRITTEN[command] and command not in ("train", "average")])
def test_an_output_below_a_directory_that_is_read_is_refused(command, written, other_option, text):
    Path("place").mkdir()
    Path("to-place").symlink_to("place")
    for output in ("place/new", "./place/deep/new", "to-place/new", str(text.parent / "place/new")):
        with pytest.raises(DataError, match="is in the directory place, which .* reads"):
            check_output_paths(command, PARSERS[command], options(command, **{written: output, other_option: "place"}))


@pytest.mark.parametrize("name", ["text/x", "loop", "loop/x", "x" * 300])
@pytest.mark.parametrize("command, written", OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(command, written, name, text):
    Path("loop").symlink_to("loop")
    with pytest.raises(SettingsError, match="pass another path"):
        check_output_paths(command, PARSERS[command], options(command, **{written: name}))


@pytest.mark.parametrize("command, written", OUTPUTS)
def test_a_file_for_a_directory_a_directory_for_a_file_and_no_name_are_refused(command, written, text):
    Path("folder").mkdir()
    name = "text" if WRITTEN[command][written].is_directory else "folder"
    if command != "translate" or written not in ("output", "alignments"):       # a folder gets one file for each input
        with pytest.raises(SettingsError, match="expected a "):
            check_output_paths(command, PARSERS[command], options(command, **{written: name}))
    with pytest.raises(SettingsError, match="is empty"):
        check_output_paths(command, PARSERS[command], options(command, **{written: ""}))


@pytest.mark.parametrize("command, written", [("lexicon", "output"), ("package", "output"), ("serve", "glossaries"),
                                              ("serve-keys", "keys")])
def test_a_file_that_is_replaced_is_no_pipe_device_or_stream(command, written, text):
    os.mkfifo("pipe")
    Path("to-pipe").symlink_to("pipe")
    for name in ("pipe", "to-pipe", "/dev/zero", "/dev/stdout"):
        with pytest.raises(SettingsError, match="is a pipe, a device or a standard stream"):
            check_output_paths(command, PARSERS[command], options(command, **{written: name}))


@pytest.mark.parametrize("work, output", [("place", "place/out"), (".", "out"), ("to-place", "place/out")])
def test_an_output_in_the_work_directory_is_refused(work, output, text):
    Path("place").mkdir()
    Path("to-place").symlink_to("place")
    with pytest.raises(SettingsError, match="lies in --work-directory"):
        check_output_paths("translate", PARSERS["translate"],
                           options("translate", input="text", work_directory=work, output=output))


def test_a_package_is_not_replaced(text):
    with zipfile.ZipFile("de-en.towernmt.zip", "w") as package:
        package.writestr("towernmt-package.json", "{}")
    with pytest.raises(SettingsError, match="is a package, which would be replaced"):
        check_output_paths("score", PARSERS["score"], options("score", output="de-en.towernmt.zip"))


def test_names_of_standard_streams_are_known(text):
    Path("out").symlink_to("/dev/stdout")
    assert [descriptor_of(name) for name in ("/dev/stdout", "/dev/stdin", "/proc/self/fd/1", "/dev/fd/2", "out", "text",
                                             "link", "missing", os.devnull)] == [1, 0, 1, 2, 1, *[None] * 4]


@pytest.mark.processes
@pytest.mark.parametrize("line, said", [
    ("towernmt rerank --mbr chrf --input nbest --output /dev/stdout >&-", "is a standard stream that is closed"),
    # `test_names_of_standard_streams_are_known` has other names, and --version prints like --help.
    *(pytest.param(*case, marks=pytest.mark.slow) for case in [
        *((f"towernmt rerank --mbr chrf --input nbest --output {name} >&-", "is a standard stream that is closed")
          for name in ("/proc/self/fd/1", "out")),
        ("towernmt translate --help > /dev/full", "standard output cannot be written"),
        ("towernmt translate --help >&-", "")]),
    ("towernmt rerank --mbr chrf --input nbest --output /dev/stdout >> nbest", "is the same file as --input nbest"),
    ("towernmt rerank --mbr chrf < nbest >> nbest", "is the same file as standard input"),
    ("towernmt train --help-settings >&-", "the settings would be lost"),
    ("towernmt --version > /dev/full", "standard output cannot be written"),
    ("towernmt train --help-settings > /dev/full", "No space left on device"),
    ("towernmt inspect pairs.tsv > /dev/full", "No space left on device"),
    ("towernmt align --links links > /dev/full", "No space left on device"),
    ("towernmt --version >&-", ""),
    ("towernmt align --links links --gold links --output new 2>&-", "")])
def test_other_ways_to_lose_results_are_errors(line, said, text, tmp_path):
    (tmp_path / "nbest").write_text("0 ||| a house ||| -1.0\n")
    (tmp_path / "pairs.tsv").write_text("a b\tc d\n")
    (tmp_path / "links").write_text("0-0\n")
    (tmp_path / "out").symlink_to("/dev/stdout")
    done = shell(line, tmp_path)
    assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") <= 1, done.stderr
    assert (tmp_path / "nbest").read_text() == "0 ||| a house ||| -1.0\n" and not (tmp_path / "new").exists()


@pytest.mark.processes
def test_a_file_that_the_shell_appends_to_keeps_its_content(text, tmp_path):
    (tmp_path / "nbest").write_text("0 ||| a house ||| -1.0\n")
    (tmp_path / "out").symlink_to("/dev/stdout")
    for name in ("/dev/stdout", "/proc/self/fd/1", "out"):
        assert shell(f"towernmt rerank --mbr chrf --input nbest --output {name} >> log", tmp_path).returncode == 0
    assert (tmp_path / "log").read_text() == "a house\n" * 3
