"""Translate ranges of lines on a farm: claim and assign them, commit the results, write the outputs, show progress."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.files import replacing
from towernmt.dataflow.sources.open_source import open_storage, split_uri
from towernmt.dataflow.storage.s3_storage import S3Storage, check_object_writable, upload_stream
from towernmt.dataflow.text.text_lines import report_interval
from towernmt.farm.farm import Failed, Farm, FarmEvent, Lost, Ready, Result, Workers
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.lines.output_file import descriptor_of, reporting_write_errors
from towernmt.predict.ranges.plan import Part, PartLines, PartReader, Plan, Text, short_name
from towernmt.predict.ranges.work_directory import PartFile, WorkDirectory


class PartWork(NamedTuple):
    """The task of a worker: a part to translate.

    Attributes:
        part: the part.
        name: name of its text, for messages.
        lines: its lines.
    """

    part: Part
    name: str
    lines: PartLines


@dataclass(frozen=True)
class PartResult:
    """The translation of a part.

    Attributes:
        files: content for each file of the output.
        tokens: number of tokens of the translations.
        faults: faults of the lines; see `FaultCounts.as_json`.
    """

    files: Sequence[bytes]
    tokens: int
    faults: Mapping[str, Any]


class PartProgress:
    """Writes the number of translated lines, the rates of lines and tokens, and the remaining time.

    Args:
        total: number of lines.
        done: number of lines that were translated before.
        stream: destination.
    """

    def __init__(self, total: int, done: int, stream: TextIO) -> None:
        self._total, self._before, self._stream = total, done, stream
        self._terminal = stream.isatty()
        self._interval = report_interval(self._terminal)
        self._start = self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the interval since the last report is over."""
        return time.monotonic() - self._last >= self._interval

    def report(self, lines: int, tokens: int, workers: int, last: bool = False) -> None:
        """Write a report.

        Args:
            lines: number of translated lines, including those of other processes.
            tokens: number of tokens of the translations by the workers of this process.
            workers: number of workers of this process.
            last: whether the work has ended.
        """
        self._last = time.monotonic()
        seconds = max(self._last - self._start, 1e-9)
        rate = (lines - self._before) / seconds
        left = "" if last or not rate else f", ETA {_clock((self._total - lines) / rate)}"
        clear, end = ("\x1b[K", "\n" if last else "\r") if self._terminal else ("", "\n")
        self._stream.write(f"translating: {lines:,} of {self._total:,} lines, {_clock(seconds)}, {rate:,.1f} lines/s, "
                           f"{tokens / seconds:,.0f} tokens/s here with {workers} worker{'s'[:workers != 1]}{left}"
                           f"{clear}{end}")
        self._stream.flush()


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


NAME = "{name}"
"""In the name of an output: the name of the text, without directories and the suffix of a compression."""


def is_per_text(path: str) -> bool:
    """Return whether an output is a file for each text: it contains `{name}`, or is a directory."""
    return NAME in path or without_options(path).endswith("/") or (not is_remote(path) and Path(path).is_dir())


def is_remote(path: str) -> bool:
    """Return whether a path is in S3."""
    return path.lower().startswith("s3://")


def without_options(path: str) -> str:
    """Return a path without the options of an S3 server."""
    return split_uri(path)[0] if is_remote(path) else path


def output_paths(path: str, texts: Sequence[Text]) -> list[str]:
    """Return the path of the output of each text.

    Args:
        path: one file for all texts; or a directory or a name with `{name}`, for a file for each text.
        texts: the texts.

    Raises:
        SettingsError: two texts would have the same output.
    """
    if not is_per_text(path):
        return [path for _ in texts]
    if NAME not in path:
        place = without_options(path)
        path = f"{place.rstrip('/')}/{NAME}{path[len(place):]}"
    paths = [path.replace(NAME, short_name(text)) for text in texts]
    first: dict[str, Text] = {}
    for place, text in zip(paths, texts, strict=True):
        if place in first:
            raise SettingsError(f"{first[place].name} and {text.name} would both be written to {place}: translate them "
                                "by separate commands, to different outputs.")
        first[place] = text
    return paths


def check_writable_output(path: str) -> None:
    """Check that an output can be written, before hours of work.

    Raises:
        DataError: it is not a regular file, or its directory cannot be written.
    """
    if is_remote(path):
        storage, name = open_storage(path)
        check_object_writable(cast(S3Storage, storage).options, name)
        return
    place = Path(path)
    if descriptor_of(path) is not None or (place.exists() and not place.is_file()):
        raise DataError(f"{path} is not a regular file: pass the path of one.")
    with reporting_write_errors(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(place.parent, os.W_OK):
            raise PermissionError(13, "Permission denied")


def write_joined(path: str, results: Sequence[PartFile]) -> None:
    """Write the results of parts, one after the other. They replace `path` when all are on the disk.

    Args:
        path: a file, or s3://bucket/key.
        results: the result of each part.

    Raises:
        DataError: the output cannot be written, or a result is damaged. The old output is untouched.
    """
    if is_remote(path):
        storage, name = open_storage(path)
        # Buffered, because each part of the object is read by one call, across results.
        upload_stream(cast(S3Storage, storage).options, name, io.BufferedReader(_BlockReader(_content(results))))
        return
    with reporting_write_errors(path), replacing(Path(os.path.realpath(path))) as file:
        file.writelines(_content(results))


def _content(results: Sequence[PartFile]) -> Iterator[bytes]:
    """Yield the content of results in blocks.

    Raises:
        DataError: a result cannot be read, or its checksum differs.
    """
    for result in results:
        digest = hashlib.sha256()
        try:
            with open(result.path, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    yield block
        except OSError as error:
            raise DataError(f"{result.path}: cannot read ({error.strerror}); start the same command again.") from error
        if digest.hexdigest() != result.sha256:
            raise DataError(f"{result.path} is damaged: its content is not what was written. Start the same command "
                            "again, which translates its lines again.")


class _BlockReader(io.RawIOBase):
    """A stream of the bytes that an iterator yields."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        self._rest = self._rest or next(self._blocks, b"")
        count = min(len(into), len(self._rest))
        into[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


log = logging.getLogger(__name__)

LOSSES_OF_A_PART = 5
"""Number of workers that are lost with a part before it is abandoned."""
MOST_FAULTS = 10
"""Number of parts that cannot be translated before no more parts begin."""
_POLL = 1.0         # seconds between two polls of the work directory while a worker is idle,
_SLOW_POLL = 10.0   # and while all workers are busy


def translation_farm(workers: Workers, directory: Path) -> Farm:
    """Make the farm of a translation.

    Args:
        workers: backend of the farm; its workers turn a `PartWork` into a `PartResult`.
        directory: path of the work directory.
    """
    return Farm(workers, f"What is done is kept in {directory}: the same command resumes, for example with fewer "
                "--workers.", log.warning)


class PartJob:
    """Translates the parts of a plan with the workers of a farm, and writes the outputs.

    Attributes:
        _outputs: parts of each output that is not written.
        _open: parts that are not done.
        _waiting: open parts that no worker of the farm has; another process may have some.
        _held: lock of each part that a worker has, by the number of the part.

    Args:
        directory: work directory, in which parts are claimed and committed.
        plan: plan of the texts.
        reader: reads the lines of parts.
        names: names of the texts.
        outputs: files of each output.
        farm: the farm, of which worker 0 is ready.
        stream: destination of the progress.
    """

    def __init__(self, directory: WorkDirectory, plan: Plan, reader: PartReader, names: Sequence[str],
                 outputs: Sequence[Sequence[str]], farm: Farm, stream: TextIO) -> None:
        self._directory, self._plan, self._reader, self._names = directory, plan, reader, names
        self._files, self._farm = outputs, farm
        of_output = {output: list(parts) for output, parts in groupby(plan.parts, lambda part: part.output)}
        self._parts_of = {output: of_output.get(output, []) for output in range(len(outputs))}
        self._outputs = dict(self._parts_of)
        self._open = {part.number: part for part in plan.parts}
        self._waiting = deque(plan.parts)
        self._held: dict[int, DirectoryLock] = {}
        self._losses: Counter[int] = Counter()
        self._tokens, self._polled = 0, 0.0
        self._faults: list[str] = []
        self._poll()
        self._progress = PartProgress(plan.lines, self.lines_done, stream)

    @property
    def lines_done(self) -> int:
        """Number of lines of the parts that are done, by this process or by another one."""
        return self._plan.lines - sum(part.lines for part in self._open.values())

    def run(self, task: Mapping[str, Any]) -> None:
        """Translate all parts and write all outputs, and wait for those of other processes.

        Args:
            task: options that determine the translations of worker 0; those of the other workers must be equal.

        Raises:
            DataError: some parts cannot be translated; all others are done and kept.
            TowerNMTError: a worker cannot make its translator, or too many were lost.
        """
        self._farm.start(self._farm.count)
        try:
            self._join()
            while self._outputs and self._directory.is_there and not self._is_stuck():
                self._assign()
                for event in self._farm.events():
                    self._handle(event, task)
                if time.monotonic() - self._polled > (_POLL if self._farm.idle else _SLOW_POLL):
                    self._poll()
                self._join()
                if self._progress.is_due:
                    self._report()
        finally:
            self._farm.stop()
            for lock in self._held.values():
                lock.release()
        if self._faults:
            raise DataError(f"{len(self._faults)} of {len(self._plan.parts)} parts could not be translated: "
                            f"{' '.join(self._faults)} What is done is kept in {self._directory.path}; fix that, and "
                            "start the same command again.")
        self._report(last=True)
        self._directory.remove(self._parts_of)

    def _is_stuck(self) -> bool:
        """Return whether only parts that cannot be translated are left."""
        return bool(self._faults) and not self._held and (not self._waiting or len(self._faults) >= MOST_FAULTS)

    def _assign(self) -> None:
        """Give a part to each idle worker, except parts that other processes have."""
        while self._farm.idle:
            if len(self._faults) >= MOST_FAULTS or (claimed := self._claim()) is None:
                return
            part, lock = claimed
            self._held[part.number] = lock
            try:
                lines = self._reader.read(part)
            except DataError as error:
                self._give_up(part, str(error))
                continue
            self._farm.assign(part.number, PartWork(part, self._names[part.text], lines),
                              self._name(part))

    def _claim(self) -> tuple[Part, DirectoryLock] | None:
        """Take a waiting part for this process; None if other processes have all of them, or none is left."""
        for _ in range(len(self._waiting)):
            part = self._waiting.popleft()
            if part.number not in self._open:
                continue
            lock = self._directory.claim(part)
            if lock is None:        # another process has it and may be lost, or has done it
                self._waiting.append(part)
            elif self._directory.is_joined(part.output, self._outputs[part.output]):
                lock.release()
                self._finish(part.output)
            elif not lock.in_place:     # another process has written and removed everything
                lock.release()
                self._waiting.append(part)
            else:
                return part, lock
        return None

    def _poll(self) -> None:
        """Update the state with the work of other processes."""
        self._polled = time.monotonic()
        for output, parts in list(self._outputs.items()):
            if self._directory.is_joined(output, parts):
                self._finish(output)
        for part in [part for part in self._open.values() if self._directory.done(part) is not None]:
            del self._open[part.number]

    def _finish(self, output: int) -> None:
        """Record that an output is written."""
        for part in self._outputs.pop(output):
            self._open.pop(part.number, None)

    def _handle(self, event: FarmEvent, task: Mapping[str, Any]) -> None:
        """Act on an event of the farm."""
        if isinstance(event.event, Ready) and event.event.description != task:
            raise TowerNMTError("A worker has another model than the first one (was a better checkpoint saved "
                                "meanwhile?): name one by --checkpoint step-N, and start the same command again.")
        if event.task is None:
            return
        part = self._plan.parts[event.task]
        if isinstance(event.event, Result):
            self._commit(part, event.event.value)
        elif isinstance(event.event, Lost):
            self._lose(part, event.event.why)
        elif isinstance(event.event, Failed):
            error = event.event.error
            if isinstance(error, OSError):
                error = DataError(f"{error.filename or 'a worker'}: {error.strerror or error}.")
            if not isinstance(error, DataError):
                raise error
            self._give_up(part, str(error))

    def _commit(self, part: Part, result: PartResult) -> None:
        with self._held.pop(part.number):
            self._directory.commit(part, result.files, result.tokens, result.faults)
        del self._open[part.number]
        self._tokens += result.tokens

    def _lose(self, part: Part, why: str) -> None:
        """Queue the part of a lost worker again, unless too many workers were lost with it."""
        self._losses[part.number] += 1
        if self._losses[part.number] >= LOSSES_OF_A_PART:
            self._give_up(part, f"{self._name(part)}: {LOSSES_OF_A_PART} workers were lost with it ({why}).")
        else:
            self._held.pop(part.number).release()
            self._waiting.append(part)      # last, because the part itself may be the reason

    def _give_up(self, part: Part, why: str) -> None:
        self._held.pop(part.number).release()
        log.warning("not translated: %s", why)
        self._faults.append(why)

    def _name(self, part: Part) -> str:
        return f"{self._names[part.text]} lines {part.first} to {part.first + part.lines - 1}"

    def _join(self) -> None:
        """Write each output whose parts are all done."""
        unfinished = {part.output for part in self._open.values()}
        for output in self._outputs.keys() - unfinished:
            parts = self._outputs[output]
            if self._directory.join(output, parts, partial(self._write, output, parts)):
                self._finish(output)

    def _write(self, output: int, parts: Sequence[Part]) -> None:
        for number, path in enumerate(self._files[output]):
            write_joined(path, [self._directory.results(part, number) for part in parts])
        for text, group in groupby(parts, lambda part: part.text):
            counts = FaultCounts(self._names[text])
            for done in filter(None, map(self._directory.done, group)):
                counts.merge(done.faults)
            counts.warn()

    def _report(self, last: bool = False) -> None:
        self._progress.report(self.lines_done, self._tokens, self._farm.count, last)
