"""The polling of workers, and the effect of an answer, no answer and a refusal, with real gRPC servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from tests.waiting import PATIENCE
from towernmt.cluster import worker_watch
from towernmt.cluster.worker_watch import WaitHook, Waits, Watch, WorkerConnection, polled_workers, wait_for_all
from towernmt.core.tf_compat import tf1


@contextmanager
def server(handler: Callable[[bytes], bytes]) -> Iterator[str]:
    """Yield the address of a server that answers each poll with the result of `handler`."""
    method = grpc.unary_unary_rpc_method_handler(lambda question, _: handler(question))
    service = grpc.method_handlers_generic_handler("tensorflow.WorkerService", {"GetStatus": method})
    running = grpc.server(ThreadPoolExecutor(2))
    running.add_generic_rpc_handlers([service])
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        running.stop(None).wait()


@pytest.fixture
def unused_address() -> Iterator[str]:
    """Yield a reserved address at which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("process, processes, asked", [
    (0, 2, [1]), (1, 2, [0]), (0, 4, [1, 3]), (1, 4, [0, 2]), (2, 4, [0, 1, 3]), (3, 4, [0, 2])])
def test_a_worker_asks_the_first_one_and_those_beside_it(process: int, processes: int, asked: list[int]) -> None:
    assert polled_workers(process, processes) == asked


def test_an_answer_is_one_and_so_is_an_error_of_the_server() -> None:
    def fails(_: bytes) -> bytes:
        raise ValueError

    for handler in (bytes, fails):
        with server(handler) as address:
            assert WorkerConnection(address).answers(30.0)


def test_a_silent_worker_and_an_ended_process_are_distinguished(unused_address: str) -> None:
    silent = threading.Event()
    with server(lambda _: bytes(silent.wait(60.0))) as address:
        assert not WorkerConnection(address).answers(0.1)
        silent.set()
    with pytest.raises(ConnectionRefusedError, match=unused_address):
        WorkerConnection(unused_address).answers(30.0)


def first_loss(monkeypatch: pytest.MonkeyPatch, addresses: list[str], waits: Waits | None = None,
               answer_timeout: float = PATIENCE) -> tuple[int | None, str]:
    """Return the index and description of the first worker that a watch reports as lost."""
    monkeypatch.setattr(worker_watch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(worker_watch, "ANSWER_TIMEOUT", answer_timeout)
    reported, losses = threading.Event(), list[tuple[int | None, str]]()

    def on_loss(index: int | None, description: str) -> None:
        losses.append((index, description))
        reported.set()

    watch = Watch(addresses, [*range(len(addresses))], on_loss, waits or Waits(), 0.2)
    assert reported.wait(PATIENCE)
    watch.stop()
    return losses[0]


def test_a_watch_reports_a_worker_that_has_ended(monkeypatch: pytest.MonkeyPatch, unused_address: str) -> None:
    with server(bytes) as alive:
        assert first_loss(monkeypatch, [alive, unused_address]) == (1, "was lost")


def test_a_watch_reports_a_worker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    released, answers = threading.Event(), WorkerConnection.answers
    with server(bytes) as alive, server(lambda _: bytes(released.wait(60.0))) as stalled:
        monkeypatch.setattr(WorkerConnection, "answers", lambda connection, seconds: answers(
            connection, PATIENCE if connection.address == alive else seconds))      # busy machines answer late
        assert first_loss(monkeypatch, [alive, stalled], answer_timeout=1.5) == (1, "has not answered for 1.5 s")
        released.set()


def test_a_watch_reports_a_wait_that_is_too_long_although_all_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits()
    with server(bytes) as alive, waits.measured():
        assert first_loss(monkeypatch, [alive], waits) == (None, "did not answer within 0.2 s")


def test_a_wait_lasts_from_the_beginning_of_a_run_to_its_end() -> None:
    waits = Waits()
    assert waits.seconds() == 0.0
    with tf1.Graph().as_default():
        during = tf1.py_func(waits.seconds, [], tf1.float64)
        with tf1.train.MonitoredSession(hooks=[WaitHook(waits)]) as session:
            assert session.run(during) > 0.0
    assert waits.seconds() == 0.0


def test_missing_workers_are_waited_for_and_reported(
        monkeypatch: pytest.MonkeyPatch, unused_address: str) -> None:
    monkeypatch.setattr(worker_watch, "POLL_SECONDS", PATIENCE)     # for the answer of a worker
    reports: list[str] = []
    with server(bytes) as alive:
        assert wait_for_all([alive, unused_address], [0], PATIENCE, reports.append) == []
        assert not reports
        assert wait_for_all([alive, unused_address], [0, 1], 0.5, reports.append, report_every=0.0) == [1]
    assert reports[0] == f"Waiting for worker 1 ({unused_address}): not started yet, or not reachable."
