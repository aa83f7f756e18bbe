"""What became of an attempt: whether its workers did their work, were lost, or failed by what no new attempt mends."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from towernmt.core.errors import WorkerLostError


class Ending(NamedTuple):
    """How the process of a worker ended.

    Attributes:
        worker: its number.
        address: its `host:port`; "" if it was lost before it had one.
        status: as `subprocess` has it, negative for a signal; None: it was lost together with its machine.
        words: its last sentence, "" if it said none; of one that was lost, what Ray says.
        ended_by_us: it was killed since another had ended.
    """

    worker: int
    address: str
    status: int | None
    words: str = ""
    ended_by_us: bool = False

    @property
    def name(self) -> str:
        """The worker, for messages."""
        return f"Worker {self.worker} ({self.address})" if self.address else "A worker that had not begun"


class Kind(Enum):
    """What became of an attempt.

    Attributes:
        DONE: the training is at its end.
        ASKED: it ended by the signal that the user sent.
        LOST: a worker was lost: a new attempt goes on.
        FAILED: a new attempt would fail, too.
    """

    DONE = auto()
    ASKED = auto()
    LOST = auto()
    FAILED = auto()


class Outcome(NamedTuple):
    """What became of an attempt.

    Attributes:
        kind: in one word.
        why: in a sentence, where a worker was lost or failed.
    """

    kind: Kind
    why: str = ""


def outcome_of(endings: Sequence[Ending], asked: int | None) -> Outcome:
    """Judge an attempt by how its workers ended.

    When one ends, the others miss it, and end as well (with the status of `WorkerLostError`). So the first that ended
    by anything else tells what happened.

    Args:
        endings: of all workers, in the order in which they ended.
        asked: the signal that was sent to worker 0.
    """
    missing = WorkerLostError.exit_status
    if asked is not None and all(_as_asked(ending, asked) for ending in endings):
        return Outcome(Kind.ASKED)
    own = [ending for ending in endings if not ending.ended_by_us]
    first = next((ending for ending in own if ending.status not in (0, missing)), None)
    if first is None:
        first = next((ending for ending in own if ending.status == missing), None)
        return Outcome(Kind.DONE) if first is None else Outcome(Kind.LOST, _missed(first))
    if first.status is None:
        return Outcome(Kind.LOST, f"{first.name} was lost with its machine, or with its process of Ray"
                                  f"{f' ({first.words})' if first.words else ''}.")
    if first.status < 0 or first.status > 128:
        return Outcome(Kind.LOST, f"{first.name} was ended by {_signal(first.status)}.")
    if first.words:
        return Outcome(Kind.FAILED, first.words if first.worker == 0 else f"{first.name}: {first.words}")
    where = f"in log/worker-{first.worker}.log of the run" if first.worker else "above"
    return Outcome(Kind.FAILED, f"{first.name} ended with status {first.status}; what it said stands {where}.")


def _as_asked(ending: Ending, number: int) -> bool:
    return ending.ended_by_us or ending.status in (0, 128 + number, -number)


def _missed(ending: Ending) -> str:
    """What a worker says that misses another, without what its reader should do."""
    return f"{ending.words.partition(': ')[0] or f'{ending.name} misses another'}."


def _signal(status: int) -> str:
    number = -status if status < 0 else status - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if status > 0:
        return f"{name}, with a checkpoint"
    return f"{name}, which the system sends where memory is short" if name == "SIGKILL" else name
