"""Hands parts out to workers, commits what comes back, starts lost workers again, and writes the outputs.

Any number of processes may run such a job in one directory at the same time: each takes the parts that no other has.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TextIO

from towernmt.core.errors import DataError, TowerNMTError
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.parts.outputs import write_joined
from towernmt.predict.parts.plan import Part, PartReader, Plan
from towernmt.predict.parts.progress import PartProgress
from towernmt.predict.parts.work_directory import Done, WorkDirectory
from towernmt.predict.parts.workers import Event, Failed, Lost, PartResult, PartWork, Ready, Workers

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
            self._directory.commit(part, result.files, Done(
                part.fingerprint, [len(content) for content in result.files], result.tokens, dict(result.faults)))
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
