"""Output files: never the same as an input, and renamed to their final name only when they are complete."""

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
from towernmt.core.files import copy_access, naming

log = logging.getLogger(__name__)

STDIN, STDOUT = "standard input", "standard output"


def check_apart(output: tuple[str, str | None], inputs: Mapping[str, str | None | Sequence[str | None]],
                owned: Collection[str] = (), consequence: str = "which would be lost") -> None:
    """Check that an output is neither an input, under any name, nor in a directory of another command.

    Args:
        output: the option and its path; None means standard output.
        inputs: paths by their options; None means standard input.
        owned: kinds of directories in which the output may be (see `refuse_foreign_directory`).
        consequence: consequence of an equal input and output, for the message.

    Raises:
        DataError: the output is an input.
        SettingsError: the output is in a directory of another command.
    """
    name, path = output
    output_status = _file_status(1 if path is None else path)
    target = os.path.realpath(path) if path is not None else None
    is_new = target is not None and not os.path.exists(target)
    parents: list[tuple[str, str]] = []     # input directories that contain the output
    for option, files in inputs.items():
        for file in [files] if files is None or isinstance(files, str) else files:
            input_status = _file_status(0 if file is None else file)
            is_directory = input_status is not None and stat.S_ISDIR(input_status.st_mode)
            is_same = (os.path.samestat(output_status, input_status)
                       if output_status is not None and input_status is not None
                       else is_new and file is not None and os.path.realpath(file) == target)
            if is_same:
                output_name = f"{name} {path}" if path else STDOUT
                input_name = f"{option} {file}" if file else STDIN
                kind = "directory" if is_directory else "file"
                raise DataError(f"{output_name} is the same {kind} as {input_name}, {consequence}: name another "
                                f"{kind} to write to.")
            if target is not None and file is not None and is_directory and (
                    Path(os.path.realpath(file)) in Path(target).parents):
                parents.append((option, file))
    if path is not None:
        _refuse_missing_parent(name, path)
    if target is not None and _is_local(target):
        refuse_foreign_directory(f"{name} {path}", Path(target), owned)
    if parents and RUN not in owned and AVERAGES not in owned:
        option, file = parents[0]
        raise DataError(f"{name} {path} is in the directory {file}, which {option} reads: write to another "
                        "directory.")


@contextmanager
def output_file(path: str | Path, begin: Callable[[Path], BinaryIO] | None = None) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends without an exception.

    Until then, and if the block fails after it has written something, the file is `NAME.unfinished-PROCESS` in the same
    directory. A terminal, a pipe or a device is written directly. The new file has the permissions of the old one, and
    its owner and group if this process may set them.

    Args:
        path: path of the output.
        begin: opens the unfinished file; None creates it.

    Raises:
        DataError: the file cannot be written.
    """
    with reporting_write_errors(path):
        target, mode = _target(Path(path))
    if target is None:
        descriptor = descriptor_of(path)
        with reporting_write_errors(path):
            # Opening `/dev/stdout` again would truncate a file to which the shell appends (`>>`).
            stream = open(path, "wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb")
        with stream:
            yield stream
        return
    unfinished = target.with_name(f"{target.name}.unfinished-{os.getpid()}")
    with reporting_write_errors(path):
        file = open(unfinished, "wb") if begin is None else begin(unfinished)
    try:
        with naming(path), file:
            yield file
        with reporting_write_errors(path):
            if mode is not None:
                copy_access(target, unfinished)
                unfinished.chmod(mode)      # also if the process may not give the file to its old owner
            unfinished.replace(target)
    except BaseException:
        _leave(unfinished, path)
        raise


def is_written_directly(path: str | Path) -> bool:
    """Return whether an output is a terminal, a pipe or a device, which `output_file` writes directly.

    Raises:
        OSError: the path is that of a directory, or cannot be read.
    """
    return _target(Path(path))[0] is None


def _target(path: Path) -> tuple[Path | None, int | None]:
    """Return the regular file of a path, which may not exist yet, and its mode, if it exists.

    Returns:
        None instead of the file if the path is not that of a regular file.
    """
    if path.absolute().parts[1:2] in (("dev",), ("proc",)) or descriptor_of(path) is not None:
        return None, None
    target = Path(os.path.realpath(path))
    if not target.exists():
        return target, None
    status = target.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return (target, stat.S_IMODE(status.st_mode)) if stat.S_ISREG(status.st_mode) else (None, None)


def descriptor_of(path: str | Path) -> int | None:
    """Return the file descriptor of a path such as `/dev/stdout` or a link to it, or None for other paths."""
    name = os.path.abspath(path)
    for _ in range(40):
        if (match := re.fullmatch("/dev/std(in|out|err)", name)) is not None:
            return ("in", "out", "err").index(match[1])
        name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        if (match := re.fullmatch(r"/proc/(\d+)(?:/task/\d+)?/fd/(\d+)", name)) is not None:
            return int(match[2]) if int(match[1]) == os.getpid() else None
        if not os.path.islink(name):
            return None
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return None


def _leave(unfinished: Path, path: str | Path) -> None:
    """Log the path of an unfinished output, or delete it if it is empty."""
    if not unfinished.exists():
        return
    if unfinished.stat().st_size == 0:
        unfinished.unlink()
    else:
        log.warning("%s is unchanged; the unfinished output is in %s.", path, unfinished)


@contextmanager
def reporting_write_errors(path: str | Path) -> Iterator[None]:
    """Turn an `OSError` of the block into an error that names the output file.

    Raises:
        DataError: the block raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot write ({error.strerror}).") from error


def _refuse_missing_parent(name: str, path: str) -> None:
    """Refuse `missing/../file`, which no system call accepts."""
    parts = Path(path).parts
    for number, part in enumerate(parts):
        parent = Path(*parts[:number]) if number else Path()
        if part == ".." and not parent.is_dir():
            raise SettingsError(f"{name} {path}: the directory {parent} of `{parent}/..` does not exist: create it, or "
                                "write the path without `..`.")


def _file_status(file: str | int) -> os.stat_result | None:
    """Return the status of a regular file or a directory, or None for others and for a missing file."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else None


def _is_local(path: str) -> bool:
    return Path(path).parts[1:2] not in (("dev",), ("proc",))
