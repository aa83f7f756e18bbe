"""A request on its way through the server: what it says, who asks, and what is noted of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from towernmt.core.errors import DataError, SettingsError
from towernmt.serve.engine.work import GONE, Ticket
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.service import Service
from towernmt.serve.web.body import read_body
from towernmt.serve.web.going import ClientGone
from towernmt.serve.web.parameters import Parameters, parse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger(__name__)
T = TypeVar("T")
Form = Callable[[Refusal], Mapping[str, Any]]
"""How an interface writes a refusal."""
KEY_NAMES = ("api_key", "apiKey", "auth_key")
SCHEMES = ("bearer", "deepl-auth-key")


@dataclass
class Call:
    """A request.

    Attributes:
        request: Starlette's.
        service: the server's state.
        parameters: what it says.
        caller: who asks: the name of a key, or an address.
        ticket: as long as somebody waits.
        noted: what the log has of it, beside its route and its answer.
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
        """What a function gives, which waits for translations; given up when the client goes.

        Raises:
            Refusal: what the function raises, or there is too much to do.
            ClientGone: nobody waits for it any more.
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

    def check(self) -> None:
        """Raises:
            Refusal: the request has taken too long.
        """
        if (why := self.ticket.why_over()) is not None:
            raise why

    async def _watch(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
        self.ticket.leave()


Endpoint = Callable[[Call], Awaitable["Response"]]


def endpoint(function: Endpoint, form: Form, most: Callable[[Service], int] | None = None,
             open_to_all: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """A route's function for Starlette, from one of a `Call`.

    Args:
        form: of refusals.
        most: bytes of a body; by default `max_body`.
        open_to_all: whether no key is needed and nothing is counted.
    """
    async def answer(request: Request) -> Response:
        service: Service = request.app.state.service
        try:
            parameters = await _parameters(request, most(service) if most else service.limits.max_body, service)
            call = _call(request, service, parameters, open_to_all)
            request.scope["noted"] = call.noted
            return await function(call)
        except Refusal as refusal:
            return refused(refusal, form)

    return answer


def refused(refusal: Refusal, form: Form) -> Response:
    """The answer that a refusal is."""
    from starlette.responses import JSONResponse

    headers = {} if refusal.retry_after is None else {"Retry-After": str(max(1, round(refusal.retry_after)))}
    if refusal.status in (408, 413):
        headers["Connection"] = "close"     # what has not been read of the body is no further request
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(dict(form(refusal)), refusal.status, headers)


async def _parameters(request: Request, most: int, service: Service) -> Parameters:
    headers = request.headers
    body = await read_body(request.receive, headers.get("content-length"), most, service.limits.body_seconds)
    return await parse(request.scope["query_string"], headers.get("content-type", ""), body)


def _call(request: Request, service: Service, parameters: Parameters, open_to_all: bool) -> Call:
    """The request of somebody who may make it.

    Raises:
        Refusal: the key is missing or unknown, or the caller has asked for too much lately.
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
            raise Refusal(403, "This key is not known here.")
        caller, admin = entry.name, entry.admin
        rate, characters = entry.rate or rate, entry.characters or characters
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
