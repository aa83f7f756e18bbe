"""Files of results, a line of JSON each, whose last line a killed process may have left unfinished.

Nothing but Python's library is imported, as by `quality_clock.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_records(path: Path) -> list[dict[str, Any]]:
    """What the lines of a file say, in order; none if it is not there. An unfinished last line does not count.

    Raises:
        ValueError: another line is no JSON object.
    """
    found = []
    for number, line in enumerate((path.read_bytes() if path.exists() else b"").split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: this is no result; remove the line.")
        found.append(record)
    return found


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line, in place of an unfinished last one; it is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
        file.write((json.dumps(record) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
