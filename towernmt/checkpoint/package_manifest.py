"""The manifest of a package: its weights, the files with their checksums, and the exports.

It is `towernmt-package.json` in the package, and every value that is read from it is checked.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from towernmt.checkpoint.stored_weights import Precision, Stored
from towernmt.core.directories import PACKAGE_MANIFEST
from towernmt.core.errors import CheckpointError
from towernmt.core.structured_files import JSONError, Natural, load_json, typed_value

VERSION = 1
"""The version of packages that this towernmt writes, and the newest that it reads."""
MANIFEST = PACKAGE_MANIFEST
CARD, CARD_TEXT = "model-card.json", "README.md"
SETTINGS, VOCABULARY, CODE, WEIGHTS, EXPORTS = "settings.yaml", "vocabulary", "code", "weights", "exports"
SHORTLIST = "shortlist.lexicon"


@dataclass(frozen=True)
class MemberInfo:
    """Size and SHA-256 of a file."""

    bytes: Natural
    sha256: str


@dataclass(frozen=True)
class WeightInfo:
    """A weight in the manifest.

    Attributes:
        file: the file of the values, in NumPy's format.
        stored: the precision of the values; `as it is`: their dtype in NumPy, such as that of integers.
        shape: the shape of the weight.
        scales: for int8, the file of the float32 scales by which the values are multiplied.
    """

    file: str
    stored: Stored
    shape: list[Natural]
    scales: str | None = None


@dataclass(frozen=True)
class ExportInfo:
    """An export for another engine.

    Attributes:
        folder: its folder in the package.
        format, precision: options of `towernmt export`.
    """

    folder: str
    format: str
    precision: str


@dataclass(frozen=True)
class PackageManifest:
    """The content of a package's manifest.

    Attributes:
        format, version: format and version of the package.
        towernmt: the version of towernmt that wrote it.
        step: the step of the checkpoint.
        precision: the requested precision.
        averaged: whether the weights are the moving averages of a run that had both.
        weights: the weights, by variable name.
        members: every other file of the package.
        exports: exports for other engines.
        vocabulary: the fingerprint of the vocabularies.
        processor_precision: default precision of translation on a processor: int8 if its BLEU was measured to be
            nearly that of float32.
    """

    format: Literal["towernmt-package"]
    version: Literal[1]
    towernmt: str
    step: Natural
    precision: Precision
    averaged: bool
    weights: dict[str, WeightInfo]
    members: dict[str, MemberInfo]
    vocabulary: str
    exports: list[ExportInfo] = field(default_factory=list)
    processor_precision: Literal["float32", "int8"] = "float32"

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return asdict(self)


def parse_package_manifest(content: bytes, name: str) -> PackageManifest:
    """Parse the content of a manifest.

    Args:
        content: the bytes of the file.
        name: the name of the package, for messages.

    Raises:
        CheckpointError: the manifest is damaged, or of a newer version.
    """
    try:
        value = load_json(content)
        version = value.get("version") if isinstance(value, dict) else None
        if type(version) is int and version > VERSION:
            raise CheckpointError(f"{name} is a package of version {version}, but this towernmt reads version "
                                  f"{VERSION}: use a newer towernmt.")
        manifest = typed_value(value, PackageManifest)
    except JSONError as error:
        raise CheckpointError(f"{name}: {MANIFEST}: {error}. The package is damaged: download it again.") from None
    for weight, info in manifest.weights.items():
        for file in (info.file, info.scales):
            if file is not None and file not in manifest.members:
                raise CheckpointError(f"{name}: {MANIFEST} does not list {file} of the weight '{weight}'. The package "
                                      "is damaged: download it again.")
    return manifest
