"""The directory in which ranges of lines are claimed and committed until all outputs are written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from secrets import token_hex
from time import sleep
from typing import Any, Literal, NamedTuple, TypeVar

from towernmt.core.directories import LOCK_FILE, DirectoryLock
from towernmt.core.errors import DataError, DirectoryInUseError
from towernmt.core.files import replacing, write_text
from towernmt.core.structured_files import JSONError, Natural, load_json, typed_value
from towernmt.predict.lines.resumable import check_same_task
from towernmt.predict.ranges.plan import Part, Plan

log = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT: Literal[1] = 1
MADE, PLAN, FINISHED, DONE = "made-by-towernmt", "plan.json", "finished.json", "done.json"
PARTS, JOINED = "parts", "joined"
_OF_A_PART = re.compile(rf"(\d+|{re.escape(DONE)})(\.tmp)?|{re.escape(LOCK_FILE)}")
"""Names of the files in the folder of a part, and in those of the locks in `joined`."""
_OF_JOINED = re.compile(r"\d+\.json(\.tmp)?")
_REMOVED = ".removed-"
"""In the last name of a directory that this program made."""
_WAIT = 0.5     # seconds between two attempts to take a lock that another process holds


class PartFile(NamedTuple):
    """A result of a part.

    Attributes:
        path: the file.
        sha256: checksum of its content, in hexadecimal digits.
    """

    path: Path
    sha256: str


@dataclass(frozen=True)
class Done:
    """The record of a part that is done.

    Attributes:
        fingerprint: fingerprint of the lines that were translated.
        sha256: checksum of each result, one result for each file of the output.
        tokens: number of tokens of the translations.
        faults: faults of the lines; see `FaultCounts.as_json`.
    """

    fingerprint: str
    sha256: list[str]
    tokens: Natural
    faults: dict[str, Any]


@dataclass(frozen=True)
class _Begun:
    """The content of plan.json."""

    format: Literal[1]
    task: dict[str, Any]
    plan: Plan


class WorkDirectory:
    """Claims, commits and results of the parts of one translation.

    Attributes:
        path: path of the directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: dict[int, Done] = {}
        self._damaged: set[int] = set()

    @property
    def is_there(self) -> bool:
        """Whether a translation was begun in the directory and is not finished."""
        return (self.path / PLAN).is_file()

    def check(self) -> None:
        """Refuse a directory in which no translation can be done.

        Raises:
            DataError: it is not a directory, or it holds files that this program did not write.
        """
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise DataError(f"{self.path} is not a directory: pass a different one as --work-directory.")
        if self.is_there or (self.path / FINISHED).is_file() or not self.path.is_dir():
            return
        foreign = next(filter(_is_foreign, sorted(self.path.iterdir())), None)
        if foreign is not None:
            raise DataError(f"{self.path} holds other files ({foreign.name}): pass a new or an empty directory as "
                            "--work-directory.")

    def plan(self) -> Plan | None:
        """Return the plan of the translation that was begun, or None.

        Raises:
            DataError: plan.json is damaged.
        """
        return self._begun().plan if self.is_there else None

    def task(self) -> dict[str, Any] | None:
        """Return the task of the translation that was begun, or None.

        Raises:
            DataError: plan.json is damaged.
        """
        return self._begun().task if self.is_there else None

    def begin(self, task: Mapping[str, Any], plan: Plan) -> None:
        """Begin a translation, or resume the one that was begun.

        Raises:
            DataError: another task was begun in this directory, or it holds other files (see `check`).
        """
        with self._alone():
            self.check()
            # The last process may have been killed while it removed the files of a finished translation.
            if (self.path / FINISHED).is_file():
                _remove_files(self.path)
            for going in self.path.parent.glob(f"{escape(self.path.name)}{_REMOVED}*") if self.path.name else ():
                _discard(going)
            begun = self._begun() if self.is_there else None
            if begun is not None:
                check_same_task(str(self.path), begun.task, task, "remove that directory to begin anew")
            wanted = _Begun(FORMAT, dict(task), plan)
            if begun != wanted:
                write_text(self.path / PLAN, _with_checksum(dataclasses.asdict(wanted)))

    def done(self, part: Part) -> Done | None:
        """Return the record of a part that is done, or None if the part must be translated.

        A part counts as done only if its results have their checksums.
        """
        if part.number not in self._known:
            done = self._read_done(part)
            if done is None:
                return None
            self._known[part.number] = done
        return self._known[part.number]

    def _read_done(self, part: Part) -> Done | None:
        place = self._place(part)
        try:
            done = _without_checksum((place / DONE).read_bytes(), Done)
            if done.fingerprint != part.fingerprint:
                return None
            whole = all(_sha256(place / str(number)) == expected for number, expected in enumerate(done.sha256))
        except FileNotFoundError:
            return None
        except JSONError:
            whole = False
        if not whole and part.number not in self._damaged:
            self._damaged.add(part.number)
            log.warning("%s is damaged: its content is not what was written. Its lines are translated again.", place)
        return done if whole else None

    def claim(self, part: Part) -> DirectoryLock | None:
        """Take a part for this process.

        Returns:
            The lock to release when the part is done or given up; None if another process has the part, if it is done,
            or if the whole translation is finished.
        """
        lock = self._lock(self._place(part))
        if lock is None:
            return None
        if self.is_there and self.done(part) is None:
            return lock
        lock.release()
        self._sweep()
        return None

    def commit(self, part: Part, results: Sequence[bytes], tokens: int, faults: Mapping[str, Any]) -> None:
        """Keep the results of a part.

        Args:
            part: the part.
            results: content for each file of the part's output.
            tokens: number of tokens; see `Done`.
            faults: faults of the lines.

        Raises:
            OSError: a file cannot be written.
        """
        place = self._place(part)
        done = Done(part.fingerprint, [hashlib.sha256(content).hexdigest() for content in results], tokens,
                    dict(faults))
        (place / DONE).unlink(missing_ok=True)      # of the lines before the text was fixed
        for number, content in enumerate(results):
            with replacing(place / str(number)) as file:
                file.write(content)
        try:
            write_text(place / DONE, _with_checksum(dataclasses.asdict(done)))
        except FileNotFoundError:
            if place.exists():
                raise
        if not self.is_there:   # without locks, another process may have finished the translation meanwhile
            _clear(place)
        self._known[part.number] = done

    def results(self, part: Part, number: int) -> PartFile:
        """Return the result of a part that is done for one file of its output.

        Raises:
            DataError: the part is not done.
        """
        done, path = self.done(part), self._place(part) / str(number)
        if done is None or number >= len(done.sha256):
            raise DataError(f"{path} is missing: start the same command again, which translates its lines again.")
        return PartFile(path, done.sha256[number])

    def is_joined(self, output: int, parts: Sequence[Part]) -> bool:
        """Return whether an output was written from these parts."""
        try:
            found = typed_value(load_json(self._joined(output).read_bytes()), list[str])
        except (FileNotFoundError, JSONError):
            return False
        return found == [part.fingerprint for part in parts]

    def join(self, output: int, parts: Sequence[Part], write: Callable[[], None]) -> bool:
        """Write an output whose parts are done, unless another process writes it.

        Args:
            output: index of the output.
            parts: all parts of the output, all done.
            write: writes the output from the results of the parts.

        Returns:
            Whether this call wrote the output.
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
                    _clear(self._place(part))
        if not wanted:
            self._sweep()
        return wanted

    def remove(self, outputs: Mapping[int, Sequence[Part]]) -> None:
        """Remove the files of a finished translation, and the directory if this program made it."""
        lock = self._lock(self.path)
        if lock is None:        # another process removes them, or has begun anew
            return
        going: Path | None = None
        with lock:
            # If another process was faster, a third may have begun anew; that one has not written its outputs yet.
            if self.is_there and all(self._is_at_rest(output, parts) for output, parts in outputs.items()):
                (self.path / PLAN).replace(self.path / FINISHED)
                _remove_files(self.path)
                if any(map(_is_foreign, self.path.iterdir())):
                    (self.path / MADE).unlink(missing_ok=True)      # the user has files there now
                elif (self.path / MADE).is_file():
                    # A process that waits for the lock sees by the name that it must make a new directory.
                    going = self.path.rename(self.path.with_name(f"{self.path.name}{_REMOVED}{token_hex(4)}"))
        if going is not None:
            _discard(going)
        self._sweep()

    def _is_at_rest(self, output: int, parts: Sequence[Part]) -> bool:
        """Return whether an output is complete and no other process is finalising it.

        A process that is still finalising it removes the directory afterwards.
        """
        lock = self._lock(self.path / JOINED / str(output)) if self.is_joined(output, parts) else None
        if lock is None:
            return False
        lock.release()
        return True

    def _sweep(self) -> None:
        """Remove the empty folders that locks have made after another process finished the translation."""
        if self.is_there:
            return
        folders = [self.path / PARTS, self.path / JOINED]
        inner = [place for folder in folders if folder.is_dir() for place in folder.iterdir()]
        for place in (*inner, *folders):
            with suppress(OSError):     # not empty, or gone
                place.rmdir()

    def _begun(self) -> _Begun:
        path, advice = self.path / PLAN, "pass another --work-directory, or remove this one to begin anew."
        try:
            content = path.read_bytes()
        except OSError as reason:
            raise DataError(f"{path}: cannot be read ({reason.strerror}); {advice}") from reason
        try:
            return _without_checksum(content, _Begun)
        except JSONError as reason:
            raise DataError(f"{path} is not the plan of a translation, or it is damaged ({reason}); {advice}") from None

    def _place(self, part: Part) -> Path:
        return self.path / PARTS / f"{part.number:06d}"

    def _joined(self, output: int) -> Path:
        return self.path / JOINED / f"{output}.json"

    def _lock(self, place: Path) -> DirectoryLock | None:
        """Take the lock of a folder, which is made if only this folder is missing, or return None."""
        lock = DirectoryLock(place, "towernmt translate", make=False)
        try:
            if place != self.path:
                place.parent.mkdir(exist_ok=True)
                place.mkdir(exist_ok=True)
            lock.acquire()
        except (DirectoryInUseError, FileNotFoundError, FileExistsError):   # or it was removed while the lock was made
            self._sweep()       # which may have made some of its folders
            return None
        return lock

    @contextmanager
    def _alone(self) -> Iterator[None]:
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


def _remove_files(directory: Path) -> None:
    """Remove all files of a finished translation; finished.json, by which the others are known, is the last one."""
    for folder in (directory / PARTS, directory / JOINED):
        for place in sorted(folder.iterdir()) if folder.is_dir() else ():
            if place.is_dir():
                _clear(place)
            elif _OF_JOINED.fullmatch(place.name) and folder.name == JOINED:
                place.unlink(missing_ok=True)
        with suppress(OSError):     # not there, or not empty: another process has a lock there, and removes it
            folder.rmdir()
    for name in (f"{PLAN}.tmp", FINISHED):
        (directory / name).unlink(missing_ok=True)


def _discard(going: Path) -> None:
    """Remove a directory that this program made and moved out of the way; files of the user stay there."""
    if (going / MADE).is_file():
        _remove_files(going)
        for name in (LOCK_FILE, MADE):
            (going / name).unlink(missing_ok=True)
    with suppress(OSError):     # not empty, or gone
        going.rmdir()


def _is_foreign(place: Path) -> bool:
    """Return whether an entry of a directory without a plan is not what a killed process leaves there."""
    if place.name in (MADE, LOCK_FILE, f"{PLAN}.tmp"):
        return not place.is_file()
    if place.name not in (PARTS, JOINED) or place.is_symlink() or not place.is_dir():
        return True
    return any(inner.name != LOCK_FILE for inner in place.rglob("*") if inner.is_symlink() or not inner.is_dir())


def _clear(place: Path) -> None:
    """Remove the folder of a part with the files that were written for it; other files stay, and so does the folder."""
    if place.is_symlink():
        return
    with suppress(FileNotFoundError):
        for file in place.iterdir():
            if _OF_A_PART.fullmatch(file.name) and not file.is_dir():
                file.unlink(missing_ok=True)
    with suppress(OSError):     # not empty, or gone
        place.rmdir()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _with_checksum(content: Mapping[str, Any]) -> str:
    """Return JSON with the content and its checksum."""
    return json.dumps({"sha256": _checksum(content), "content": content})


def _without_checksum(text: bytes, kind: type[T]) -> T:
    """Return the content of a file that was written by `_with_checksum`.

    Raises:
        JSONError: the content has another checksum or type.
    """
    outer = typed_value(load_json(text), dict[str, Any])
    content = outer.get("content")
    if outer.keys() != {"sha256", "content"} or outer["sha256"] != _checksum(content):
        raise JSONError("its checksum does not fit")
    return typed_value(content, kind)


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
