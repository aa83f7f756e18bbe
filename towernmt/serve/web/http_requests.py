"""A request on its way through the server: the outermost layer, its body, its caller, and its amount of text.

The outermost layer measures and logs each request, and answers for unexpected errors. The body is read up to a size
and within a time. The amount of text counts against the limits and the caller's rate. A client may disconnect before
the answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.language_codes import Direction
from towernmt.serve.batcher import GONE, Ticket
from towernmt.serve.request_limits import Refusal, bad, busy
from towernmt.serve.service import Service
from towernmt.serve.web.observability import REQUESTS
from towernmt.serve.web.request_parameters import Parameters, parse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class ClientGone(Exception):  # noqa: N818 -- no error of the server's
    """The client disconnected before the answer."""


DRAINED_SECONDS = 1.0
"""Seconds to drain a body that is too large, since a client that is still writing does not read the answer."""


async def read_body(receive: Any, stated: str | None, most: int, seconds: float,
                    reading: Callable[[asyncio.Timeout], AbstractContextManager[None]]) -> bytes:
    """Return the body of a request.

    Args:
        receive: ASGI function that receives messages.
        stated: value of the header Content-Length.
        most: maximum size in bytes.
        seconds: time limit for the complete body.
        reading: a context manager for the time of reading; it may shorten that time.

    Raises:
        Refusal: the body is too large (413), or its time limit is exceeded (408).
        ClientGone: the client disconnected before the end of the body.
    """
    parts: list[bytes] = []
    size = 0
    if stated is not None and stated.isdecimal() and int(stated[:20]) > most:
        raise await _too_large(receive, most)
    try:
        async with asyncio.timeout(seconds) as limit:
            with reading(limit):
                async for part in _parts(receive):
                    size += len(part)
                    if size > most:
                        break
                    parts.append(part)
    except TimeoutError:
        raise Refusal(408, f"The body did not come within {seconds:g} seconds.") from None
    if size > most:
        raise await _too_large(receive, most)
    return b"".join(parts)


async def _parts(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _too_large(receive: Any, most: int) -> Refusal:
    """Drain the rest of a body, and return the refusal."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAINED_SECONDS):
            async for _ in _parts(receive):
                pass
    return Refusal(413, f"The body is larger than the {most} bytes that this server reads at once.")


log = logging.getLogger(__name__)
T = TypeVar("T")
Form = Callable[[Refusal], Mapping[str, Any]]
"""Function that formats a refusal for an interface."""
KEY_NAMES = ("api_key", "apiKey", "auth_key")
SCHEMES = ("bearer", "deepl-auth-key")
LOOK_SECONDS = 0.05
"""Seconds between two checks whether a document is translated."""


@dataclass
class Call:
    """A request to an interface, with its parsed parameters and its caller.

    Attributes:
        request: Starlette's request.
        service: the server's state.
        parameters: parameters of the query and the body.
        caller: name of the caller's key, or address of the client.
        ticket: the waiting client, with its time limit.
        noted: fields of the request for the log, in addition to its route and its response.
    """

    request: Request
    service: Service
    parameters: Parameters
    caller: str
    ticket: Ticket
    admin: bool = False
    rate_of_characters: float = 0.0
    noted: dict[str, Any] = field(default_factory=dict)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run a function that waits for translations in a thread, and cancel it if the client disconnects.

        Raises:
            Refusal: raised by the function, or the server is overloaded.
            ClientGone: the client disconnected.
        """
        watch = asyncio.create_task(self._watch())
        try:
            return await self.service.in_thread(self.ticket, function)
        except Refusal as refusal:
            if refusal is GONE:
                raise ClientGone from None
            raise
        except (DataError, SettingsError) as error:
            raise bad(str(error)) from None
        finally:
            watch.cancel()

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Wait without a time limit until `is_over` returns true.

        Raises:
            ClientGone: the client disconnected.
        """
        gone = asyncio.create_task(self._gone())
        try:
            while not is_over():
                await asyncio.wait({gone}, timeout=LOOK_SECONDS)
                if gone.done():
                    raise ClientGone
        finally:
            gone.cancel()

    async def _watch(self) -> None:
        await self._gone()
        self.ticket.end()

    async def _gone(self) -> None:
        """Return when the client has closed the connection."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


Endpoint = Callable[[Call], Awaitable["Response"]]


def endpoint(function: Endpoint, form: Form, most: Callable[[Service], int] | None = None,
             open_to_all: bool = False, follows: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """Return a route's function for Starlette, from a function of a `Call`.

    Args:
        function: answers a `Call`.
        form: formats refusals.
        most: the maximum number of bytes of a body; by default `max_body`.
        open_to_all: whether no key is needed and nothing is counted.
        follows: whether the request belongs to an earlier one, such as a query for the progress of a document. It does
            not count against rates, and a server that is shutting down still answers it.
    """
    async def answer(request: Request) -> Response:
        service: Service = request.app.state.service
        try:
            if service.stopping and not (open_to_all or follows):
                raise busy("The server is shutting down: try again in a moment.")
            parameters = await _parameters(request, most(service) if most else service.limits.max_body, service)
            call = _call(request, service, parameters, open_to_all, follows)
            request.scope["noted"] = call.noted
            return await function(call)
        except Refusal as refusal:
            return refused(refusal, form)

    return answer


def refused(refusal: Refusal, form: Form) -> Response:
    """Return the HTTP response of a refusal."""
    from starlette.responses import JSONResponse

    headers = {} if refusal.retry_after is None else {"Retry-After": str(max(1, round(refusal.retry_after)))}
    if refusal.status in (408, 413):
        headers["Connection"] = "close"     # otherwise the unread rest of the body would be parsed as the next request
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(dict(form(refusal)), refusal.status, headers)


async def _parameters(request: Request, most: int, service: Service) -> Parameters:
    headers = request.headers
    try:
        body = await read_body(request.receive, headers.get("content-length"), most, service.limits.body_seconds,
                               service.reading)
    except Refusal as refusal:
        if refusal.status == 408 and service.stopping:
            raise busy("The server is shutting down: try again in a moment.") from None
        raise
    return await parse(request.scope["query_string"], headers.get("content-type", ""), body)


def _call(request: Request, service: Service, parameters: Parameters, open_to_all: bool,
          follows: bool) -> Call:
    """Check the key and the rate of a request, and return its `Call`.

    Raises:
        Refusal: the key is missing or unknown, or the rate limit is exceeded.
    """
    access, ticket = service.access, Ticket(service.limits.seconds)
    address = request.client.host if request.client else "local"
    if open_to_all:
        return Call(request, service, parameters, address, ticket)
    rate, characters, admin, caller = access.rate, access.characters, False, address
    if access.keys is not None:
        key = _key(request, parameters)
        if key is None:
            raise Refusal(401, "A key is needed: send it as `Authorization: Bearer KEY`, or as 'api_key'.")
        entry = access.keys.find(key)
        if entry is None:
            service.rates.take(address, "attempts with wrong keys", 1, 60)
            raise Refusal(403, "Invalid API key: this key is not known here.")
        caller, admin = entry.name, entry.admin
        rate, characters = entry.rate or rate, entry.characters or characters
    if not follows:
        service.rates.take(caller, "requests", 1, rate)
    call = Call(request, service, parameters, caller, ticket, admin, characters)
    if access.keys is not None:
        call.noted["caller"] = caller
    return call


def _key(request: Request, parameters: Parameters) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in SCHEMES and key.strip():
        return key.strip()
    return request.headers.get("x-api-key") or parameters.text(*KEY_NAMES)


def check_texts(call: Call, direction: Direction | None, texts: Sequence[str], most: int | None = None) -> int:
    """Count the characters of a request.

    Args:
        call: the request.
        direction: translation direction; None means they are not translated.
        texts: texts of the request.
        most: maximum number of characters; by default `max_characters`.

    Returns:
        The number of characters.

    Raises:
        Refusal: there are too many, or the caller has sent too many lately.
    """
    limits = call.service.limits
    most = limits.max_characters if most is None else most
    if len(texts) > limits.max_texts:
        raise Refusal(413, f"The request has {len(texts)} texts: send at most {limits.max_texts} at once.")
    characters = sum(map(len, texts))
    if characters > most:
        raise Refusal(413, f"The request has {characters} characters of text: send at most {most} at once.")
    if direction is not None:
        call.service.rates.take(call.caller, "characters", characters, call.rate_of_characters)
        call.noted |= {"direction": str(direction), "characters": characters}
        call.service.count(call.caller, call.noted["direction"], characters)
    return characters


requests_log = logging.getLogger(REQUESTS)
FAILED = "The server failed; its log says where."
_TOO_MANY = Refusal(431, "The headers are larger than this server reads.")
GONE_STATUS = 499
"""Status in the log if the client disconnected before the answer, as in nginx."""


class Front:
    """The outermost ASGI layer, which measures and logs each request and answers unexpected errors.

    Args:
        app: application to call.
        service: state of the server.
        form_of: returns the function that formats the refusals of a path.
    """

    def __init__(self, app: Any, service: Service, form_of: Callable[[str], Form]) -> None:
        self._app, self._service, self._form_of = app, service, form_of

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request of ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._service.access.proxies.resolve(scope)
        begun, number, status = time.monotonic(), secrets.token_hex(8), 0

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode()),
                                      (b"x-content-type-options", b"nosniff")]
                if self._service.stopping:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            if sum(len(name) + len(value) for name, value in scope["headers"]) > self._service.limits.max_header:
                answer = refused(_TOO_MANY, self._form_of(scope["path"]))
                await answer(scope, receive, watched)
            else:
                await self._app(scope, receive, watched)
        except ClientGone:
            status = GONE_STATUS
        except Exception as error:  # noqa: BLE001 -- the client gets an answer, and the log the places
            log.error("A request failed.", exc_info=error, extra={"fields": {"event": "failure", "id": number}})
            if not status:
                await refused(Refusal(500, FAILED), self._form_of(scope["path"]))(scope, receive, watched)
            status = 500
        finally:
            self._note(scope, number, status, time.monotonic() - begun)

    def _note(self, scope: Any, number: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._service.metrics.add("towernmt_requests_total", route=route, status=str(status))
        self._service.metrics.observe("towernmt_request_seconds", seconds, route=route)
        requests_log.info("", extra={"fields": {
            "event": "request", "id": number, "method": scope["method"][:16], "route": route, "status": status,
            "milliseconds": round(seconds * 1000, 1), **scope.get("noted", {})}})
