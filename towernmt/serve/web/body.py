"""The body of a request, up to a size and in a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from towernmt.serve.refusal import Refusal
from towernmt.serve.web.going import ClientGone

DRAINED_SECONDS = 1.0
"""So long a body that is too large is read on and thrown away: a client that writes does not read the answer."""


async def read_body(receive: Any, stated: str | None, most: int, seconds: float) -> bytes:
    """The body.

    Args:
        receive: of ASGI.
        stated: the header Content-Length.
        most: bytes.
        seconds: until it must be there.
    Raises:
        Refusal: it is too large (413), or comes too slowly (408).
        ClientGone: the client has gone before its end.
    """
    too_large = Refusal(413, f"The body is larger than the {most} bytes that this server reads at once.")
    parts: list[bytes] = []
    size = 0
    if stated is not None and stated.isdecimal() and int(stated[:20]) > most:
        await _drain(receive)
        raise too_large
    try:
        async with asyncio.timeout(seconds):
            async for part in _parts(receive):
                size += len(part)
                if size > most:
                    break
                parts.append(part)
    except TimeoutError:
        raise Refusal(408, f"The body did not come within {seconds:g} seconds.") from None
    if size > most:
        await _drain(receive)
        raise too_large
    return b"".join(parts)


async def _parts(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _drain(receive: Any) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAINED_SECONDS):
            async for _ in _parts(receive):
                pass
