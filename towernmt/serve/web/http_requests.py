"""A request on its way through the server: the outermost layer, its caller, its parameters, and its amount of text.

The outermost layer measures and logs each request, and answers for unexpected errors. A key in the headers or the query
is checked before the body is read. The amount of text counts against the limits and the caller's rate. A client may
disconnect before the answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.language_codes import Direction
from towernmt.serve.batcher import Cancellation
from towernmt.serve.request_limits import DISCONNECTED, RequestError, bad_request, unavailable
from towernmt.serve.service import Service
from towernmt.serve.web.observability import REQUESTS
from towernmt.serve.web.request_bodies import ClientDisconnected
from towernmt.serve.web.request_parameters import Parameters, parse_parameters, parse_query

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger(__name__)
T = TypeVar("T")
ErrorFormat = Callable[[RequestError], Mapping[str, Any]]
"""Function that returns the JSON of an error in the format of an interface."""
KEY_NAMES = ("api_key", "apiKey", "auth_key")
SCHEMES = ("bearer", "deepl-auth-key")
POLL_SECONDS = 0.05
"""Seconds between two checks whether a document is translated."""


@dataclass
class Call:
    """A request to an interface, with its parsed parameters and its caller.

    Attributes:
        request: Starlette's request.
        service: the server's state.
        parameters: parameters of the query and the body.
        caller: name of the caller's key, or address of the client.
        cancellation: cancels the translation if the client disconnects, or after the time limit.
        admin: whether the caller may reload models.
        characters_per_minute: rate limit of the caller; 0 means no limit.
        log_fields: fields of the request for the log, in addition to its route and its response.
    """

    request: Request
    service: Service
    parameters: Parameters
    caller: str
    cancellation: Cancellation
    admin: bool = False
    characters_per_minute: float = 0.0
    log_fields: dict[str, Any] = field(default_factory=dict)

    async def run_in_thread(self, function: Callable[[], T]) -> T:
        """Run a function that waits for translations in a thread, and cancel it if the client disconnects.

        Raises:
            RequestError: raised by the function, or the server is overloaded.
            ClientDisconnected: the client disconnected.
        """
        watcher = asyncio.create_task(self._cancel_on_disconnect())
        try:
            return await self.service.run_in_thread(self.cancellation, function)
        except RequestError as error:
            if error.status == DISCONNECTED:
                raise ClientDisconnected from None
            raise
        except (DataError, SettingsError) as error:
            raise bad_request(str(error)) from None
        finally:
            watcher.cancel()

    async def wait_until(self, is_finished: Callable[[], bool]) -> None:
        """Wait without a time limit until `is_finished` returns true.

        Raises:
            ClientDisconnected: the client disconnected.
        """
        disconnect = asyncio.create_task(self._wait_for_disconnect())
        try:
            while not is_finished():
                await asyncio.wait({disconnect}, timeout=POLL_SECONDS)
                if disconnect.done():
                    raise ClientDisconnected
        finally:
            disconnect.cancel()

    async def _cancel_on_disconnect(self) -> None:
        await self._wait_for_disconnect()
        self.cancellation.cancel()

    async def _wait_for_disconnect(self) -> None:
        """Return when the client has closed the connection."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


Endpoint = Callable[[Call], Awaitable["Response"]]


def endpoint(handler: Endpoint, error_format: ErrorFormat, max_body: Callable[[Service], int] | None = None,
             public: bool = False, is_follow_up: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """Return a route's function for Starlette, from a function of a `Call`.

    Args:
        handler: answers a `Call`.
        error_format: formats errors.
        max_body: returns the maximum size of a body in bytes; None means the server's `max_body`.
        public: whether no key is needed and nothing is counted.
        is_follow_up: whether the request belongs to an earlier one, such as a query for the progress of a document. It
            does not count against rates, and a server that is shutting down still answers it.
    """
    async def answer(request: Request) -> Response:
        service: Service = request.app.state.service
        try:
            if service.stopping and not (public or is_follow_up):
                raise unavailable("The server is shutting down: try again in a moment.")
            max_bytes = max_body(service) if max_body else service.limits.max_body
            call = await _receive_call(request, service, max_bytes, public, is_follow_up)
            request.scope["log_fields"] = call.log_fields
            return await handler(call)
        except RequestError as error:
            return error_response(error, error_format)

    return answer


def error_json(error: RequestError) -> dict[str, Any]:
    """Return an error in the format of LibreTranslate and of the native interface."""
    return {"error": str(error)}


def error_response(error: RequestError, error_format: ErrorFormat) -> Response:
    """Return the HTTP response for an error."""
    from starlette.responses import JSONResponse

    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, math.ceil(round(error.retry_after, 3))))}
    if error.status in (408, 413):
        headers["Connection"] = "close"     # otherwise the unread rest of the body would be parsed as the next request
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(dict(error_format(error)), error.status, headers)


class _Caller(NamedTuple):
    """The caller of a request; see `Call`."""

    name: str
    admin: bool = False
    characters_per_minute: float = 0.0


async def _receive_call(request: Request, service: Service, max_bytes: int, public: bool, is_follow_up: bool) -> Call:
    """Check the caller of a request, read its body, and return its `Call`.

    A key in the headers or the query is checked before the body is read.

    Raises:
        RequestError: the key is missing or unknown, the rate limit is exceeded, or the body cannot be read.
    """
    query = parse_query(request.scope["query_string"])
    needs_body = not public and service.access.keys is not None and _key(request, query) is None
    caller = None if needs_body else _caller(request, service, query, public, is_follow_up)
    parameters = await _parameters(request, query, max_bytes, service)
    if caller is None:      # the key may be in the body, as in requests of LibreTranslate's clients
        caller = _caller(request, service, parameters, public, is_follow_up)
    call = Call(request, service, parameters, caller.name, Cancellation(service.limits.seconds), caller.admin,
                caller.characters_per_minute)
    if service.access.keys is not None and not public:
        call.log_fields["caller"] = caller.name
    return call


async def _parameters(request: Request, query: Parameters, max_bytes: int, service: Service) -> Parameters:
    headers = request.headers
    try:
        async with service.bodies.received(request.receive, headers.get("content-length"), max_bytes) as body:
            return await parse_parameters(query, headers.get("content-type", ""), body)
    except RequestError as error:
        if error.status == 408 and service.stopping:
            raise unavailable("The server is shutting down: try again in a moment.") from None
        raise


def _caller(request: Request, service: Service, parameters: Parameters, public: bool, is_follow_up: bool) -> _Caller:
    """Check the key and the rate of a request, and return its caller.

    Args:
        request: the request.
        service: the server's state.
        parameters: parameters that may contain the key.
        public: as in `endpoint`.
        is_follow_up: as in `endpoint`.

    Raises:
        RequestError: the key is missing or unknown, or the rate limit is exceeded.
    """
    access = service.access
    address = request.client.host if request.client else "local"
    if public:
        return _Caller(address)
    rate, caller = access.rate, _Caller(address, characters_per_minute=access.characters)
    if access.keys is not None:
        key = _key(request, parameters)
        if key is None:
            raise RequestError(401, "A key is needed: send it as `Authorization: Bearer KEY`, or as 'api_key'.")
        entry = access.keys.find(key)
        if entry is None:
            service.rates.take(address, "attempts with wrong keys", 1, 60)
            raise RequestError(403, "Invalid API key: this key is not known here.")
        rate, caller = entry.rate or rate, _Caller(entry.name, entry.admin, entry.characters or access.characters)
    if not is_follow_up:
        service.rates.take(caller.name, "requests", 1, rate)
    return caller


def _key(request: Request, parameters: Parameters) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in SCHEMES and key.strip():
        return key.strip()
    return request.headers.get("x-api-key") or parameters.text(*KEY_NAMES)


def check_texts(call: Call, texts: Sequence[str], options: Sequence[str] = ()) -> None:
    """Check the size of the texts of a request, before work that takes longer for longer texts.

    Args:
        call: the request.
        texts: texts of the request.
        options: its other strings that reach the model, whose characters count towards the limit.

    Raises:
        RequestError: there are too many texts or characters.
    """
    limits = call.service.limits
    if len(texts) > limits.max_texts:
        raise RequestError(413, f"The request has {len(texts)} texts: send at most {limits.max_texts} at once.")
    characters = sum(map(len, (*texts, *options)))
    if characters > limits.max_characters:
        kinds = "text, prefix, phrases and terms" if options else "text"
        raise RequestError(413, f"The request has {characters} characters of {kinds}: send at most "
                                f"{limits.max_characters} at once.")


def count_characters(call: Call, characters: Mapping[Direction, int], other_characters: int = 0) -> None:
    """Count the characters of a request against its caller's rate, and as translated characters.

    Args:
        call: the request.
        characters: number of characters of its texts, by translation direction.
        other_characters: number of characters that count only against the rate.

    Raises:
        RequestError: the caller has sent too many characters lately.
    """
    total = sum(characters.values())
    call.service.rates.take(call.caller, "characters", total + other_characters, call.characters_per_minute)
    call.log_fields |= {"direction": " ".join(map(str, characters)), "characters": total}
    for direction, number in characters.items():
        call.service.count_characters(call.caller, str(direction), number)


requests_log = logging.getLogger(REQUESTS)
FAILED = "The server failed; its log says where."
_HEADERS_TOO_LARGE = RequestError(431, "The headers are larger than this server reads.")


class RequestMiddleware:
    """The outermost ASGI layer, which measures and logs each request and answers unexpected errors.

    Args:
        app: application to call.
        service: state of the server.
        error_format_of: returns the function that formats the errors of a path.
    """

    def __init__(self, app: Any, service: Service, error_format_of: Callable[[str], ErrorFormat]) -> None:
        self._app, self._service, self._error_format_of = app, service, error_format_of

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request of ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._service.access.proxies.resolve(scope)
        started, request_id, status = time.monotonic(), secrets.token_hex(8), 0

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()),
                                      (b"x-content-type-options", b"nosniff")]
                if self._service.stopping:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            # uvicorn limits only a first line and headers that arrive in several parts.
            size = len(scope["path"]) + len(scope["query_string"])
            if size + sum(len(name) + len(value) for name, value in scope["headers"]) > self._service.limits.max_header:
                response = error_response(_HEADERS_TOO_LARGE, self._error_format_of(scope["path"]))
                await response(scope, receive, send_with_headers)
            else:
                await self._app(scope, receive, send_with_headers)
        except ClientDisconnected:
            status = DISCONNECTED
        except Exception as error:  # noqa: BLE001 -- the client gets an answer, and the log the stack trace
            log.error("A request failed.", exc_info=error, extra={"fields": {"event": "failure", "id": request_id}})
            if not status:
                response = error_response(RequestError(500, FAILED), self._error_format_of(scope["path"]))
                await response(scope, receive, send_with_headers)
            status = 500
        finally:
            self._record(scope, request_id, status, time.monotonic() - started)

    def _record(self, scope: Any, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._service.metrics.add("towernmt_requests_total", route=route, status=str(status))
        self._service.metrics.observe("towernmt_request_seconds", seconds, route=route)
        requests_log.info("", extra={"fields": {
            "event": "request", "id": request_id, "method": scope["method"][:16], "route": route, "status": status,
            "milliseconds": round(seconds * 1000, 1), **scope.get("log_fields", {})}})
