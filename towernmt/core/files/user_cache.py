"""Where towernmt keeps what it can make or fetch again, of this user on this machine."""

from __future__ import annotations

import os
from pathlib import Path

PLACE_VARIABLE = "TOWERNMT_CACHE"


def user_cache() -> Path:
    """The folder that `TOWERNMT_CACHE` names, else `towernmt` in `XDG_CACHE_HOME` or `~/.cache`. It need not be there.

    Raises:
        RuntimeError: none of them is set, and the user has no home.
    """
    named = os.environ.get(PLACE_VARIABLE)
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "towernmt"
