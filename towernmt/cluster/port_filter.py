"""Restrict the port of a TensorFlow server to the addresses of its own host name.

TensorFlow binds to all addresses and has no option to change that. So a filter on the listening socket makes the kernel
drop packets to other addresses. On Linux, a process may set such a filter on its own sockets (socket(7),
SO_ATTACH_FILTER). It is a classic BPF program (McCanne and Jacobson, The BSD Packet Filter, 1993).
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from towernmt.cluster.cluster_description import Cluster

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER in <asm-generic/socket.h>, which Python does not define."""
_NETWORK_HEADER = 0x100000000 - 0x100000
"""SKF_NET_OFF in <linux/filter.h>: the offset of the IP header."""
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
_DROP, _ACCEPT = 0, 0xFFFFFFFF
_DESTINATION = {4: 16, 6: 24}
"""Offset of the destination address in the header of IPv4 and of IPv6, in bytes."""
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def restrict_listening(cluster: Cluster) -> str:
    """Restrict the port of this process's running server to the addresses of its own host name.

    Returns:
        a message for the log: the open addresses, or the reason why the port is open at all addresses.
    """
    host, port = cluster.workers[cluster.index].rpartition(":")[::2]
    try:
        addresses = _resolve_addresses(host.strip("[]"))
        reason = _why_unrestricted(addresses, cluster)
        addresses = [address for address in addresses if _is_local(address)]
        if not reason:
            attach_filter(int(port), addresses)
    except OSError as error:
        reason = str(error)
    if not reason:
        return f"Port {port} accepts connections at {' and '.join(map(str, addresses))}, and at no other address."
    return (f"Port {port} is open at all addresses of this machine ({reason}). Anyone who reaches it can run anything "
            "in this process, so restrict it to the workers by a firewall or a separate network.")


def attach_filter(port: int, addresses: Sequence[IPAddress]) -> None:
    """Restrict the sockets of this process that listen on a port to connections to some addresses.

    Args:
        port: the port of the server.
        addresses: the addresses of this machine that stay open.

    Raises:
        OSError: no socket listens on the port, or the system does not support filters.
    """
    code = b"".join(struct.pack("=HBBI", *step) for step in _bpf_program(addresses))
    steps = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))
    restricted = 0
    for listener in _listening_sockets(port):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        restricted += 1
    if not restricted:
        raise OSError(f"no socket of this process listens on port {port}")


def _resolve_addresses(host: str) -> list[IPAddress]:
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in infos}, key=str)


def _why_unrestricted(addresses: Sequence[IPAddress], cluster: Cluster) -> str:
    """Return why other workers may connect to another address than those of the own host name here, or ""."""
    if not sys.platform.startswith("linux"):
        return "only Linux can restrict it"
    hosts = [worker.rpartition(":")[0] for worker in cluster.workers]
    host = hosts[cluster.index]
    is_name = host.strip("[]") not in map(str, addresses)
    if is_name and len(set(hosts)) > 1 and any(address.is_loopback for address in addresses):
        return f"{host} is a loopback address here, as in Debian's /etc/hosts, but not on the other machines"
    if not any(map(_is_local, addresses)):
        return f"{addresses[0]} in the cluster is an address of another machine that forwards here"
    return ""


def _is_local(address: IPAddress) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _listening_sockets(port: int) -> Iterator[socket.socket]:
    """Yield the sockets of this process that listen on a port, each as a copy that is closed afterwards."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):     # the descriptor was closed, or is not a socket
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if listens and copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == port:
                    yield copy


def _bpf_program(addresses: Sequence[IPAddress]) -> list[tuple[int, int, int, int]]:
    """Return a BPF program of (code, skip if true, skip if false, value) that accepts packets to the addresses."""
    steps = []
    for address in addresses:
        offset = _NETWORK_HEADER + _DESTINATION[address.version]
        words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
        remaining = 2 * len(words) + 1       # steps of this address after the first comparison
        steps += [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT_RIGHT, 0, 0, 4),
                  (_IF_EQUAL, 0, remaining, address.version)]
        for index, word in enumerate(words):
            remaining -= 2
            steps += [(_LOAD_WORD, 0, 0, offset + 4 * index), (_IF_EQUAL, 0, remaining, word)]
        steps.append((_RETURN, 0, 0, _ACCEPT))
    return [*steps, (_RETURN, 0, 0, _DROP)]
