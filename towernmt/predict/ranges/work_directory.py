"""The directory in which ranges of lines are claimed and committed until all outputs are written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from time import sleep
from typing import Any, NamedTuple

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, DirectoryInUseError
from towernmt.core.files import replacing, write_text
from towernmt.core.structured_files import JSONError, load_json, typed_value
from towernmt.predict.lines.resumable import check_same_task
from towernmt.predict.ranges.plan import OUTDATED, LineRange, Plan
from towernmt.predict.ranges.work_files import (
    DONE,
    FINISHED,
    FORMAT,
    JOINED,
    MADE,
    PLAN,
    RANGES,
    REMOVED,
    Done,
    JoinedRecord,
    PlanFile,
    clear_folder,
    discard_directory,
    entries_of,
    is_foreign_entry,
    read_checked,
    remove_work_files,
    with_checksum,
)

log = logging.getLogger(__name__)

_WAIT = 0.5     # seconds between two attempts to take a lock that another process holds


class ResultFile(NamedTuple):
    """A result of a range.

    Attributes:
        path: the file.
        sha256: checksum of its content, in hexadecimal digits.
    """

    path: Path
    sha256: str


class RangeOutput(NamedTuple):
    """An output of a translation, which is joined from the results of its ranges.

    Attributes:
        number: its index.
        files: paths or URIs of its files.
        ranges: all of its ranges.
    """

    number: int
    files: Sequence[str]
    ranges: Sequence[LineRange]


class WorkDirectory:
    """Claims, commits and results of the ranges of one translation.

    Attributes:
        path: path of the directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: dict[int, Done] = {}
        self._damaged: set[int] = set()

    @property
    def in_progress(self) -> bool:
        """Whether a translation was begun in the directory and is not finished."""
        return (self.path / PLAN).is_file()

    def check(self) -> None:
        """Refuse a directory in which no translation can be done.

        Raises:
            DataError: it is not a directory, or it holds files that this program did not write.
        """
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise DataError(f"{self.path} is not a directory: pass a different one as --work-directory.")
        if self.in_progress or (self.path / FINISHED).is_file() or not self.path.is_dir():
            return
        foreign = next(filter(is_foreign_entry, sorted(self.path.iterdir())), None)
        if foreign is not None:
            raise DataError(f"{self.path} holds other files ({foreign.name}): pass a new or an empty directory as "
                            "--work-directory.")

    def plan(self) -> Plan | None:
        """Return the plan of the translation that was begun, or None.

        Raises:
            DataError: plan.json is damaged.
        """
        return self._read_plan_file().plan if self.in_progress else None

    def task(self) -> dict[str, Any] | None:
        """Return the task of the translation that was begun, or None.

        Raises:
            DataError: plan.json is damaged.
        """
        return self._read_plan_file().task if self.in_progress else None

    def begin(self, task: Mapping[str, Any], plan: Plan) -> None:
        """Begin a translation, or resume the one that was begun.

        Raises:
            DataError: another task was begun in this directory, or it holds other files (see `check`).
        """
        with self._exclusive():
            self.check()
            # The last process may have been killed while it removed the files of a finished translation.
            if (self.path / FINISHED).is_file():
                remove_work_files(self.path)
            for removed in self.path.parent.glob(f"{escape(self.path.name)}{REMOVED}*") if self.path.name else ():
                discard_directory(removed)
            current = self._read_plan_file() if self.in_progress else None
            if current is not None:
                check_same_task(str(self.path), current.task, task, "remove that directory to begin anew")
            plan_file = PlanFile(FORMAT, dict(task), plan)
            if current != plan_file:
                self._write_plan_file(plan_file)

    def outdate_plan(self, names: Collection[str]) -> None:
        """Let the next command make a new plan, because these texts may change without a new version.

        Args:
            names: names of the texts.
        """
        lock = self._lock(self.path) if names else None
        if lock is None:        # or another process begins or ends the translation now
            return
        with lock, suppress(OSError):       # of a full disk, for example
            if self.in_progress:
                plan_file = self._read_plan_file()
                versions = {**plan_file.plan.versions, **dict.fromkeys(names, OUTDATED)}
                self._write_plan_file(dataclasses.replace(
                    plan_file, plan=dataclasses.replace(plan_file.plan, versions=versions)))

    def done(self, line_range: LineRange) -> Done | None:
        """Return the record of a range that is done, or None if the range must be translated.

        A range counts as done only if its results have their checksums.
        """
        if line_range.number not in self._known:
            done = self._read_done(line_range)
            if done is None:
                return None
            self._known[line_range.number] = done
        return self._known[line_range.number]

    def _read_done(self, line_range: LineRange) -> Done | None:
        folder = self._folder(line_range)
        try:
            done = read_checked((folder / DONE).read_bytes(), Done)
            if done.fingerprint != line_range.fingerprint:
                return None
            is_intact = all(_sha256(folder / str(number)) == expected for number, expected in enumerate(done.sha256))
        except FileNotFoundError:
            return None
        except JSONError:
            is_intact = False
        if not is_intact and line_range.number not in self._damaged:
            self._damaged.add(line_range.number)
            log.warning("%s is damaged: its content is not what was written. Its lines are translated again.", folder)
        return done if is_intact else None

    def claim(self, line_range: LineRange) -> DirectoryLock | None:
        """Take a range for this process.

        Returns:
            The lock to release when the range is done or given up; None if another process has the range, if it is
            done, or if the whole translation is finished.
        """
        lock = self._lock(self._folder(line_range))
        if lock is None:
            return None
        if self.in_progress and self.done(line_range) is None:
            return lock
        lock.release()
        self._remove_empty_folders()
        return None

    def commit(self, line_range: LineRange, results: Sequence[bytes], tokens: int, faults: Mapping[str, Any]) -> None:
        """Keep the results of a range.

        Args:
            line_range: the range.
            results: content for each file of the range's output.
            tokens: number of tokens; see `Done`.
            faults: faults of the lines.

        Raises:
            OSError: a file cannot be written.
        """
        folder = self._folder(line_range)
        done = Done(line_range.fingerprint, [hashlib.sha256(content).hexdigest() for content in results], tokens,
                    dict(faults))
        if not self.in_progress:        # another process has finished the translation, or removed the directory
            return
        (folder / DONE).unlink(missing_ok=True)      # of the lines before the text was fixed
        for number, content in enumerate(results):
            with replacing(folder / str(number)) as file:
                file.write(content)
        try:
            write_text(folder / DONE, with_checksum(dataclasses.asdict(done)))
        except FileNotFoundError:
            if folder.exists():
                raise
        if not self.in_progress:   # without locks, another process may have finished the translation meanwhile
            clear_folder(folder)
        self._known[line_range.number] = done

    def results(self, line_range: LineRange, number: int) -> ResultFile:
        """Return the result of a range that is done for one file of its output.

        Raises:
            DataError: the range is not done.
        """
        done, path = self.done(line_range), self._folder(line_range) / str(number)
        if done is None or number >= len(done.sha256):
            raise DataError(f"{path} is missing: start the same command again, which translates its lines again.")
        return ResultFile(path, done.sha256[number])

    def is_joined(self, output: RangeOutput) -> bool:
        """Return whether an output was written to its files from its ranges."""
        try:
            record = typed_value(load_json(self._joined_file(output).read_bytes()), JoinedRecord)
        except (FileNotFoundError, JSONError):
            return False
        return record == _joined_record(output)

    def forget(self, output: RangeOutput) -> None:
        """Remove the record that an output was written, unless another process writes it."""
        lock = self._lock(self._joined_lock(output))
        if lock is None:
            return
        with lock:
            self._joined_file(output).unlink(missing_ok=True)
        self._remove_empty_folders()

    def join(self, output: RangeOutput, write: Callable[[], None]) -> bool:
        """Write an output whose ranges are done, unless another process writes it.

        Args:
            output: the output.
            write: writes the output from the results of the ranges.

        Returns:
            Whether this call wrote the output.
        """
        lock = self._lock(self._joined_lock(output))
        if lock is None:
            return False
        with lock:
            is_missing = self.in_progress and not self.is_joined(output)
            if is_missing:
                write()
                write_text(self._joined_file(output), json.dumps(dataclasses.asdict(_joined_record(output))))
                for line_range in output.ranges:
                    clear_folder(self._folder(line_range))
        if not is_missing:
            self._remove_empty_folders()
        return is_missing

    def remove(self, outputs: Iterable[RangeOutput]) -> None:
        """Remove the files of a finished translation, and the directory if this program made it."""
        lock = self._lock(self.path)
        if lock is None:        # another process removes them, or has begun anew
            return
        removed: Path | None = None
        with lock:
            # If another process was faster, a third may have begun anew; that one has not written its outputs yet.
            if self.in_progress and all(map(self._is_complete, outputs)):
                (self.path / PLAN).replace(self.path / FINISHED)
                remove_work_files(self.path)
                if any(map(is_foreign_entry, self.path.iterdir())):
                    (self.path / MADE).unlink(missing_ok=True)      # the user has files there now
                elif (self.path / MADE).is_file():
                    # A process that waits for the lock sees by the name that it must make a new directory.
                    removed = self.path.rename(self.path.with_name(f"{self.path.name}{REMOVED}{token_hex(4)}"))
        if removed is not None:
            discard_directory(removed)
        self._remove_empty_folders()

    def _is_complete(self, output: RangeOutput) -> bool:
        """Return whether an output is complete and no other process is finalising it.

        A process that is still finalising it removes the directory afterwards.
        """
        lock = self._lock(self._joined_lock(output)) if self.is_joined(output) else None
        if lock is None:
            return False
        lock.release()
        return True

    def _remove_empty_folders(self) -> None:
        """Remove the empty folders that locks have made after another process finished the translation."""
        if self.in_progress:
            return
        parents = [self.path / RANGES, self.path / JOINED]
        subfolders = [folder for parent in parents for folder in entries_of(parent)]
        for folder in (*subfolders, *parents):
            with suppress(OSError):     # not empty, or gone
                folder.rmdir()

    def _read_plan_file(self) -> PlanFile:
        path, advice = self.path / PLAN, "pass another --work-directory, or remove this one to begin anew."
        try:
            content = path.read_bytes()
        except OSError as reason:
            raise DataError(f"{path}: cannot be read ({reason.strerror}); {advice}") from reason
        try:
            return read_checked(content, PlanFile)
        except JSONError as reason:
            raise DataError(f"{path} is not the plan of a translation, or it is damaged ({reason}); {advice}") from None

    def _write_plan_file(self, plan_file: PlanFile) -> None:
        write_text(self.path / PLAN, with_checksum(dataclasses.asdict(plan_file)))

    def _folder(self, line_range: LineRange) -> Path:
        return self.path / RANGES / f"{line_range.number:06d}"

    def _joined_file(self, output: RangeOutput) -> Path:
        return self.path / JOINED / f"{output.number}.json"

    def _joined_lock(self, output: RangeOutput) -> Path:
        return self.path / JOINED / str(output.number)

    def _lock(self, folder: Path) -> DirectoryLock | None:
        """Take the lock of a folder, which is made if only this folder is missing, or return None."""
        lock = DirectoryLock(folder, "towernmt translate", make=False)
        try:
            if folder != self.path:
                folder.parent.mkdir(exist_ok=True)
                folder.mkdir(exist_ok=True)
            lock.acquire()
        except (DirectoryInUseError, FileNotFoundError, FileExistsError):   # in use, or removed meanwhile
            self._remove_empty_folders()    # this call may have made some of them
            return None
        return lock

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Create the directory if it is missing, and hold its lock in the block."""
        while True:
            self.check()
            with suppress(FileExistsError, FileNotFoundError):      # made or removed by another process meanwhile
                self.path.mkdir(parents=True)
                (self.path / MADE).touch()
            lock = self._lock(self.path)
            if lock is not None:
                break
            sleep(_WAIT)
        with lock:
            yield


def _joined_record(output: RangeOutput) -> JoinedRecord:
    return JoinedRecord([Path(file).name for file in output.files],
                        [line_range.fingerprint for line_range in output.ranges])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
