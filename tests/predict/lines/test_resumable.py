"""A long translation that is killed and resumed has the same bytes as an uninterrupted one."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from towernmt.core.errors import DataError
from towernmt.predict.lines.resumable import (
    ENGINE,
    Journal,
    ResumableInput,
    ResumePoint,
    check_same_task,
    read_journal,
    resumable_output,
    unfinished_output,
)

PROGRAM = r"""
import json, os, signal, sys
import numpy as np
from towernmt.cli.main import main
from towernmt.cli import translate
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.line_options import line_requests
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.stream import translate_stream

batches = 0

def predict(source, source_length):
    # The k-th best of a sentence; its scores depend on the whole batch, as rounding does.
    global batches
    batches += 1
    if batches == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    tokens = np.stack([source, source[:, ::-1]], axis=1)
    looks = np.eye(source.shape[1])
    return (tokens, np.stack([source.mean() + source.sum(1), source.mean() - source_length], axis=1) / -100, None,
            np.broadcast_to([looks, looks[::-1]], [len(source), 2, *looks.shape]))

class Echo:
    checkpoint, engine, search = "model", "graph", SearchSettings(n_best=2)
    source_vocabulary = target_vocabulary = WordVocabulary([*SPECIAL_PIECES, *map(str, range(50))])

    def translate_stream(self, lines, name, options=None, first=1):
        requests = line_requests(lines, name, first, options)
        encoder = RequestEncoder(self.search, self.source_vocabulary, self.target_vocabulary)
        return translate_stream(predict, self.source_vocabulary, self.target_vocabulary, requests,
                                StreamSettings(batch_sentences=3, window=7), name, encoder, first=first)

translate.make_translator = lambda args, **details: Echo()
sys.exit(main(["translate", "--model", "none", "--window", "7", *sys.argv[2:]]))
"""


@pytest.fixture
def run(start_program: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run(batch, *arguments)`, which returns the result of the program. It is killed in this batch, from 1."""
    return lambda batch, *arguments: start_program(PROGRAM, batch, *arguments).wait()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = [" ".join(str((7 * line + word) % 50) for word in range(line % 5)) for line in range(40)]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    (tmp_path / "in.json").write_text("".join(json.dumps({"text": line, "n_best": 1 + number % 2}) + "\n"
                                              for number, line in enumerate(lines)))
    return tmp_path / "in"


@pytest.mark.processes
@pytest.mark.parametrize("kind", [["--scores"], ["--n-best", "2", "--alignments", "LINKS"], ["--json"]],
                         ids=lambda kind: kind[0])
def test_a_translation_that_is_killed_again_and_again_comes_to_the_same_bytes(
        source: Path, kind: list[str], run: Callable[..., Any]) -> None:
    arguments = [*kind, "--input", f"{source}.json" if kind == ["--json"] else str(source)]
    complete_output, resumed_output = source.with_name("whole"), source.with_name("parts")
    links = source.with_name("links")
    arguments = [str(links) if argument == "LINKS" else argument for argument in arguments]
    assert run(0, *arguments, "--output", str(complete_output)).status == 0
    expected = links.rename(f"{complete_output}.links").read_text() if str(links) in arguments else ""
    for batch in (4, 1, 3):     # in the second window; in the first batch after resuming; a window later
        killed = run(batch, *arguments, "--output", str(resumed_output), "--resume")
        assert killed.status == -signal.SIGKILL and not resumed_output.exists()
        begun = unfinished_output(resumed_output)
        assert begun is not None and complete_output.read_bytes().startswith(begun.read_bytes())
        with begun.open("ab") as file:      # a partly written line
            file.write(b"half a li")
    resumed = run(0, *arguments, "--output", str(resumed_output), "--resume")
    assert resumed.status == 0 and "resuming after line 14" in resumed.errors
    assert resumed_output.read_bytes() == complete_output.read_bytes() and complete_output.read_text().count("\n") >= 40
    assert [path.name for path in source.parent.glob("parts*")] == ["parts"]
    if expected:
        assert links.read_text() == expected and len(expected.split()) == 80
        assert [path.name for path in source.parent.glob("links*")] == ["links"]


@pytest.mark.processes
def test_what_was_begun_is_not_gone_on_with_by_another_task_or_input(source: Path, run: Callable[..., Any]) -> None:
    arguments = ["--input", str(source), "--output", str(source.with_name("out"))]
    assert run(9, *arguments).status == -signal.SIGKILL
    for change, message in ((["--scores"], r"--scores: false, and not with true"),
                            (["--batch-tokens", "9"], "--batch-tokens: the default, and not with 9")):
        refused = run(0, *arguments, "--resume", *change)
        assert refused.status == 1 and message in refused.errors
    text = source.read_text()
    source.write_text("other" + text)
    refused = run(0, *arguments, "--resume")
    assert refused.status == 1 and "in is not the input that was being translated" in refused.errors
    source.write_text(text + "1 2 3\n")     # lines that were not translated yet may change, for example by a correction
    assert run(0, *arguments, "--resume").status == 0
    assert source.with_name("out").read_text().endswith("1 2 3\n")


def test_a_mark_is_behind_the_lines_that_are_done_and_knows_them(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\ntwo\r\n\nfour")
    with open(tmp_path / "in", "rb") as stream:
        lines = ResumableInput(stream, "in")
        assert list(lines) == [b"one\n", b"two\r\n", b"\n", b"four"]
        point = lines.advance(2, 100)
        assert point[:2] == (2, 9) and point.output_bytes == 100
    with open(tmp_path / "in", "rb") as stream:
        assert list(ResumableInput(stream, "in", point)) == [b"\n", b"four"]
    (tmp_path / "in").write_bytes(b"one\ntwo!\n\nfour")
    with open(tmp_path / "in", "rb") as stream, pytest.raises(DataError, match="its first 2 lines have changed"):
        ResumableInput(stream, "in", point)


def test_a_journal_says_how_far_the_output_on_the_disk_is_whole(tmp_path: Path) -> None:
    unfinished, task = tmp_path / "out.unfinished-7", {"model": "a", "beam": 4}
    unfinished.write_bytes(b"x" * 25)
    journal = Journal(unfinished, task, ResumePoint())
    for lines in (10, 20, 30):
        journal.add(ResumePoint(lines, lines, "f", lines))
    with pytest.raises(DataError, match="is being written to by another process"):
        read_journal(unfinished, task)
    journal.close()
    with open(journal.path, "a") as file:
        file.write('{"lines": 4')      # a partly written record
    assert read_journal(unfinished, task) == [ResumePoint(), ResumePoint(10, 10, "f", 10), ResumePoint(20, 20, "f", 20)]
    with pytest.raises(DataError, match="was begun with beam: 4, and not with 5: use the same value"):
        read_journal(unfinished, {**task, "beam": 5})
    assert unfinished_output(tmp_path / "out") == unfinished and unfinished_output(tmp_path / "ou") is None


def test_a_journal_is_read_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", without_locks)
    unfinished = tmp_path / "out.unfinished-1"
    unfinished.write_text("")
    Journal(unfinished, {}, ResumePoint()).close()
    assert read_journal(unfinished, {}) == [ResumePoint()]


@pytest.mark.parametrize(("begun_engine", "engine", "advice"), [
    ("graph", "CTranslate2 4.8.5 float32", "leave out --engine, or"),
    ("CTranslate2 4.8.5 int8", "graph", "leave out --engine graph, or pass --engine ctranslate2, or"),
    ("CTranslate2 4.8.5 int8", "CTranslate2 4.9.0 int8", "use the same version of CTranslate2 and the same --prec")])
def test_an_output_of_another_engine_is_refused_with_the_option_that_selects_its_engine(
        begun_engine: str, engine: str, advice: str) -> None:
    with pytest.raises(DataError, match=f'begun with the engine: "{begun_engine}", and not with "{engine}": {advice}'):
        check_same_task("out", {ENGINE: begun_engine}, {ENGINE: engine}, "translate without --resume")


def test_what_fails_before_anything_is_written_leaves_nothing_and_what_ends_well_no_journal(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), resumable_output(f"{tmp_path}/out", 5, {}, False):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with resumable_output(f"{tmp_path}/out", 5, {}, True) as output:
        assert output.start == ResumePoint()
        output.write(1, ["a"])
        assert sorted(path.suffix for path in tmp_path.iterdir()) == [".journal", f".unfinished-{os.getpid()}"]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["a\n"]


def stopped(directory: Path, marks: dict[str, list[int]]) -> None:
    """Write outputs of a killed process: a byte for each line, and resume points after these numbers of lines."""
    for name, lines in marks.items():
        unfinished = directory / f"{name}.unfinished-7"
        unfinished.write_bytes(b"x" * (lines[-1] + 3))
        journal = Journal(unfinished, {}, ResumePoint())
        for resume_points in lines:
            journal.add(ResumePoint(resume_points, 2 * resume_points, "f", resume_points))
        journal.close()


def test_files_that_are_written_in_step_go_on_behind_the_last_line_that_both_have(tmp_path: Path) -> None:
    names = [f"{tmp_path}/out", f"{tmp_path}/links"]
    stopped(tmp_path, {"out": [10, 20], "links": [10, 20, 30]})     # killed before the second journal was written
    with pytest.raises(KeyboardInterrupt), resumable_output(names[0], 5, {}, True, names[1:]) as output:
        assert output.start == ResumePoint(20, 40, "f", 20)
        raise KeyboardInterrupt     # both can be resumed again
    with resumable_output(names[0], 5, {}, True, names[1:]) as output:
        assert output.start.lines == 20
        output.further[0].write(b"link\n")
        output.write(21, ["text"])
    assert [Path(name).read_text() for name in names] == ["x" * 20 + "text\n", "x" * 20 + "link\n"]
    assert len(list(tmp_path.iterdir())) == 2
    stopped(tmp_path, {"out": [10, 20]})
    with resumable_output(names[0], 5, {}, True, names[1:]) as output:
        assert output.start == ResumePoint()       # the other file is missing


def test_a_file_that_cannot_be_resumed_is_refused_and_the_other_one_is_kept(tmp_path: Path) -> None:
    stopped(tmp_path, {"out": [10, 20]})
    with pytest.raises(DataError, match="/dev/null is not a regular file, so it cannot be resumed"), (
            resumable_output(f"{tmp_path}/out", 5, {}, True, ["/dev/null"])):
        pytest.fail("The translation has begun.")
    assert (tmp_path / "out.unfinished-7").read_bytes() == b"x" * 23


def test_an_error_of_the_journal_does_not_hide_the_error_that_stops_the_output(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def close(journal: Journal) -> None:
        raise OSError(errno.ENOSPC, "the journal")

    with pytest.raises(OSError, match="the output"), resumable_output(f"{tmp_path}/out", 5, {}, False) as output:
        output.write(1, ["a"])
        monkeypatch.setattr(Journal, "close", close)
        raise OSError(errno.ENOSPC, "the output")
    assert "out is unfinished: the same command resumes it" in caplog.text
