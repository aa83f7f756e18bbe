"""The directory that a preparation is written to. It is written in `.preparing`, and put into its place at the end.

Until the new one is whole, the former one stays as it is. When the process is killed or interrupted, what is done of
the new one stays, too, and the next process goes on with it. Then the files of the former one are exchanged for the new
ones, the manifest last. A process that is killed before that leaves the former preparation, and one killed while files
are exchanged leaves the new one in two places: the next reader or writer finishes the exchange. Files that no
preparation writes are never touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from towernmt.core.errors import DataError
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.dataflow.prepared.exchange import STAGE, exchange, find_in_the_way, own_files, refuse_foreign, remove_tree
from towernmt.dataflow.prepared.manifest import MANIFEST


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
