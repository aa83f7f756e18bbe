"""The file of a package: its members with their sums in the manifest, in one order and without times."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from towernmt.checkpoint.packaged.manifest import MANIFEST, MemberInfo, PackageManifest
from towernmt.core.files.fixed_zip import fixed_entry

_CHUNK = 1 << 20

Members = Mapping[str, bytes | Path]
"""The files of a package by their names: their contents, or where these are."""


def write_archive(file: BinaryIO, manifest: PackageManifest, members: Members) -> None:
    """Write a package; the same members give the same bytes.

    Args:
        file: to write to.
        manifest: what it says but for the members.
        members: in the order that they get.
    Raises:
        OSError: it cannot be written, or a member cannot be read.
    """
    told = {name: _info(content) for name, content in members.items()}
    manifest = dataclasses.replace(manifest, members=told)
    text = (json.dumps(manifest.to_json(), indent=1, ensure_ascii=False) + "\n").encode()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(fixed_entry(MANIFEST), text)
        for name, content in members.items():
            if isinstance(content, bytes):
                archive.writestr(fixed_entry(name), content)
                continue
            entry = fixed_entry(name)
            entry.file_size = told[name].bytes      # so that a large one is announced as such
            with content.open("rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target, _CHUNK)


def _info(content: bytes | Path) -> MemberInfo:
    if isinstance(content, bytes):
        return MemberInfo(len(content), hashlib.sha256(content).hexdigest())
    digest = hashlib.sha256()
    with content.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return MemberInfo(content.stat().st_size, digest.hexdigest())
