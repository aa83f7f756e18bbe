"""Hand ranges of lines to workers, commit the results, write the outputs, restart lost workers, and show the
progress.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO, cast

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.files import replacing
from towernmt.dataflow.sources.open_source import open_storage, split_uri
from towernmt.dataflow.storage.s3_storage import S3Storage, check_writable, upload_stream
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.lines.output_file import descriptor_of, told
from towernmt.predict.ranges.plan import Part, PartReader, Plan, Text, short_name
from towernmt.predict.ranges.work_directory import PartFile, WorkDirectory
from towernmt.predict.ranges.workers import Event, Failed, Lost, PartResult, PartWork, Ready, Workers


class PartProgress:
    """Writes lines, their rate, that of tokens, and the time that is left.

    Args:
        total: lines there are.
        done: lines that were done before.
        stream: where to write.
        interval: seconds between two reports (a terminal is refreshed twice a second).
    """

    def __init__(self, total: int, done: int, stream: TextIO, interval: float = 10.0) -> None:
        self._total, self._before, self._stream = total, done, stream
        self._terminal = stream.isatty()
        self._interval = 0.5 if self._terminal else interval
        self._start = self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a report."""
        return time.monotonic() - self._last >= self._interval

    def report(self, lines: int, tokens: int, workers: int, last: bool = False) -> None:
        """Write one.

        Args:
            lines: done so far, also before and by others.
            tokens: of the translations that this process and its workers made.
            workers: that translate here.
            last: the work has ended.
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
"""In the name of an output: the name of the text, without folders and the ending of a compression."""


def is_of_each(path: str) -> bool:
    """Whether a name asks for a file for each text: with `{name}`, or as a folder."""
    return NAME in path or without_options(path).endswith("/") or (not is_remote(path) and Path(path).is_dir())


def is_remote(path: str) -> bool:
    """Whether it is in S3."""
    return path.lower().startswith("s3://")


def without_options(path: str) -> str:
    """The place without the options of a server in S3."""
    return split_uri(path)[0] if is_remote(path) else path


def output_paths(path: str, texts: Sequence[Text]) -> list[str]:
    """Where each text goes.

    Args:
        path: one place for all, or for each: a folder, or with `{name}`.
    Raises:
        SettingsError: two texts would have the same.
    """
    if not is_of_each(path):
        return [path for _ in texts]
    if NAME not in path:
        place = without_options(path)
        path = f"{place.rstrip('/')}/{NAME}{path[len(place):]}"
    paths = [path.replace(NAME, short_name(text)) for text in texts]
    first: dict[str, Text] = {}
    for place, text in zip(paths, texts, strict=True):
        if place in first:
            raise SettingsError(f"{first[place].name} and {text.name} would both be written to {place}: translate them "
                                "one after the other, to different places.")
        first[place] = text
    return paths


def check_place(path: str) -> None:
    """Refuse, before hours of work, what cannot be written at their end.

    Raises:
        DataError: it is no regular file, or its place cannot be written to.
    """
    if is_remote(path):
        storage, name = open_storage(path)
        check_writable(cast(S3Storage, storage).options, name)
        return
    place = Path(path)
    if descriptor_of(path) is not None or (place.exists() and not place.is_file()):
        raise DataError(f"{path} is no regular file: name one to write to.")
    with told(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(place.parent, os.W_OK):
            raise PermissionError(13, "Permission denied")


def write_joined(path: str, results: Sequence[PartFile]) -> None:
    """Write the results of parts, one after the other; they replace `path` when all are on the disk.

    Args:
        path: a file, or s3://bucket/key.
        results: the result of each part.
    Raises:
        DataError: the output cannot be written, or a result is damaged. The old output is untouched.
    """
    if is_remote(path):
        storage, name = open_storage(path)
        # Buffered: a part of an object is read at once, over the ends of results.
        upload_stream(cast(S3Storage, storage).options, name, io.BufferedReader(_Blocks(_content(results))))
        return
    with told(path), replacing(Path(os.path.realpath(path))) as file:
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


class _Blocks(io.RawIOBase):
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
"""So many workers may be lost with a part before it is given up."""
LOSSES_IN_A_ROW = 3
"""So many for each worker may be lost without a part being done between."""
MOST_FAULTS = 10
"""Parts that cannot be translated, after which no more are begun."""
_WAIT = 1.0     # seconds for which workers are waited for
_LOOK = 10.0    # seconds between two looks at what other processes have done


def first_task(workers: Workers) -> Mapping[str, Any]:
    """Wait until worker 0, which was started, has made its translator; gives its task.

    The others start behind it: what it keeps for the next start (a graph, an export) they find.

    Raises:
        TowerNMTError: it cannot make one, or is lost again and again.
    """
    losses = 0
    while True:
        for _, event in workers.wait(_WAIT):
            if isinstance(event, Ready):
                return event.task
            if isinstance(event, Failed):
                raise event.error
            losses += 1
            why = event.why if isinstance(event, Lost) else "it answered before it was asked"
            if losses >= LOSSES_IN_A_ROW:
                raise TowerNMTError(f"{losses} workers were lost while they loaded the model (the last: {why}).")
            log.warning("worker 0 was lost while it loaded the model (%s), and is started again.", why)
            workers.start(0)


class PartJob:
    """The parts of a plan, to be done by some workers.

    Args:
        directory: where parts are claimed and committed.
        plan: of the texts.
        reader: reads the lines of parts.
        names: of the texts.
        outputs: the files of each output.
        workers: what translates; worker 0 has started (`first_task`).
        stream: where reports go.
    Attributes:
        _outputs: the parts of each that is not written.
        _open: the parts that are not known to be done.
        _waiting: those of them that no worker of ours has; perhaps another process has.
        _held: what each worker has.
    """

    def __init__(self, directory: WorkDirectory, plan: Plan, reader: PartReader, names: Sequence[str],
                 outputs: Sequence[Sequence[str]], workers: Workers, stream: TextIO) -> None:
        self._directory, self._plan, self._reader, self._names = directory, plan, reader, names
        self._files, self._workers = outputs, workers
        of_output = {output: list(parts) for output, parts in groupby(plan.parts, lambda part: part.output)}
        self._parts_of = {output: of_output.get(output, []) for output in range(len(outputs))}
        self._outputs = dict(self._parts_of)
        self._open = {part.number: part for part in plan.parts}
        self._waiting = deque(plan.parts)
        self._held: dict[int, tuple[Part, DirectoryLock]] = {}
        self._idle: set[int] = set()
        self._losses: Counter[int] = Counter()
        self._in_a_row, self._tokens, self._looked = 0, 0, 0.0
        self._faults: list[str] = []
        self._look()
        self._progress = PartProgress(plan.lines, self.lines_done, stream)

    @property
    def lines_done(self) -> int:
        """Lines of the parts that are known to be done, by whomever."""
        return self._plan.lines - sum(part.lines for part in self._open.values())

    def run(self, task: Mapping[str, Any]) -> None:
        """Do all parts and write all outputs; what other processes do of it is waited for.

        Args:
            task: of worker 0, which is ready; the others, which are started now, must say the same.
        Raises:
            DataError: parts that cannot be translated, by their text and lines; all others are done and kept.
            TowerNMTError: a worker cannot make its translator, or too many were lost.
        """
        self._idle.add(0)
        for number in range(1, self._workers.count):
            self._workers.start(number)
        try:
            self._join()
            while self._outputs and self._directory.is_there and not self._is_stuck():
                self._hand_out()
                for number, event in self._workers.wait(_WAIT):
                    self._take(number, event, task)
                if time.monotonic() - self._looked > (_WAIT if self._idle else _LOOK):
                    self._look()
                self._join()
                if self._progress.is_due:
                    self._report()
        finally:
            self._workers.stop()
            for _, lock in self._held.values():
                lock.release()
        if self._faults:
            raise DataError(f"{len(self._faults)} of {len(self._plan.parts)} parts could not be translated: "
                            f"{' '.join(self._faults)} What is done is kept in {self._directory.path}; mend that, and "
                            "start the same command again.")
        self._report(last=True)
        self._directory.remove(self._parts_of)

    def _is_stuck(self) -> bool:
        """Whether nothing is left to do but what cannot be done."""
        return bool(self._faults) and not self._held and (not self._waiting or len(self._faults) >= MOST_FAULTS)

    def _hand_out(self) -> None:
        """A part for each worker that has none, as far as no other process has them."""
        for number in sorted(self._idle):
            if len(self._faults) >= MOST_FAULTS or (claimed := self._claim()) is None:
                return
            part, lock = claimed
            self._idle.discard(number)
            self._held[number] = claimed
            try:
                lines = self._reader.read(part)
            except DataError as error:
                self._give_up(number, str(error))
                self._idle.add(number)
                continue
            self._workers.give(number, PartWork(part, self._names[part.text], lines))

    def _claim(self) -> tuple[Part, DirectoryLock] | None:
        for _ in range(len(self._waiting)):
            part = self._waiting.popleft()
            if part.number not in self._open:
                continue
            lock = self._directory.claim(part)
            if lock is None:        # another process has it, and may be lost yet; or has done it, which a look tells
                self._waiting.append(part)
            elif self._directory.is_joined(part.output, self._outputs[part.output]):
                lock.release()
                self._finish(part.output)
            elif not lock.in_place:     # all was written and removed while we asked
                lock.release()
                self._waiting.append(part)
            else:
                return part, lock
        return None

    def _look(self) -> None:
        """See what other processes have done."""
        self._looked = time.monotonic()
        for output, parts in list(self._outputs.items()):
            if self._directory.is_joined(output, parts):
                self._finish(output)
        for part in [part for part in self._open.values() if self._directory.done(part) is not None]:
            del self._open[part.number]

    def _finish(self, output: int) -> None:
        """An output is written."""
        for part in self._outputs.pop(output):
            self._open.pop(part.number, None)

    def _take(self, number: int, event: Event, task: Mapping[str, Any]) -> None:
        """Act on what a worker says, or on its end."""
        if isinstance(event, Ready):
            if event.task != task:
                raise TowerNMTError("A worker has another model than the first one (was a better checkpoint saved "
                                    "meanwhile?): name one by --checkpoint step-N, and start the same command again.")
            self._idle.add(number)
        elif isinstance(event, Lost):
            self._lose(number, event.why)
        elif number not in self._held:      # it could not make its translator
            raise event.error if isinstance(event, Failed) else TowerNMTError(f"worker {number} gave {event!r} unasked")
        elif isinstance(event, Failed):
            if not isinstance(event.error, DataError):
                raise event.error
            self._give_up(number, str(event.error))
            self._idle.add(number)
        elif isinstance(event, PartResult):
            self._commit(number, event)
            self._idle.add(number)

    def _commit(self, number: int, result: PartResult) -> None:
        part, lock = self._held.pop(number)
        with lock:
            self._directory.commit(part, result.files, result.tokens, result.faults)
        del self._open[part.number]
        self._in_a_row = 0
        self._tokens += result.tokens

    def _lose(self, number: int, why: str) -> None:
        """A worker is no more: its part waits again, and it is started again, unless that happens too often."""
        self._in_a_row += 1
        where = "before it had a part"
        if number in self._held:
            part = self._held[number][0]
            where = f"with {self._named(part)}"
            self._losses[part.number] += 1
            if self._losses[part.number] >= LOSSES_OF_A_PART:
                self._give_up(number, f"{self._named(part)}: {LOSSES_OF_A_PART} workers were lost with it ({why}).")
            else:
                part, lock = self._held.pop(number)
                lock.release()
                self._waiting.append(part)      # behind the others: it may be its own fault
        if self._in_a_row >= LOSSES_IN_A_ROW * self._workers.count:
            raise TowerNMTError(f"{self._in_a_row} workers were lost in a row, the last one {where} ({why}). What is "
                                f"done is kept in {self._directory.path}: the same command goes on, for example with "
                                "fewer --workers.")
        log.warning("worker %d was lost %s (%s), and is started again.", number, where, why)
        self._workers.start(number)

    def _give_up(self, number: int, why: str) -> None:
        _, lock = self._held.pop(number)
        lock.release()
        log.warning("not translated: %s", why)
        self._faults.append(why)

    def _named(self, part: Part) -> str:
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
        self._progress.report(self.lines_done, self._tokens, self._workers.count, last)
