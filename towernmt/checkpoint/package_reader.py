"""Read a package, `NAME.towernmt.zip`: its manifest, its stored weights, and its files.

Every name, size and checksum is checked, and nothing in the package is executed or unpickled. Its files are not
compressed, so none of them can be larger than the package itself. `towernmt.interop.package_archive` writes packages.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

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
    PackageManifest,
    parse_package_manifest,
)
from towernmt.checkpoint.stored_weights import decode_weight
from towernmt.core.errors import CheckpointError
from towernmt.core.files import DAMAGED_ZIP, checked_name, has_package_manifest

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
                yield name, decode_weight(info.stored, info.shape, content, scales)
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
