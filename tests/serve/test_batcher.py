"""The thread of a model: the sentences of a round, and their order."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.waiting import PATIENCE
from towernmt.core.errors import DataError
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.serve.batcher import Batcher, Cancellation, QueuedSentences
from towernmt.serve.request_limits import RequestError


class BlockingEngine:
    """Translates a round each time a test allows it."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.started, self.released = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, lines, options):
        self.rounds.append(list(lines))
        self.started.release()
        assert self.released.acquire(timeout=PATIENCE)
        if "wrong" in lines:
            raise DataError("one line is wrong.")
        return [Translation([Hypothesis(line.upper(), 0.0)]) for line in lines]


@pytest.fixture
def engine():
    return BlockingEngine()


@pytest.fixture
def batcher(engine):
    running = Batcher(engine, round_size=4, max_queue=6)
    yield running
    for _ in range(20):
        engine.released.release()
    running.close()


def submit(batcher, *lines, cancellation=None):
    queued = QueuedSentences(lines, cancellation=cancellation)
    batcher.submit(queued)
    return queued


def texts(queued):
    return [translation[0].text for translation in queued.wait()]


def test_what_queues_meanwhile_is_translated_at_once(engine, batcher):
    first = submit(batcher, "a")
    assert engine.started.acquire(timeout=PATIENCE)
    others = [submit(batcher, text) for text in "bcd"]
    engine.released.release()
    engine.released.release()
    assert [texts(work) for work in (first, *others)] == [["A"], ["B"], ["C"], ["D"]]
    assert engine.rounds == [["a"], ["b", "c", "d"]]


def test_a_long_request_shares_its_rounds_with_short_ones(engine, batcher):
    first = submit(batcher, "a")
    assert engine.started.acquire(timeout=PATIENCE)
    long, short = submit(batcher, *"12345"), submit(batcher, "b")
    for _ in range(4):
        engine.released.release()
    assert (texts(first), texts(long), texts(short)) == (["A"], list("12345"), ["B"])
    assert engine.rounds == [["a"], ["1", "2", "b"], ["3", "4", "5"]]


def test_a_queue_that_is_full_refuses(engine, batcher):
    submit(batcher, "a")
    assert engine.started.acquire(timeout=PATIENCE)
    submit(batcher, *"12345")
    with pytest.raises(RequestError) as error:
        submit(batcher, "b", "c")
    assert error.value.status == 503 and error.value.retry_after >= 1
    assert batcher.queue_length() == 5


def test_an_error_is_of_the_request_that_makes_it(engine, batcher):
    first = submit(batcher, "a")
    assert engine.started.acquire(timeout=PATIENCE)
    wrong, right = submit(batcher, "wrong"), submit(batcher, "b")
    for _ in range(4):
        engine.released.release()
    assert (texts(first), texts(right)) == (["A"], ["B"])
    with pytest.raises(RequestError, match="one line is wrong") as error:
        wrong.wait()
    assert error.value.status == 400


def test_what_nobody_waits_for_is_not_translated(engine, batcher):
    submit(batcher, "a")
    assert engine.started.acquire(timeout=PATIENCE)
    gone, late = Cancellation(), Cancellation(0.0)
    left = submit(batcher, "b", cancellation=gone)
    missed = submit(batcher, "c", cancellation=late)
    last = submit(batcher, "d")
    gone.cancel()
    engine.released.release()
    engine.released.release()
    assert texts(last) == ["D"] and engine.rounds == [["a"], ["d"]]
    with pytest.raises(RequestError, match="too long"):
        missed.wait()
    with pytest.raises(RequestError) as error:
        left.wait()
    assert error.value.status == 499


def test_each_request_has_its_own_error():
    """An error that several requests raise would keep the stack frames of all of them, with their texts."""
    errors = []
    for cancellation in (Cancellation(), Cancellation()):
        cancellation.cancel()
        with pytest.raises(RequestError) as error:
            cancellation.check()
        errors.append(error.value)
    assert errors[0] is not errors[1] and errors[0].status == errors[1].status == 499


def test_what_was_accepted_is_translated_before_the_end_and_nothing_else(engine, batcher):
    works = [submit(batcher, text) for text in "ab"]
    for _ in range(3):
        engine.released.release()
    batcher.close()
    assert [texts(work) for work in works] == [["A"], ["B"]]
    with pytest.raises(RequestError, match="shutting down"):
        submit(batcher, "c")


def good(line):
    return Translation([Hypothesis(line.upper(), 0.0)])


WRONG = {
    "nothing": lambda lines: None,
    "a text": lambda lines: "abc",
    "texts": lambda lines: list(lines),
    "tuples": lambda lines: [(line, 0.0) for line in lines],
    "plain lists": lambda lines: [[Hypothesis(line, 0.0)] for line in lines],
    "too few": lambda lines: [],
    "too many": lambda lines: [good(line) for line in [*lines, "x"]],
    "an empty translation": lambda lines: [Translation() for _ in lines],
    "a translation of texts": lambda lines: [Translation([line]) for line in lines],
    "a number as the text": lambda lines: [Translation([Hypothesis(1, 0.0)]) for _ in lines],
    "a text as the score": lambda lines: [Translation([Hypothesis(line, "0")]) for line in lines],
    "other details": lambda lines: [Translation([Hypothesis(line, 0.0, {})]) for line in lines],
    "sys.exit": lambda lines: sys.exit(1),
    "no memory": lambda lines: [][1],
    "a generator that fails": lambda lines: (1 // 0 for _ in lines)}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_of_an_engine_fails_its_request_alone(wrong):
    def engine(lines, options):
        return WRONG[wrong](lines) if "wrong" in lines else [good(line) for line in lines]

    batcher = Batcher(engine, round_size=4, max_queue=6)
    with pytest.raises(RequestError) as error:
        submit(batcher, "wrong").wait()
    assert error.value.status == 500
    assert texts(submit(batcher, "a")) == ["A"] and batcher.health_problem(30) is None
    batcher.close()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_of_a_result_callback_fails_its_request_alone(engine, batcher, error):
    def fails(place, translation):
        raise error

    engine.released.release()
    first = submit(batcher, "a")
    assert texts(first) == ["A"] and engine.started.acquire(timeout=PATIENCE)
    wrong, right = QueuedSentences(["b"], on_result=fails), QueuedSentences(["c"])
    submit(batcher, "d")
    assert engine.started.acquire(timeout=PATIENCE)
    batcher.submit(wrong)
    batcher.submit(right)
    for _ in range(4):
        engine.released.release()
    assert texts(right) == ["C"]
    with pytest.raises(RequestError) as error:
        wrong.wait()
    assert error.value.status == 500 and texts(submit(batcher, "e")) == ["E"]


def test_an_error_of_the_metrics_fails_nothing():
    def on_round(statistics):
        raise ValueError(statistics)

    batcher = Batcher(lambda lines, options: [good(line) for line in lines], 4, 6, on_round)
    assert [texts(submit(batcher, text)) for text in "ab"] == [["A"], ["B"]]
    batcher.close()


def test_a_thread_that_has_ended_or_hangs_is_seen(engine, batcher, monkeypatch):
    submit(batcher, "a")
    assert engine.started.acquire(timeout=PATIENCE)
    assert batcher.health_problem(30) is None and "same sentences" in batcher.health_problem(-1)

    def fails():
        raise MemoryError

    monkeypatch.setattr(batcher, "_wait_for_round", fails)      # while the thread waits for the engine
    waits = submit(batcher, "b")
    engine.released.release()
    batcher._thread.join(PATIENCE)
    with pytest.raises(RequestError, match="thread has ended"):
        waits.wait()
    assert "has ended" in batcher.health_problem(30)
    with pytest.raises(RequestError):
        submit(batcher, "c")
