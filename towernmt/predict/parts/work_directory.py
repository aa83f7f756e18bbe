"""The directory in which parts are claimed and committed, beside the output, until the whole is done.

    plan.json           what is done (the task: model, weights, settings) and the plan of the parts
    parts/000012/       of a part: the lock of who translates it, what is written for it (0, 1, ...), and, last,
                        done.json: with the fingerprint of the lines that it was made of
    joined/0.json       this output is written, from parts with these fingerprints; they are gone

A claim is a lock of the operating system, which goes with the process that holds it: what a killed process had claimed
is free. A commit writes files under other names, flushes and renames them; done.json makes them count, and counts for
lines with its fingerprint alone. So whatever dies when, and however many processes on machines that share the directory
work at once, each part is there once and whole. On a file system without locks two may do the same part: the bytes of
both are the same.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from time import sleep
from typing import Any, TypeVar

from towernmt.core.errors import DataError, DirectoryInUseError
from towernmt.core.files.atomic_files import replacing, write_text
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.core.files.json_files import Natural, parse_json, read_json
from towernmt.predict.lines.journal import refuse_other_task
from towernmt.predict.parts.plan import Part, Plan

T = TypeVar("T")

FORMAT = 1
PLAN, DONE, JOINED = "plan.json", "done.json", "joined"
_WAIT = 0.5     # seconds between two looks at what another process holds


@dataclass(frozen=True)
class Done:
    """What is known of a part that is done.

    Attributes:
        fingerprint: of its lines.
        sizes: bytes of what was written for each file of its output.
        tokens: of the translations.
        faults: of its lines; see `FaultCounts.as_json`.
    """

    fingerprint: str
    sizes: list[Natural]
    tokens: Natural
    faults: dict[str, Any]


@dataclass(frozen=True)
class _Begun:
    format: int
    task: dict[str, Any]
    plan: Plan


class WorkDirectory:
    """Claims, commits and results of the parts of one translation.

    Attributes:
        path: of the directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: dict[int, Done] = {}

    @property
    def is_there(self) -> bool:
        """Whether a translation was begun in it and is not at its end."""
        return (self.path / PLAN).is_file()

    def plan(self) -> Plan | None:
        """Of the translation that was begun; None: there is none.

        Raises:
            DataError: its file is damaged.
        """
        return self._begun().plan if self.is_there else None

    def task(self) -> dict[str, Any] | None:
        """As `plan`, what is done."""
        return self._begun().task if self.is_there else None

    def begin(self, task: Mapping[str, Any], plan: Plan) -> None:
        """Begin a translation, or go on with the one that was begun.

        Args:
            task: what is done, as JSON has it.
            plan: of the texts as they are now.
        Raises:
            DataError: another task was begun in this directory.
        """
        with self._alone():
            if self.is_there:
                begun = self._begun()
                refuse_other_task(str(self.path), begun.task, task, "remove that directory to begin anew")
                if begun.plan == plan:
                    return
            write_text(self.path / PLAN, json.dumps(dataclasses.asdict(_Begun(FORMAT, dict(task), plan))))

    def done(self, part: Part) -> Done | None:
        """What is known of a part that is done; None: it is to be done."""
        if part.number not in self._known:
            found = _read(self._place(part) / DONE, Done)
            if found is None or found.fingerprint != part.fingerprint:
                return None
            self._known[part.number] = found
        return self._known[part.number]

    def claim(self, part: Part) -> DirectoryLock | None:
        """Take a part for this process; None: another one has it, or it is done, or all is done and gone.

        Returns:
            What is released when the part is done or given up.
        """
        lock = self._lock(self._place(part))
        if lock is None:
            return None
        if self.is_there and self.done(part) is None:
            return lock
        lock.release()
        self._sweep()
        return None

    def commit(self, part: Part, results: Sequence[bytes], done: Done) -> None:
        """Keep what was written for a part.

        Args:
            results: for each file of the part's output.
            done: what is known of it.
        Raises:
            OSError: it cannot be written.
        """
        place = self._place(part)
        (place / DONE).unlink(missing_ok=True)      # of other lines, before a text was mended
        for number, content in enumerate(results):
            with replacing(place / str(number)) as file:
                file.write(content)
        try:
            write_text(place / DONE, json.dumps(dataclasses.asdict(done)))
        except FileNotFoundError:
            if place.exists():
                raise
            # Another process saw that the last part is done, and has written the output since.
        self._known[part.number] = done

    def results(self, part: Part, number: int) -> Path:
        """Where the result of a part that is done lies, for one file of its output.

        Raises:
            DataError: it is not what was written.
        """
        done, path = self.done(part), self._place(part) / str(number)
        if done is None or not path.is_file() or path.stat().st_size != done.sizes[number]:
            raise DataError(f"{path} is not as it was written: remove {path.parent}, and start the same command again.")
        return path

    def is_joined(self, output: int, parts: Sequence[Part]) -> bool:
        """Whether an output is written, from these parts."""
        return _read(self._joined(output), list[str]) == [part.fingerprint for part in parts]

    def join(self, output: int, parts: Sequence[Part], write: Callable[[], None]) -> bool:
        """Write an output whose parts are done, if no other process does.

        Args:
            parts: of it, all done.
            write: writes it from the results of the parts.
        Returns:
            Whether it was written by this call.
        """
        lock = self._lock(self.path / JOINED / str(output))
        if lock is None:
            return False
        with lock:
            wanted = self.is_there and not self.is_joined(output, parts)
            if wanted:
                write()
                write_text(self._joined(output), json.dumps([part.fingerprint for part in parts]))
                for part in parts:
                    shutil.rmtree(self._place(part), ignore_errors=True)
        if not wanted:
            self._sweep()
        return wanted

    def remove(self, outputs: Mapping[int, Sequence[Part]]) -> None:
        """Remove the directory when all outputs are written.

        Args:
            outputs: the parts of each.
        """
        lock = self._lock(self.path)
        if lock is None:        # another process removes it, or has begun anew
            return
        with lock:
            # Where another process was faster, a third may have begun anew: that has written no output.
            wanted = self.is_there and all(self._is_at_rest(output, parts) for output, parts in outputs.items())
            going = self.path.with_name(f"{self.path.name}.removed-{token_hex(4)}")
            if wanted:
                self.path.rename(going)
        shutil.rmtree(going, ignore_errors=True)
        self._sweep()

    def _is_at_rest(self, output: int, parts: Sequence[Part]) -> bool:
        """Whether an output is written, and nobody is about to end that: who is, removes the directory in his turn."""
        lock = self._lock(self.path / JOINED / str(output)) if self.is_joined(output, parts) else None
        if lock is None:
            return False
        lock.release()
        return True

    def _sweep(self) -> None:
        """Where all was removed meanwhile, locks have made folders anew: these go, too."""
        if not self.is_there:
            for folder, _, _ in os.walk(self.path, topdown=False):
                with suppress(OSError):     # not empty
                    os.rmdir(folder)

    def _begun(self) -> _Begun:
        begun = read_json(self.path / PLAN, _Begun, f"Remove {self.path} to begin anew.")
        if begun.format != FORMAT:
            raise DataError(f"{self.path} was begun by another version of towernmt: remove it to begin anew.")
        return begun

    def _place(self, part: Part) -> Path:
        return self.path / "parts" / f"{part.number:06d}"

    def _joined(self, output: int) -> Path:
        return self.path / JOINED / f"{output}.json"

    def _lock(self, place: Path) -> DirectoryLock | None:
        lock = DirectoryLock(place, "towernmt translate")
        try:
            lock.acquire()
        except (DirectoryInUseError, FileNotFoundError, FileExistsError):   # or it was removed while the lock was made
            self._sweep()       # which may have made some of its folders
            return None
        return lock

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self.path.exists() and not self.path.is_dir():
            raise DataError(f"{self.path} is no directory: name another one by --work-directory.")
        while (lock := self._lock(self.path)) is None:
            sleep(_WAIT)
        with lock:
            yield


def _read(path: Path, kind: type[T]) -> T | None:
    """What a small file holds; None: it is not there."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return parse_json(content, kind, str(path), "Remove it, and start the same command again.")
