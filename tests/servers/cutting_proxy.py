"""A loopback TCP proxy that cuts its connections after a number of bytes from the server, at any point of an answer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator


class CuttingProxy:
    """Listens on `port` and forwards everything to a server, until a connection's allowance is used up.

    Attributes:
        port: port on which it listens.
        allowances: bytes from the server that the next connections get, one after another, before they are reset;
            connections after that are left alone.
        cuts: connections that were cut.
    """

    def __init__(self, server_port: int, allowances: list[int]) -> None:
        self.allowances, self.cuts = list(allowances), 0
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:     # closed
                return
            self._open += [client, server]
            allowance = self.allowances.pop(0) if self.allowances else None
            threading.Thread(target=self._pass_on, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, allowance), daemon=True).start()

    def _pass_on(self, giver: socket.socket, taker: socket.socket, allowance: int | None) -> None:
        with contextlib.suppress(OSError):      # either side may disconnect at any time
            while data := giver.recv(65536):
                if allowance is not None and len(data) >= allowance:
                    taker.sendall(data[:allowance])
                    self.cuts += 1
                    break
                taker.sendall(data)
                allowance = None if allowance is None else allowance - len(data)
        for side in (giver, taker):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))   # reset, not end
                side.shutdown(socket.SHUT_RDWR)
            side.close()


@contextlib.contextmanager
def cutting_proxy(server_port: int, allowances: list[int]) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(server_port, allowances)
    try:
        yield proxy
    finally:
        proxy.close()
