"""The output directory of a preparation: written in `.preparing`, exchanged for the old preparation at the end.

Until the new preparation is complete, the old one is unchanged. If the process is killed or interrupted, its finished
files stay in `.preparing`, and the next process resumes with them. Then the files of the old preparation are
exchanged for the new ones, the manifest last. A process that is killed before the exchange leaves the old
preparation. A process that is killed during the exchange leaves the new preparation in two directories: the next
reader or writer finishes the exchange. Files that no preparation writes are never touched.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, DirectoryInUseError
from towernmt.core.files import flush_to_disk
from towernmt.dataflow.preparation.manifest import MANIFEST, VOCABULARIES, read_manifest
from towernmt.dataflow.vocabulary.source_text import SOURCE_TEXT


class OutputDirectory:
    """The directory of a preparation, for the one process that writes it.

        with OutputDirectory("data/de-en", overwrite=False) as output:
            ...                     # write a complete preparation into output.stage, the manifest last
            output.exchange()

    At the end of the block, `stage` is removed; without `exchange`, the directory is unchanged. The work of an
    interrupted process stays in `stage` if the block ends before `begin_work`.

    Attributes:
        directory: path of the directory.
        stage: a directory on the same disk for the new preparation and its temporary files, including those of an
            interrupted preparation.

    Args:
        directory: path of the directory, which is made if it does not exist.
        overwrite: whether to replace files with the names of a preparation that may belong to the user.
        report: called with messages for the user.

    Raises:
        DirectoryInUseError: another process writes there.
        DataError: the directory cannot be made, is that of a run, or contains files that would be replaced.
    """

    def __init__(self, directory: str | Path, overwrite: bool, report: Callable[[str], None] = lambda text: None
                 ) -> None:
        self.directory = Path(directory)
        self.stage = self.directory / STAGE
        self._keep = self._keep_after_errors = False
        # Whether there may be work of another process that this one has neither resumed nor replaced.
        self._has_earlier_work = True
        self._overwrite, self._report = overwrite, report
        self._new_directories: list[Path] = []
        self._lock = DirectoryLock(self.directory, "towernmt prepare")
        self._ending = threading.Lock()

    def __enter__(self) -> OutputDirectory:
        self._new_directories = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.directory}: cannot make the directory ({error.strerror}). "
                            "Choose another --output.") from error
        try:
            self._lock.acquire()
            if (self.stage / MANIFEST).exists():
                exchange(self.directory)
            self._check()
            self._has_earlier_work = self.stage.exists()
            self.stage.mkdir(exist_ok=True)
        except BaseException:
            self._leave()
            raise
        return self

    def begin_work(self) -> None:
        """Note that the stage now contains the work of this process, which has resumed or replaced earlier work."""
        self._has_earlier_work = False

    def keep_work(self, after_errors: bool = False) -> None:
        """Keep the stage after an interruption, because another process can resume from it.

        Args:
            after_errors: whether to keep it after a `DataError`, too, such as that of a database that does not answer.
        """
        self._keep = True
        self._keep_after_errors = self._keep_after_errors or after_errors

    def exchange(self) -> None:
        """Replace the old preparation by the one in `stage`, which must be complete."""
        with self._ending:
            try:
                self._check()
            except BaseException:
                (self.stage / MANIFEST).unlink()    # so that no other process finishes this exchange
                raise
            exchange(self.directory)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with self._ending:
            try:
                if (self.stage / MANIFEST).exists():    # interrupted while files were exchanged
                    exchange(self.directory)
                if self._is_stage_useless(error):
                    remove_tree(self.stage)
                self._keep_or_remove()
            finally:
                self._leave()

    def abandon(self) -> None:
        """End the block from another thread, right before the process ends, unless files are being exchanged."""
        self._ending.acquire()      # never released
        if not self._lock.is_held:
            return
        if not (self.stage / MANIFEST).exists():
            self._keep_or_remove()
        self._leave()

    def _is_stage_useless(self, error: BaseException | None) -> bool:
        """Return whether no command will resume from the stage.

        Args:
            error: the exception that ends the block; None if this preparation is complete.
        """
        if error is None:
            return not (self._has_earlier_work and (self.stage / WORK / PLAN).exists())
        return isinstance(error, DataError) and not (self._keep_after_errors or self._has_earlier_work)

    def _keep_or_remove(self) -> None:
        if not (self._keep or self._has_earlier_work):
            remove_tree(self.stage)
        elif self.stage.exists():
            work, command = (("the work of an earlier command", "that") if self._has_earlier_work else
                             ("the finished work", "the same"))
            self._report(f"{work} is kept in {self.stage}: {command} command resumes from it")

    def _leave(self) -> None:
        self._lock.release()
        for path in self._new_directories:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def _check(self) -> None:
        """Check that the new files can be put in place, and that no file of the user would be lost."""
        if (self.directory / "settings.yaml").exists():
            raise DataError(f"{self.directory} is the directory of a run (it contains settings.yaml), whose "
                            "vocabularies would be replaced. Choose another --output.")
        files = own_files(self.directory)
        names = [path.relative_to(self.directory).as_posix() for path in files]
        in_the_way = find_obstacle(self.directory, files)
        if in_the_way is not None:
            raise DataError(f"{in_the_way} is in the way of the preparation, which writes something else under this "
                            "name. Move it away, or choose another --output.")
        if not self._overwrite:
            refuse_foreign(names, str(self.directory))


STAGE = ".preparing"
WORK = "work"
"""Directory of the files that tasks leave for later tasks, in the stage."""
PLAN = "plan.json"
"""File in `WORK` that identifies the preparation to which the files belong."""
_SHARD = re.compile(r"shard-\d{5,}\.pairs(\.p\d+|\.tmp)?")
_OTHER_FILES = re.compile(
    r"(manifest\.json|statistics\.(json|txt)|lengths\.tsv|valid(-\d+)?\.(source|target(-\d+)?))(\.tmp)?")
_VOCABULARY = re.compile(
    VOCABULARIES + r"/((source|target)\.(model|codes|pieces|words)|source_factor_\d+\.words|"
    + re.escape(SOURCE_TEXT) + r")(\.tmp)?")


def refuse_foreign(names: Sequence[str], directory_name: str) -> None:
    """Refuse a directory whose files have names of a preparation, but without a manifest or shards.

    Args:
        names: names of the files; see `is_own`.
        directory_name: name of the directory, for the message.

    Raises:
        DataError: the files may belong to the user.
    """
    began = any(_SHARD.fullmatch(name) or name == MANIFEST for name in names)
    if names and not began:
        raise DataError(f"{directory_name} contains {names[0]}, but no preparation: the file may belong to someone "
                        "else, and would be replaced. Choose another --output, or pass --overwrite.")


def is_own(name: str) -> bool:
    """Return whether preparations write a file of this name, relative to their directory."""
    return any(pattern.fullmatch(name) for pattern in (_SHARD, _OTHER_FILES, _VOCABULARY))


def own_files(directory: Path) -> list[Path]:
    """Return the files of a directory with names that preparations write, the manifest first."""
    files = [path for path in (*_entries(directory), *_entries(directory / VOCABULARIES))
             if is_own(path.relative_to(directory).as_posix())]
    return sorted(files, key=lambda path: (path.name != MANIFEST, path))


def find_obstacle(directory: Path, files: list[Path]) -> Path | None:
    """Return a directory (or a link to one) at the path of a file, or a file at the path of a directory, or None."""
    folders = [path for path in (directory / STAGE, directory / VOCABULARIES) if os.path.lexists(path)]
    odd = [path for path in folders if path.is_symlink() or not path.is_dir()]
    return next(iter([*odd, *(path for path in files if path.is_dir())]), None)


def finish_exchange(directory: str | Path) -> None:
    """Finish the exchange of a process that was killed; readers call this first.

    Raises:
        DataError: another process is exchanging the files.
    """
    if not (Path(directory) / STAGE / MANIFEST).exists():
        return
    try:
        with DirectoryLock(directory, "finishing `towernmt prepare`"):
            if (Path(directory) / STAGE / MANIFEST).exists():
                exchange(Path(directory))
    except DirectoryInUseError as error:
        raise DataError(f"{directory} is being replaced at this moment. {error}") from error


def exchange(directory: Path) -> None:
    """Move the files of the stage into the directory. After an interruption, another call finishes it."""
    stage = directory / STAGE
    in_the_way = find_obstacle(directory, own_files(directory))
    if in_the_way is not None:
        raise DataError(f"{in_the_way} is in the way of the new preparation. Move it away.")
    manifest = read_manifest(stage)
    missing = [name for name in manifest.names() if not (stage / name).exists() and not (directory / name).exists()]
    if missing:
        raise DataError(f"{stage}: the new preparation lacks {missing[0]}. Remove {stage}.")
    (stage / WORK / PLAN).unlink(missing_ok=True)   # so that a process that is killed later leaves nothing to resume
    new_files = {directory / name for name in (*manifest.names(), MANIFEST)}
    for path in own_files(directory):
        if path not in new_files:
            path.unlink()
    (directory / VOCABULARIES).mkdir(exist_ok=True)
    for name in manifest.names():
        if (stage / name).exists():     # else it was moved before
            os.replace(stage / name, directory / name)
    flush_to_disk(directory / VOCABULARIES)
    flush_to_disk(directory)
    os.replace(stage / MANIFEST, directory / MANIFEST)
    flush_to_disk(directory)
    remove_tree(stage)


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def remove_tree(path: Path) -> None:
    """Remove a directory with its content, and ignore errors."""
    for _ in range(3):      # another thread of an ending process may still write there
        shutil.rmtree(path, ignore_errors=True)
