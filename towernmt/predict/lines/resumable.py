"""Output files that are written line by line, with a journal from which a later process can resume."""

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

from towernmt.core.directories import try_lock
from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import bounded_lines
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.lines.output_file import is_written_directly, output_file, reporting_write_errors
from towernmt.predict.lines.text_io import as_utf8
from towernmt.predict.search.search_settings import GRAPH

SUFFIX = ".journal"
ENGINE = "the engine"
"""Key of the engine in a task: `graph`, or name, version and precision of another engine."""


class ResumePoint(NamedTuple):
    """A position in the input and the output before which all lines are translated.

    Attributes:
        lines: number of translated input lines.
        input_bytes: size of these lines in bytes.
        fingerprint: SHA-256 of these bytes, hexadecimal.
        output_bytes: size of their output in bytes.
        faults: faults of these lines, if the writer counts them; see `FaultCounts.as_json`.
    """

    lines: int = 0
    input_bytes: int = 0
    fingerprint: str = hashlib.sha256().hexdigest()
    output_bytes: int = 0
    faults: dict[str, Any] | None = None


class ResumableInput:
    """Input lines from a resume point on.

    Args:
        stream: the input, at its beginning.
        name: name of the input, for errors.
        start: resume point of a previous process.

    Attributes:
        resume_point: position after the translated lines.

    Raises:
        DataError: the beginning of the input has changed.
    """

    def __init__(self, stream: BinaryIO, name: str,
                 start: ResumePoint = ResumePoint()) -> None:  # noqa: B008 -- immutable
        self._stream, self._name, self._hash = stream, name, hashlib.sha256()
        remaining_bytes = start.input_bytes
        while remaining_bytes and (chunk := stream.read(min(remaining_bytes, 1 << 20))):
            self._hash.update(chunk)
            remaining_bytes -= len(chunk)
        if self._hash.hexdigest() != start.fingerprint:
            raise DataError(f"{name} is not the input that was being translated: its first {start.lines} lines have "
                            "changed. Translate it without --resume.")
        self.resume_point, self._waiting_lines = start, deque[bytes]()

    def __iter__(self) -> Iterator[bytes]:
        for line in bounded_lines(self._stream, self._name, self.resume_point.lines + 1):
            self._waiting_lines.append(line)
            yield line

    def advance(self, lines: int, output_bytes: int) -> ResumePoint:
        """Move the resume point, and return it.

        Args:
            lines: number of translated lines from the beginning of the input.
            output_bytes: size of their output in bytes.
        """
        size = self.resume_point.input_bytes
        for _ in range(lines - self.resume_point.lines):
            line = self._waiting_lines.popleft()
            self._hash.update(line)
            size += len(line)
        self.resume_point = ResumePoint(lines, size, self._hash.hexdigest(), output_bytes)
        return self.resume_point


class Journal:
    """The journal of an unfinished output. It is locked, so that no second process resumes the same output.

    A new journal replaces an old one of the same name.

    Args:
        unfinished: the unfinished output.
        task: the task as JSON values; a later process resumes only an equal task.
        start: resume point of a previous process.

    Raises:
        OSError: the journal cannot be written.
    """

    def __init__(self, unfinished: Path, task: Mapping[str, Any], start: ResumePoint) -> None:
        self.path = Path(f"{unfinished}{SUFFIX}")
        temporary_path = Path(f"{self.path}.tmp")
        self._file = open(temporary_path, "w", encoding="utf-8")  # noqa: SIM115 -- open until the translation ends
        try_lock(self._file.fileno())       # no other process has the new file
        self._write(task)
        self.add(start)
        temporary_path.replace(self.path)

    def add(self, point: ResumePoint) -> None:
        """Write a resume point: all lines before it are translated and written."""
        self._write(point._asdict())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def file_fingerprint(file: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{file}: cannot read ({error.strerror}).") from error


def weight_fingerprints(checkpoint: str) -> list[str]:
    """Return the fingerprints of the weights of `LineTranslator.checkpoint`, one for each checkpoint that exists."""
    indices = (Path(f"{prefix}.index") for prefix in checkpoint.split(" + "))     # several for an ensemble
    return [file_fingerprint(index) for index in indices if index.is_file()]


def unfinished_output(target: Path) -> Path | None:
    """Return the newest unfinished output of this name that has a journal, or None."""
    journals = [path for path in target.parent.glob(f"{_glob_escaped(target.name)}.unfinished-*{SUFFIX}")
                if path.with_suffix("").is_file()]
    newest = max(journals, key=lambda path: path.stat().st_mtime_ns, default=None)
    return None if newest is None else newest.with_suffix("")


def read_journal(unfinished: Path, task: Mapping[str, Any]) -> list[ResumePoint]:
    """Return the resume points of an unfinished output, up to its size on the disk.

    Raises:
        DataError: another process is writing the output, the journal is damaged, or its task differs.
    """
    path = Path(f"{unfinished}{SUFFIX}")
    with open(path, "r+", encoding="utf-8", errors="replace") as file:
        if not try_lock(file.fileno()):
            raise DataError(f"{unfinished} is being written to by another process: wait until it has ended.")
        lines = file.read().split("\n")[:-1]    # the last line is incomplete if it has no line end
    try:
        earlier_task, *records = map(json.loads, lines)
        size = unfinished.stat().st_size
        points = [point for point in (ResumePoint(**record) for record in records) if point.output_bytes <= size]
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}); translate without --resume.") from None
    check_same_task(str(unfinished), earlier_task, task, "translate without --resume")
    return points


def task_of_unfinished(path: str) -> dict[str, Any] | None:
    """Return the task of the unfinished output of this name; None if it does not exist or has no readable journal."""
    unfinished = unfinished_output(Path(os.path.realpath(path)))
    try:
        with open(f"{unfinished}{SUFFIX}", encoding="utf-8") as journal:
            task = json.loads(journal.readline())
    except (OSError, ValueError):
        return None
    return task if isinstance(task, dict) else None


def check_same_task(name: str, earlier_task: Mapping[str, Any], task: Mapping[str, Any], alternative: str) -> None:
    """Check that an unfinished output was begun for the same task.

    Args:
        name: name of the output.
        earlier_task: task for which it was begun.
        task: task of this process.
        alternative: advice for a different task.

    Raises:
        DataError: the tasks differ; the message names the first difference.
    """
    for key in sorted({*earlier_task, *task}):
        if earlier_task.get(key) != task.get(key):
            earlier_value, value = earlier_task.get(key), task.get(key)
            advice = _engine_advice(earlier_value, value) if key == ENGINE else "use the same value"
            raise DataError(f"{name} was begun with {key}: {_shortened_json(earlier_value)}, and not with "
                            f"{_shortened_json(value)}: {advice}, or {alternative}.")


def _engine_advice(earlier_engine: Any, engine: Any) -> str:
    """Return the option that selects the engine of an unfinished output in place of another engine."""
    if earlier_engine == GRAPH:
        return "leave out --engine"
    if engine == GRAPH:
        return "leave out --engine graph, or pass --engine ctranslate2"
    return "use the same version of CTranslate2 and the same --precision"


def _shortened_json(value: Any) -> str:
    text = "the default" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _glob_escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


log = logging.getLogger(__name__)


class JournalledFile(NamedTuple):
    """An output file and its journal."""

    stream: BinaryIO
    journal: Journal


class LineOutput:
    """Output of the lines of an input.

    Args:
        stream: output stream.
        window: number of lines of a translation window; after each window, a resume point is written.
        start: resume point of a previous process, whose lines are not translated again.
        journalled: files whose journals get the resume points.
        further: other files of the same lines, such as word alignments. Their writer flushes the data of a line before
            `write` is called for this line.

    Attributes:
        start, further: see the arguments.
    """

    def __init__(self, stream: BinaryIO, window: int = 1,
                 start: ResumePoint = ResumePoint(),  # noqa: B008 -- immutable
                 journalled: Sequence[JournalledFile] = (), further: Sequence[BinaryIO] = ()) -> None:
        self.start, self.further = start, list(further)
        self._stream, self._window, self._journalled = stream, window, list(journalled)
        self._input: ResumableInput | None = None

    def lines_of(self, stream: BinaryIO, name: str) -> Iterable[bytes]:
        """Return the input lines that are not translated yet.

        Args:
            stream: the input, at its beginning.
            name: name of the input, for errors.

        Raises:
            DataError: the beginning of the input has changed since the previous process.
        """
        if not self._journalled:
            return bounded_lines(stream, name)
        self._input = ResumableInput(stream, name, self.start)
        return self._input

    def write(self, number: int, lines: Iterable[str], faults: FaultCounts | None = None) -> None:
        """Write the output lines of an input line as by `as_utf8`, and flush them.

        Args:
            number: number of the input line, from 1.
            lines: output lines.
            faults: faults of all lines up to this one, which the resume points contain; None if they are not counted.
        """
        for line in lines:
            self._stream.write(as_utf8(line))
        self._stream.flush()
        if self._input is not None and number % self._window == 0:
            point = self._input.advance(number, self._stream.tell())
            point = point._replace(faults=None if faults is None else faults.as_json())
            for stream, journal in self._journalled:
                journal.add(point._replace(output_bytes=stream.tell()))


@contextmanager
def resumable_output(path: str, window: int, task: Mapping[str, Any], resume: bool,
                     further: Sequence[str] = ()) -> Iterator[LineOutput]:
    """Open an output file as `output_file` does, with a journal next to it until it is complete.

    Args:
        path: path of the output.
        window: see `LineOutput`.
        task: the task as JSON values; an unfinished output is resumed only for an equal task.
        resume: whether to resume an unfinished output, if it exists.
        further: paths of other files of the same lines, each with a separate journal. All files resume at the last
            point that all of them have reached.

    Raises:
        DataError: a file cannot be written or resumed, its task differs, or another process is writing it.
    """
    paths = [path, *further]
    files_to_resume = [_open_unfinished(output_path, task, resume) for output_path in paths]
    start = _move_to_common_point(files_to_resume)
    try:
        with ExitStack() as files:
            streams = [files.enter_context(output_file(output_path, file.open))
                       for output_path, file in zip(paths, files_to_resume, strict=True)]
            journalled = [JournalledFile(stream, file.journal)
                          for stream, file in zip(streams, files_to_resume, strict=True) if file.journal is not None]
            yield LineOutput(streams[0], window, start, journalled, streams[1:])
    except BaseException:
        for output_path, file in zip(paths, files_to_resume, strict=True):
            file.stop(output_path)
        raise
    for file in files_to_resume:
        if file.journal is not None:
            file.journal.remove()


class _UnfinishedOutput:
    """An output that a previous process may have begun.

    Attributes:
        points: its resume points, the beginning first.
        start: resume point of this process.
        journal: the journal; None before `open`, and for a file that is not regular.
    """

    def __init__(self, target: Path, task: Mapping[str, Any], resume: bool) -> None:
        self._task = task
        self._earlier_output = unfinished_output(target) if resume else None
        self.points = [ResumePoint()]
        if self._earlier_output is not None:
            self.points += read_journal(self._earlier_output, task)
        self.start = self.points[0]
        self.journal: Journal | None = None

    def open(self, unfinished: Path) -> BinaryIO:
        """Open the unfinished file at the resume point."""
        # The old journal is valid until the output has its new name, and the new one from then on.
        self.journal = Journal(unfinished, self._task, self.start)
        if self._earlier_output is None:
            return open(unfinished, "wb")
        if self._earlier_output != unfinished:
            self._earlier_output.replace(unfinished)
            Path(f"{self._earlier_output}{self.journal.path.suffix}").unlink()
        stream = open(unfinished, "r+b")
        stream.truncate(self.start.output_bytes)
        stream.seek(self.start.output_bytes)
        return stream

    def stop(self, path: str) -> None:
        """Keep a file with content and log how to resume it; delete the journal of an empty one."""
        if self.journal is None:
            return
        with suppress(OSError):     # of a full disk; the error that stops the output is reported
            self.journal.close()
        if self.journal.path.with_suffix("").exists():
            log.warning("%s is unfinished: the same command resumes it (`towernmt translate` with --resume).", path)
        else:
            self.journal.remove()


def _open_unfinished(path: str, task: Mapping[str, Any], resume: bool) -> _UnfinishedOutput:
    with reporting_write_errors(path):
        if resume and is_written_directly(path):
            raise DataError(f"{path} is not a regular file, so it cannot be resumed: leave out --resume.")
        return _UnfinishedOutput(Path(os.path.realpath(path)), task, resume)


def _move_to_common_point(outputs: Sequence[_UnfinishedOutput]) -> ResumePoint:
    """Set the start of all outputs to their last common line, and return the resume point of the first output."""
    lines = max(set.intersection(*({point.lines for point in output.points} for output in outputs)))
    for output in outputs:
        output.start = next(point for point in reversed(output.points) if point.lines == lines)
    return outputs[0].start
