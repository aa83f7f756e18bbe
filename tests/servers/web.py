"""A loopback web server with ranges and ETags, and with faults on demand."""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class WebFiles:
    """Served files by path ("/x.tsv"), which may be changed at any time.

    Attributes:
        files: content by path.
        moved: URL of the redirection by path.
        faults: faults of the next requests, in order: a status, ("cut", bytes of the body), "stall" (no answer until
            the end), or None for no fault.
        ranges, etags, dates, lengths: whether the server supports ranges, and sends ETags, dates and lengths.
        login: required "user:password" in base64, or "".
        requests: (path with query, headers) of each request.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.faults: list[Any] = []
        self.ranges = self.etags = self.lengths = True
        self.dates = False
        self.login = ""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.closing = threading.Event()
        files = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                files.answer(self)

            def log_message(self, *message: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.scheme = "https" if certificate is not None else "http"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append((handler.path, dict(handler.headers)))
        fault = self.faults.pop(0) if self.faults else None
        if fault == "stall":
            self.closing.wait(60)
            return
        path = handler.path.partition("?")[0]
        status = fault if isinstance(fault, int) else 401 if self.login and handler.headers.get(
            "Authorization") != f"Basic {self.login}" else 404 if path not in self.files else 0
        if path in self.moved:
            handler.send_response(302)
            handler.send_header("Location", self.moved[path])
            handler.end_headers()
        elif status:
            handler.send_error(status)
        else:
            self.give(handler, self.files[path], fault[1] if isinstance(fault, tuple) else None)

    def give(self, handler: BaseHTTPRequestHandler, content: bytes, cut: int | None) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", "")) if self.ranges else None
        first = int(match[1]) if match else 0
        end = min(int(match[2]) + 1 if match and match[2] else len(content), len(content))
        if match and first >= len(content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(content)}")
            handler.end_headers()
            return
        handler.send_response(206 if match else 200)
        if match:
            handler.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(content)}")
        if self.etags:
            handler.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        if self.dates:
            handler.send_header("Last-Modified", f"Mon, 01 Jan 2024 00:00:{sum(content) % 60:02d} GMT")
        if self.lengths or match:
            handler.send_header("Content-Length", str(end - first))
        handler.end_headers()
        with contextlib.suppress(OSError):      # the client may disconnect at any time
            handler.wfile.write(content[first:end] if cut is None else content[first:end][:cut])
            if cut is not None and cut < end - first:
                handler.wfile.flush()
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
                handler.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def web_files(certificate: Path | None = None) -> Iterator[WebFiles]:
    """Start a server; with TLS if a file has the key and the certificate."""
    files = WebFiles(certificate)
    try:
        yield files
    finally:
        files.close()
