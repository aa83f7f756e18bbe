"""Standard output whose reader or terminal has gone: what is still written to it goes nowhere."""

from __future__ import annotations

import os
from typing import Any


def lead_nowhere(stream: Any) -> None:
    """Let a stream's descriptor lead to the null device: what Python still holds of it is written once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
