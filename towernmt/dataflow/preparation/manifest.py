"""The manifest of prepared data: the content of `manifest.json`, on a disk and in S3, and its checks.

It contains the name and the checksum of every file of the preparation: the shards, and `files` (vocabularies,
validation text, statistics).
"""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from towernmt.core.directories import PREPARED_FORMAT, PREPARED_MANIFEST
from towernmt.core.errors import DataError, remedy
from towernmt.core.files import checked_name
from towernmt.core.structured_files import Between, JSONError, Natural, load_json, typed_value
from towernmt.dataflow.preparation.shards import ShardInfo
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import factor_file, factors_of

FORMAT, MANIFEST = PREPARED_FORMAT, PREPARED_MANIFEST
VERSION: Literal[1] = 1
VOCABULARIES = "vocabulary"
_PREPARE_AGAIN = "Run `towernmt prepare` again."


@dataclass(frozen=True)
class FileInfo:
    """A file other than a shard: its name in the directory, its size, and the CRC-32 of its content."""

    file: str
    bytes: Natural
    crc32: Natural

    def matches(self, content: builtins.bytes) -> bool:
        """Return whether size and checksum fit the content."""
        return (len(content), zlib.crc32(content)) == (self.bytes, self.crc32)


@dataclass(frozen=True)
class VocabularyInfo:
    """Kind and size of a vocabulary."""

    kind: str
    size: Natural


@dataclass(frozen=True)
class VocabularyInfos:
    """The vocabularies of a preparation."""

    source: VocabularyInfo
    target: VocabularyInfo
    source_factors: list[VocabularyInfo]


@dataclass(frozen=True)
class ValidationInfo:
    """A validation set: its name, number of pairs, and number of references."""

    name: str
    pairs: Natural
    references: Annotated[int, Between(1, 1000)]


@dataclass(frozen=True)
class Manifest:
    """The content of the manifest.

    Attributes:
        format: format of the manifest.
        version: version of the format.
        settings: the settings that determine the result.
        inputs: lines, bytes and SHA-256 of each text, and the SHA-256 of the vocabularies that the settings named.
        vocabularies: kinds and sizes of the vocabularies.
        pairs: number of pairs of all shards.
        length_ratio: mean over the pairs of source tokens / target tokens.
        validation_sets: name and size of each validation set.
        shards: the blocks, in their order.
        files: every other file.
        fingerprint: fingerprint of the data for training; see `prepared_fingerprint`.
        notes: sentences for the user.
        folder: folder of the files below the manifest; None if they are next to it. In S3, which cannot rename objects,
            a preparation that replaces another one has a separate folder.
    """

    format: Literal["towernmt-prepared"]
    version: Literal[1]
    settings: dict[str, Any]
    inputs: dict[str, Any]
    vocabularies: VocabularyInfos
    pairs: Natural
    length_ratio: Annotated[float, Between(1e-9, 1e9)]
    validation_sets: list[ValidationInfo]
    shards: list[ShardInfo]
    files: list[FileInfo]
    fingerprint: str
    notes: list[str] = field(default_factory=list)
    folder: str | None = None

    def to_text(self) -> str:
        """Return the content of the file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    def names(self) -> list[str]:
        """Return the names of all files of the preparation except the manifest."""
        return [*(entry.file for entry in self.files), *(shard.file for shard in self.shards)]

    def relative_path(self, name: str) -> str:
        """Return the path of a file, relative to the manifest."""
        return f"{self.folder}/{name}" if self.folder else name

    def file(self, name: str) -> FileInfo | None:
        """Return the entry of a file other than a shard, or None."""
        return next((entry for entry in self.files if entry.file == name), None)


def read_manifest(directory: str | Path) -> Manifest:
    """Read the manifest of a finished preparation.

    Raises:
        DataError: no such directory, not a preparation, not finished, damaged, or of another version.
    """
    path = Path(directory) / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise DataError(f"{path.parent}: the directory does not exist. Make it with `towernmt prepare`.") from None
        raise DataError(f"{path.parent}: no {MANIFEST} there, so preparation did not finish (or this is not "
                        "prepared data). Run `towernmt prepare` again.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). {remedy(error, _PREPARE_AGAIN)}") from error
    return parse_manifest(content, str(path))


def parse_manifest(content: bytes, name: str) -> Manifest:
    """Parse the content of a manifest.

    Args:
        content: content of the file.
        name: name of the file, for messages.

    Raises:
        DataError: damaged, not a manifest, of another version, or it names a file outside its directory.
    """
    try:
        values = load_json(content)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise DataError(f"{name}: not the manifest of prepared data. {_PREPARE_AGAIN}")
        if values.get("version") != VERSION:
            raise DataError(f"{name}: version {str(values.get('version'))[:40]} of prepared data, but this towernmt "
                            f"reads version {VERSION}. {_PREPARE_AGAIN}")
        manifest = typed_value(values, Manifest)
    except JSONError as error:
        raise DataError(f"{name}: {error}. {_PREPARE_AGAIN}") from error
    for file in manifest.names():
        checked_name(manifest.relative_path(file), name)
    return manifest


def describe_files(directory: Path, names: Iterable[str]) -> list[FileInfo]:
    """Return the entries of a manifest for small files of a directory."""
    contents = ((name, (directory / name).read_bytes()) for name in names)
    return [FileInfo(name, len(content), zlib.crc32(content)) for name, content in contents]


def vocabulary_files(source: Vocabulary, target: Vocabulary) -> dict[str, bytes]:
    """Return the content of all files of the vocabularies, by their names in the directory of the preparation."""
    contents: dict[str, Mapping[str, bytes]] = {"source": source.files(), "target": target.files()}
    files = {f"{VOCABULARIES}/{side}{suffix}": content for side, parts in contents.items()
             for suffix, content in parts.items()}
    for number, vocabulary in enumerate(factors_of(source), 1):
        files |= {f"{VOCABULARIES}/{factor_file(number)}": content for content in vocabulary.files().values()}
    return files


def prepared_fingerprint(shards: Iterable[ShardInfo], source: Vocabulary, target: Vocabulary) -> str:
    """Return 32 hexadecimal digits, which differ if ids, factors, links or vocabularies differ.

    They are computed from the checksums and sizes of the shards in their order, and from the content of the
    vocabularies. So copies on a disk and in S3 have the same fingerprint.
    """
    return data_fingerprint([{**dataclasses.asdict(shard), "file": ""} for shard in shards], source, target)


def data_fingerprint(data: Any, source: Vocabulary, target: Vocabulary) -> str:
    """Return 32 hexadecimal digits for a JSON value and the content of the vocabularies."""
    files = {name: hashlib.sha256(content).hexdigest() for name, content in vocabulary_files(source, target).items()}
    return hashlib.sha256(json.dumps([data, files], sort_keys=True).encode()).hexdigest()[:32]
