"""A loopback HTTP proxy that injects faults by a script, request by request."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_ERROR = ("<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>as the script says</Message>"
          "</Error>")
_HOP = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "expect"}


@dataclass(frozen=True)
class Answer:
    """An error in place of the server's answer."""

    status: int
    code: str


@dataclass(frozen=True)
class Cut:
    """The server's answer, but the connection ends after a number of bytes of its body."""

    after: int
    reset: bool = False


@dataclass(frozen=True)
class Stall:
    """No answer until the proxy stops."""


@dataclass(frozen=True)
class Run:
    """Call a function, then forward the request."""

    action: Callable[[], object]


Fault = Answer | Cut | Stall | Run
INTERNAL_ERROR, SLOW_DOWN = Answer(500, "InternalError"), Answer(503, "SlowDown")


@dataclass(frozen=True)
class Seen:
    """A received request: its method, path, and `Range` header."""

    method: str
    path: str
    range: str | None


class FaultProxy:
    """Listens at `url` and forwards to a server.

    Attributes:
        script: a fault for each of the next requests to which `applies` refers, in order; None forwards the request.
            After its end, all requests are forwarded.
        applies: returns whether the script's next entry is for a request of this method and path.
        seen: every request.
    """

    def __init__(self, server: str) -> None:
        self.script: list[Fault | None] = []
        self.applies: Callable[[str, str], bool] = lambda method, path: True
        self.seen: list[Seen] = []
        self._server = urlsplit(server).netloc
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and release stalled requests."""
        self._stopped.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _next(self, method: str, path: str, headers: Any) -> Fault | None:
        with self._lock:
            self.seen.append(Seen(method, path, headers.get("Range")))
            return self.script.pop(0) if self.script and self.applies(method, path) else None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy._next(self.command, self.path, self.headers)
                if isinstance(fault, Answer):
                    self._refuse(fault)
                elif isinstance(fault, Stall):
                    proxy._stopped.wait()
                    self.close_connection = True
                else:
                    if isinstance(fault, Run):
                        fault.action()
                    self._forward(body, fault if isinstance(fault, Cut) else None)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def _refuse(self, answer: Answer) -> None:
                text = _ERROR.format(code=answer.code).encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            def _forward(self, body: bytes, cut: Cut | None) -> None:
                server = http.client.HTTPConnection(proxy._server, timeout=120)
                try:
                    server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() not in _HOP:
                            server.putheader(name, value)
                    server.endheaders(body or None)
                    answer = server.getresponse()
                    content = b"" if self.command == "HEAD" else answer.read()
                    self.send_response_only(answer.status, answer.reason)
                    for name, value in answer.getheaders():
                        if name.lower() not in (*_HOP, "content-length"):
                            self.send_header(name, value)
                    length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
                    self.send_header("Content-Length", length or "0")
                    self.end_headers()
                    if cut is None:
                        self.wfile.write(content)
                    else:
                        self._cut(content[:cut.after], cut.reset)
                finally:
                    server.close()

            def _cut(self, content: bytes, reset: bool) -> None:
                self.wfile.write(content)
                self.wfile.flush()
                if reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                else:
                    self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
