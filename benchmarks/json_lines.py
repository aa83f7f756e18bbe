"""Read and append files of results, one JSON object per line; a killed process may leave the last line unfinished.

Imports only the standard library, since `quality_clock.py` uses it inside other programs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file in order, without an unfinished last line; an empty list if the file is missing.

    Raises:
        ValueError: a line is not a JSON object.
    """
    records = []
    for number, line in enumerate((path.read_bytes() if path.exists() else b"").split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: not a result; remove the line.")
        records.append(record)
    return records


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record durably (fsync), replacing an unfinished last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        content = file.read()
        complete_bytes = content.rfind(b"\n") + 1
        if complete_bytes < len(content):
            file.truncate(complete_bytes)
        file.write((json.dumps(record) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
