"""An output never overwrites an input, and an old file stays until the new one is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.waiting import PATIENCE
from towernmt.cli.main import main
from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.lines.output_file import check_apart, output_file
from towernmt.predict.lines.text_io import write_lines


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Write a file `text`, a symbolic link `link` to it, and a hard link `hard`."""
    file = tmp_path / "text"
    file.write_text("ein Haus\n")
    (tmp_path / "link").symlink_to(file)
    os.link(file, tmp_path / "hard")
    return file


@pytest.mark.parametrize("name", ["text", "link", "hard", "./text"])
@pytest.mark.parametrize("command", [
    ["translate", "--model", "r", "--input", "{text}", "--output", "{name}"],
    ["score", "--model", "r", "--source", "{other}", "--target", "{text}", "--output", "{name}"],
    ["score", "--model", "r", "--source", "{text}", "--target", "{other}", "--output", "{name}"],
    ["evaluate", "--model", "r", "--source", "{other}", "--reference", "{text}", "--hypothesis", "{name}"],
    ["evaluate", "--model", "r", "--source", "{text}", "--reference", "{other}", "--hypothesis", "{name}"]],
    ids=lambda command: "-".join(command[:1] + [word for word in command if word == "{text}"]))
def test_one_file_as_input_and_output_is_refused_by_any_name(text, tmp_path, monkeypatch, capsys, name, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_text("a house\n")
    arguments = [word.format(text=text, other=tmp_path / "other", name=name) for word in command]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert f"{name} is the same file as --" in error and "name another file to write to" in error
    assert text.read_text() == "ein Haus\n"


def test_a_file_on_standard_input_is_seen_as_well(text):
    program = ("from towernmt.predict.lines.output_file import check_apart\n"
               "import sys\n"
               "check_apart(('--output', sys.argv[1] or None), {'--input': None})\n")
    for output, stdout in ((str(text), subprocess.DEVNULL), ("", text.open("ab"))):
        ended = subprocess.run([sys.executable, "-c", program, output], stdin=text.open("rb"), stdout=stdout,
                               stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert ended.returncode == 1 and "is the same file as standard input" in ended.stderr


def test_what_can_be_read_and_written_at_once_is_let_be(text, tmp_path):
    check_apart(("--output", os.devnull), {"--input": os.devnull})
    check_apart(("--output", str(tmp_path / "new")), {"--input": str(text)})
    check_apart(("--output", str(text)), {"--input": str(tmp_path / "nothing")})
    os.mkfifo(tmp_path / "pipe")
    check_apart(("--output", str(tmp_path / "pipe")), {"--input": str(tmp_path / "pipe")})


def test_a_file_that_is_not_there_yet_is_not_two_outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    for other in ("new", "./new", str(tmp_path / "new"), "link"):
        with pytest.raises(DataError, match="is the same file as --alignments"):
            check_apart(("--output", "new"), {"--alignments": other})


DIRECTORIES = {"a run": ["settings.yaml", "vocabulary/source.model"], "an export": ["towernmt.json"],
               "an unpacked package": ["towernmt-package.json"], "prepared data": ["manifest.json"]}


@pytest.mark.parametrize("kind", DIRECTORIES)
@pytest.mark.parametrize("part", ["settings.yaml", "vocabulary/source.model", "new", "new/deep/file", "."])
def test_nothing_is_written_into_what_another_command_made(tmp_path, kind, part):
    place = tmp_path / "made"
    for name in DIRECTORIES[kind]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text('{"format": "towernmt-prepared"}')
    (tmp_path / "link").symlink_to(place)
    for written in (place / part, tmp_path / "link" / part):
        with pytest.raises(SettingsError, match=f"--output .* lies in {kind}"):
            check_apart(("--output", str(written)), {})
        if part == ".":
            check_apart(("--output", str(written)), {}, owned={kind})
    check_apart(("--output", str(tmp_path / "beside")), {})


def test_a_directory_with_a_settings_file_of_the_user_is_no_run(tmp_path):
    (tmp_path / "settings.yaml").write_text("train.steps: 5\n")
    check_apart(("--output", str(tmp_path / "hypotheses")), {})


def test_an_old_file_stays_until_the_new_one_is_whole(text, tmp_path):
    text.chmod(0o640)
    with output_file(tmp_path / "link") as stream:
        stream.write(b"a house\n")
        stream.flush()
        assert text.read_text() == "ein Haus\n"
    assert text.read_text() == "a house\n" and text.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["hard", "link", "text"]


@pytest.mark.parametrize("may_give_away", [True, False])
def test_a_new_file_has_the_owner_the_group_and_the_permissions_of_the_old_one(text, monkeypatch, may_give_away):
    if os.geteuid() == 0:
        os.chown(text, 1, 2)
    text.chmod(0o640)
    old = text.stat()
    given = []

    def chown(path, user, group):
        given.append((user, group))
        if not may_give_away:
            raise PermissionError
        change_owner(path, user, group)

    change_owner = os.chown
    monkeypatch.setattr(os, "chown", chown)
    with output_file(text) as stream:
        stream.write(b"a house\n")
    new = text.stat()
    assert given == [(old.st_uid, old.st_gid)] and new.st_mode == old.st_mode
    assert (new.st_uid, new.st_gid) == (given[0] if may_give_away else (os.geteuid(), os.getegid()))


def test_where_writing_fails_the_old_file_stays_and_the_half_is_named(text, tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt), output_file(text):
        raise KeyboardInterrupt
    assert sorted(os.listdir(tmp_path)) == ["hard", "link", "text"]     # there was no partial file
    with pytest.raises(KeyboardInterrupt), output_file(text) as stream:
        stream.write(b"half\n")
        raise KeyboardInterrupt
    assert text.read_text() == "ein Haus\n"
    half = tmp_path / f"text.unfinished-{os.getpid()}"
    assert half.read_text() == "half\n" and str(half) in caplog.text


def test_a_pipe_gets_its_lines_as_they_come(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    lines, first = [], threading.Event()

    def read() -> None:
        with open(tmp_path / "pipe", "rb") as pipe:
            for line in pipe:
                lines.append(line)
                first.set()

    reader = threading.Thread(target=read)
    reader.start()
    with output_file(tmp_path / "pipe") as stream:
        stream.write(b"one\n")
        stream.flush()
        assert first.wait(PATIENCE)
        stream.write(b"two\n")
    reader.join()
    assert lines == [b"one\n", b"two\n"]


def test_what_cannot_be_written_is_one_sentence(text, tmp_path):
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "no" / "where", "No such file or directory")):
        with pytest.raises(DataError, match=f"cannot write .{reason}"):
            write_lines(path, ["x"])
