"""The contents of a package, and its archive with checksums."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml

from towernmt.checkpoint.package_manifest import (
    CARD,
    CARD_TEXT,
    CODE,
    EXPORTS,
    MANIFEST,
    SETTINGS,
    SHORTLIST,
    VOCABULARY,
    WEIGHTS,
    ExportInfo,
    MemberInfo,
    PackageManifest,
    WeightInfo,
)
from towernmt.checkpoint.package_reader import packaged_shortlist
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.stored_weights import Precision, npy, store
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files import fixed_entry, replacing
from towernmt.interop.model_card import card_json, card_markdown
from towernmt.models.architectures import ARCHITECTURES

_CHUNK = 1 << 20

Members = Mapping[str, bytes | Path]
"""The files of a package by name: their contents or their paths."""


def write_archive(file: BinaryIO, manifest: PackageManifest, members: Members) -> None:
    """Write a package; equal members result in equal bytes.

    Args:
        file: file to write to.
        manifest: the manifest without the list of members.
        members: the files in the order of the archive.

    Raises:
        OSError: the package cannot be written, or a member cannot be read.
    """
    infos = {name: _info(content) for name, content in members.items()}
    manifest = dataclasses.replace(manifest, members=infos)
    text = (json.dumps(manifest.to_json(), indent=1, ensure_ascii=False) + "\n").encode()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(fixed_entry(MANIFEST), text)
        for name, content in members.items():
            if isinstance(content, bytes):
                archive.writestr(fixed_entry(name), content)
                continue
            entry = fixed_entry(name)
            entry.file_size = infos[name].bytes     # the header of a large member depends on the size
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


def run_members(run: SavedRun, settings: Mapping[str, Any]) -> dict[str, bytes | Path]:
    """Return the files of a run except its weights, by their names in the package.

    Args:
        run: the run.
        settings: result of `model_card.settings_for_card`.

    Raises:
        SettingsError: the shortlist that the run's settings name is missing.
    """
    members: dict[str, bytes | Path] = {
        SETTINGS: yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True).encode()}
    if shortlist := run.saved_settings().get("search.shortlist"):
        if not Path(shortlist).is_file():
            raise SettingsError(f"search.shortlist={shortlist} does not exist, and the package needs this file: put it "
                                f"back, or remove the setting from {run.settings_file}.")
        content = packaged_shortlist(shortlist)
        members[SHORTLIST] = Path(shortlist) if content is None else content
    members |= files_below(run.vocabulary, VOCABULARY)
    return members if run.architecture() in ARCHITECTURES else {**members, **files_below(run.code, CODE)}


def files_below(directory: Path, name: str) -> dict[str, bytes | Path]:
    """Return all files of a directory in sorted order, by their names in the package, which begin with `name`."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{name}/{path.relative_to(directory).as_posix()}": path for path in files}


def weight_members(weights: Mapping[str, np.ndarray], precision: Precision, checkpoint: str
                   ) -> tuple[dict[str, WeightInfo], dict[str, bytes]]:
    """Return the weights in a precision: their entries in the manifest, and their files.

    Args:
        weights: the value of each variable, by name.
        precision: precision of the files.
        checkpoint: the checkpoint, for messages.

    Raises:
        CheckpointError: a value is not finite.
    """
    infos: dict[str, WeightInfo] = {}
    files: dict[str, bytes] = {}
    for name, value in sorted(weights.items()):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise CheckpointError(f"{checkpoint}: the variable '{name}' has values that are not finite, because the "
                                  "training diverged: choose an earlier checkpoint.")
        stored = store(value, precision)
        file, scales = f"{WEIGHTS}/{name}.npy", f"{WEIGHTS}/{name}.scales.npy"
        files[file] = npy(stored.values)
        if stored.scales is not None:
            files[scales] = npy(stored.scales)
        infos[name] = WeightInfo(file, stored.stored, list(value.shape), None if stored.scales is None else scales)
    return infos, files


@dataclass
class PackageContents:
    """The manifest and the members that were collected so far."""

    manifest: PackageManifest
    members: dict[str, bytes | Path] = field(default_factory=dict)

    def add_export(self, directory: Path, format_name: str, precision: str) -> None:
        """Add an export, unless the package has it already."""
        info = ExportInfo(f"{EXPORTS}/{format_name}-{precision}", format_name, precision)
        if info not in self.manifest.exports:
            self.manifest = dataclasses.replace(self.manifest, exports=[*self.manifest.exports, info])
            self.members.update(files_below(directory, info.folder))

    def write(self, output: Path, card: dict[str, Any]) -> None:
        """Write the package with its model card; the file is either complete or missing."""
        card_files = {CARD_TEXT: card_markdown(card), CARD: card_json(card)}
        with replacing(output) as file:
            write_archive(file, self.manifest, {**card_files, **self.members})
