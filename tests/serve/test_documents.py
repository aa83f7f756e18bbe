"""Documents: progress, cancelling, shares of callers, and the end of the server."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, wait_until
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.serve.batcher import Cancellation
from towernmt.serve.request_limits import RequestError, server_stopping

ECHO = f"{Path(__file__).parent / 'echo_engine.py'}:Echo"
FIELDS = {"source": "de", "target": "en"}


class BlockingEngine:
    """Translates a round each time a test allows it, after `engine` is set."""

    def __init__(self):
        self.rounds, self.is_held = [], False
        self.started, self.released = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, lines, options):
        if self.is_held:
            self.rounds.append(list(lines))
            self.started.release()
            assert self.released.acquire(timeout=PATIENCE)
        return [Translation([Hypothesis(line.upper(), 0.0)]) for line in lines]

    def release_all(self):
        self.is_held = False
        for _ in range(1000):
            self.released.release()


@pytest.fixture
def engine():
    engine = BlockingEngine()
    yield engine
    engine.release_all()


@pytest.fixture
def make_client_with_engine(make_client, engine):
    def make(**settings):
        client = make_client(models={"de-en": engine}, **settings)
        engine.is_held = True
        return client

    yield make
    engine.release_all()


def send(client, text="guten tag", name="a.txt"):
    return client.post("/api/v1/documents", data=FIELDS, files={"file": (name, text)})


def state(client, sent):
    return client.get(f"/api/v1/documents/{sent['id']}", headers={"X-Document-Key": sent["key"]})


def test_a_document_is_followed_fetched_and_forgotten(make_client_with_engine, engine):
    client = make_client_with_engine()
    answer = send(client, "\n".join(f"zeile {number}" for number in range(20)), "a/b\\brief.txt")
    sent = answer.json()
    assert answer.status_code == 202 and sent["name"] == "brief.txt" and sent["sentences"] == 20
    assert engine.started.acquire(timeout=PATIENCE)
    status = state(client, sent).json()
    assert (status["status"], status["translated"], status["seconds_remaining"]) == ("translating", 0, None)
    address = f"/api/v1/documents/{sent['id']}"
    assert client.get(f"{address}/result?key={sent['key']}").status_code == 409
    engine.released.release()
    assert engine.started.acquire(timeout=PATIENCE)
    status = state(client, sent).json()
    assert status["translated"] == 16 and status["seconds_remaining"] >= 1
    engine.released.release()
    wait_until(lambda: state(client, sent).json()["status"] == "done")
    status = state(client, sent).json()
    assert (status["translated"], status["seconds_remaining"], status["characters"]) == (20, 0, 150)
    for _ in range(2):
        download = client.get(f"{address}/result", headers={"X-Document-Key": sent["key"]})
        assert download.text.startswith("ZEILE 0\nZEILE 1\n") and "brief.txt" in download.headers["content-disposition"]
    assert client.delete(address, headers={"X-Document-Key": sent["key"]}).status_code == 204
    assert state(client, sent).status_code == 404


def test_a_large_file_stays_in_memory(make_client, monkeypatch):
    def refuse(**_):
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert send(make_client(), " " * 1_500_000).status_code == 202


def test_a_request_for_headers_alone_does_not_fetch_a_document(make_client):
    client = make_client()
    sent = client.post("/v2/document", data={"target_lang": "en"}, files={"file": ("a.txt", "gut")}).json()
    path, key = f"/v2/document/{sent['document_id']}", {"document_key": sent["document_key"]}
    wait_until(lambda: client.get(path, params=key).json()["status"] == "done")
    for _ in range(2):
        answer = client.head(f"{path}/result", params=key)
        assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "3", b"")
    assert client.get(f"{path}/result", params=key).text == "GUT"
    assert client.get(f"{path}/result", params=key).status_code == 404


@pytest.mark.parametrize("key", ["", "0", None])
def test_a_document_is_seen_with_its_key_alone(make_client, key):
    client = make_client()
    sent = send(client).json()
    headers = {} if key is None else {"X-Document-Key": key}
    for method in (client.get, client.delete):
        assert method(f"/api/v1/documents/{sent['id']}", headers=headers).status_code == (404 if key else 400)
    assert state(client, sent).status_code == 200


def test_a_deleted_document_is_not_translated_any_further(make_client_with_engine, engine):
    client = make_client_with_engine()
    sent = send(client, "a\n" * 300).json()
    assert engine.started.acquire(timeout=PATIENCE)
    assert client.delete(f"/api/v1/documents/{sent['id']}?key={sent['key']}").status_code == 204
    engine.released.release()
    engine.release_all()
    assert client.post("/translate", json={"q": "gut", **FIELDS}).json() == {"translatedText": "GUT"}
    assert sum(map(len, engine.rounds)) == 16


def test_callers_take_turns_and_a_large_document_holds_up_no_small_one():
    from towernmt.dataflow.text.language_codes import Direction
    from towernmt.serve.document_jobs import MAX_CONCURRENT_DOCUMENTS, DocumentJob, Documents
    from towernmt.serve.request_limits import ServerLimits

    documents, order, released = Documents(ServerLimits()), [], threading.Semaphore(0)

    def add(caller, chunks):
        def work(document):
            for _ in range(chunks):
                with documents.turn(document):
                    order.append(caller)
                    assert released.acquire(timeout=PATIENCE)
            return b""

        return documents.add(DocumentJob("a.txt", caller, Direction("de", "en"), 1, 1), work)

    large = [add("anna", 50) for _ in range(5)] + [add("bert", 50) for _ in range(5)]
    wait_until(lambda: len(order) == MAX_CONCURRENT_DOCUMENTS)
    small = add("carla", 1)
    wait_until(lambda: len(documents._waiting) == len(large) + 1 - MAX_CONCURRENT_DOCUMENTS)
    for _ in range(2):
        released.release()
    wait_until(lambda: len(order) == MAX_CONCURRENT_DOCUMENTS + 2)
    for _ in range(1000):
        released.release()
    documents.fail_unfinished()
    documents.close()
    assert order[:MAX_CONCURRENT_DOCUMENTS + 2] == ["anna", "anna", "bert", "carla"]
    assert small.is_finished and len(large) == 10


def test_an_unfinished_document_cannot_be_downloaded_by_any_interface(make_client_with_engine, engine):
    client = make_client_with_engine()
    sent = send(client).json()
    assert engine.started.acquire(timeout=PATIENCE)
    answers = [client.get(f"/download_file/{sent['id']}/{sent['key']}"),
               client.get(f"/api/v1/documents/{sent['id']}/result?key={sent['key']}"),
               client.get(f"/v2/document/{sent['id']}/result?document_key={sent['key']}")]
    assert [answer.status_code for answer in answers] == [409, 409, 503]
    assert all("not been translated yet" in answer.text for answer in answers)
    assert state(client, sent).json()["status"] == "translating"


def test_the_error_of_a_document_that_is_raised_often_keeps_no_stack_frames():
    from towernmt.dataflow.text.language_codes import Direction
    from towernmt.serve.document_jobs import DocumentJob

    document = DocumentJob("a.txt", "anna", Direction("de", "en"), 1, 1)
    document.fail(server_stopping())
    depths = set()
    for _ in range(3):
        with pytest.raises(RequestError) as error:
            document.raise_if_failed()
        depths.add(len(traceback.extract_tb(error.value.__traceback__)))
    assert len(depths) == 1


def test_a_caller_has_a_share_of_the_places_and_fetched_documents_make_place(make_client_with_engine, engine):
    client = make_client_with_engine(limits={"max_caller_documents": 2, "max_documents": 3})
    first, second = send(client).json(), send(client).json()
    refused = send(client)
    assert refused.status_code == 429 and "2 documents here already" in refused.json()["error"]
    assert refused.headers["retry-after"]
    documents = client.service.documents
    documents.ensure_capacity("somebody else")
    assert client.delete(f"/api/v1/documents/{first['id']}?key={first['key']}").status_code == 204
    engine.release_all()
    wait_until(lambda: state(client, second).json()["status"] == "done")
    third = send(client).json()
    wait_until(lambda: state(client, third).json()["status"] == "done")
    assert send(client).status_code == 429
    assert client.get(f"/api/v1/documents/{second['id']}/result?key={second['key']}").status_code == 200
    assert send(client).status_code == 202
    assert state(client, second).status_code == 404 and state(client, third).status_code == 200


@pytest.mark.parametrize("path", ["/api/v1/documents", "/v2/document", "/translate_file"])
def test_the_rate_of_characters_is_of_documents_too_and_looking_is_free(make_client, path):
    client = make_client(access={"characters": 100, "rate": 4})
    fields = {"source": "de", "target": "en", "source_lang": "de", "target_lang": "en"}
    answers = [client.post(path, data=fields, files={"file": ("a.txt", "a" * 90)}) for _ in range(3)]
    assert [answer.status_code // 100 for answer in answers] == [2, 2, 4] and answers[2].status_code == 429
    assert client.post("/translate", json={"q": "gut", **FIELDS}).status_code == 429
    if path == "/api/v1/documents":
        assert {state(client, answers[0].json()).status_code for _ in range(20)} == {200}


@pytest.mark.parametrize("path", ["/api/v1/documents", "/v2/document", "/translate_file"])
@pytest.mark.parametrize("text", ["a\n" * 11, "Ja. " * 11, "a<p>b<p>" * 6])
def test_a_file_of_too_many_sentences_is_refused(make_client, path, text):
    client = make_client(limits={"max_document_sentences": 10})
    fields = {"source": "de", "target": "en", "source_lang": "de", "target_lang": "en"}
    name = "a.html" if "<p>" in text else "a.txt"
    answer = client.post(path, data=fields, files={"file": (name, text)})
    assert answer.status_code == 413 and "sentences: send at most 10" in answer.text


def test_translate_file_takes_longer_than_a_text_may(make_client_with_engine, engine):
    client = make_client_with_engine(limits={"seconds": 0.2})
    engine.is_held = False
    slow = engine.__call__

    def slowly(lines, options):
        threading.Event().wait(0.5)
        return slow(lines, options)

    [model] = client.service.models
    model.batcher.translate = slowly
    answer = client.post("/translate_file", data=FIELDS, files={"file": ("a.txt", "gut")})
    assert client.get(answer.json()["translatedFileUrl"]).text == "GUT"


def test_documents_that_end_with_the_server_say_so(make_client_with_engine, engine):
    client = make_client_with_engine()
    sent, queued = send(client, "a\n" * 300).json(), [send(client).json() for _ in range(4)]
    assert engine.started.acquire(timeout=PATIENCE)
    client.service.fail_unfinished()
    for one in [sent, *queued]:
        status = state(client, one).json()
        assert (status["status"], status["error"]) == ("error", str(server_stopping()))
        assert client.get(f"/v2/document/{one['id']}?document_key={one['key']}").json()["error_message"]
        assert client.get(f"/api/v1/documents/{one['id']}/result?key={one['key']}").status_code == 503
    assert send(client).status_code == 503


def multipart(text):
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
             for name, value in FIELDS.items()]
    return ("".join(parts) + f'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n{text}\r\n'
            "--b--\r\n").encode()


def ask(server, path, body=None, **headers):
    request = urllib.request.Request(f"{server.url}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


KIND = {"Content-Type": "multipart/form-data; boundary=b"}
SLOW = {"ECHO_SECONDS": "0.5"}
SMALL = ("--batch-sentences", "1", "--threads", "1")
BOUND = 40.0
"""Seconds until a server has stopped: more than `--stop-seconds`, because the machine may be busy, and less than the
work that it leaves takes."""


def stopped(server, started):
    assert server.process.wait(PATIENCE) == 0
    return time.monotonic() - started


@pytest.mark.processes
def test_a_stopped_server_ends_documents_and_long_requests_at_the_deadline(start):
    # Documents have their error from 8 s to 10 s after the signal: long enough to see it on a busy machine.
    server = start(*SMALL, "--stop-seconds", "10", "--model", f"en-de={ECHO}", "--model", f"de-en={ECHO}", **SLOW)
    sent = json.loads(ask(server, "/api/v1/documents", multipart("a\n" * 500), **KIND)[1])
    answers = {}

    def also(name, *request, **headers):
        answers[name] = ask(server, *request, **headers)

    long = {"q": ["a"] * 100, "source": "en", "target": "de"}
    threads = [threading.Thread(target=also, args=("file", "/translate_file", multipart("a\n" * 500)), kwargs=KIND),
               threading.Thread(target=also, args=("text", "/translate", json.dumps(long).encode()),
                                kwargs={"Content-Type": "application/json"})]
    for thread, waits in zip(threads, ("towernmt_documents_running 2", "towernmt_requests_running 1"), strict=True):
        thread.start()
        wait_until(lambda waits=waits: waits in ask(server, "/metrics")[1])
    upload = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    upload.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                   b"Expect: 100-continue\r\nContent-Length: 99\r\n\r\n")
    assert b" 100 " in upload.recv(4096)        # the server reads its body
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("Stopping")
    look = f"/api/v1/documents/{sent['id']}?key={sent['key']}"
    assert json.loads(ask(server, look)[1])["status"] == "translating"
    assert ask(server, "/ready")[0] == 503 and ask(server, "/translate?q=a&source=de&target=en")[0] == 503
    status = {}
    while status.get("status") != "error":
        status = json.loads(ask(server, look)[1])
    assert status["error"] == str(server_stopping())
    for thread in threads:
        thread.join()
    assert {name: (status, json.loads(text)["error"]) for name, (status, text) in answers.items()} == {
        name: (503, str(server_stopping())) for name in answers}
    answer = b""
    while part := upload.recv(4096):
        answer += part
    assert b" 503 " in answer.split(b"\r\n")[0]
    assert stopped(server, started) < BOUND


@pytest.mark.processes
def test_a_batch_that_does_not_end_holds_up_no_stop(start):
    server = start(*SMALL, "--stop-seconds", "1", ECHO_SLOW="60")
    ask(server, "/api/v1/documents", multipart("langsam"), **KIND)
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert stopped(server, started) < BOUND


def test_a_request_whose_thread_does_not_look_is_answered_when_the_server_ends(make_client):
    client, released, started = make_client(), threading.Event(), threading.Event()

    async def requests():
        async def one():
            return await client.service.run_in_thread(Cancellation(), lambda: (started.set(), released.wait(PATIENCE)))

        task = asyncio.create_task(one())
        await asyncio.to_thread(started.wait, PATIENCE)
        client.service.fail_unfinished()
        client.service.abandon_threads()
        with pytest.raises(RequestError) as refusal:
            await task
        released.set()
        return refusal.value

    assert str(asyncio.run(requests())) == str(server_stopping())


@pytest.mark.processes
def test_a_second_signal_ends_the_server_at_once(start):
    server = start(*SMALL, ECHO_SLOW="60")
    ask(server, "/api/v1/documents", multipart("langsam"), **KIND)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("Stopping")
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert stopped(server, started) < BOUND


@pytest.mark.processes
def test_a_stopped_server_waits_until_its_documents_are_fetched(start):
    server = start(ECHO_SECONDS="0.3")
    sent = json.loads(ask(server, "/api/v1/documents", multipart("gut"), **KIND)[1])
    server.process.send_signal(signal.SIGTERM)
    look = f"/api/v1/documents/{sent['id']}"
    wait_until(lambda: json.loads(ask(server, f"{look}?key={sent['key']}")[1])["status"] == "done")
    assert ask(server, f"{look}/result?key={sent['key']}") == (200, "GUT")
    assert server.process.wait(PATIENCE) == 0


@pytest.mark.processes
def test_a_file_whose_client_goes_is_not_translated_any_further(start):
    server = start(*SMALL, ECHO_SECONDS="0.1")
    body = multipart("a\n" * 2000)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(f"POST /translate_file HTTP/1.1\r\nHost: a\r\nContent-Type: {KIND['Content-Type']}\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: 'towernmt_queue_sentences{direction="de-en"} 1' in ask(server, "/metrics")[1])
    assert server.wait_for('"status": 499')["route"] == "/translate_file"
    wait_until(lambda: 'towernmt_queue_sentences{direction="de-en"} 0' in ask(server, "/metrics")[1])
