"""One thread a model: it takes what has queued meanwhile, from all requests, and translates it as one batch.

While a batch is translated, further requests queue, and the next batch is theirs. So a lone request waits for nobody,
and many share the cost of a batch. Each round takes sentences from all requests in turn, so that a long text keeps no
short one waiting. The translator sorts what it gets by length, and cuts it into batches bounded by tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.hypotheses import Translation
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.serve.engine.work import Work
from towernmt.serve.refusal import Refusal, bad, busy

log = logging.getLogger(__name__)

Translate = Callable[[Sequence[str], Sequence[LineOptions] | None], Sequence[Translation]]
"""From sentences, and what each asks for (None: nothing), to the translations of each, best first."""


class Round(NamedTuple):
    """What was translated at once, for metrics.

    Attributes:
        sentences: how many.
        requests: of how many requests.
        seconds: that it took.
    """

    sentences: int
    requests: int
    seconds: float


class Batcher:
    """Translates what requests submit.

    Attributes:
        translate: what translates; another one may take its place at any time, from the next round on.
    """

    def __init__(self, translate: Translate, round_size: int, longest_queue: int,
                 watch: Callable[[Round], None] = lambda _: None) -> None:
        """
        Args:
            round_size: sentences that are translated at once, at most.
            longest_queue: sentences that may wait.
            watch: is told of each round.
        """
        self.translate = translate
        self._round_size, self._longest, self._watch = round_size, longest_queue, watch
        self._works: deque[Work] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._rate = 0.0
        self._thread = threading.Thread(target=self._run, name="translate", daemon=True)
        self._thread.start()

    def waiting(self) -> int:
        """How many sentences wait."""
        with self._changed:
            return sum(work.left for work in self._works)

    def submit(self, work: Work, patient: bool = False) -> None:
        """Let sentences be translated; their work tells when they are.

        Args:
            patient: wait until there is room in the queue.
        Raises:
            Refusal: there are too many before them, or the server is about to stop.
        """
        with self._changed:
            while not self._closed and (waiting := sum(other.left for other in self._works)) and (
                    waiting + work.left > self._longest):
                if not patient:
                    raise busy("Too many sentences are waiting to be translated: try again in a moment.",
                               self._seconds_of(waiting))
                work.check()
                self._changed.wait(0.5)
            if self._closed:
                raise busy("The server is about to stop: try again in a moment.")
            self._works.append(work)
            self._changed.notify_all()

    def close(self) -> None:
        """Translate what was submitted, and nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _seconds_of(self, sentences: int) -> float:
        """About how long so many sentences take."""
        return min(max(sentences / self._rate if self._rate else 1.0, 1.0), 60.0)

    def _run(self) -> None:
        while (parts := self._next()) is not None:
            begun = time.monotonic()
            self._answer(parts)
            seconds = time.monotonic() - begun
            sentences = sum(len(places) for _, places in parts)
            self._rate = sentences / max(seconds, 1e-6)
            self._watch(Round(sentences, len(parts), seconds))

    def _next(self) -> list[tuple[Work, range]] | None:
        """The sentences of a round, by requests; None: there will be no more."""
        with self._changed:
            while True:
                self._works = deque(work for work in self._works if not work.is_over())
                if self._works:
                    return self._shares()
                if self._closed:
                    return None
                self._changed.wait()

    def _shares(self) -> list[tuple[Work, range]]:
        """A share for each request, until the round is full; what is left of a request goes behind the others."""
        parts: list[tuple[Work, range]] = []
        room = self._round_size
        share = max(1, room // len(self._works))
        for work in [*self._works]:
            taken = work.take(min(share if len(self._works) > 1 else room, room))
            parts.append((work, taken))
            room -= len(taken)
            self._works.remove(work)
            if work.left:
                self._works.append(work)
            if room == 0:
                break
        self._changed.notify_all()
        return parts

    def _answer(self, parts: list[tuple[Work, range]]) -> None:
        """Translate, and tell the works. An error is of the request that makes it, not of those beside it."""
        try:
            found = self._translated(parts)
        except Exception as error:   # noqa: BLE001 -- whatever it is, it reaches the requests
            if len(parts) > 1:
                for part in parts:
                    self._answer([part])
            else:
                parts[0][0].fail(_told(error))
            return
        for work, places in parts:
            work.put(places, found[:len(places)])
            del found[:len(places)]

    def _translated(self, parts: list[tuple[Work, range]]) -> list[Translation]:
        lines = [work.lines[place] for work, places in parts for place in places]
        options = [work.options[place] for work, places in parts for place in places]
        found = list(self.translate(lines, None if all(given == PLAIN for given in options) else options))
        if len(found) != len(lines):
            raise RuntimeError(f"{len(lines)} sentences were translated as {len(found)}")
        return found


def _told(error: Exception) -> Refusal:
    """What the client learns of an error."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, (DataError, SettingsError)):
        return bad(str(error))
    log.error("A batch could not be translated.", exc_info=error)
    return Refusal(500, "The translation failed on the server's side; its log says why.")
