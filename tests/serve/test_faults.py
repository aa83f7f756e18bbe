"""The answers of a real server to slow, broken, hostile and oversized requests: a table with one line for each.

After each of them, the server must answer an ordinary request.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import socket
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.processes
TIMEOUT = 60.0
"""Seconds in which the server answers or closes a connection; large, because the machine may be busy."""
GOOD = b'{"q": "guten tag", "source": "de", "target": "en"}'


@dataclass(frozen=True)
class Drip:
    """Bytes that are sent again and again, with a pause of 0.4 s, until the server answers."""

    content: bytes

    def send(self, connection: socket.socket) -> None:
        end = time.monotonic() + TIMEOUT
        while not select.select([connection], [], [], 0.4)[0]:
            assert time.monotonic() < end, "the server waits for the end of the request"
            connection.sendall(self.content)


def send_raw(port: int, *parts: bytes | Drip) -> bytes:
    """Send bytes, and return everything that is received."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        try:
            for part in parts:
                if isinstance(part, Drip):
                    part.send(connection)
                else:
                    connection.sendall(part)
        except OSError:     # it has already answered and closed the connection
            pass
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except OSError:
            pass
        return received


def post(body: bytes, *headers: str, path: str = "/translate", method: str = "POST", kind: str = "application/json",
         length: int | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: a", "Connection: close", *headers]
    if kind:
        lines.append(f"Content-Type: {kind}")
    if not any(header.lower().startswith("transfer-encoding") for header in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8") + body


def form(text: str) -> bytes:
    return post(text.encode(), kind="application/x-www-form-urlencoded")


def translate_request(**values: Any) -> bytes:
    return post(json.dumps({"q": "guten tag", "source": "de", "target": "en", **values}).encode())


def multipart(body: str) -> bytes:
    return post(body.encode(), kind="multipart/form-data; boundary=b", path="/v2/document")


def document(name: str, content: str = "guten tag", **fields: str) -> bytes:
    parts = [f'--b\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
             for field, value in {"target_lang": "en", **fields}.items()]
    return multipart("".join(parts) + f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
                     f'\r\n{content}\r\n--b--\r\n')


CLOSED = 0
"""No answer: the connection is closed."""
TABLE: dict[str, tuple[list[bytes | Drip], int, str]] = {
    # slow
    "a connection that says nothing": ([], 408, "did not come in time"),
    "headers that never end": ([b"POST /translate HTTP/1.1\r\nHost: a\r\n"], 408, "did not come in time"),
    "headers a few bytes at a time": ([b"POST /translate HTTP/1.1\r\n", Drip(b"X-A: b\r\n")], 408, "in time"),
    "half a body": ([post(GOOD[:20], length=len(GOOD))], 408, "did not come within"),
    "a body a byte at a time": ([post(b"{", length=600), Drip(b" ")], 408, "did not come within"),
    "chunks that never end": ([post(b"5\r\n{\"q\":", "Transfer-Encoding: chunked")], 408, "did not come within"),
    # broken
    "no HTTP": ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"], 400, "Invalid HTTP"),
    "a line that is not a request": ([b"HELLO\r\n\r\n"], 400, "Invalid HTTP"),
    "no Host": ([b"GET /health HTTP/1.1\r\n\r\n"], 400, "Invalid HTTP"),
    "two lengths": ([post(GOOD, "Content-Length: 5")], 400, "Invalid HTTP"),
    "a length below zero": ([post(GOOD, length=-1)], 400, "Invalid HTTP"),
    "a length that is not a number": ([post(b"", "Content-Length: many")], 400, "Invalid HTTP"),
    "a length and chunks": ([post(GOOD, "Transfer-Encoding: chunked", "Content-Length: 5")], 408, "come within"),
    "an encoding that nobody knows": ([post(GOOD, "Transfer-Encoding: zip")], 400, "Invalid HTTP"),
    "a chunk without a size": ([post(b"zz\r\nab\r\n0\r\n\r\n", "Transfer-Encoding: chunked")], CLOSED, ""),
    "JSON that is cut off": ([post(GOOD[:-5])], 400, "not valid JSON"),
    "JSON that is a list": ([post(b"[]")], 400, "Send a JSON object"),
    "JSON that is not UTF-8": ([post(b'{"q": "\xff\xfe"}')], 400, "not encoded as UTF-8"),
    "JSON with half a surrogate": ([post(b'{"q": "\\ud800", "source": "de", "target": "en"}')], 400, "UTF-8"),
    "a form that is not UTF-8": ([form("q=%ff%fe&source=de&target=en")], 400, "not encoded as UTF-8"),
    "a query that is not UTF-8": ([post(b"", path="/translate?q=%ff", kind="")], 400, "not encoded as UTF-8"),
    "a form of parts without an end": ([multipart("--b\r\nContent-Disposition: form-data; name=")], 400, "missing"),
    "a form of parts without a boundary": ([post(b"--b", kind="multipart/form-data")], 400, "The form is malformed"),
    "XML in place of JSON": ([post(b"<q>guten tag</q>", kind="application/xml")], 415, "send JSON or a form"),
    # hostile
    "JSON a hundred thousand lists deep": ([post(b'{"q": ' + b"[" * 9_000 + b"]" * 9_000 + b"}")], 400, "too deeply"),
    "a number of ten thousand digits": ([post(b'{"q": ' + b"1" * 10_000 + b"}")], 400, "too long"),
    "JSON with NaN": ([post(b'{"q": NaN, "source": "de", "target": "en"}')], 400, "'q' must be a string"),
    "a path out of the folder": ([post(b"", path="/../../etc/passwd", method="GET")], 404, "nothing at this address"),
    "a path out of the folder in percent": ([post(b"", path="/%2e%2e%2fetc/passwd", method="GET")], 404, "nothing"),
    "a number of a document that is a path": (
        [post(b"", path="/download_file/..%2f..%2fetc/passwd", method="GET")], 404, "nothing at this address"),
    "a file that is named as a path": ([document("../../etc/passwd")], 400, "cannot be translated"),
    "a file that is not UTF-8 by its name": ([document("a.exe")], 400, "cannot be translated"),
    "a thousand headers": ([post(GOOD, *[f"X-{number}: {'a' * 40}" for number in range(1000)])], 431, "headers are"),
    "a header of a megabyte": ([post(GOOD, "X-A: " + "a" * 1_000_000)], 431, "headers are larger"),
    "an address of a megabyte": ([post(GOOD, path="/" + "a" * 1_000_000)], 431, "headers are larger"),
    "a header with a line break in its value": ([post(b"", "X-A: b\r\n c", method="GET", path="/health")], 200, "ok"),
    "another method": ([post(GOOD, method="DELETE")], 405, "another method"),
    "a method that there is not": ([post(GOOD, method="BREW")], 405, "another method"),
    "CONNECT": ([b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"], 404, "nothing"),
    "a web socket": ([b"GET /translate HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n"
                      b"Sec-WebSocket-Key: a\r\n\r\n"], 400, "missing"),
    "a field that is an object": ([translate_request(q={"a": 1})], 400, "'q' must be a string"),
    "a field that is given twice": ([form("q=a&source=de&source=en&target=en")], 400, "passed 2 times"),
    "a target that is a script": ([translate_request(target="<script>alert(1)</script>")], 400, "is not supported"),
    "two thousand fields": ([form("&".join(f"a{number}=1" for number in range(2000)))], 400, "more than 1000 fields"),
    # oversized
    "a body that says it is too large": ([post(GOOD, length=10 ** 12)], 413, "larger than"),
    "a body that is too large": ([post(b" " * 100_000)], 413, "larger than"),
    "chunks that are too large": ([post((b"4e20\r\n" + b" " * 20_000 + b"\r\n") * 2 + b"0\r\n\r\n",
                                        "Transfer-Encoding: chunked")], 413, "larger than"),
    "a text that is too long": ([translate_request(q="ab " * 1000)], 413, "3000 characters"),
    "too many texts": ([translate_request(q=["ab"] * 21)], 413, "21 texts"),
    "too many sentences": ([translate_request(q="a\n" * 60)], 413, "60 sentences"),
    "too many alternatives": ([translate_request(alternatives=10 ** 9)], 400, "alternatives parameter must be <= 2"),
    # unusual, but valid
    "two requests at once": ([b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", post(b"", path="/health", method="GET")],
                             200, "ok"),
    "an empty text": ([translate_request(q="")], 200, "translatedText"),
    "only white space": ([translate_request(q=" \n\t\n ")], 200, "translatedText"),
    "NUL and control characters": ([translate_request(q="guten\x00 \x1b[31mtag\u2028")], 200, "GUTEN"),
    "HTTP/1.0": ([b"GET /health HTTP/1.0\r\n\r\n"], 200, "ok"),
    "HEAD": ([post(b"", path="/health", method="HEAD", kind="")], 200, ""),
    "an offer to wait for 100": ([post(GOOD, "Expect: 100-continue")], 100, "GUTEN TAG"),
}
"""The parts of a request, the status of the first answer, and a text in the answer."""
SLOW = [case for case, (_, status, _) in TABLE.items() if status == 408]


@pytest.fixture(scope="module")
def slow_answers(server):
    """Send the slow requests at the same time, because the server waits a second for each, and return their answers."""
    with ThreadPoolExecutor(len(SLOW)) as pool:
        return dict(zip(SLOW, pool.map(lambda case: send_raw(server.port, *TABLE[case][0]), SLOW), strict=True))


@pytest.mark.parametrize("case", TABLE)
def test_a_request_gets_its_answer(server, request, case):
    parts, status, words = TABLE[case]
    answer = request.getfixturevalue("slow_answers")[case] if case in SLOW else send_raw(server.port, *parts)
    if status == CLOSED:
        assert not answer or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 408")), answer
    else:
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()) and words in answer.decode(), answer[:400]
        assert b"Traceback" not in answer and b"/towernmt/" not in answer
    assert is_healthy(server)


def is_healthy(server: Any) -> bool:
    request = urllib.request.Request(f"{server.url}/translate", GOOD, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        return bool(json.load(answer) == {"translatedText": "GUTEN TAG"})


def status_of_answer(connection: socket.socket) -> int:
    """Read one answer, and return its status."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/nowhere", 404), ("PUT", "/translate", 405),
                                                        ("GET", "/", 200)])
def test_the_rest_of_a_body_after_the_answer_has_a_time_limit(server, method, path, status):
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connection:
        connection.sendall(head)
        assert status_of_answer(connection) == status
        end = time.monotonic() + TIMEOUT
        closed = False
        while not closed:
            assert time.monotonic() < end, "the connection stays open while the body does not end"
            try:
                connection.sendall(b" ")
                closed = bool(select.select([connection], [], [], 0.2)[0]) and connection.recv(65536) == b""
            except OSError:
                closed = True
    assert is_healthy(server)


def test_a_connection_serves_the_next_request_after_the_rest_of_a_body(server):
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connection:
        for _ in range(2):
            connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
            assert status_of_answer(connection) == 404
            connection.sendall(b"0123456789")
        connection.sendall(post(b"", path="/health", method="GET"))
        assert status_of_answer(connection) == 200


def test_a_wrong_body_after_the_answer_closes_the_connection_and_leaves_no_stack_trace(server):
    lines = len(server.lines)
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert status_of_answer(connection) == 404
        connection.sendall(b"zz\r\n")
        assert connection.recv(65536) == b""
    assert is_healthy(server)
    assert not [line for line in server.lines[lines:] if "event" not in line and "Invalid HTTP" not in line["message"]]


def test_what_users_wrote_is_not_in_the_log(server):
    secret = "geheimniswort"
    for body in (GOOD.replace(b"guten tag", secret.encode()), b'{"q": "%s' % secret.encode()):
        send_raw(server.port, post(body), post(body, path=f"/{secret}"), post(body, path=f"/translate?q={secret}"))
    send_raw(server.port, translate_request(q="kill me"))
    assert is_healthy(server)
    failures = [line for line in server.lines if line.get("level") == "error"]
    assert failures and failures[-1]["error"] == "RuntimeError" and "at" in failures[-1]
    logged = json.dumps(server.lines)
    assert secret not in logged and "kill me" not in logged


def test_a_client_that_does_not_read_is_left(start: Callable[..., Any]):
    server = start("--seconds", "1", "--max-document", "20000000", "--max-document-characters", "20000000")
    # In upper case, which the engine returns, the letter has six bytes: the answer exceeds the buffers of sockets.
    sent, length = document("a.txt", "\u0390" * 700_000, source_lang="de"), 4_200_000
    logged = json.loads(send_raw(server.port, sent).rpartition(b"\r\n")[2])
    path, key = f"/v2/document/{logged['document_id']}", f"document_key={logged['document_key']}"
    status = post(b"", path=f"{path}?{key}", kind="", method="GET")
    wait_until(lambda: b'"done"' in send_raw(server.port, status), server.process)
    with socket.socket() as connection:
        connection.settimeout(TIMEOUT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(post(b"", path=f"{path}/result?{key}", kind="", method="GET"))
        server.wait_for("did not read")
        size = 0
        try:
            while part := connection.recv(1_000_000):
                size += len(part)
        except OSError:
            pass
    assert size < length
    assert is_healthy(server)


def test_a_client_that_reads_slowly_is_not_left():
    import uvicorn
    from uvicorn.server import ServerState

    from towernmt.serve.request_limits import ServerLimits
    from towernmt.serve.web.connections import connection_class

    class SlowTransport(asyncio.Transport):
        """Has fewer unsent bytes at two timeouts, and as many at the third one."""

        sizes, aborted = [90, 60, 60, 30, 30, 30], False

        def get_write_buffer_size(self):
            return self.sizes.pop(0)

        def is_closing(self):
            return False

        def close(self):
            pass

        def abort(self):
            self.aborted = True

    async def app(scope, receive, send):
        pass

    async def run():
        transport = SlowTransport()
        connection = connection_class(ServerLimits(seconds=0.01))(
            uvicorn.Config(app, ws="none", lifespan="off", log_config=None), ServerState(), {})
        connection.connection_made(transport)
        connection.pause_writing()
        while not transport.aborted:
            await asyncio.sleep(0.01)
        connection.connection_lost(None)
        return transport.sizes

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT)) == []


def test_a_client_that_goes_frees_its_place(start: Callable[..., Any], tmp_path: Path):
    server = start("--max-queue", "4", "--batch-sentences", "1", "--threads", "1", ECHO_GATE=str(tmp_path))
    texts = post(json.dumps({"q": ["held", "b", "c", "d"], "source": "de", "target": "en"}).encode())
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connection:
            connection.sendall(texts)
            wait_until(lambda: server.metric("towernmt_requests_running") == 1, server.process)
        line = server.wait_for('"event": "request"')
        while line["route"] == "/metrics":
            line = server.wait_for('"event": "request"')
        assert (line["route"], line["status"]) == ("/translate", 499)
    (tmp_path / "open").touch()
    assert is_healthy(server)
