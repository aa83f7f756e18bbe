"""`towernmt translate` as a process whose search does not end: Ctrl-C, and a reader that closes the pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE
from towernmt.core.standard_streams import BROKEN_PIPE

pytestmark = pytest.mark.processes
Begin = Callable[..., "subprocess.Popen[str]"]
WINDOW = 1000
"""Number of lines of a window, which has two parts."""
PROGRAM = r"""
import signal, sys, threading
import numpy as np
from towernmt.cli import translate
from towernmt.cli.main import main
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.hypotheses import SearchOutput
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings

words = WordVocabulary([*SPECIAL_PIECES, "go", "stop"])

class Search:
    # Translates a line into itself. A line with "stop" takes for ever, and so do second translations.
    def __init__(self, is_first=True):
        self._is_first = is_first

    def __call__(self, source, source_length):
        if not self._is_first or (source == words.piece_to_id("stop")).any():
            print("A line takes for ever.", file=sys.stderr, flush=True)
            threading.Event().wait()
        return SearchOutput(source[:, None], np.zeros([len(source), 1], np.float32))

    def with_settings(self, changed):
        return self

class Dividing(Search):
    def is_undivided(self, piece):
        return True

    without_details = Search.with_settings

    def among_others(self):
        return Dividing(False)

class Translator(LineTranslator):
    engine = "graph"

def make_translator(args, **details):
    search = Dividing() if args.engine == "auto" else Search()
    return Translator(search, words, words, checkpoint="", search=SearchSettings(),
                      stream=StreamSettings(window=args.window, threads=2))

translate.make_translator = make_translator
signal.signal(signal.SIGINT, signal.default_int_handler)       # which a shell may have replaced
sys.exit(main())
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return `begin(lines, *options, stdout=...)`, which begins to translate lines."""
    started = []

    def begin_with(lines: list[str], *options: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
        started.append(subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "translate", "--model", "none", "--input", "in", "--window", str(WINDOW),
             *options], cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin_with
    for process in started:
        process.kill()
        process.communicate()


def wait_for_line(process: subprocess.Popen[str]) -> None:
    """Wait until the process translates a line that takes for ever."""
    assert process.stderr is not None
    read = []
    while "A line takes for ever." not in (line := process.stderr.readline()):
        read.append(line)
        assert line, "".join(read)


@pytest.mark.parametrize("engine", ["auto", "graph"])
def test_ctrl_c_ends_a_translation_at_once_and_keeps_the_finished_lines(
        begin: Begin, tmp_path: Path, engine: str) -> None:
    lines = ["go"] * WINDOW + [f"stop{' go' * (number % 50)}" for number in range(WINDOW)]
    process = begin(lines, "--engine", engine, "--output", "out")
    wait_for_line(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGINT and "Traceback" not in errors, errors
    assert "towernmt: interrupted" in errors
    [unfinished] = [path for path in tmp_path.glob("out.unfinished-*") if path.suffix != ".journal"]
    assert unfinished.read_text() == "go\n" * WINDOW
    journal = unfinished.with_name(f"{unfinished.name}.journal").read_text().splitlines()
    assert json.loads(journal[-1])["lines"] == WINDOW


def test_the_end_of_the_reader_ends_a_translation_at_once(begin: Begin) -> None:
    # The second part of the window has a line with a second translation.
    lines = ["go"] * (WINDOW // 2) + ["GO GO", *["go"] * (WINDOW // 2 - 1)]
    reader, writer = os.pipe()
    os.close(reader)
    process = begin(lines, stdout=writer)
    os.close(writer)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors.replace("A line takes for ever.\n", "")) == (BROKEN_PIPE, "")
