"""Which code a process runs: workers of other versions, or of a changed copy, would train other models."""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def code_fingerprint(package: Path = PACKAGE) -> str:
    """16 hexadecimal digits of all Python files of a package: their names and what stands in them."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
