"""Names of files that come from outside (a manifest, an archive): none leaves the directory it belongs to."""

from __future__ import annotations

import re
from pathlib import Path

from towernmt.core.errors import DataError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def checked_name(name: str, origin: str) -> str:
    """The name, if it is one of a file below a directory, with "/" between its parts.

    Args:
        name: for example "shard-00000.pairs", or "vocabulary/source.model".
        origin: what names the file, for the message.
    Raises:
        DataError: it is empty, absolute, has a drive or a backslash, goes up (".."), or holds control characters.
    """
    parts = name.split("/")
    if "\\" in name or ":" in name or _CONTROL.search(name) or any(part in ("", ".", "..") for part in parts):
        raise DataError(f"{origin} names the file {name[:200]!r}, which may lie outside its directory: do not use it, "
                        "and ask where it comes from.")
    return name


def path_inside(directory: str | Path, name: str, origin: str) -> Path:
    """The path of a file that is to be written: below the directory, and reached through no link that leads out of it.

    Raises:
        DataError: see `checked_name`; or a link is in its way.
    """
    path = Path(directory) / checked_name(name, origin)
    if not path.resolve().is_relative_to(Path(directory).resolve()):
        raise DataError(f"{origin} names the file {name!r}, but {path} leads out of {directory} by a link: remove the "
                        "link.")
    return path
