"""Bodies of requests: who may send how much, and how much the server receives at the same time."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from towernmt.serve.request_limits import RequestError, ServerLimits
from towernmt.serve.web.callers import KeysFile, add_key
from towernmt.serve.web.request_bodies import FREE_BYTES, RequestBodies

ASKED = {"q": "gut", "source": "de", "target": "en"}


@pytest.fixture
def key(tmp_path):
    return add_key(tmp_path / "keys.jsonl", "anna")


@pytest.fixture
def client(make_client, tmp_path, key):
    return make_client(limits={"max_body": 1000}, access={"keys": KeysFile(tmp_path / "keys.jsonl")})


def post(client, path, query="", **headers):
    """Send a request whose body never comes, and return the status and the error of its answer."""
    sent = []

    async def receive():
        raise AssertionError("the server reads the body")

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "scheme": "http",
             "root_path": "", "http_version": "1.1", "client": ("192.0.2.1", 1), "server": ("localhost", 80),
             "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}
    asyncio.run(client.app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


def test_a_wrong_key_is_refused_before_the_body_is_read(client, key):
    wrong = f"{key}x"
    for path in ("/translate", "/translate_file", "/api/v1/documents"):
        for status, error in (post(client, path, authorization=f"Bearer {wrong}"), post(client, path, x_api_key=wrong),
                              post(client, path, f"api_key={wrong}")):
            assert status == 403 and "Invalid API key" in error


def test_a_rate_is_checked_before_the_body_is_read(make_client, tmp_path):
    client = make_client(access={"rate": 1})
    client.service.rates.take("192.0.2.1", "requests", 1, 1)
    assert post(client, "/translate")[0] == 429
    key = add_key(tmp_path / "keys.jsonl", "anna", rate=1)
    client = make_client(access={"keys": KeysFile(tmp_path / "keys.jsonl")})
    client.service.rates.take("anna", "requests", 1, 1)
    assert post(client, "/translate", x_api_key=key)[0] == 429


@pytest.mark.parametrize("path", ["/translate_file", "/api/v1/documents"])
def test_a_document_may_have_its_key_in_its_form(client, key, path):
    def send(**fields):
        files = {"file": ("a.txt", "gut " * 1000)}
        return client.post(path, data={"source": "de", "target": "en", **fields}, files=files)

    assert send(api_key=key).is_success
    assert send().status_code == 401


def test_a_large_text_is_refused_for_its_size(client, key):
    answer = client.post("/translate", json={**ASKED, "q": "gut " * 1000, "api_key": key})
    assert answer.status_code == 413 and "larger than the 1000 bytes" in answer.json()["error"]


def test_bodies_that_are_received_at_the_same_time_have_a_common_limit():
    async def run():
        bodies = RequestBodies(ServerLimits(max_body=100, max_document=100, max_bodies=1000))
        is_open = asyncio.Event()

        async def receive(size, is_held=False):
            chunks = [size] if is_held else [size // 2, size - size // 2]

            async def next_message():
                if not chunks:
                    await is_open.wait()
                    return {"type": "http.request", "body": b""}
                return {"type": "http.request", "body": b" " * chunks.pop(0), "more_body": is_held or bool(chunks)}

            async with bodies.received(next_message, None, 10 ** 9) as body:
                return len(body)

        held = asyncio.create_task(receive(FREE_BYTES + 600, is_held=True))
        await asyncio.sleep(0)
        for _ in range(2):      # what is refused counts no longer
            with pytest.raises(RequestError) as refusal:
                await receive(FREE_BYTES + 401)
            assert refusal.value.status == 503 and refusal.value.retry_after
        assert await receive(FREE_BYTES) == FREE_BYTES
        assert await receive(FREE_BYTES + 400) == FREE_BYTES + 400
        is_open.set()
        assert await held == FREE_BYTES + 600
        assert await receive(FREE_BYTES + 1000) == FREE_BYTES + 1000

    asyncio.run(run())


def test_a_body_whose_time_is_over_at_this_moment_does_not_disturb_a_stop():
    async def run():
        bodies = RequestBodies(ServerLimits(body_seconds=0.01))
        stopped = []

        def stop():
            bodies.shorten_timeouts(0.0)
            stopped.append(True)

        async def receive():
            async with bodies.received(asyncio.Event().wait, None, 100):
                pass

        body = asyncio.create_task(receive())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, stop)
        time.sleep(0.05)        # the event loop then handles both timers before the task of the body
        with pytest.raises(RequestError) as refusal:
            await body
        assert refusal.value.status == 408 and stopped

    asyncio.run(run())


def test_a_document_of_the_largest_size_is_received_though_the_limit_of_all_bodies_is_smaller(make_client):
    client = make_client(limits={"max_bodies": 1})
    files = {"file": ("a.txt", "gut\n" * 100_000)}
    answer = client.post("/api/v1/documents", data={"target": "en"}, files=files)
    assert answer.status_code == 413 and "sentences" in answer.json()["error"]
