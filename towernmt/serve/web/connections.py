"""Connections with time limits.

uvicorn waits without limit for a client that sends headers slowly, that keeps sending a body which the server discards,
or that does not read its answer.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from towernmt.serve.request_limits import ServerLimits

log = logging.getLogger(__name__)


class Connection(H11Protocol):
    """A connection that is closed if headers take too long, a body does not end, or too many others are open.

    It is also closed if the client does not read.

    Attributes:
        limits: of the server; set by `connection_class`.
    """

    limits = ServerLimits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first headers."""
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}      # of headers, of the rest of a body, and of an answer
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, b"Too many connections: try again in a moment.\n", b"1")
            return
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all time limits after the client disconnected."""
        for name in list(self._timers):
            self._cancel_timer(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, and limit the time until the headers are complete."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:       # the headers are incomplete
            if "headers" not in self._timers:
                self._start_header_timer()
        else:
            self._cancel_timer("headers")

    def on_response_complete(self) -> None:
        """Start the time limit for the rest of the body, or for the next request, part of which may already be here.

        h11 discards the rest of a body: of a request that is answered by its address alone, for example.
        """
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._is_discarding_body:
            self._start_timer("body", self.limits.body_seconds, self._on_body_timeout, self.cycle)
        elif self.conn.trailing_data[0]:
            self._unset_keepalive_if_required()
            self._start_header_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP or too many; if an answer has already begun, close the connection instead."""
        error = sys.exc_info()[1]       # which uvicorn handles, and does not pass on
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
        elif self.conn.our_state is h11.IDLE and getattr(error, "error_status_hint", 400) == 431:
            self._refuse(431, b"The headers are larger than this server reads.\n")
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read."""
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        """Stop the time limit for a client that does not read."""
        self._cancel_timer("answer")
        super().resume_writing()

    @property
    def _is_discarding_body(self) -> bool:
        """Whether a request is answered, but the client still sends its body."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _on_body_timeout(self, cycle: object) -> None:
        if self.cycle is cycle and self._is_discarding_body:
            self.transport.close()

    def _on_write_timeout(self, unsent_bytes: int) -> None:
        """Close the connection, unless the client has read something: a large file may take longer than the limit."""
        if self.transport.get_write_buffer_size() < unsent_bytes:
            self._start_write_timer()
            return
        log.info("A client did not read its answer for %g seconds; its connection is closed.", self.limits.seconds)
        self.transport.abort()

    def _start_write_timer(self) -> None:
        self._start_timer("answer", self.limits.seconds, self._on_write_timeout,
                          self.transport.get_write_buffer_size())

    def _start_header_timer(self) -> None:
        self._start_timer("headers", self.limits.header_seconds, self._on_header_timeout)

    def _start_timer(self, name: str, seconds: float, on_timeout: Callable[..., None], *args: object) -> None:
        self._cancel_timer(name)
        self._timers[name] = self.loop.call_later(seconds, on_timeout, *args)

    def _cancel_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _on_header_timeout(self) -> None:
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


def connection_class(limits: ServerLimits) -> type[Any]:
    """Return the class of connections with the limits of a server."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
