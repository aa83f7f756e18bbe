"""Callers of the server: API keys, rate limits, and client addresses reported by trusted proxies.

- Keys are stored in a file, one line of JSON per key, with a salted hash instead of the key. Keys are random, so they
  cannot be guessed and a fast hash suffices. A key contains its id, which identifies its line; the rest is compared
  in constant time.
- Rates are token buckets (Turner 1986), which limit what a caller may request per minute and refill over time.
- A proxy appends the address of its peer to `X-Forwarded-For`. Any client can send this header, so only the entries
  that trusted proxies (`--trusted-proxy`) have written count: it is read from its end, and the first address that does
  not belong to a trusted proxy is the client. `Forwarded`, `X-Real-IP` and `X-Forwarded-Host` are ignored, since
  proxies pass them on unchanged by default.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import write_text
from towernmt.core.structured_files import JSONError, typed_value
from towernmt.serve.request_limits import RequestError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
log = logging.getLogger(__name__)
SCHEMES = ("http", "https")


class Proxies:
    """The trusted proxies of a server.

    Args:
        networks: addresses or networks such as 10.0.0.0/8.

    Raises:
        SettingsError: a value is neither.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [_network(network) for network in networks]

    def resolve(self, scope: MutableMapping[str, Any]) -> None:
        """Set the client's address and the scheme of a request (a scope of ASGI) as trusted proxies report them."""
        peer = _address(scope["client"][0]) if self._networks and scope.get("client") else None
        if peer is None or not self._trusts(peer):
            return
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        hops = [hop for name, value in headers if name == b"x-forwarded-for"
                for hop in value.decode("latin-1").split(",")]
        scope["client"] = (str(self._client(peer, hops)), 0)
        schemes = [value.decode("latin-1").strip().lower() for name, value in headers if name == b"x-forwarded-proto"]
        if schemes and schemes[-1] in SCHEMES:
            scope["scheme"] = schemes[-1]

    def _client(self, peer: Address, hops: Sequence[str]) -> Address:
        """Return the last address that a trusted proxy has written, from the end of the list."""
        for hop in reversed(hops):
            address = _address(hop)
            if address is None:     # a proxy that writes `unknown`: nothing before it can be believed
                return peer
            peer = address
            if not self._trusts(address):
                return address
        return peer

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _network(name: str) -> Network:
    try:
        network = ip_network(name.strip())
    except ValueError as error:
        raise SettingsError(f"--trusted-proxy {name}: {error}. Write an address, as 192.0.2.7 or 2001:db8::7, or a "
                            "network, as 10.0.0.0/8.") from None
    mapped = isinstance(network, IPv6Network) and network.prefixlen >= 96 and network.network_address.ipv4_mapped
    return ip_network((mapped, network.prefixlen - 96)) if mapped else network


def _address(text: str) -> Address | None:
    """Return an address that may have brackets and a port; None if it is something else.

    An IPv4 address that is written as IPv6 (`::ffff:192.0.2.7`) is the IPv4 address.
    """
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


MAX_CALLERS = 10_000
"""Maximum number of callers that the server remembers; the least recently active ones are forgotten, start again with a
full bucket, and with 0 characters in the report of their usage."""


class Rates:
    """Token buckets of all callers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def take(self, caller: str, unit: str, amount: float, per_minute: float) -> None:
        """Take an amount from a caller's bucket. A bucket may be overdrawn once, which delays later requests.

        Args:
            caller: identifier of the caller.
            unit: unit of the amount, in the plural.
            amount: amount to take.
            per_minute: refill per minute, and the size of the bucket, which has space for one request in any case; 0
                means no limit.

        Raises:
            RequestError: the bucket is empty.
        """
        if not per_minute:
            return
        now, size = self._clock(), max(per_minute, 1.0)
        available, updated_at = self._buckets.pop((caller, unit), (size, now))
        available = min(size, available + (now - updated_at) * per_minute / 60)
        allowed = available >= (1 if unit == "requests" else 1e-9)
        self._buckets[caller, unit] = (available - amount if allowed else available), now
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RequestError(429, f"The limit is {per_minute:g} {unit} per minute: wait and try again.",
                               max((1 - available) * 60 / per_minute, 1.0))


PREFIX = "tnmt"
LOCK_SECONDS = 30.0
"""Seconds to wait for another process that changes a file of keys."""


@dataclass(frozen=True)
class KeyEntry:
    """The stored entry of an API key.

    Attributes:
        name: name of the caller in logs and metrics.
        id: hexadecimal identifier of the key, which is its second component.
        salt, hash: hexadecimal; the hash is SHA-256 of salt and secret.
        rate: requests per minute; 0 means the rate of the server.
        characters: characters per minute, likewise.
        admin: whether it may reload models.
    """

    name: str
    id: str
    salt: str
    hash: str
    rate: float = 0.0
    characters: float = 0.0
    admin: bool = False

    def matches(self, secret: str) -> bool:
        """Return whether a secret matches, in constant time."""
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)


_NO_ENTRY = KeyEntry("", "", "00" * 16, "00" * 32)


class KeysFile:
    """The keys in a file, which is read again when it changes.

    Raises:
        SettingsError: the file does not exist.
        DataError: the file is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise SettingsError(f"The file of keys {path} does not exist: create it with `towernmt serve-keys add NAME "
                                f"--keys {path}`.")
        self._stamp: tuple[int, int] | None = self._file_stamp()
        self._entries = {entry.id: entry for entry in read_keys(self.path)}

    def find(self, key: str) -> KeyEntry | None:
        """Return the entry of a key, or None if the key is unknown."""
        self._refresh()
        _, _, rest = key.removesuffix(":fx").partition("_")     # DeepL's clients know free keys by ":fx"
        id, _, secret = rest.partition("_")
        entry = self._entries.get(id, _NO_ENTRY)
        return entry if entry.matches(secret) and entry is not _NO_ENTRY else None

    def _refresh(self) -> None:
        """Read the file again if it changed. If it is missing or damaged, log an error and keep the previous keys."""
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp     # also after an error, which is logged once for each change of the file
        try:
            self._entries = {entry.id: entry for entry in read_keys(self.path)}
        except (OSError, DataError) as error:
            log.error("The file of keys %s was changed, but cannot be read: %s The server uses the previous keys until "
                      "it can.", self.path, error)

    def _file_stamp(self) -> tuple[int, int] | None:
        """Return time and size of the file; None if it is missing."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size


def read_keys(path: Path) -> list[KeyEntry]:
    """Read the entries of a file.

    Raises:
        DataError: a line is damaged.
    """
    entries = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): create new keys in another "
                        "file.") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                entry: KeyEntry = typed_value(json.loads(line), KeyEntry)
                bytes.fromhex(entry.salt + entry.hash)
                entries.append(entry)
            except (JSONError, ValueError) as error:
                raise DataError(f"{path} line {number}: {error}: remove the line and create a new key.") from None
    return entries


def add_key(path: Path, name: str, rate: float = 0.0, characters: float = 0.0, admin: bool = False) -> str:
    """Create a key, and store its hash.

    Returns:
        The key, which is not stored anywhere.

    Raises:
        SettingsError: a key of this name exists.
        DataError: the file is damaged.
    """
    id, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_hex(16)
    with _changed_keys(path) as entries:
        if any(entry.name == name for entry in entries):
            raise SettingsError(f"{path}: a key of {name} already exists; remove it first, or use a different name.")
        entries.append(KeyEntry(name, id, salt, _hash(salt, secret), rate, characters, admin))
    return f"{PREFIX}_{id}_{secret}"


def remove_key(path: Path, name: str) -> None:
    """Remove a key from a file.

    Raises:
        SettingsError: no key has this name.
        DataError: the file is damaged.
    """
    with _changed_keys(path) as entries:
        if all(entry.name != name for entry in entries):
            raise SettingsError(f"{path} has no key of {name}: `towernmt serve-keys list` lists the names.")
        entries[:] = [entry for entry in entries if entry.name != name]


@contextmanager
def _changed_keys(path: Path) -> Iterator[list[KeyEntry]]:
    """Yield the entries of a file, and write the changed list atomically. A new file is readable only by its owner.

    The lock keeps another process from reading the file meanwhile, whose change would otherwise undo this one. If the
    path is a symbolic link, the link stays.
    """
    path = Path(os.path.realpath(path))
    lock = DirectoryLock(path.parent, "towernmt serve-keys")
    lock.acquire(LOCK_SECONDS)
    previous = os.umask(0o077)
    try:
        entries = read_keys(path) if path.is_file() else []
        yield entries
        write_text(path, "".join(json.dumps(asdict(entry)) + "\n" for entry in entries))
    finally:
        os.umask(previous)
        lock.release()


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "replace")).hexdigest()
