"""Reading a checkpoint: its files are held open, so that a run that goes on may remove it meanwhile.

TensorFlow opens a checkpoint's files by name, again and again, and takes `[`, `]`, `*`, `?` and a backslash in the name
for a pattern. So it gets links with plain names to the open files.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from towernmt.checkpoint.files import reason_of
from towernmt.checkpoint.state import STATE, CheckpointState, parse_state
from towernmt.core.errors import CheckpointError
from towernmt.core.tensors import Session

T = TypeVar("T")

_DESCRIPTORS = Path("/proc/self/fd")    # Linux: names of open files, removed ones too
_PATTERN = frozenset("[]*?\\")
_TRIES = 20


class CheckpointGone(CheckpointError):
    """There is no such checkpoint, or it was removed while it was being opened."""


class HeldCheckpoint:
    """One checkpoint, open for reading until `close` (or until nothing refers to it any more).

    Args:
        prefix: of TensorFlow's files, such as "runs/de-en/checkpoints/step-1000/model".
    Attributes:
        name: the checkpoint's directory, for messages.
        original: the prefix that it was opened by.
        prefix: the one to give to TensorFlow.
    Raises:
        CheckpointGone: it is not there (any more).
        CheckpointError: a file cannot be read.
    """

    def __init__(self, prefix: str | Path) -> None:
        path = Path(prefix)
        self.name = str(path.parent) if path.name == "model" else str(path)
        self.original = self.prefix = str(prefix)
        self._close: Callable[[], object] = _nothing
        if _DESCRIPTORS.is_dir():
            self._hold(path)
        elif not Path(f"{path}.index").is_file():
            raise self._gone()
        elif _PATTERN & set(str(path)):
            raise CheckpointError(f"{self.name}: TensorFlow takes [, ], *, ? and \\ in the name of a file for a "
                                  "pattern: rename the directory.")

    def shapes(self) -> dict[str, list[int]]:
        """Name to shape of every variable.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        return dict(self._reader.get_variable_to_shape_map())

    def value(self, name: str) -> np.ndarray:
        """The value of a variable.

        Raises:
            CheckpointError: it is not there, or the checkpoint is damaged.
        """
        reader = self._reader
        if not reader.has_tensor(name):
            raise CheckpointError(f"{self.name}: variable '{name}' is not in this checkpoint, which is another "
                                  "model's; name another one.")
        try:
            return np.asarray(reader.get_tensor(name))
        except _errors() as error:
            raise self._damaged(error) from error

    def state(self) -> CheckpointState | None:
        """What its `state.json` holds; None: it has none, and was not written by towernmt.

        Raises:
            CheckpointError: the file is damaged.
        """
        file = Path(self.prefix).with_name(STATE)
        return parse_state(file.read_bytes(), Path(self.name)) if file.is_file() else None

    def restore(self, saver: Any, session: Session) -> None:
        """Give a `tf1.train.Saver`'s variables their values.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        try:
            saver.restore(session, self.prefix)
        except _errors() as error:
            raise self._damaged(error) from error

    def close(self) -> None:
        """Close the files."""
        self.__dict__.pop("_reader", None)      # which has the index open
        self._close()

    @cached_property
    def _reader(self) -> Any:
        from towernmt.core.tf_compat import tf  # takes seconds, which holding files does not need

        try:
            return tf.train.load_checkpoint(self.prefix)
        except _errors() as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CheckpointError:
        reason = reason_of(error, Path(self.prefix).parent).replace(self.prefix, Path(self.name).name)
        return CheckpointError(f"{self.name}: the checkpoint is damaged or incomplete ({reason}); remove it to "
                               "take the one before it, or name another one.")

    def _gone(self) -> CheckpointGone:
        return CheckpointGone(f"{self.name}: there is no such checkpoint (any more): a run that goes on removes its "
                              "oldest; start the same command again, or name another one.")

    def _hold(self, path: Path) -> None:
        descriptors: dict[str, int] = {}
        try:
            descriptors = _open_files(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if path.name == "model" and path.parent.is_dir():
                raise self._damaged(error) from None
            raise self._gone() from None
        except OSError as error:
            raise CheckpointError(f"{self.name}: the checkpoint cannot be read ({error.strerror}); mend that, or name "
                                  "another one.") from error
        links = tempfile.mkdtemp(prefix="towernmt-")
        self._close = weakref.finalize(self, _let_go, list(descriptors.values()), links)
        for name, descriptor in descriptors.items():
            os.symlink(_DESCRIPTORS / str(descriptor), os.path.join(links, name))
        self.prefix = os.path.join(links, path.name)


def held_checkpoint(checkpoint: str | Path | HeldCheckpoint) -> HeldCheckpoint:
    """`checkpoint` itself if it is held already, else a new `HeldCheckpoint`."""
    return checkpoint if isinstance(checkpoint, HeldCheckpoint) else HeldCheckpoint(checkpoint)


def again_if_gone(action: Callable[[], T]) -> T:
    """What `action` returns, which finds and opens checkpoints. It is called again if one was removed meanwhile.

    Raises:
        CheckpointGone: it was removed each time.
    """
    for _ in range(_TRIES):
        try:
            return action()
        except CheckpointGone:
            continue
    return action()


def _open_files(prefix: Path) -> dict[str, int]:
    """Name to descriptor of all files of a prefix, from one directory, even if another takes its name meanwhile."""
    opened: dict[str, int] = {}
    directory = os.open(prefix.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in os.listdir(directory):
            if name == STATE or name.startswith(f"{prefix.name}."):
                opened[name] = os.open(name, os.O_RDONLY, dir_fd=directory)
        if f"{prefix.name}.index" not in opened:
            raise FileNotFoundError(errno.ENOENT, f"{prefix.name}.index is missing")
    except BaseException:
        _let_go(list(opened.values()))
        raise
    finally:
        os.close(directory)
    return opened


def _let_go(descriptors: list[int], links: str | None = None) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    if links is not None:
        shutil.rmtree(links, ignore_errors=True)


def _errors() -> tuple[type[Exception], ...]:
    """What TensorFlow raises at a file that is damaged. (IndexError: the file ends too early.)"""
    from towernmt.core.tf_compat import tf

    return tf.errors.OpError, ValueError, RuntimeError, IndexError


def _nothing() -> None:
    """Closes nothing: no files are held."""
