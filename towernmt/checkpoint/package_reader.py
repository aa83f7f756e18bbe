"""Read a package, `NAME.towernmt.zip`: its manifest, its stored weights, and its files.

Every name, size and checksum is checked, and nothing in the package is executed or unpickled. Its files are not
compressed, so none of them can be larger than the package itself.

The manifest `towernmt-package.json` lists the weights, the files with their checksums, and the exports. A weight is
stored as float32, as bfloat16 in 16 bits, or as int8 with scales. `towernmt.interop.package_archive` writes packages.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from towernmt.core.directories import PACKAGE_MANIFEST
from towernmt.core.errors import CheckpointError
from towernmt.core.files import DAMAGED_ZIP, checked_name, has_package_manifest
from towernmt.core.structured_files import JSONError, Natural, load_json, typed_value

FORMAT = "towernmt-package"
VERSION = 1
"""The version of packages that this towernmt writes, and the newest that it reads."""
SUFFIX = ".towernmt.zip"
MANIFEST = PACKAGE_MANIFEST
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


_LARGEST = 127
"""int8 is symmetric: -127 to 127."""


class StoredWeight(NamedTuple):
    """A weight in a precision.

    Attributes:
        stored: the precision, as in `WeightInfo`.
        values: float32, uint16 (the upper halves of float32) or int8; other dtypes are stored unchanged.
        scales: for int8, float32 of the rank of `values`, one for each row or for each column; else None.
    """

    stored: Stored
    values: np.ndarray
    scales: np.ndarray | None = None


def store(value: np.ndarray, precision: Precision) -> StoredWeight:
    """Return a weight in a precision. Vectors (biases, norms) stay float32, because they are small and sensitive."""
    if value.dtype != np.float32:
        return StoredWeight("as it is", value)
    if precision == "float32" or value.ndim < 2:
        return StoredWeight("float32", value)
    if precision == "bfloat16":
        return StoredWeight("bfloat16", _upper_halves(value))
    return StoredWeight("int8", *_quantised(value))


def restore(weight: StoredWeight) -> np.ndarray:
    """Return the value of a `StoredWeight`: float32, except values that are stored unchanged."""
    if weight.stored == "bfloat16":
        return (weight.values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if weight.stored == "int8" and weight.scales is not None:
        return np.asarray(weight.values.astype(np.float32) * weight.scales)
    return weight.values


def _upper_halves(value: np.ndarray) -> np.ndarray:
    """Return the values as bfloat16 in uint16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(value).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _quantised(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 values and their scales, for each row or each column (the last axis), whichever is closer."""
    rows, columns = tuple(range(1, value.ndim)), tuple(range(value.ndim - 1))
    return min((_with_scales(value, axes) for axes in (rows, columns)),
               key=lambda pair: float(np.square(pair[0] * pair[1] - value).sum(dtype=np.float64)))


def _with_scales(value: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    scales = np.abs(value).max(axis=axes, keepdims=True, initial=0).astype(np.float32) / np.float32(_LARGEST)
    scales[scales == 0] = 1
    return np.clip(np.rint(value / scales), -_LARGEST, _LARGEST).astype(np.int8), scales


def npy(array: np.ndarray) -> bytes:
    """Return an array in NumPy's format, without pickle."""
    stream = io.BytesIO()
    # `np.ascontiguousarray` would change the shape of a scalar from [] to [1].
    np.lib.format.write_array(stream, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def from_npy(content: bytes) -> np.ndarray:
    """Return the array in a file of NumPy's format, without unpickling or copying.

    Raises:
        ValueError: the content is not such a file, or is truncated.
    """
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("the version of NumPy's format differs")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    if by_columns or dtype.hasobject or len(content) - stream.tell() != dtype.itemsize * math.prod(shape):
        raise ValueError("its size differs from that of its values")
    return np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape)


def _decode_weight(info: WeightInfo, content: bytes, scales: bytes | None) -> np.ndarray:
    """Return a weight from the contents of its files.

    Raises:
        ValueError: the files contradict the manifest.
    """
    values = from_npy(content)
    if list(values.shape) != info.shape:
        raise ValueError(f"its shape is {list(values.shape)}")
    dtype = {"float32": "float32", "bfloat16": "uint16", "int8": "int8"}.get(info.stored)
    if values.dtype.name != dtype if dtype else values.dtype.kind not in "biuf":
        raise ValueError(f"its dtype is {values.dtype.name}")
    factors = from_npy(scales) if scales is not None else None
    if (info.stored == "int8") != (factors is not None):
        raise ValueError("int8 needs scales, and other precisions have none")
    if factors is not None and (factors.dtype != np.float32 or factors.ndim != values.ndim or any(
            size not in (1, dimension) for size, dimension in zip(factors.shape, values.shape, strict=True))):
        raise ValueError(f"its scales are {factors.dtype.name} {list(factors.shape)}")
    return restore(StoredWeight(info.stored, values, factors))


_AGAIN = "download it again."
_LARGEST_MANIFEST = 1 << 26
_CHUNK = 1 << 20
_FILES, _FOLDERS = (CARD, CARD_TEXT, SETTINGS, SHORTLIST), (VOCABULARY, CODE, WEIGHTS, EXPORTS)
"""The files and folders of a package; others could overwrite the caches in its unpacked folder."""


def is_package(location: str | Path) -> bool:
    """Return whether a path is a file with the first bytes of a zip file, which may be a package.

    A file that cannot be read is not known to be a package; `Package` and `open_run` report the reason.
    """
    path = Path(location)
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


class Package:
    """A package that is open until `close` or garbage collection.

    Attributes:
        path: the file.
        manifest: the content of its manifest.
        key: 32 hexadecimal digits for the manifest, and so for every file of the package.

    Raises:
        CheckpointError: the file is not a package, is damaged, of a newer version, or names files outside of it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._zip_errors():
            self._size = self.path.stat().st_size
            self._zip = zipfile.ZipFile(self.path)
        try:
            self._entries = self._checked_entries()
            content = self._manifest_content()
            self.manifest: PackageManifest = parse_package_manifest(content, str(self.path))
            self.key = hashlib.sha256(content).hexdigest()[:32]
            self._check_members()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """Return the files of the package, without the manifest."""
        return list(self.manifest.members)

    def read(self, name: str) -> bytes:
        """Return the content of a file, after checking its SHA-256.

        Raises:
            CheckpointError: the file is damaged.
        """
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks; its SHA-256 is checked after the last chunk."""
        digest = hashlib.sha256()
        with self._zip_errors(name), self._zip.open(self._entries[name]) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != self.manifest.members[name].sha256:
            raise CheckpointError(f"{self.path}: {name} is damaged (its SHA-256 differs from the manifest): {_AGAIN}")

    def check(self, name: str) -> None:
        """Check the SHA-256 of a file.

        Raises:
            CheckpointError: the file is damaged.
        """
        for _ in self.chunks(name):
            pass

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and dequantised value of each weight.

        Raises:
            CheckpointError: a weight is damaged, or contradicts the manifest.
        """
        for name, info in self.manifest.weights.items():
            content, scales = self.read(info.file), self.read(info.scales) if info.scales else None
            try:
                yield name, _decode_weight(info, content, scales)
            except (ValueError, struct.error, SyntaxError, TypeError) as error:
                raise CheckpointError(f"{self.path}: {info.file}: not the {info.stored} values of '{name}' "
                                      f"({' '.join(str(error).split())[:100]}): {_AGAIN}") from None

    def close(self) -> None:
        """Close the file of the package."""
        self._zip.close()

    def _checked_entries(self) -> dict[str, zipfile.ZipInfo]:
        """Return the entries by name, after checking that none is outside of the package, duplicate or compressed."""
        entries: dict[str, zipfile.ZipInfo] = {}
        for entry in self._zip.infolist():
            checked_name(entry.filename, str(self.path))
            if entry.filename in entries:
                raise CheckpointError(f"{self.path} contains {entry.filename} twice: {_AGAIN}")
            entries[entry.filename] = entry
        if MANIFEST not in entries:
            raise CheckpointError(f"{self.path} is not a package of towernmt ({MANIFEST} is missing): pass a file of "
                                  "`towernmt package`, or the directory of a run.")
        for name, entry in entries.items():
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise CheckpointError(f"{self.path}: {name} is compressed or encrypted, so another program has "
                                      "repacked the file: use the original file of `towernmt package`.")
        if sum(entry.file_size for entry in entries.values()) > self._size:
            raise CheckpointError(f"{self.path}: its files are larger than the package itself: {_AGAIN}")
        return entries

    def _manifest_content(self) -> bytes:
        if self._entries[MANIFEST].file_size > _LARGEST_MANIFEST:
            raise CheckpointError(f"{self.path}: {MANIFEST} is too large: {_AGAIN}")
        with self._zip_errors(MANIFEST):
            return self._zip.read(self._entries[MANIFEST])

    def _check_members(self) -> None:
        """Check that the package has every file of the manifest with its size, and no other file."""
        members = self.manifest.members
        for name, member in members.items():
            checked_name(name, str(self.path))
            if name not in self._entries or self._entries[name].file_size != member.bytes:
                problem = "has another size" if name in self._entries else "is missing"
                raise CheckpointError(f"{self.path}: {name} {problem}: {_AGAIN}")
            if name not in _FILES and not ("/" in name and name.partition("/")[0] in _FOLDERS):
                raise CheckpointError(f"{self.path} contains {name}, which does not belong into a package: {_AGAIN}")
        unknown = sorted(self._entries.keys() - members.keys() - {MANIFEST})
        if unknown:
            raise CheckpointError(f"{self.path} contains {unknown[0]}, which {MANIFEST} does not list: {_AGAIN}")

    @contextmanager
    def _zip_errors(self, name: str = "") -> Iterator[None]:
        """Turn exceptions of `zipfile` and of the file system into a `CheckpointError`."""
        try:
            yield
        except DAMAGED_ZIP as error:
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            if name:
                raise CheckpointError(f"{self.path}: {name} is damaged ({reason}): {_AGAIN}") from None
            raise CheckpointError(f"{self.path}: not a package of towernmt, or damaged ({reason}): download it again, "
                                  "or pass the directory of a run.") from None
        except OSError as error:
            raise CheckpointError(f"{self.path}: {name or 'the file'} cannot be read ({error.strerror}): fix the "
                                  f"cause, or {_AGAIN}") from error


def packaged_shortlist(file: str | Path) -> bytes | None:
    """Return the content of the shortlist of a package; None if the file is not a package.

    A shortlist is a zip file, too: one of NumPy's.

    Raises:
        CheckpointError: the package is damaged, or has no shortlist.
    """
    if not has_package_manifest(file):
        return None
    package = Package(file)
    try:
        if SHORTLIST not in package.names():
            raise CheckpointError(f"{file}: the package has no shortlist: pass another package, or a file of `towernmt "
                                  "lexicon`.")
        return package.read(SHORTLIST)
    finally:
        package.close()
