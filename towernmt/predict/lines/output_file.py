"""Output files: never onto the input, and exchanged for the old file only when they are complete."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from towernmt.core.directories import AVERAGES, RUN, refuse_foreign_directory
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import naming

log = logging.getLogger(__name__)

STDIN, STDOUT = "standard input", "standard output"


def check_apart(output: tuple[str, str | None], inputs: Mapping[str, str | None | Sequence[str | None]],
                owned: Collection[str] = (), lost: str = "which would be lost") -> None:
    """Refuse to write onto a file or directory that is read, by whatever name, or into what another command made.

    Args:
        output: the option and its path; None: standard output.
        inputs: the paths by their options; None: standard input.
        owned: kinds of directories that may be written into (see `refuse_foreign_directory`).
        lost: what would happen.
    Raises:
        DataError: the output is an input.
        SettingsError: it lies in a directory of another command.
    """
    name, path = output
    written = _lasting(1 if path is None else path)
    target = os.path.realpath(path) if path is not None else None
    is_new = target is not None and not os.path.exists(target)
    around: list[tuple[str, str]] = []      # input directories in which the output lies
    for option, files in inputs.items():
        for file in [files] if files is None or isinstance(files, str) else files:
            read = _lasting(0 if file is None else file)
            same = (os.path.samestat(written, read) if written is not None and read is not None
                    else is_new and file is not None and os.path.realpath(file) == target)
            if same:
                one = f"{name} {path}" if path else STDOUT
                other = f"{option} {file}" if file else STDIN
                kind = "directory" if read is not None and stat.S_ISDIR(read.st_mode) else "file"
                raise DataError(f"{one} is the same {kind} as {other}, {lost}: name another {kind} to write to.")
            if target is not None and file is not None and read is not None and stat.S_ISDIR(read.st_mode) and (
                    Path(os.path.realpath(file)) in Path(target).parents):
                around.append((option, file))
    if path is not None:
        _refuse_way_through_nothing(name, path)
    if target is not None and _is_local(target):
        refuse_foreign_directory(f"{name} {path}", Path(target), owned)
    if around and RUN not in owned and AVERAGES not in owned:
        option, file = around[0]
        raise DataError(f"{name} {path} lies in the directory {file}, which {option} reads: name another place to "
                        "write to.")


@contextmanager
def output_file(path: str | Path, begin: Callable[[Path], BinaryIO] | None = None) -> Iterator[BinaryIO]:
    """A file to write bytes to, which takes the place of `path` when the block ends without an exception.

    Until then, and where the block fails after something was written, it is `NAME.unfinished-PROCESS` beside it. What
    is no regular file (a terminal, a pipe, a device) is written to as it is.

    Args:
        begin: opens the unfinished file; by default a new one.
    Raises:
        DataError: it cannot be written.
    """
    with told(path):
        target, mode = _target(Path(path))
    if target is None:
        descriptor = descriptor_of(path)
        with told(path):
            # To open `/dev/stdout` anew would cut a file that the shell appends to (`>>`).
            stream = open(path, "wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb")
        with stream:
            yield stream
        return
    unfinished = target.with_name(f"{target.name}.unfinished-{os.getpid()}")
    with told(path):
        file = open(unfinished, "wb") if begin is None else begin(unfinished)
    try:
        with naming(path), file:
            yield file
        with told(path):
            if mode is not None:
                unfinished.chmod(mode)
            unfinished.replace(target)
    except BaseException:
        _leave(unfinished, path)
        raise


def _target(path: Path) -> tuple[Path | None, int | None]:
    """The regular file that `path` leads to, there or not, and its access rights; None: it is no regular file."""
    if path.absolute().parts[1:2] in (("dev",), ("proc",)) or descriptor_of(path) is not None:
        return None, None
    target = Path(os.path.realpath(path))
    if not target.exists():
        return target, None
    found = target.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return (target, stat.S_IMODE(found.st_mode)) if stat.S_ISREG(found.st_mode) else (None, None)


def descriptor_of(path: str | Path) -> int | None:
    """Return the descriptor of this process that a path, such as `/dev/stdout` or a link to it, means; None: none."""
    name = os.path.abspath(path)
    for _ in range(40):
        if (found := re.fullmatch("/dev/std(in|out|err)", name)) is not None:
            return ("in", "out", "err").index(found[1])
        name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        if (found := re.fullmatch(r"/proc/(\d+)(?:/task/\d+)?/fd/(\d+)", name)) is not None:
            return int(found[2]) if int(found[1]) == os.getpid() else None
        if not os.path.islink(name):
            return None
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return None


def _leave(unfinished: Path, path: str | Path) -> None:
    """Tell where the half is that was written; nothing stays of nothing."""
    if not unfinished.exists():
        return
    if unfinished.stat().st_size == 0:
        unfinished.unlink()
    else:
        log.warning("%s is as it was; what was written until then is in %s.", path, unfinished)


@contextmanager
def told(path: str | Path) -> Iterator[None]:
    """What the system refuses inside is told as an error of the file that cannot be written.

    Raises:
        DataError: in place of an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot write ({error.strerror}).") from error


def _refuse_way_through_nothing(name: str, path: str) -> None:
    """Refuse `missing/../file`, which no system call can follow."""
    parts = Path(path).parts
    for number, part in enumerate(parts):
        way = Path(*parts[:number]) if number else Path()
        if part == ".." and not way.is_dir():
            raise SettingsError(f"{name} {path}: there is no directory {way}, so `{way}/..` leads nowhere: create it, "
                                "or name the place without `..`.")


def _lasting(file: str | int) -> os.stat_result | None:
    """Return the status of a regular file or a directory; None: nothing is there, or a device, pipe or socket."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) else None


def _is_local(path: str) -> bool:
    return Path(path).parts[1:2] not in (("dev",), ("proc",))
