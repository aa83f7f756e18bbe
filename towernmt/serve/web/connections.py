"""Connections with time limits: uvicorn waits as long as a client likes for its headers, and for it to read."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from towernmt.serve.limits import Limits


class Connection(H11Protocol):
    """A connection that is closed when headers take too long, the client does not read, or there are too many others.

    Attributes:
        limits: of the server; set by `limited`.
    """

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client is there; its headers are waited for."""
        super().connection_made(transport)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, b"Too many connections: try again in a moment.\n", b"1")
            return
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_waiting()
        self._is_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:       # the headers are not whole
            if self._late is None:
                self._wait_for_headers()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """The client may send the next request, and has sent part of it perhaps."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.trailing_data[0]:
            self._unset_keepalive_if_required()
            self._wait_for_headers()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._is_read()
        super().resume_writing()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _wait_for_headers(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(self.limits.header_seconds, self._too_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
            self._refuse(408, b"The headers did not come in time.\n")

    def _refuse(self, status: int, text: bytes, retry_after: bytes = b"") -> None:
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode()), (b"connection", b"close")]
        if retry_after:
            headers.append((b"retry-after", retry_after))
        if self.conn.our_state is h11.IDLE:
            response = h11.Response(status_code=status, headers=headers)
            for event in (response, h11.Data(data=text), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def limited(limits: Limits) -> type[Any]:
    """The class of connections with these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
