"""Reading a package: every name, size and sum is checked, and nothing in it is executed or unpickled.

Its files are not compressed, so that none of them can be larger than the package itself.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from towernmt.checkpoint.packaged.manifest import (
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
    parse_manifest,
)
from towernmt.checkpoint.packaged.stored_weights import loaded
from towernmt.core.errors import CheckpointError
from towernmt.core.files.outside_names import checked_name

_AGAIN = "fetch it again."
_LARGEST_MANIFEST = 1 << 26
_CHUNK = 1 << 20
_FILES, _FOLDERS = (CARD, CARD_TEXT, SETTINGS, SHORTLIST), (VOCABULARY, CODE, WEIGHTS, EXPORTS)
"""What a package may hold: nothing that would take the place of what is kept beside it, unpacked."""
_DAMAGED = (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error,
            UnicodeDecodeError, OverflowError)
"""What `zipfile` raises at a file that is none, or is damaged."""


def is_package(place: str | Path) -> bool:
    """Whether this is a file that begins as a zip file does, and so may be a package."""
    path = Path(place)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


class Package:
    """A package, open until `close`, or until nothing refers to it any more.

    Attributes:
        path: the file.
        manifest: what it says of itself.
        key: 32 hexadecimal digits of the manifest, and so of every file of the package.
    Raises:
        CheckpointError: it is no package, damaged, of a newer version, or tells of files outside of it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._told():
            self._size = self.path.stat().st_size
            self._zip = zipfile.ZipFile(self.path)
        try:
            self._entries = self._checked_entries()
            content = self._manifest_content()
            self.manifest: PackageManifest = parse_manifest(content, str(self.path))
            self.key = hashlib.sha256(content).hexdigest()[:32]
            self._check_members()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """The files of the package, but for the manifest."""
        return list(self.manifest.members)

    def read(self, name: str) -> bytes:
        """The content of a file, once its sum is found right.

        Raises:
            CheckpointError: it is damaged.
        """
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """As `read`, piece by piece: only behind the last one it is known that the sum is right."""
        digest = hashlib.sha256()
        with self._told(name), self._zip.open(self._entries[name]) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != self.manifest.members[name].sha256:
            raise CheckpointError(f"{self.path}: {name} is not the file that the package was made with (its SHA-256 is "
                                  f"another): {_AGAIN}")

    def check(self, name: str) -> None:
        """Read a file for its sum alone.

        Raises:
            CheckpointError: it is damaged.
        """
        for _ in self.chunks(name):
            pass

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and value of each weight, dequantised.

        Raises:
            CheckpointError: one is damaged, or not what the manifest tells.
        """
        for name, told in self.manifest.weights.items():
            content, scales = self.read(told.file), self.read(told.scales) if told.scales else None
            try:
                yield name, loaded(told, content, scales)
            except (ValueError, struct.error, SyntaxError, TypeError) as error:
                raise CheckpointError(f"{self.path}: {told.file}: not the {told.stored} values of '{name}' "
                                      f"({' '.join(str(error).split())[:100]}): {_AGAIN}") from None

    def close(self) -> None:
        """Close the file."""
        self._zip.close()

    def _checked_entries(self) -> dict[str, zipfile.ZipInfo]:
        """The entries by their names, none outside of the package, none twice, none compressed."""
        entries: dict[str, zipfile.ZipInfo] = {}
        for entry in self._zip.infolist():
            checked_name(entry.filename, str(self.path))
            if entry.filename in entries:
                raise CheckpointError(f"{self.path} holds {entry.filename} twice: {_AGAIN}")
            entries[entry.filename] = entry
        if MANIFEST not in entries:
            raise CheckpointError(f"{self.path} is no package of towernmt ({MANIFEST} is missing): name a file that "
                                  "`towernmt package` wrote, or the directory of a run.")
        for name, entry in entries.items():
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise CheckpointError(f"{self.path}: {name} is compressed or encrypted, so another program has packed "
                                      "it anew: take the file as `towernmt package` wrote it.")
        if sum(entry.file_size for entry in entries.values()) > self._size:
            raise CheckpointError(f"{self.path}: its files are larger than the package itself: {_AGAIN}")
        return entries

    def _manifest_content(self) -> bytes:
        if self._entries[MANIFEST].file_size > _LARGEST_MANIFEST:
            raise CheckpointError(f"{self.path}: {MANIFEST} is too large: {_AGAIN}")
        with self._told(MANIFEST):
            return self._zip.read(self._entries[MANIFEST])

    def _check_members(self) -> None:
        """Every file of the manifest is there with its size, and no other one."""
        members = self.manifest.members
        for name, told in members.items():
            checked_name(name, str(self.path))
            if name not in self._entries or self._entries[name].file_size != told.bytes:
                what = "has another size" if name in self._entries else "is missing"
                raise CheckpointError(f"{self.path}: {name} {what}: {_AGAIN}")
            if name not in _FILES and not ("/" in name and name.partition("/")[0] in _FOLDERS):
                raise CheckpointError(f"{self.path} holds {name}, which has no place in a package: {_AGAIN}")
        unknown = sorted(self._entries.keys() - members.keys() - {MANIFEST})
        if unknown:
            raise CheckpointError(f"{self.path} holds {unknown[0]}, of which {MANIFEST} does not tell: {_AGAIN}")

    @contextmanager
    def _told(self, name: str = "") -> Iterator[None]:
        """What `zipfile` finds wrong is told as an error of the package."""
        try:
            yield
        except _DAMAGED as error:
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            if name:
                raise CheckpointError(f"{self.path}: {name} is damaged ({reason}): {_AGAIN}") from None
            raise CheckpointError(f"{self.path}: not a package of towernmt, or damaged ({reason}): fetch it again, or "
                                  "name the directory of a run.") from None
        except OSError as error:
            raise CheckpointError(f"{self.path}: {name or 'the file'} cannot be read ({error.strerror}): mend that, or "
                                  f"{_AGAIN}") from error
