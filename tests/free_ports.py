"""Ports for servers that a test starts."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress

FIRST_PORT, END_OF_PORTS = 20_000, 32_000
"""Linux gives clients, and servers that let the system choose, no port below 32,768 by default. So a port of this range
stays free until its server opens it, which may take seconds. Ray's workers use ports below 20,000."""


def free_ports(count: int, offsets: Sequence[int] = (0,)) -> list[int]:
    """Return different ports at which no program listens.

    Args:
        count: number of ports.
        offsets: numbers that a server adds to each of its ports; the sums are free, too.
    """
    ports, found = range(FIRST_PORT, END_OF_PORTS - max(offsets)), list[int]()
    with ExitStack() as held:
        # Two processes of pytest may seed the generator of `random` equally.
        for port in random.SystemRandom().sample(ports, len(ports)):
            with suppress(OSError), ExitStack() as sockets:
                for offset in offsets:
                    sockets.enter_context(socket.create_server(("", port + offset)))
                held.enter_context(sockets.pop_all())
                found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"fewer than {count} ports from {ports.start} to {ports.stop - 1} are free")
