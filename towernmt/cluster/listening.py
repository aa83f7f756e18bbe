"""Let a TensorFlow server take connections at the address that the cluster names, and at no other of its machine.

TensorFlow binds to all addresses and has no option for it. So the kernel is asked to drop what comes to another
address, by a filter on the socket that listens: on Linux a process may set one on its own sockets (socket(7),
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

from towernmt.cluster.description import Cluster

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER in <asm-generic/socket.h>; Python has no name for it."""
_NETWORK_HEADER = 0x100000000 - 0x100000
"""SKF_NET_OFF in <linux/filter.h>: offsets from here on count from the IP header."""
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
_DROP, _TAKE = 0, 0xFFFFFFFF
_DESTINATION = {4: 16, 6: 24}
"""Where the address of the receiver begins in the header of IPv4 and of IPv6, in bytes."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def listen_narrowly(cluster: Cluster) -> str:
    """Close the port of this process's server, which listens by now, to all addresses but those of its own name.

    Returns:
        a sentence for the log: where it is open, or that it is open everywhere, and why.
    """
    host, port = cluster.workers[cluster.index].rpartition(":")[::2]
    try:
        addresses = _own_addresses(host.strip("[]"))
        reason = _why_not(addresses, cluster)
        addresses = [address for address in addresses if _is_here(address)]
        if not reason:
            attach_filter(int(port), addresses)
    except OSError as error:
        reason = str(error)
    if not reason:
        return f"Port {port} takes connections at {' and '.join(map(str, addresses))}, and at no other address."
    return (f"Port {port} is open at all addresses of this machine ({reason}): whoever reaches it can run anything in "
            "this process, so let only the workers reach it, by a firewall or a network of their own.")


def attach_filter(port: int, addresses: Sequence[Address]) -> None:
    """Let the sockets of this process that listen on a port take connections to these addresses only.

    Args:
        port: of the server.
        addresses: those of this machine that stay open.
    Raises:
        OSError: there is no such socket, or the system has no such filter.
    """
    code = b"".join(struct.pack("=HBBI", *step) for step in _program(addresses))
    steps = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))
    found = 0
    for listener in _listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        found += 1
    if not found:
        raise OSError(f"no socket of this process listens on port {port}")


def _own_addresses(host: str) -> list[Address]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}, key=str)


def _why_not(addresses: Sequence[Address], cluster: Cluster) -> str:
    """Why others may come to another address than those that the own name has here; "" where they do not."""
    if not sys.platform.startswith("linux"):
        return "only Linux can narrow it"
    hosts = [worker.rpartition(":")[0] for worker in cluster.workers]
    host = hosts[cluster.index]
    named = host.strip("[]") not in map(str, addresses)
    if named and len(set(hosts)) > 1 and any(address.is_loopback for address in addresses):
        return f"{host} is a loopback address here, as Debian's /etc/hosts has it, and another one for the others"
    if not any(map(_is_here, addresses)):
        return f"{addresses[0]}, which the cluster names, is an address of another machine that forwards here"
    return ""


def _is_here(address: Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _listeners(port: int) -> Iterator[socket.socket]:
    """The sockets of this process that listen on a port, each as a copy that is closed afterwards."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):     # a descriptor that is gone by now, or no socket
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if listens and one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port:
                    yield one


def _program(addresses: Sequence[Address]) -> list[tuple[int, int, int, int]]:
    """Steps (code, to skip if true, to skip if false, value): take what is sent to one of the addresses."""
    steps = []
    for address in addresses:
        at = _NETWORK_HEADER + _DESTINATION[address.version]
        words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
        left = 2 * len(words) + 1       # steps of this address after the first comparison
        steps += [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT_RIGHT, 0, 0, 4),
                  (_IF_EQUAL, 0, left, address.version)]
        for number, word in enumerate(words):
            left -= 2
            steps += [(_LOAD_WORD, 0, 0, at + 4 * number), (_IF_EQUAL, 0, left, word)]
        steps.append((_RETURN, 0, 0, _TAKE))
    return [*steps, (_RETURN, 0, 0, _DROP)]
