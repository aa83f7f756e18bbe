"""Standard output whose reader or terminal has gone: what is still written to it is dropped."""

from __future__ import annotations

import os
from typing import Any


def lead_nowhere(stream: Any) -> None:
    """Point a stream's descriptor at the null device, since Python writes what it has buffered again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
