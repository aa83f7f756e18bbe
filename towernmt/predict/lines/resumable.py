"""Outputs that are written line by line and that another process can continue."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from towernmt.core.directories import lock_descriptor
from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import bounded_lines
from towernmt.predict.lines.output_file import output_file, told

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
        self._stream, self._name, self._hash = stream, name, hashlib.sha256()
        rest = start.input_bytes
        while rest and (part := stream.read(min(rest, 1 << 20))):
            self._hash.update(part)
            rest -= len(part)
        if self._hash.hexdigest() != start.fingerprint:
            raise DataError(f"{name} is not the input that was being translated: its first {start.lines} lines are "
                            "others now; translate it without --resume.")
        self.mark, self._waiting = start, deque[bytes]()

    def __iter__(self) -> Iterator[bytes]:
        for line in bounded_lines(self._stream, self._name, self.mark.lines + 1):
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


log = logging.getLogger(__name__)


class Journalled(NamedTuple):
    """A file that is written, and the journal that says how far it has come."""

    stream: BinaryIO
    journal: Journal


class LineOutput:
    """Lines that are written for the lines of an input.

    Attributes:
        start: what was done before, and is not to be done again.
        further: what else is written in step with the lines; who writes to these has flushed what belongs to a line
            before `write` is called for it.
    """

    def __init__(self, stream: BinaryIO, window: int = 1, start: Mark = Mark(),  # noqa: B008 -- immutable
                 journalled: Sequence[Journalled] = (), further: Sequence[BinaryIO] = ()) -> None:
        """
        Args:
            stream: what is written to.
            window: of the translation: at its end everything before is done.
            start: see above.
            journalled: the files whose journals are told of that.
            further: see above.
        """
        self.start, self.further = start, list(further)
        self._stream, self._window, self._journalled = stream, window, list(journalled)
        self._input: InputLines | None = None

    def lines_of(self, stream: BinaryIO, name: str) -> Iterable[bytes]:
        """The lines of an input that are to be done.

        Args:
            stream: from its beginning.
            name: of the input, for errors.
        Raises:
            DataError: it does not begin as the one that was begun with.
        """
        if not self._journalled:
            return bounded_lines(stream, name)
        self._input = InputLines(stream, name, self.start)
        return self._input

    def write(self, number: int, lines: Iterable[str]) -> None:
        """Write what belongs to a line of the input, as UTF-8, and flush it.

        Args:
            number: of the input's line, from 1.
        """
        for line in lines:
            self._stream.write(line.encode("utf-8") + b"\n")
        self._stream.flush()
        if self._input is not None and number % self._window == 0:
            mark = self._input.done(number, self._stream.tell())
            for stream, journal in self._journalled:
                journal.add(mark._replace(output_bytes=stream.tell()))


@contextmanager
def resumable_output(path: str, window: int, task: Mapping[str, Any], resume: bool,
                     further: Sequence[str] = ()) -> Iterator[LineOutput]:
    """A file to write lines to, as `output_file` has it, with a journal beside it until it is done.

    Args:
        path: where the lines go.
        window: see `LineOutput`.
        task: what is done, as JSON has it: what must be the same to go on.
        resume: go on with what was begun; from the beginning, if there is nothing.
        further: files that are written in step with it, each with a journal of its own. They are gone on with from the
            last place that all of them have reached.
    Raises:
        DataError: it cannot be written, or what was begun was another task, or is being written to.
    """
    paths = [path, *further]
    begun = [_begun(one, task, resume) for one in paths]
    start = _reached_by_all(begun)
    try:
        with ExitStack() as files:
            streams = [files.enter_context(output_file(one, file.begin))
                       for one, file in zip(paths, begun, strict=True)]
            journalled = [Journalled(stream, file.journal) for stream, file in zip(streams, begun, strict=True)
                          if file.journal is not None]
            yield LineOutput(streams[0], window, start, journalled, streams[1:])
    except BaseException:
        for one, file in zip(paths, begun, strict=True):
            file.stop(one)
        raise
    for one, file in zip(paths, begun, strict=True):
        if file.journal is not None:
            file.journal.remove()
        elif resume:
            raise DataError(f"{one} is no regular file, so there is nothing to go on with: leave out --resume.")


class _Begun:
    """An output that an earlier process may have begun.

    Attributes:
        marks: the places that it has reached, the beginning first.
        start: where it is gone on with.
        journal: None until it is opened, and of what is no regular file.
    """

    def __init__(self, target: Path, task: Mapping[str, Any], resume: bool) -> None:
        self._task = task
        self._earlier = unfinished_output(target) if resume else None
        self.marks = [Mark()] if self._earlier is None else [Mark(), *read_journal(self._earlier, task)]
        self.start = self.marks[0]
        self.journal: Journal | None = None

    def begin(self, unfinished: Path) -> BinaryIO:
        """Open the unfinished file behind the start."""
        # Until the output has its new name, the old journal goes with it; from then on the new one does.
        self.journal = Journal(unfinished, self._task, self.start)
        if self._earlier is None:
            return open(unfinished, "wb")
        if self._earlier != unfinished:
            self._earlier.replace(unfinished)
            Path(f"{self._earlier}{self.journal.path.suffix}").unlink()
        stream = open(unfinished, "r+b")
        stream.truncate(self.start.output_bytes)
        stream.seek(self.start.output_bytes)
        return stream

    def stop(self, path: str) -> None:
        """Keep what was written, and say so; keep nothing of nothing."""
        if self.journal is None:
            return
        self.journal.close()
        if self.journal.path.with_suffix("").exists():
            log.warning("%s: the same command with --resume goes on with it.", path)
        else:
            self.journal.remove()


def _begun(path: str, task: Mapping[str, Any], resume: bool) -> _Begun:
    with told(path):
        return _Begun(Path(os.path.realpath(path)), task, resume)


def _reached_by_all(begun: Sequence[_Begun]) -> Mark:
    """Let all outputs go on behind the last line that each has a mark behind; gives the first output's mark."""
    lines = max(set.intersection(*({mark.lines for mark in file.marks} for file in begun)))
    for file in begun:
        file.start = next(mark for mark in reversed(file.marks) if mark.lines == lines)
    return begun[0].start
