"""The folder of a package in the user's cache, `packages/KEY`: unpacked once, whole or not there, by whoever is first.

It has a run's layout, and a run's own caches (`graphs/`, `exports/`) have their place in it. The key is made of the
sums of all files, so that another package never takes it.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import weakref
from pathlib import Path

from towernmt.checkpoint.packaged.manifest import EXPORTS, WEIGHTS
from towernmt.checkpoint.packaged.reader import Package
from towernmt.core.errors import CheckpointError
from towernmt.core.files.outside_names import path_inside
from towernmt.core.files.user_cache import PLACE_VARIABLE, user_cache

log = logging.getLogger(__name__)

FOLDER = "packages"
_INCLUDED = "included"
_SECONDS_OF_UNPACKING = 6 * 3600.0
"""What is older was left by a process that was killed."""


def unpacked(package: Package, user: object, cache: Path | None = None) -> Path:
    """The folder with all files of a package but its weights, each checked.

    Args:
        user: where nothing can be kept, the folder is a temporary one, which goes when this object does.
        cache: the directory of such folders; None: `packages` in the user's cache.
    Raises:
        CheckpointError: the package is damaged.
    """
    try:
        parent = cache or user_cache() / FOLDER
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _kept(package, parent / package.key)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        log.warning("%s: it cannot be kept unpacked (%s), so that is done anew each time: set %s to a folder that you "
                    "may write.", package.path, reason, PLACE_VARIABLE)
    temporary = Path(tempfile.mkdtemp(prefix="towernmt-"))
    weakref.finalize(user, shutil.rmtree, temporary, ignore_errors=True)
    try:
        _unpack(package, temporary)
    except OSError as error:
        raise CheckpointError(f"{package.path}: it cannot be unpacked in {temporary} ({error.strerror}).") from error
    return temporary


def place_of(name: str) -> str:
    """Where a file of the package goes. A run keeps exports that it made itself under the name that these have here."""
    return f"{_INCLUDED}/{name.removeprefix(f'{EXPORTS}/')}" if name.startswith(f"{EXPORTS}/") else name


def take_place(finished: Path, place: Path) -> None:
    """Give a finished directory its name; if another process was faster, drop it.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        finished.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        shutil.rmtree(finished, ignore_errors=True)


def _kept(package: Package, place: Path) -> Path:
    if _is_whole(package, place):
        return place
    _clear(place)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{package.key}.", dir=place.parent))
    try:
        _unpack(package, unfinished)
        take_place(unfinished, place)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return place


def _clear(place: Path) -> None:
    """Remove what lacks files, and what processes that were killed left unfinished."""
    shutil.rmtree(place, ignore_errors=True)
    for left in place.parent.glob(f"{place.name}.*"):
        if time.time() - left.stat().st_mtime > _SECONDS_OF_UNPACKING:
            shutil.rmtree(left, ignore_errors=True)


def _is_whole(package: Package, place: Path) -> bool:
    """Whether all files are there in their sizes."""
    try:
        return all((place / place_of(name)).stat().st_size == told.bytes
                   for name, told in package.manifest.members.items() if not _is_weight(name))
    except OSError:
        return False


def _unpack(package: Package, place: Path) -> None:
    for name in package.names():
        if _is_weight(name):
            package.check(name)     # read when a checkpoint is made of them
            continue
        path = path_inside(place, place_of(name), str(package.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(package.chunks(name))


def _is_weight(name: str) -> bool:
    return name.startswith(f"{WEIGHTS}/")
