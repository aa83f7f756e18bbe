"""The process of the server: it opens the port, answers, reloads its models on SIGHUP, and stops on SIGTERM.

SIGTERM refuses new requests. The server ends when all accepted requests are answered; after `--stop-seconds` it answers
the rest with an error. Until then clients can follow their documents. A second SIGTERM ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn

from towernmt.core.errors import SettingsError
from towernmt.serve.application import make_app
from towernmt.serve.language_detection import detect_languages
from towernmt.serve.request_limits import RequestError
from towernmt.serve.service import Service
from towernmt.serve.web.connections import connection_class

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
