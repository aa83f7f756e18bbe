"""Read a checkpoint whose files stay open, so that a training run may remove it in the meantime.

TensorFlow opens the files of a checkpoint by name, repeatedly, and treats `[`, `]`, `*`, `?` and a backslash in the
name as a pattern. So TensorFlow gets links with plain names to the open files.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from towernmt.checkpoint.checkpoint_files import STATE, CheckpointState, parse_state, reason_of
from towernmt.core.errors import CheckpointError, remedy
from towernmt.core.temporary_directories import ScratchDirectory
from towernmt.core.tensors import Session

T = TypeVar("T")

_DESCRIPTORS = Path("/proc/self/fd")    # Linux: open files by descriptor, even if they were removed
_PATTERN = frozenset("[]*?\\")
_TRIES = 20


class CheckpointRemoved(CheckpointError):
    """The checkpoint does not exist, or was removed while it was opened."""


class OpenCheckpoint:
    """A checkpoint that is open for reading until `close` or garbage collection.

    Args:
        prefix: the prefix of TensorFlow's files, such as "runs/de-en/checkpoints/step-1000/model".

    Attributes:
        name: the checkpoint's directory, for messages.
        original: the prefix passed to the constructor.
        prefix: the prefix for TensorFlow.

    Raises:
        CheckpointRemoved: the checkpoint does not exist, or does not exist any more.
        CheckpointError: a file cannot be read.
    """

    def __init__(self, prefix: str | Path) -> None:
        path = Path(prefix)
        self.name = str(path.parent) if path.name == "model" else str(path)
        self.original = self.prefix = str(prefix)
        self._close: Callable[[], object] = _close_nothing
        if _DESCRIPTORS.is_dir():
            self._hold(path)
        elif not Path(f"{path}.index").is_file():
            raise self._removed_error()
        elif _PATTERN & set(str(path)):
            raise CheckpointError(f"{self.name}: TensorFlow treats [, ], *, ? and \\ in a file name as a pattern: "
                                  "rename the directory.")

    def shapes(self) -> dict[str, list[int]]:
        """Return the shape of every variable, by name.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        return dict(self._reader.get_variable_to_shape_map())

    def value(self, name: str) -> np.ndarray:
        """Return the value of a variable.

        Raises:
            CheckpointError: the variable is missing, or the checkpoint is damaged.
        """
        reader = self._reader
        if not reader.has_tensor(name):
            raise CheckpointError(f"{self.name}: variable '{name}' is not in this checkpoint, which belongs to another "
                                  "model: choose another checkpoint.")
        try:
            return np.asarray(reader.get_tensor(name))
        except _errors() as error:
            raise self._damaged(error) from error

    def state(self) -> CheckpointState | None:
        """Return the content of `state.json`, or None if another program wrote the checkpoint without it.

        Raises:
            CheckpointError: the file is damaged.
        """
        file = Path(self.prefix).with_name(STATE)
        return parse_state(file.read_bytes(), Path(self.name)) if file.is_file() else None

    def restore(self, saver: Any, session: Session) -> None:
        """Load the values of the variables of a `tf1.train.Saver`.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        try:
            saver.restore(session, self.prefix)
        except _errors() as error:
            raise self._damaged(error) from error

    def close(self) -> None:
        """Close the files of the checkpoint."""
        self.__dict__.pop("_reader", None)      # it keeps the index open
        self._close()

    @cached_property
    def _reader(self) -> Any:
        from towernmt.core.tf_compat import tf  # the import takes seconds, and opening files does not need it

        try:
            return tf.train.load_checkpoint(self.prefix)
        except _errors() as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CheckpointError:
        if os.strerror(errno.EMFILE) in str(error):
            return CheckpointError(f"{self.name}: the checkpoint cannot be read ({os.strerror(errno.EMFILE)}). "
                                   f"{remedy(OSError(errno.EMFILE, ''), '')}")
        reason = reason_of(error, Path(self.prefix).parent).replace(self.prefix, Path(self.name).name)
        return CheckpointError(f"{self.name}: the checkpoint is damaged or incomplete ({reason}). Remove it to "
                               "use the previous checkpoint, or choose a different one.")

    def _removed_error(self) -> CheckpointRemoved:
        return CheckpointRemoved(f"{self.name}: the checkpoint does not exist; a running training removes its oldest "
                                 "checkpoints. Run the same command again, or choose another checkpoint.")

    def _hold(self, path: Path) -> None:
        descriptors: dict[str, int] = {}
        try:
            descriptors = _open_files(path)
        except _DirectoryMoved:
            raise self._removed_error() from None
        except (FileNotFoundError, NotADirectoryError) as error:
            if path.name == "model" and path.parent.is_dir():
                raise self._damaged(error) from None
            raise self._removed_error() from None
        except OSError as error:
            raise CheckpointError(f"{self.name}: the checkpoint cannot be read ({error.strerror}). Fix the "
                                  "cause, or choose another checkpoint.") from error
        try:
            links = ScratchDirectory("reading a checkpoint")
        except OSError as error:
            _close_files(list(descriptors.values()))
            raise CheckpointError(f"{self.name}: a temporary directory for reading the checkpoint cannot be made "
                                  f"({error.strerror}). Free disk space, or set TMPDIR to a writable "
                                  "directory.") from error
        self._close = weakref.finalize(self, _close_files, list(descriptors.values()), links)
        for name, descriptor in descriptors.items():
            os.symlink(_DESCRIPTORS / str(descriptor), links.path / name)
        self.prefix = str(links.path / path.name)


def as_open_checkpoint(checkpoint: str | Path | OpenCheckpoint) -> OpenCheckpoint:
    """Return `checkpoint` itself if it is open already, else a new `OpenCheckpoint`."""
    return checkpoint if isinstance(checkpoint, OpenCheckpoint) else OpenCheckpoint(checkpoint)


def repeat_if_removed(action: Callable[[], T]) -> T:
    """Return the result of `action`, which opens checkpoints; repeat it if a checkpoint was removed meanwhile.

    Raises:
        CheckpointRemoved: a checkpoint was removed at each try.
    """
    for _ in range(_TRIES):
        try:
            return action()
        except CheckpointRemoved:
            continue
    return action()


class _DirectoryMoved(OSError):
    """A checkpoint's directory was renamed, removed or replaced while its files were opened."""


def _open_files(prefix: Path) -> dict[str, int]:
    """Open all files of a prefix, all in the same directory; return descriptors by name.

    Raises:
        _DirectoryMoved: the directory moved meanwhile, so some files may have been deleted before they were listed.
        OSError: a file cannot be opened.
    """
    descriptor_by_name: dict[str, int] = {}
    directory = os.open(prefix.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in os.listdir(directory):
            if name == STATE or name.startswith(f"{prefix.name}."):
                descriptor_by_name[name] = os.open(name, os.O_RDONLY, dir_fd=directory)
        if not _is_same_directory(directory, prefix.parent):
            raise _DirectoryMoved
        if f"{prefix.name}.index" not in descriptor_by_name:
            raise FileNotFoundError(errno.ENOENT, f"{prefix.name}.index is missing")
    except BaseException:
        _close_files(list(descriptor_by_name.values()))
        raise
    finally:
        os.close(directory)
    return descriptor_by_name


def _is_same_directory(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _close_files(descriptors: list[int], links: ScratchDirectory | None = None) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    if links is not None:
        links.remove()


def _errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of TensorFlow at a damaged file (IndexError at one that ends too early)."""
    from towernmt.core.tf_compat import tf

    return tf.errors.OpError, ValueError, RuntimeError, IndexError


def _close_nothing() -> None:
    """Do nothing, because no files are open."""
