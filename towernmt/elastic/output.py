"""What workers say: that of worker 0 on the terminal, that of the others in files beside the run's log."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from towernmt.core.terminal.lost_reader import lead_nowhere
from towernmt.elastic.worker_actor import ERRORS, OUTPUT

_SENTENCE = b"towernmt: "


class WorkerOutput:
    """What one worker says in one attempt.

    Its last sentence (`towernmt: ...`) is kept back: whoever knows what the others did decides who hears it.

    Attributes:
        sentence: that, without the word before it; "" if there was none.
    """

    sentence = ""

    def __init__(self) -> None:
        self._begun = b""       # a line of standard error whose end is not there yet

    def take(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Hand on what was said; see `Said.pieces`."""
        for kind, piece in pieces:
            if kind == ERRORS:
                *lines, self._begun = (self._begun + piece).splitlines(keepends=True) or [b""]
                if self._begun.endswith(b"\n"):
                    lines, self._begun = [*lines, self._begun], b""
                piece = b"".join(line for line in lines if not self._is_sentence(line))
            if piece:
                self._write(kind, piece)

    def close(self) -> None:
        """No more is said."""
        if self._begun and not self._is_sentence(self._begun):
            self._write(ERRORS, self._begun)

    def _is_sentence(self, line: bytes) -> bool:
        if not line.startswith(_SENTENCE):
            return False
        self.sentence = line[len(_SENTENCE):].decode(errors="replace").strip()
        return True

    def _write(self, kind: int, piece: bytes) -> None:
        raise NotImplementedError


class TerminalOutput(WorkerOutput):
    """Worker 0, whose output and errors are those of this process."""

    def __init__(self) -> None:
        super().__init__()
        decoder = codecs.getincrementaldecoder("utf-8")     # a piece may end within a character
        self._decoders = {kind: decoder(errors="replace") for kind in (OUTPUT, ERRORS)}

    def _write(self, kind: int, piece: bytes) -> None:
        stream: Any = sys.stderr if kind == ERRORS else sys.stdout
        try:
            stream.write(self._decoders[kind].decode(piece))
            stream.flush()
        except BrokenPipeError:     # a training whose reader has gone goes on
            lead_nowhere(stream)


class FileOutput(WorkerOutput):
    """Another worker.

    Args:
        path: of its file, which has all attempts one after the other.
        title: a line for the beginning of this one.
    """

    def __init__(self, path: Path, title: str) -> None:
        super().__init__()
        self._path, self._title = path, f"{title}\n".encode()

    def _is_sentence(self, line: bytes) -> bool:
        if super()._is_sentence(line):
            self._write(ERRORS, line)
            return True
        return False

    def _write(self, kind: int, piece: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(self._title + piece)
        self._title = b""
