"""A server as a process: it starts, replaces its model without a pause, and stops after answering all requests."""

from __future__ import annotations

import json
import logging
import signal
import threading
import urllib.error
import urllib.request

import pytest

from tests.waiting import PATIENCE, wait_until
from towernmt.core.errors import SettingsError

pytestmark = pytest.mark.processes
RUNNING, QUEUED = "towernmt_requests_running", 'towernmt_queue_sentences{direction="de-en"}'


@pytest.fixture(autouse=True)
def own_log():
    """Restore the log of this process after a command has changed it."""
    logs = [logging.getLogger(name) for name in ("towernmt", "uvicorn.error")]
    former = [(log, list(log.handlers), log.level, log.propagate) for log in logs]
    yield
    for log, handlers, level, propagate in former:
        log.handlers[:], log.propagate = handlers, propagate
        log.setLevel(level)


def translate(server, text="gut"):
    """Return the status and the answer; 0 if no server listens."""
    body = json.dumps({"q": text, "source": "de", "target": "en"}).encode()
    request = urllib.request.Request(f"{server.url}/translate", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)["translatedText"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]
    except OSError as error:
        return 0, str(error)


def test_what_is_accepted_is_answered_before_the_end_and_what_comes_then_is_refused(start, tmp_path):
    server = start(ECHO_GATE=str(tmp_path))
    answers: list[tuple[int, str]] = []
    threads = [threading.Thread(target=lambda: answers.append(translate(server, "held"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.metric(RUNNING) == 8, server.process)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("Stopping")
    (tmp_path / "open").touch()
    for thread in threads:
        thread.join()
    assert answers == [(200, "HELD")] * 8
    assert server.process.wait(PATIENCE) == 0
    assert translate(server)[0] == 0


def test_a_model_is_reloaded_without_a_pause_and_a_broken_one_changes_nothing(start, tmp_path):
    mark = tmp_path / "mark"
    mark.write_text("first")
    server = start(ECHO_FILE=str(mark))
    statuses, over = [], threading.Event()

    def ask() -> None:
        while not over.is_set():
            statuses.append(translate(server))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for text, words in (("second", "was replaced"), ("broken", "was not replaced"), ("third", "was replaced")):
            mark.write_text(text)
            server.process.send_signal(signal.SIGHUP)
            server.wait_for(words)
            assert translate(server)[1] == ("second GUT" if text == "broken" else f"{text} GUT")
    finally:
        over.set()
        thread.join()
    assert {status for status, _ in statuses} == {200}
    assert {text for _, text in statuses} <= {"first GUT", "second GUT", "third GUT"}


def test_a_signal_to_reload_during_the_start_reloads_when_the_server_listens(start, tmp_path):
    engine = tmp_path / "engine.py"
    engine.write_text("""
import os
import signal
from pathlib import Path

from towernmt.predict import Hypothesis, Translation

LOADED = Path(__file__).with_suffix(".loaded")


class Engine:
    def __init__(self):
        if not LOADED.exists():
            LOADED.touch()
            os.kill(os.getpid(), signal.SIGHUP)

    def __call__(self, sentences, options):
        return [Translation([Hypothesis(sentence, 0.0)]) for sentence in sentences]
""")
    server = start("--model", f"de-en={engine}:Engine")
    wait_until(lambda: "was replaced" in json.dumps(server.lines), server.process)
    assert translate(server) == (200, "gut")


def test_too_many_requests_are_refused_at_once_and_the_others_answered(start, tmp_path):
    server = start("--max-queue", "2", "--batch-sentences", "1", "--threads", "1", ECHO_GATE=str(tmp_path))
    answers: list[tuple[int, str]] = []
    accepted = [threading.Thread(target=lambda: answers.append(translate(server, "held"))) for _ in range(3)]
    accepted[0].start()
    wait_until((tmp_path / "reached").exists, server.process)       # the engine translates the first request
    for thread in accepted[1:]:
        thread.start()
    wait_until(lambda: server.metric(QUEUED) == 2, server.process)
    assert [translate(server)[0] for _ in range(9)] == [503] * 9
    (tmp_path / "open").touch()
    for thread in accepted:
        thread.join()
    assert answers == [(200, "HELD")] * 3


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["--model", "nowhere"], "does not name its languages"),
    (["--model", "de-en=nowhere"], "nowhere: the path does not exist"),
    (["--model", "german=nowhere"], "'german' is not a pair of languages"),
    (["--model", "de-en=nowhere", "--keys", "nowhere"], "does not exist: create it"),
    (["--model", "de-en=nowhere", "--max-queue", "0"], "--max-queue 0"),
    (["--model", "de-en=nowhere.py:Engine"], "the file nowhere.py does not exist"),
    (["--model", "de-en=nowhere", "--precision", "int8"], "nowhere: the path does not exist"),   # CTranslate2 has int8
    (["--model", "de-en=nowhere", "--precision", "int7"], "--precision int7: --engine auto supports float32"),
    (["--model", "de-en=nowhere", "--precision", "int8", "--engine", "graph"],
     "--precision int8: --engine graph supports float32"),
    (["--model", "de-en=nowhere", "--host", "192.0.2.1"], "cannot be opened"),
    (["--model", "de-en=nowhere", "--host", "a..b"], "--host a..b is not a host name or an address"),
    (["--model", "de-en=nowhere", "--port", "70000"], "--port 70000 must be from 0 to 65535"),
    (["--model", "de-en=nowhere", "--port", "-1"], "--port -1 must be from 0 to 65535"),
    (["--model", "de-en=nowhere", "--seconds", "1e10"], "--seconds 10000000000.0 must be above 0 and at most 4000000"),
    (["--model", "de-en=nowhere", "--stop-seconds", "1e10"], "--stop-seconds 10000000000.0 must be above 0"),
    (["--model", "de-en=nowhere", "--cors", "https://example.org/page"],
     "--cors https://example.org/page must be a scheme and an ASCII host without a path"),
    (["--model", "de-en=nowhere", "--cors", "example.org"], "--cors example.org must be a scheme"),
    (["--model", "de-en=nowhere", "--cors", "https://bücher.example"], "must be a scheme and an ASCII host"),
    (["--model", "de-en=nowhere", "--source-prefix", "de-fr=<2fr>"],
     "--source-prefix de-fr=<2fr>: no --model has this direction, only de-en"),
    (["--model", "de-en=nowhere", "--source-prefix", "<2en>"], "--source-prefix <2en>: write the direction before"),
    (["--model", "de-en=nowhere", "--source-prefix", "de-en=a", "de_en=b"], "this direction already has a prefix"),
    (["--model", "de-en=nowhere", "--rate", "-5"], "--rate -5 must be a number from 0"),
    (["--model", "de-en=nowhere", "--rate-characters", "nan"], "--rate-characters nan must be a number from 0")])
def test_what_cannot_be_served_is_one_sentence(arguments, sentence, capsys, monkeypatch, tmp_path):
    from towernmt.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--port", "0", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_a_port_that_another_server_opened_while_the_models_were_loaded_is_one_sentence(make_client):
    from towernmt.serve.server import bind, serve

    service = make_client().service
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    try:
        with pytest.raises(SettingsError, match=f"--host 127.0.0.1 --port {port} cannot be opened"):
            second = bind("127.0.0.1", port)        # Linux allows this until one of them listens
            first.listen()
            with second:
                serve(service, second)
    finally:
        first.close()


def allowed_origin(server, origin):
    """Return the origins that may read the answer to a request of a page from one origin."""
    request = urllib.request.Request(f"{server.url}/health", headers={"Origin": origin})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.headers["Access-Control-Allow-Origin"]


def test_an_origin_may_be_written_as_an_address(start):
    origins = {"https://a.example/": "https://a.example", "HTTPS://B.example:443": "https://b.example",
               "http://c.example:80/": "http://c.example", "https://d.example:8443": "https://d.example:8443",
               "http://[::1]:5000": "http://[::1]:5000"}
    server = start("--cors", *origins)
    for origin in origins.values():
        assert allowed_origin(server, origin) == origin
    assert allowed_origin(server, "https://e.example") is None
    assert allowed_origin(start("--cors", "*"), "https://e.example") == "*"


def test_the_largest_limits_in_seconds_work(start):
    server = start(*(argument for name in ("seconds", "header-seconds", "body-seconds", "idle-seconds", "stop-seconds",
                                           "keep-documents") for argument in (f"--{name}", "4000000")))
    assert translate(server) == (200, "GUT")
    assert server.stop() == 0
