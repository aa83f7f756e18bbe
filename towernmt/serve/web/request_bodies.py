"""The bodies of requests: each is received up to a size and within a time, and all together within a memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from towernmt.serve.request_limits import RequestError, ServerLimits, unavailable

DRAIN_SECONDS = 1.0
"""Seconds to drain a body that is too large, since a client that is still writing does not read the answer."""
FREE_BYTES = 65_536
"""Bytes of each body that do not count towards `--max-bodies`, so that large bodies do not hold up small requests."""


class ClientDisconnected(Exception):  # noqa: N818 -- no error of the server's
    """The client disconnected before the answer."""


class RequestBodies:
    """All bodies that a server is receiving."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._max_bytes = max(limits.max_bodies, limits.max_body, limits.max_document)
        self._bytes = 0
        self._timeouts: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def received(self, receive: Any, content_length: str | None, max_bytes: int) -> AsyncIterator[bytes]:
        """Receive the body of a request, which counts towards the memory of all bodies inside the `async with` block.

        Args:
            receive: ASGI function that receives messages.
            content_length: value of the header Content-Length.
            max_bytes: maximum size in bytes.

        Raises:
            RequestError: the body is too large (413), its time limit is exceeded (408), or the server is receiving too
                many bytes (503).
            ClientDisconnected: the client disconnected before the end of the body.
        """
        body = bytearray()
        try:
            await self._receive(body, receive, content_length, max_bytes)
            yield bytes(body)
        finally:
            self._bytes -= _counted(body)

    def shorten_timeouts(self, end: float) -> None:
        """Limit the time for the bodies that are being received.

        Args:
            end: time of the event loop.
        """
        for timeout in self._timeouts:
            if not timeout.expired():       # an expired one cannot be changed, and its task is about to end
                timeout.reschedule(min(timeout.when() or end, end))

    async def _receive(self, body: bytearray, receive: Any, content_length: str | None, max_bytes: int) -> None:
        if content_length is not None and content_length.isdecimal() and int(content_length[:20]) > max_bytes:
            raise await _drain_and_refuse(receive, max_bytes)
        seconds = self._limits.body_seconds
        try:
            async with asyncio.timeout(seconds) as timeout:
                self._timeouts.add(timeout)
                async for chunk in _chunks(receive):
                    self._bytes -= _counted(body)
                    body += chunk
                    self._bytes += _counted(body)
                    if len(body) > max_bytes:
                        break
                    if self._bytes > self._max_bytes:
                        raise unavailable("The server is receiving too many bytes: try again in a moment.")
        except TimeoutError:
            raise RequestError(408, f"The body did not come within {seconds:g} seconds.") from None
        finally:
            self._timeouts.discard(timeout)
        if len(body) > max_bytes:
            raise await _drain_and_refuse(receive, max_bytes)


def _counted(body: bytearray) -> int:
    """Return the number of bytes of a body that count towards the memory of all bodies."""
    return max(len(body) - FREE_BYTES, 0)


async def _chunks(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _drain_and_refuse(receive: Any, max_bytes: int) -> RequestError:
    """Drain the rest of a body, and return the error that it is too large."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in _chunks(receive):
                pass
    return RequestError(413, f"The body is larger than the {max_bytes} bytes that this server reads at once.")
