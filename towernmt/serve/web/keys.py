"""Keys of callers, in a file: a line of JSON each, with a salted hash in place of the key itself.

A key is made at random here, so that nobody can guess it and a fast hash does. It tells its own number, by which its
line is found; what follows is compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.atomic_files import write_text
from towernmt.core.files.json_files import JSONError, checked

PREFIX = "tnmt"


@dataclass(frozen=True)
class KeyEntry:
    """A caller's key.

    Attributes:
        name: of the caller, as logs and metrics have it.
        number: by which the key is found.
        salt, hash: hexadecimal; SHA-256 of salt and secret.
        rate: requests a minute; 0 for as many as there come.
        characters: a minute; 0 for as many as there come.
        admin: whether it may exchange models.
    """

    name: str
    number: str
    salt: str
    hash: str
    rate: float = 0.0
    characters: float = 0.0
    admin: bool = False

    def fits(self, secret: str) -> bool:
        """Whether this is the secret; takes as long whether or not."""
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)


_NOBODY = KeyEntry("", "", "00" * 16, "00" * 32)


class KeysFile:
    """The keys in a file, which is read again when it has changed."""

    def __init__(self, path: str | Path) -> None:
        """
        Raises:
            SettingsError: there is no such file.
            DataError: it is damaged.
        """
        self.path = Path(path)
        if not self.path.is_file():
            raise SettingsError(f"{path}: there is no such file of keys; make one with `towernmt serve-keys add NAME "
                                f"--keys {path}`.")
        self._stamp = self._stamped()
        self._entries = {entry.number: entry for entry in read_keys(self.path)}

    def find(self, key: str) -> KeyEntry | None:
        """Whose key this is; None: nobody's."""
        self._refresh()
        _, _, rest = key.removesuffix(":fx").partition("_")     # DeepL's clients know free keys by ":fx"
        number, _, secret = rest.partition("_")
        entry = self._entries.get(number, _NOBODY)
        return entry if entry.fits(secret) and entry is not _NOBODY else None

    def _refresh(self) -> None:
        """A file that is gone or damaged meanwhile changes nothing."""
        try:
            stamp = self._stamped()
            if stamp != self._stamp:
                self._entries = {entry.number: entry for entry in read_keys(self.path)}
                self._stamp = stamp
        except (OSError, DataError):
            return

    def _stamped(self) -> tuple[int, int]:
        told = os.stat(self.path)
        return told.st_mtime_ns, told.st_size


def read_keys(path: Path) -> list[KeyEntry]:
    """The entries of a file.

    Raises:
        DataError: a line is damaged.
    """
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                entries.append(checked(json.loads(line), KeyEntry))
            except (JSONError, ValueError) as error:
                raise DataError(f"{path} line {number}: {error}: remove the line, and make a new key.") from None
    return entries


def add_key(path: Path, name: str, rate: float = 0.0, characters: float = 0.0, admin: bool = False) -> str:
    """Make a key, and keep its hash.

    Returns:
        The key, which is nowhere else.
    Raises:
        SettingsError: there is a key of this name.
        DataError: the file is damaged.
    """
    entries = read_keys(path) if path.is_file() else []
    if any(entry.name == name for entry in entries):
        raise SettingsError(f"{path}: there is a key of {name} already; remove it first, or take another name.")
    number, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_hex(16)
    write_keys(path, [*entries, KeyEntry(name, number, salt, _hash(salt, secret), rate, characters, admin)])
    return f"{PREFIX}_{number}_{secret}"


def remove_key(path: Path, name: str) -> None:
    """Raises:
        SettingsError: there is no key of this name.
        DataError: the file is damaged.
    """
    entries = read_keys(path) if path.is_file() else []
    if all(entry.name != name for entry in entries):
        raise SettingsError(f"{path}: there is no key of {name}: `towernmt serve-keys list` names them.")
    write_keys(path, [entry for entry in entries if entry.name != name])


def write_keys(path: Path, entries: list[KeyEntry]) -> None:
    """Write the file; a server reads either the former one or this one. Nobody else may read it."""
    former = os.umask(0o077)
    try:
        write_text(path, "".join(json.dumps(asdict(entry)) + "\n" for entry in entries))
    finally:
        os.umask(former)


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "replace")).hexdigest()
