"""Where text goes: never onto what is being read, and exchanged for the old file when it is whole."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from towernmt.core.errors import DataError
from towernmt.core.files.atomic_files import naming

log = logging.getLogger(__name__)

STDIN, STDOUT = "standard input", "standard output"
_OF_A_RUN = ("settings.yaml", "rollbacks.json", "vocabulary", "checkpoints", "best", "averaged", "code")


def check_apart(output: tuple[str, str | None], inputs: Mapping[str, str | None | Sequence[str]],
                model: str | Sequence[str] | None = None) -> None:
    """Refuse to write onto a file that is read, by whatever names, or onto a part of the run that is used.

    Args:
        output: the option and its file; None: standard output.
        inputs: the files by their options; None: standard input.
        model: the run's directory or the package, or those of several.
    Raises:
        DataError: they are one file.
    """
    name, path = output
    written = _regular_file(1 if path is None else path)
    models = [model] if isinstance(model, str) else list(model or ())
    packages = {"--model": [place for place in models if Path(place).is_file()]}
    for option, files in (*inputs.items(), *packages.items()):
        for file in [files] if files is None or isinstance(files, str) else files:
            read = _regular_file(0 if file is None else file)
            if written is not None and read is not None and os.path.samestat(written, read):
                one, other = f"{name} {path}" if path else STDOUT, f"{option} {file}" if file else STDIN
                raise DataError(f"{one} is the same file as {other}, which would be lost: name another file to write "
                                "to.")
    target = Path(path).resolve() if path is not None else None
    for run in models:
        for part in _OF_A_RUN if target is not None else ():
            place = Path(run, part).resolve()
            if place == target or (target is not None and place in target.parents):
                raise DataError(f"{name} {path} is a part of the run {run}: name another file to write to.")


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
        with told(path):
            stream = open(path, "wb")
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
    if path.absolute().parts[1:2] in (("dev",), ("proc",)):
        return None, None
    target = Path(os.path.realpath(path))
    if not target.exists():
        return target, None
    found = target.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return (target, stat.S_IMODE(found.st_mode)) if stat.S_ISREG(found.st_mode) else (None, None)


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


def _regular_file(file: str | int) -> os.stat_result | None:
    """What there is under a name, or behind a descriptor; None: nothing, or no regular file."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None
