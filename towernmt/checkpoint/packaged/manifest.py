"""What a package says of itself in `towernmt-package.json`: its weights, its files with their sums, its exports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from towernmt.core.errors import CheckpointError
from towernmt.core.files.json_files import JSONError, Natural, checked, load

FORMAT = "towernmt-package"
VERSION = 1
"""Of the packages that this towernmt writes, and the newest that it reads."""
SUFFIX = ".towernmt.zip"
MANIFEST = "towernmt-package.json"
CARD, CARD_TEXT = "model-card.json", "README.md"
SETTINGS, VOCABULARY, CODE, WEIGHTS, EXPORTS = "settings.yaml", "vocabulary", "code", "weights", "exports"
SHORTLIST = "shortlist.lexicon"

Precision = Literal["float32", "bfloat16", "int8"]
Stored = Literal["float32", "bfloat16", "int8", "as it is"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class MemberInfo:
    """Size and SHA-256 of a file."""

    bytes: Natural
    sha256: str


@dataclass(frozen=True)
class WeightInfo:
    """A weight.

    Attributes:
        file: with its values, in NumPy's format.
        stored: in which precision; `as it is`: NumPy's, of whole numbers for instance.
        shape: of the weight.
        scales: of int8, the file with the float32 scales that the values are multiplied by.
    """

    file: str
    stored: Stored
    shape: list[Natural]
    scales: str | None = None


@dataclass(frozen=True)
class ExportInfo:
    """An export for another engine.

    Attributes:
        folder: where it is in the package.
        format, precision: as `towernmt export` knows them.
    """

    folder: str
    format: str
    precision: str


@dataclass(frozen=True)
class PackageManifest:
    """What the manifest says.

    Attributes:
        format, version: of the package.
        towernmt: the version that wrote it.
        step: of the checkpoint.
        precision: that was asked for.
        averaged: whether the weights are the moving averages of a run that had both.
        weights: by the names of the variables.
        members: every other file of the package.
        exports: for other engines.
        vocabulary: the fingerprint of the vocabularies.
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

    def to_json(self) -> dict[str, Any]:
        """As the file has it."""
        return asdict(self)


def parse_manifest(content: bytes, name: str) -> PackageManifest:
    """The manifest in the content of its file.

    Args:
        name: of the package, for messages.
    Raises:
        CheckpointError: it is damaged, or of a newer version.
    """
    try:
        value = load(content)
        version = value.get("version") if isinstance(value, dict) else None
        if type(version) is int and version > VERSION:
            raise CheckpointError(f"{name}: a package of version {version}, and this towernmt reads version {VERSION}: "
                                  "take a newer towernmt.")
        manifest = checked(value, PackageManifest)
    except JSONError as error:
        raise CheckpointError(f"{name}: {MANIFEST}: {error}. The package is damaged: fetch it again.") from None
    for weight, told in manifest.weights.items():
        for file in (told.file, told.scales):
            if file is not None and file not in manifest.members:
                raise CheckpointError(f"{name}: {MANIFEST} tells of the weight '{weight}' in {file}, which it does not "
                                      "list. The package is damaged: fetch it again.")
    return manifest
