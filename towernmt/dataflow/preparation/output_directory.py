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


class OutputDirectory:
    """The directory of a preparation, for the one process that writes it.

        with OutputDirectory("data/de-en", overwrite=False) as place:
            ...                     # write a whole preparation into place.stage, the manifest last
            place.exchange()

    When the block ends, `stage` is gone; without `exchange`, the directory is as it was before.

    Args:
        directory: made if it is not there.
        overwrite: files with the names of ours may go though no preparation is known to have written them.
        say: is called with what the user should know.
    Attributes:
        directory: the same.
        stage: a directory on the same disk, for the new preparation and whatever is needed for a while; it holds what
            an interrupted preparation left.
    Raises:
        DirectoryInUseError: somebody else writes there.
        DataError: the directory cannot be made, is that of a run, or holds files that the new ones would replace.
    """

    def __init__(self, directory: str | Path, overwrite: bool, say: Callable[[str], None] = lambda text: None) -> None:
        self.directory = Path(directory)
        self.stage = self.directory / STAGE
        self._keep = False
        self._overwrite, self._say = overwrite, say
        self._made: list[Path] = []
        self._lock = DirectoryLock(self.directory, "towernmt prepare")
        self._ending = threading.Lock()

    def __enter__(self) -> OutputDirectory:
        self._made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
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
            self.stage.mkdir(exist_ok=True)
        except BaseException:
            self._leave()
            raise
        return self

    def keep_work(self) -> None:
        """There is something in the stage now that another process can go on with: an interruption leaves it."""
        self._keep = True

    def exchange(self) -> None:
        """Replace the former preparation by the one in `stage`, which must be whole."""
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
                if error is None or isinstance(error, DataError):
                    remove_tree(self.stage)
                self._keep_or_remove()
            finally:
                self._leave()

    def abandon(self) -> None:
        """From another thread, right before the process ends: as if the block ended now, unless files are exchanged."""
        self._ending.acquire()      # for good
        if not self._lock.held:
            return
        if not (self.stage / MANIFEST).exists():
            self._keep_or_remove()
        self._leave()

    def _keep_or_remove(self) -> None:
        if not self._keep:
            remove_tree(self.stage)
        elif self.stage.exists():
            self._say(f"what is done so far is kept in {self.stage}: the same command goes on with it")

    def _leave(self) -> None:
        self._lock.release()
        for path in self._made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def _check(self) -> None:
        """Check, before anything is done, that the new files can be put in place and that no foreign file is lost."""
        if (self.directory / "settings.yaml").exists():
            raise DataError(f"{self.directory} is the directory of a run (it holds settings.yaml), whose vocabularies "
                            "would be replaced. Choose another --output.")
        own = own_files(self.directory)
        names = [path.relative_to(self.directory).as_posix() for path in own]
        in_the_way = find_in_the_way(self.directory, own)
        if in_the_way is not None:
            raise DataError(f"{in_the_way} is in the way of the preparation, which has something else of this name. "
                            "Move it away, or choose another --output.")
        if not self._overwrite:
            refuse_foreign(names, str(self.directory))


STAGE = ".preparing"
_SHARD = re.compile(r"shard-\d{5,}\.pairs(\.p\d+|\.tmp)?")
_OTHERS = re.compile(
    r"(manifest\.json|statistics\.(json|txt)|lengths\.tsv|valid(-\d+)?\.(source|target(-\d+)?))(\.tmp)?")
_VOCABULARY = re.compile(
    VOCABULARIES + r"/((source|target)\.(model|codes|pieces|words)|source_factor_\d+\.words)(\.tmp)?")


def refuse_foreign(names: Sequence[str], place: str) -> None:
    """Refuse a directory with files of our names but no trace of a preparation (an interrupted one leaves shards).

    Args:
        names: that are there, see `is_own`.
        place: the directory, for the message.
    Raises:
        DataError: the files may be somebody's own.
    """
    began = any(_SHARD.fullmatch(name) or name == MANIFEST for name in names)
    if names and not began:
        raise DataError(f"{place} holds {names[0]}, but no preparation: the file may be somebody's own, and would be "
                        "replaced. Choose another --output, or pass --overwrite.")


def is_own(name: str) -> bool:
    """Whether preparations write a file of this name (relative to their directory)."""
    return any(pattern.fullmatch(name) for pattern in (_SHARD, _OTHERS, _VOCABULARY))


def own_files(directory: Path) -> list[Path]:
    """What lies in a directory under names that preparations write; the manifest first."""
    found = [path for path in (*_entries(directory), *_entries(directory / VOCABULARIES))
             if is_own(path.relative_to(directory).as_posix())]
    return sorted(found, key=lambda path: (path.name != MANIFEST, path))


def find_in_the_way(directory: Path, own: list[Path]) -> Path | None:
    """A folder, or a link to one, where a file has to be written, or a file where a folder has to be; None: neither."""
    folders = [path for path in (directory / STAGE, directory / VOCABULARIES) if os.path.lexists(path)]
    odd = [path for path in folders if path.is_symlink() or not path.is_dir()]
    return next(iter([*odd, *(path for path in own if path.is_dir())]), None)


def finish_exchange(directory: str | Path) -> None:
    """Finish an exchange during which a process was killed; readers call this first.

    Raises:
        DataError: files are being exchanged at this moment.
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
    """Put the files of the stage into their places. If this was interrupted, calling it again finishes it."""
    stage = directory / STAGE
    in_the_way = find_in_the_way(directory, own_files(directory))
    if in_the_way is not None:
        raise DataError(f"{in_the_way} is in the way of the preparation, which is to take its place. Move it away.")
    manifest = read_manifest(stage)
    lost = [name for name in manifest.names() if not (stage / name).exists() and not (directory / name).exists()]
    if lost:
        raise DataError(f"{stage}: the preparation that was to take its place lacks {lost[0]}. Remove {stage}.")
    kept = {directory / name for name in (*manifest.names(), MANIFEST)}
    for path in own_files(directory):
        if path not in kept:
            path.unlink()
    (directory / VOCABULARIES).mkdir(exist_ok=True)
    for name in manifest.names():
        if (stage / name).exists():     # else it is in its place already
            os.replace(stage / name, directory / name)
    flush_to_disk(directory / VOCABULARIES)
    flush_to_disk(directory)
    os.replace(stage / MANIFEST, directory / MANIFEST)
    flush_to_disk(directory)
    remove_tree(stage)


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def remove_tree(path: Path) -> None:
    """Remove a folder and what it holds, as far as that is possible."""
    for _ in range(3):      # while a process ends, another of its threads may still write there
        shutil.rmtree(path, ignore_errors=True)
