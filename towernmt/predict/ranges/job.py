"""Translate ranges of lines on a farm: claim and assign them, commit the results, write the outputs, show progress."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, TowerNMTError
from towernmt.farm.farm import Failed, Farm, FarmEvent, Lost, Ready, Result, Workers
from towernmt.predict.lines.faults import RETRY_ADVICE, FaultCounts
from towernmt.predict.ranges.outputs import is_remote, write_joined
from towernmt.predict.ranges.plan import LineRange, Plan, RangeLines, RangeReader
from towernmt.predict.ranges.range_progress import RangeProgress
from towernmt.predict.ranges.work_directory import RangeOutput, WorkDirectory

log = logging.getLogger(__name__)

MAX_WORKER_LOSSES = 5
"""Number of workers that are lost with a range before it is abandoned."""
MAX_FAILED_RANGES = 10
"""Number of ranges that cannot be translated before no more ranges begin."""
_POLL = 1.0         # seconds between two polls of the work directory while a worker is idle,
_SLOW_POLL = 10.0   # and while all workers are busy


class RangeTask(NamedTuple):
    """The task of a worker: a range to translate.

    Attributes:
        range: the range.
        name: name of its text, for messages.
        lines: its lines.
    """

    line_range: LineRange
    name: str
    lines: RangeLines


@dataclass(frozen=True)
class RangeResult:
    """The translation of a range.

    Attributes:
        files: content for each file of the output.
        tokens: number of tokens of the translations.
        faults: faults of the lines; see `FaultCounts.as_json`.
    """

    files: Sequence[bytes]
    tokens: int
    faults: Mapping[str, Any]


def translation_farm(workers: Workers, directory: Path) -> Farm:
    """Make the farm of a translation.

    Args:
        workers: backend of the farm; its workers turn a `RangeTask` into a `RangeResult`.
        directory: path of the work directory.
    """
    return Farm(workers, f"What is done is kept in {directory}: the same command resumes, for example with fewer "
                "--workers.", log.warning)


class RangeJob:
    """Translates the ranges of a plan with the workers of a farm, and writes the outputs.

    Attributes:
        _unwritten: the outputs that are not written, by their number.
        _open: ranges that are not done.
        _waiting: open ranges that no worker of the farm has; another process may have some.
        _locks: lock of each range that a worker has, by the number of the range.

    Args:
        directory: work directory, in which ranges are claimed and committed.
        plan: plan of the texts.
        reader: reads the lines of ranges.
        names: names of the texts.
        outputs: files of each output.
        farm: the farm, of which worker 0 is ready.
        stream: destination of the progress.
    """

    def __init__(self, directory: WorkDirectory, plan: Plan, reader: RangeReader, names: Sequence[str],
                 outputs: Sequence[Sequence[str]], farm: Farm, stream: TextIO) -> None:
        self._directory, self._plan, self._reader, self._names = directory, plan, reader, names
        self._farm = farm
        ranges_of: list[list[LineRange]] = [[] for _ in outputs]
        for line_range in plan.ranges:
            ranges_of[line_range.output].append(line_range)
        self._outputs = [RangeOutput(number, files, ranges) for number, (files, ranges) in
                         enumerate(zip(outputs, ranges_of, strict=True))]
        self._unwritten = {output.number: output for output in self._outputs}
        self._open = {line_range.number: line_range for line_range in plan.ranges}
        self._waiting = deque(plan.ranges)
        self._locks: dict[int, DirectoryLock] = {}
        self._losses: Counter[int] = Counter()
        self._tokens, self._polled = 0, 0.0
        self._failures: list[str] = []
        self._failed_texts: set[str] = set()
        self._forget_removed_outputs()
        self._poll()
        self._progress = RangeProgress(plan.lines, self.lines_done, stream)

    @property
    def lines_done(self) -> int:
        """Number of lines of the ranges that are done, by this process or by another one."""
        return self._plan.lines - sum(line_range.num_lines for line_range in self._open.values())

    def run(self, task: Mapping[str, Any]) -> None:
        """Translate all ranges and write all outputs, and wait for those of other processes.

        Args:
            task: options that determine the translations of worker 0; those of the other workers must be equal.

        Raises:
            DataError: some ranges cannot be translated; all others are done and kept.
            TowerNMTError: a worker cannot make its translator, or too many were lost.
        """
        self._farm.start(self._farm.count)
        try:
            self._write_finished_outputs()
            while self._unwritten and self._directory.in_progress and not self._is_stuck():
                self._assign()
                for event in self._farm.events():
                    self._handle(event, task)
                if time.monotonic() - self._polled > (_POLL if self._farm.idle else _SLOW_POLL):
                    self._poll()
                self._write_finished_outputs()
                if self._progress.is_due:
                    self._report()
        finally:
            self._farm.stop()
            for lock in self._locks.values():
                lock.release()
        if self._failures:
            self._raise_failures()
        self._check_outputs()
        self._report(last=True)
        self._directory.remove(self._outputs)

    def _raise_failures(self) -> NoReturn:
        # The version of a table does not show whether its rows are corrected before the next command.
        self._directory.outdate_plan([name for name in self._failed_texts if not self._plan.versions[name]])
        raise DataError(f"{len(self._failures)} of {len(self._plan.ranges)} ranges could not be translated: "
                        f"{' '.join(self._failures)} What is done is kept in {self._directory.path}; fix that, and "
                        "start the same command again.")

    def _check_outputs(self) -> None:
        """Refuse to end without the outputs that another process should have written.

        Raises:
            DataError: an output is missing, because the work directory was removed during the translation.
        """
        if missing := [path for output in self._unwritten.values() for path in _missing_files(output)]:
            raise DataError(f"{missing[0]} was not written, because {self._directory.path} was removed during the "
                            "translation: start the same command again, and leave that directory in place.")

    def _is_stuck(self) -> bool:
        """Return whether only ranges that cannot be translated are left."""
        return bool(self._failures) and not self._locks and (
            not self._waiting or len(self._failures) >= MAX_FAILED_RANGES)

    def _assign(self) -> None:
        """Give a range to each idle worker, except ranges that other processes have."""
        while self._farm.idle:
            if len(self._failures) >= MAX_FAILED_RANGES or (claimed := self._claim()) is None:
                return
            line_range, lock = claimed
            self._locks[line_range.number] = lock
            try:
                lines = self._reader.read(line_range)
            except DataError as error:
                self._give_up(line_range, str(error))
                continue
            self._farm.assign(line_range.number, RangeTask(line_range, self._names[line_range.text], lines),
                              self._name(line_range))

    def _claim(self) -> tuple[LineRange, DirectoryLock] | None:
        """Take a waiting range for this process; None if other processes have all of them, or none is left."""
        for _ in range(len(self._waiting)):
            line_range = self._waiting.popleft()
            if line_range.number not in self._open:
                continue
            lock = self._directory.claim(line_range)
            if lock is None:        # another process has it and may be lost, or has done it
                self._waiting.append(line_range)
            elif self._directory.is_joined(output := self._unwritten[line_range.output]):
                lock.release()
                self._mark_written(output)
            elif not lock.in_place:     # another process has written and removed everything
                lock.release()
                self._waiting.append(line_range)
            else:
                return line_range, lock
        return None

    def _forget_removed_outputs(self) -> None:
        """Make this command write again the outputs that were written before it began, but removed since.

        Objects in S3 count as present, because a request for each of many outputs takes minutes. An output that is
        removed later is not written again: its reader may have moved it.
        """
        for output in self._outputs:
            if self._directory.is_joined(output) and any(_missing_files(output)):
                self._directory.forget(output)

    def _poll(self) -> None:
        """Update the state with the work of other processes."""
        self._polled = time.monotonic()
        for output in list(self._unwritten.values()):
            if self._directory.is_joined(output):
                self._mark_written(output)
        for line_range in list(self._open.values()):
            if self._directory.done(line_range) is not None:
                del self._open[line_range.number]

    def _mark_written(self, output: RangeOutput) -> None:
        """Record that an output is written."""
        del self._unwritten[output.number]
        for line_range in output.ranges:
            self._open.pop(line_range.number, None)

    def _handle(self, event: FarmEvent, task: Mapping[str, Any]) -> None:
        """Act on an event of the farm."""
        if isinstance(event.event, Ready) and event.event.description != task:
            raise TowerNMTError("A worker has another model than the first one (was a better checkpoint saved "
                                "meanwhile?): name one by --checkpoint step-N, and start the same command again.")
        if event.task is None:
            return
        line_range = self._plan.ranges[event.task]
        if isinstance(event.event, Result):
            self._commit(line_range, event.event.value)
        elif isinstance(event.event, Lost):
            self._lose(line_range, event.event.reason)
        elif isinstance(event.event, Failed):
            error = event.event.error
            if isinstance(error, OSError):
                error = DataError(f"{error.filename or 'a worker'}: {error.strerror or error}.")
            if not isinstance(error, DataError):
                raise error
            self._give_up(line_range, str(error))

    def _commit(self, line_range: LineRange, result: RangeResult) -> None:
        with self._locks.pop(line_range.number):
            if line_range.number not in self._open:     # without locks, another process may have done it meanwhile
                return
            self._directory.commit(line_range, result.files, result.tokens, result.faults)
        del self._open[line_range.number]
        self._tokens += result.tokens

    def _lose(self, line_range: LineRange, why: str) -> None:
        """Queue the range of a lost worker again, unless too many workers were lost with it."""
        self._losses[line_range.number] += 1
        if self._losses[line_range.number] >= MAX_WORKER_LOSSES:
            self._give_up(line_range,
                          f"{self._name(line_range)}: {MAX_WORKER_LOSSES} workers were lost with it ({why}).")
        else:
            self._locks.pop(line_range.number).release()
            self._waiting.append(line_range)      # last, because the range itself may be the reason

    def _give_up(self, line_range: LineRange, reason: str) -> None:
        self._locks.pop(line_range.number).release()
        if line_range.number in self._open:     # see `_commit`
            log.warning("not translated: %s", reason)
            self._failures.append(reason)
            self._failed_texts.add(self._names[line_range.text])

    def _name(self, line_range: LineRange) -> str:
        return f"{self._names[line_range.text]} lines {line_range.first_line} to {line_range.last_line}"

    def _write_finished_outputs(self) -> None:
        """Write each output whose ranges are all done."""
        unfinished = {line_range.output for line_range in self._open.values()}
        for number in self._unwritten.keys() - unfinished:
            output = self._unwritten[number]
            if self._directory.join(output, partial(self._write, output)):
                self._mark_written(output)

    def _write(self, output: RangeOutput) -> None:
        for number, path in enumerate(output.files):
            write_joined(path, [self._directory.results(line_range, number) for line_range in output.ranges])
        for text, group in groupby(output.ranges, lambda line_range: line_range.text):
            counts = FaultCounts(self._names[text], RETRY_ADVICE)
            for done in filter(None, map(self._directory.done, group)):
                counts.merge(done.faults)
            counts.warn()

    def _report(self, last: bool = False) -> None:
        self._progress.report(self.lines_done, self._tokens, self._farm.count, last)


def _missing_files(output: RangeOutput) -> list[str]:
    """Return the local files of an output that do not exist."""
    return [path for path in output.files if not is_remote(path) and not Path(path).exists()]
