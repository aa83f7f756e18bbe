"""The server: an ASGI application with the routes of all interfaces and of the page, and the process that runs it.

The process opens the port, answers, reloads its models on SIGHUP, and stops on SIGTERM. SIGTERM refuses new requests.
The server ends when all accepted requests are answered; after `--stop-seconds` it answers the rest with an error.
Until then clients can follow their documents. A second SIGTERM ends it at once.

Connections have time limits here, because uvicorn waits without limit for a client that sends headers slowly, that goes
on sending a body which the server discards, or that does not read its answer.

The files of the page have a type, an ETag and a strict content security policy.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from towernmt.core.errors import SettingsError
from towernmt.serve.api import deepl, libretranslate, native, native_documents, operations
from towernmt.serve.language_detection import detect_languages
from towernmt.serve.request_limits import RequestError, ServerLimits
from towernmt.serve.service import Service
from towernmt.serve.web.http_requests import FAILED, ErrorFormat, RequestMiddleware, error_json, error_response

INDEX = "index.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
"""Browsers revalidate each file, and run scripts of this server only."""


@cache
def page_files() -> dict[str, bytes]:
    """Return the files of the page by name."""
    return {file.name: file.read_bytes() for file in (files("towernmt.serve") / "assets").iterdir()}


def _page_route(name: str) -> Route:
    content = page_files()[name]
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    async def answer(request: Request) -> Response:
        headers = {**HEADERS, "ETag": etag}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=TYPES[name[name.rindex("."):]])

    return Route("/" if name == INDEX else f"/page/{name}", answer, methods=["GET"])


def page_routes() -> list[Route]:
    """Return the routes of the page: `/`, and its other files below `/page/`."""
    return [_page_route(name) for name in page_files()]


MESSAGES = {404: "There is nothing at this address.", 405: "This address takes another method."}
ERROR_FORMATS: dict[str, ErrorFormat] = {"/v2/": deepl.deepl_error, "/v3/": deepl.deepl_error}
"""Functions that return errors as JSON, by path prefix. All other paths use LibreTranslate's format."""


def make_app(service: Service) -> Any:
    """Return the ASGI application of a service."""
    origins = list(service.access.origins)
    cors = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                       allow_headers=["authorization", "content-type", "x-api-key", native_documents.KEY_HEADER],
                       expose_headers=["retry-after"], max_age=3600)] if origins else []
    routes = [*operations.routes(), *native.routes(), *native_documents.routes(), *libretranslate.routes(),
              *deepl.text_routes(), *deepl.glossary_routes(), *deepl.document_routes(),
              *(page_routes() if service.page else [])]
    app = Starlette(routes=routes, middleware=cors,
                    exception_handlers={HTTPException: _no_route, Exception: _failure})
    app.state.service = service
    app.router.redirect_slashes = False
    return RequestMiddleware(app, service, error_format_of)


def error_format_of(path: str) -> ErrorFormat:
    """Return the function that returns the errors of a path as JSON."""
    return next((error_format for prefix, error_format in ERROR_FORMATS.items() if path.startswith(prefix)),
                error_json)


async def _no_route(request: Request, error: Exception) -> Response:
    """Answer a request whose path or method does not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = error_response(RequestError(status, MESSAGES.get(status, FAILED)), error_format_of(request.url.path))
    if status == 405:
        allowed = {method for route in request.app.routes if isinstance(route, Route)
                   and route.path_regex.match(request.url.path) for method in route.methods or ()}
        response.headers["Allow"] = ", ".join(sorted(allowed))
    return response


async def _failure(request: Request, error: Exception) -> Response:
    """Answer a request that failed for an unexpected reason; `RequestMiddleware` logs it."""
    return error_response(RequestError(500, FAILED), error_format_of(request.url.path))


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


log = logging.getLogger(__name__)
ERROR_SHARE, ERROR_SECONDS = 0.2, 2.0
"""Share of `--stop-seconds`, and its maximum, that is reserved for sending errors of unfinished requests."""
GRACE_SECONDS, POLL_SECONDS = 1.0, 0.05
"""Seconds after `--stop-seconds` until the process is killed, and between two checks of the documents."""


MAX_PORT = 65535


_reload_requested = threading.Event()
"""Set by SIGHUP before the server listens."""


def note_reload_signal() -> None:
    """Let SIGHUP reload the models when the server listens; until then, it would end the process."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda number, frame: _reload_requested.set())


def bind(host: str, port: int) -> socket.socket:
    """Open the port before models are loaded.

    Raises:
        SettingsError: the port cannot be opened.
    """
    if not 0 <= port <= MAX_PORT:       # the system would open another port, such as 4464 for 70000
        raise SettingsError(f"--port {port} must be from 0 to {MAX_PORT}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except UnicodeError:
        raise SettingsError(f"--host {host} is not a host name or an address: pass, for example, 0.0.0.0.") from None
    except OSError as error:
        raise _unopened(host, port, error) from None
    return listener


def _unopened(host: str, port: int, error: OSError) -> SettingsError:
    """Return the error for a port that cannot be opened."""
    return SettingsError(f"--host {host} --port {port} cannot be opened ({error.strerror}): choose another port, or "
                         "stop the program that has it.")


def serve(service: Service, listener: socket.socket) -> None:
    """Answer requests until SIGTERM or SIGINT, and then finish the accepted ones.

    Raises:
        SettingsError: another program has opened the port after `bind`.
    """
    limits = service.limits
    config = uvicorn.Config(
        make_app(service), http=connection_class(limits), ws="none", loop="asyncio", lifespan="off", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=int(max(limits.idle_seconds, 1)),
        timeout_graceful_shutdown=int(max(limits.stop_seconds, 1)), h11_max_incomplete_event_size=limits.max_header,
        backlog=1024)
    threading.Thread(target=_load_detector, args=(service,), name="detector", daemon=True).start()
    server = _Server(config, service)
    try:
        server.run([listener])
    except SettingsError:
        service.close()     # threads that build searches must not run while the process ends
        raise
    service.close()
    if server.kill_timer is not None:
        server.kill_timer.cancel()


def _load_detector(service: Service) -> None:
    """Load the language detector, so that no request waits for it."""
    with suppress(RequestError):     # not installed: requests report that
        detect_languages("", service.models.sources)


class _Server(uvicorn.Server):
    """A uvicorn server whose process exits with status 0 after a signal; uvicorn itself would die from the signal.

    Attributes:
        kill_timer: ends the process if a thread does not end in time; None until the server is stopped.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._draining: asyncio.Task[None] | None = None
        self.kill_timer: threading.Timer | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until the server is stopped."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):     # Windows has no handlers of this kind, and Ctrl-C ends the process
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            if _reload_requested.is_set():
                _reload_requested.clear()
                self._reload()
        await super().serve(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers of `serve` in place."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at the sockets and report the URL.

        Raises:
            SettingsError: another program listens at the port. `bind` does not notice a program that has bound the port
                but does not listen yet, such as a second server that loads its models.
        """
        addresses = [listener.getsockname()[:2] for listener in sockets or []]
        try:
            await super().startup(sockets)
        except OSError as error:
            host, port = addresses[0]
            raise _unopened(host, port, error) from None
        for host, port in addresses:
            log.info("Listening at http://%s:%d.", f"[{host}]" if ":" in host else host, port)

    def _stop(self) -> None:
        if self._draining is not None:
            log.info("Stopping immediately.")
            self._kill_after(GRACE_SECONDS)
            self._fail_unfinished()
            self.should_exit = self.force_exit = True
            return
        log.info("Stopping: finishing the accepted requests.")
        loop, seconds = asyncio.get_running_loop(), self._service.limits.stop_seconds
        self._kill_after(seconds + GRACE_SECONDS)
        accepted_seconds = seconds - min(seconds * ERROR_SHARE, ERROR_SECONDS)
        self._service.stop_accepting(accepted_seconds)
        loop.call_later(accepted_seconds, self._fail_unfinished)
        self._draining = loop.create_task(self._drain(loop.time() + seconds))

    async def _drain(self, end: float) -> None:
        """Wait until documents are translated and fetched, then stop; uvicorn waits for running requests."""
        loop = asyncio.get_running_loop()
        while self._service.documents.unfetched() and loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
        self.config.timeout_graceful_shutdown = end - loop.time()  # type: ignore[assignment]
        self.should_exit = True

    def _fail_unfinished(self) -> None:
        self._service.fail_unfinished()
        asyncio.get_running_loop().call_later(POLL_SECONDS, self._service.abandon_threads)

    def _kill_after(self, seconds: float) -> None:
        if self.kill_timer is not None:
            self.kill_timer.cancel()
        self.kill_timer = threading.Timer(seconds, _kill)
        self.kill_timer.daemon = True
        self.kill_timer.start()

    def _reload(self) -> None:
        log.info("Reloading the models.")
        self._service.reload_in_background()


def _kill() -> None:
    """End the process although a thread is still busy, for example with a long batch."""
    log.warning("The server ends before all its threads have: --stop-seconds are over.")
    logging.shutdown()
    os._exit(0)
