"""A task: a piece of a preparation that any process may do, and whose file says that it is done.

What a task writes is a pure function of what it reads, and comes into its place by one change of a name. So it may be
done twice, by two processes at once, or again after one of them was killed, and the file is the same.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from towernmt.core.files.atomic_files import naming


@dataclass(frozen=True)
class Task(ABC):
    """Small, and sent to other processes; what is large lies in files.

    Attributes:
        output: the file (or directory) that is there when the task is done.
        lines: how many lines of the text it stands for, for progress.
    """

    output: Path
    lines: int

    @property
    def done(self) -> bool:
        """Whether its output is there."""
        return self.output.exists()

    @property
    @abstractmethod
    def title(self) -> str:
        """What is done, for messages: "encoding lines 1 to 65,536 of train.de"."""

    @abstractmethod
    def run(self) -> None:
        """Write the output.

        Raises:
            DataError: the text is not as it should be.
            OSError: a file cannot be read or written.
        """


@contextmanager
def putting(output: Path) -> Iterator[Path]:
    """A path to write a file or a directory to, which is `output` when the block has ended without an exception.

    The path is unlike that of any other process. The directory of `output` has to be there.
    """
    unfinished = output.with_name(f".{output.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with naming(output):
            yield unfinished
        if unfinished.is_dir():
            _rename_directory(unfinished, output)
        else:
            _flush(unfinished)
            os.replace(unfinished, output)
    except BaseException:
        if unfinished.is_dir():
            _remove_directory(unfinished)
        else:
            unfinished.unlink(missing_ok=True)
        raise


def _flush(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _rename_directory(unfinished: Path, output: Path) -> None:
    for path in unfinished.iterdir():
        _flush(path)
    try:
        os.rename(unfinished, output)
    except OSError:
        if not output.is_dir():
            raise
        _remove_directory(unfinished)      # another process was first, with the same content


def _remove_directory(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
