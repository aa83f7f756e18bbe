"""Entries of a zip file that are the same bytes whenever and wherever they are written."""

from __future__ import annotations

import zipfile


def fixed_entry(name: str, compression: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    """An entry for `ZipFile.writestr` and `ZipFile.open`: the first time that zip files know, a plain file for all."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.create_system, entry.external_attr = compression, 3, 0o100644 << 16
    return entry
