"""The process: it opens the port, answers, exchanges models on SIGHUP, and stops on SIGTERM when all is answered."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn

from towernmt.core.errors import SettingsError
from towernmt.serve.app import make_app
from towernmt.serve.detection import detect
from towernmt.serve.refusal import Refusal
from towernmt.serve.service import Service
from towernmt.serve.web.connections import limited

log = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """The open port, before models are loaded.

    Raises:
        SettingsError: it cannot be opened.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        raise SettingsError(f"--host {host} --port {port} cannot be opened ({error.strerror}): choose another port, or "
                            "stop the program that has it.") from None
    return opened


def serve(service: Service, opened: socket.socket) -> None:
    """Answer until SIGTERM or SIGINT, then what has been accepted."""
    limits = service.limits
    config = uvicorn.Config(
        make_app(service), http=limited(limits), ws="none", loop="asyncio", lifespan="off", log_config=None,
        access_log=False, server_header=False, timeout_keep_alive=int(max(limits.idle_seconds, 1)),
        timeout_graceful_shutdown=int(max(limits.stop_seconds, 1)), h11_max_incomplete_event_size=limits.max_header,
        backlog=1024)
    threading.Thread(target=_load_detector, args=(service,), name="detector", daemon=True).start()
    _Server(config, service).run([opened])
    service.close()


def _load_detector(service: Service) -> None:
    """Before a request waits for it, and all others with that one."""
    with suppress(Refusal):     # it is not installed, which requests are told
        detect("", service.models.sources)


class _Server(uvicorn.Server):
    """uvicorn's, with signals of our own: its own ends the process by the signal, which is no success."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):     # Windows has no handlers of this kind, and Ctrl-C ends the process
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
            loop.add_signal_handler(signal.SIGHUP, self._exchange)
        await super().serve(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are ours."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        for opened in sockets or []:
            host, port = opened.getsockname()[:2]
            log.info("Listening at http://%s:%d.", f"[{host}]" if ":" in host else host, port)

    def _stop(self) -> None:
        if self.should_exit:
            log.info("Stopping at once.")
            self.force_exit = True
            return
        log.info("Stopping: what is accepted is answered.")
        self._service.stopping = self.should_exit = True

    def _exchange(self) -> None:
        log.info("The models are loaded anew.")
        asyncio.get_running_loop().run_in_executor(None, self._service.exchange)
