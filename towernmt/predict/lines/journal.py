"""How far a long translation has come: written beside its unfinished output, so that it can go on after a stop.

The journal is a file of JSON lines, `NAME.unfinished-PROCESS.journal`. Its first line says what is being done: with
which model and options. A further line is added at the end of each window of lines: how much of the input was read,
with a fingerprint, and how much output was written. Windows begin where they began the first time, so that the batches,
and with them the bytes, are the same as if the program had never been stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from towernmt.core.errors import DataError
from towernmt.core.files.directory_lock import lock_descriptor

SUFFIX = ".journal"


class Mark(NamedTuple):
    """A place at which everything before is done.

    Attributes:
        lines: of the input.
        input_bytes: the same lines in bytes.
        fingerprint: of these bytes.
        output_bytes: what was written for them.
    """

    lines: int = 0
    input_bytes: int = 0
    fingerprint: str = hashlib.sha256().hexdigest()
    output_bytes: int = 0


class InputLines:
    """The lines of an input, from a mark on.

    Attributes:
        mark: behind the lines that are done; its `output_bytes` are those of the beginning.
    """

    def __init__(self, stream: BinaryIO, name: str, start: Mark = Mark()) -> None:  # noqa: B008 -- immutable
        """
        Args:
            stream: from its beginning.
            name: of the input, for errors.
            start: what was done before.
        Raises:
            DataError: the input does not begin as it did then.
        """
        self._stream, self._hash = stream, hashlib.sha256()
        rest = start.input_bytes
        while rest and (part := stream.read(min(rest, 1 << 20))):
            self._hash.update(part)
            rest -= len(part)
        if self._hash.hexdigest() != start.fingerprint:
            raise DataError(f"{name} is not the input that was being translated: its first {start.lines} lines are "
                            "others now; translate it without --resume.")
        self.mark, self._waiting = start, deque[bytes]()

    def __iter__(self) -> Iterator[bytes]:
        for line in self._stream:
            self._waiting.append(line)
            yield line

    def done(self, lines: int, output_bytes: int) -> Mark:
        """Move the mark behind `lines` lines, from the beginning of the input, for which so much was written."""
        size = self.mark.input_bytes
        for _ in range(lines - self.mark.lines):
            line = self._waiting.popleft()
            self._hash.update(line)
            size += len(line)
        self.mark = Mark(lines, size, self._hash.hexdigest(), output_bytes)
        return self.mark


class Journal:
    """The journal of an output that is being written. It is locked, so that no second process goes on with it."""

    def __init__(self, unfinished: Path, task: Mapping[str, Any], start: Mark) -> None:
        """Begin one, in place of another of this name.

        Args:
            unfinished: the output.
            task: what is done, as JSON has it: what a later process must do as well to go on.
            start: what was done before.
        Raises:
            OSError: it cannot be written.
        """
        self.path = Path(f"{unfinished}{SUFFIX}")
        beside = Path(f"{self.path}.tmp")
        self._file = open(beside, "w", encoding="utf-8")  # noqa: SIM115 -- open until the translation ends
        with suppress(OSError):     # a file system without locks
            lock_descriptor(self._file.fileno())
        self._write(task)
        self.add(start)
        beside.replace(self.path)

    def add(self, mark: Mark) -> None:
        """Note that what is before a mark is done and written."""
        self._write(mark._asdict())

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def remove(self) -> None:
        """Write no more, and leave nothing."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def fingerprint(file: Path) -> str:
    """Of the content of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{file}: cannot read ({error.strerror}).") from error


def unfinished_output(target: Path) -> Path | None:
    """The last output of this name that was begun and has a journal; None if there is none."""
    journals = [path for path in target.parent.glob(f"{_escaped(target.name)}.unfinished-*{SUFFIX}")
                if path.with_suffix("").is_file()]
    newest = max(journals, key=lambda path: path.stat().st_mtime_ns, default=None)
    return None if newest is None else newest.with_suffix("")


def read_journal(unfinished: Path, task: Mapping[str, Any]) -> list[Mark]:
    """The marks of an output that was begun, as far as it is on the disk.

    Raises:
        DataError: it is being written to, the journal is damaged, or what was done then is another task.
    """
    path = Path(f"{unfinished}{SUFFIX}")
    with open(path, "r+", encoding="utf-8", errors="replace") as file:
        try:
            lock_descriptor(file.fileno())
        except OSError:
            raise DataError(f"{unfinished} is being written to by another process: wait until it has ended.") from None
        lines = file.read().split("\n")[:-1]    # a last line without its end was not written to its end
    try:
        begun, *marks = map(json.loads, lines)
        size = unfinished.stat().st_size
        reached = [mark for mark in (Mark(**mark) for mark in marks) if mark.output_bytes <= size]
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}); translate without --resume.") from None
    refuse_other_task(str(unfinished), begun, task, "translate without --resume")
    return reached


def refuse_other_task(name: str, begun: Mapping[str, Any], task: Mapping[str, Any], otherwise: str) -> None:
    """Refuse to go on with what was begun as another task.

    Args:
        name: of what was begun.
        begun, task: what was done then, and what is done now.
        otherwise: what else can be done.
    Raises:
        DataError: they differ; it says in what.
    """
    for part in sorted({*begun, *task}):
        if begun.get(part) != task.get(part):
            raise DataError(f"{name} was begun with {part}: {_shown(begun.get(part))}, and not with "
                            f"{_shown(task.get(part))}: take the same, or {otherwise}.")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
