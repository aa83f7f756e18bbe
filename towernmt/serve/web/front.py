"""The outermost layer: it measures and logs each request, and answers for what goes wrong inside."""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from towernmt.serve.refusal import Refusal
from towernmt.serve.service import Service
from towernmt.serve.web.call import refused
from towernmt.serve.web.going import ClientGone
from towernmt.serve.web.logs import REQUESTS

log = logging.getLogger(__name__)
requests_log = logging.getLogger(REQUESTS)
_TOO_MANY = Refusal(431, "The headers are larger than this server reads.")
GONE_STATUS = 499
"""What the log says where the client went before it was answered (as nginx does)."""


class Front:
    """An ASGI application around another one."""

    def __init__(self, app: Any, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
                answer = refused(_TOO_MANY, lambda refusal: {"error": str(refusal)})
                await answer(scope, receive, watched)
            else:
                await self._app(scope, receive, watched)
        except ClientGone:
            status = GONE_STATUS
        except Exception as error:  # noqa: BLE001 -- the client gets an answer, and the log the places
            log.error("A request failed.", exc_info=error, extra={"fields": {"event": "failure", "id": number}})
            if not status:
                await _fail(watched)
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


async def _fail(send: Any) -> None:
    body = b'{"error": "The server failed; its log says where.", "message": "The server failed; its log says where."}'
    await send({"type": "http.response.start", "status": 500, "headers": [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})
