"""The thread of a model: what it takes together, and in which order."""

from __future__ import annotations

import threading

import pytest

from towernmt.core.errors import DataError
from towernmt.predict.hypotheses import Hypothesis, Translation
from towernmt.serve.engine.batcher import Batcher
from towernmt.serve.engine.work import Ticket, Work
from towernmt.serve.refusal import Refusal


class Held:
    """Translates a round each time it is let."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.begun, self.let = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, lines, options):
        self.rounds.append(list(lines))
        self.begun.release()
        assert self.let.acquire(timeout=30)
        if "wrong" in lines:
            raise DataError("one line is wrong.")
        return [Translation([Hypothesis(line.upper(), 0.0)]) for line in lines]


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def batcher(held):
    made = Batcher(held, round_size=4, longest_queue=6)
    yield made
    for _ in range(20):
        held.let.release()
    made.close()


def submit(batcher, *lines, ticket=None):
    work = Work(lines, ticket=ticket)
    batcher.submit(work)
    return work


def texts(work):
    return [translation[0].text for translation in work.wait()]


def test_what_queues_meanwhile_is_translated_at_once(held, batcher):
    first = submit(batcher, "a")
    assert held.begun.acquire(timeout=30)
    others = [submit(batcher, text) for text in "bcd"]
    held.let.release()
    held.let.release()
    assert [texts(work) for work in (first, *others)] == [["A"], ["B"], ["C"], ["D"]]
    assert held.rounds == [["a"], ["b", "c", "d"]]


def test_a_long_request_shares_its_rounds_with_short_ones(held, batcher):
    first = submit(batcher, "a")
    assert held.begun.acquire(timeout=30)
    long, short = submit(batcher, *"12345"), submit(batcher, "b")
    for _ in range(4):
        held.let.release()
    assert (texts(first), texts(long), texts(short)) == (["A"], list("12345"), ["B"])
    assert held.rounds == [["a"], ["1", "2", "b"], ["3", "4", "5"]]


def test_a_queue_that_is_full_refuses(held, batcher):
    submit(batcher, "a")
    assert held.begun.acquire(timeout=30)
    submit(batcher, *"12345")
    with pytest.raises(Refusal) as refusal:
        submit(batcher, "b", "c")
    assert refusal.value.status == 503 and refusal.value.retry_after >= 1
    assert batcher.waiting() == 5


def test_an_error_is_of_the_request_that_makes_it(held, batcher):
    first = submit(batcher, "a")
    assert held.begun.acquire(timeout=30)
    wrong, right = submit(batcher, "wrong"), submit(batcher, "b")
    for _ in range(4):
        held.let.release()
    assert (texts(first), texts(right)) == (["A"], ["B"])
    with pytest.raises(Refusal, match="one line is wrong") as refusal:
        wrong.wait()
    assert refusal.value.status == 400


def test_what_nobody_waits_for_is_not_translated(held, batcher):
    submit(batcher, "a")
    assert held.begun.acquire(timeout=30)
    gone, late = Ticket(), Ticket(0.0)
    left = submit(batcher, "b", ticket=gone)
    missed = submit(batcher, "c", ticket=late)
    last = submit(batcher, "d")
    gone.leave()
    held.let.release()
    held.let.release()
    assert texts(last) == ["D"] and held.rounds == [["a"], ["d"]]
    with pytest.raises(Refusal, match="too long"):
        missed.wait()
    with pytest.raises(Refusal) as refusal:
        left.wait()
    assert refusal.value.status == 499


def test_what_was_accepted_is_translated_before_the_end_and_nothing_else(held, batcher):
    works = [submit(batcher, text) for text in "ab"]
    for _ in range(3):
        held.let.release()
    batcher.close()
    assert [texts(work) for work in works] == [["A"], ["B"]]
    with pytest.raises(Refusal, match="about to stop"):
        submit(batcher, "c")
