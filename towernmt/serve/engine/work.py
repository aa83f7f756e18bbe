"""What a request wants translated, while a model's thread is at it: sentences, and who waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from towernmt.predict.hypotheses import Translation
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.serve.refusal import Refusal, busy

GONE = Refusal(499, "The client has gone.")


class Ticket:
    """A request that waits: until when, and whether its client is still there. One of several threads may end it."""

    def __init__(self, seconds: float | None = None) -> None:
        """
        Args:
            seconds: from now, after which nobody waits any more; None: any time.
        """
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.begun = time.monotonic()
        self._gone = False
        self._works: list[Work] = []
        self._lock = threading.Lock()

    def watch(self, work: Work) -> None:
        """This work ends with the ticket."""
        with self._lock:
            self._works.append(work)
        if self._gone:
            work.fail(GONE)

    def leave(self) -> None:
        """The client has gone: what is not begun is left undone."""
        self._gone = True
        with self._lock:
            works = list(self._works)
        for work in works:
            work.fail(GONE)

    def why_over(self) -> Refusal | None:
        """Why nobody waits any more; None: somebody does."""
        if self._gone:
            return GONE
        if self.deadline is not None and time.monotonic() > self.deadline:
            return busy("The translation took too long: send less text at once, or try again later.", 5.0)
        return None


class Work:
    """Sentences to be translated.

    Attributes:
        lines: the sentences.
        options: what each asks for.
    """

    def __init__(self, lines: Sequence[str], options: Sequence[LineOptions] | None = None,
                 ticket: Ticket | None = None, done: Callable[[int, Translation], None] | None = None) -> None:
        """
        Args:
            ticket: who waits.
            done: is told of each sentence, from the model's thread.
        """
        self.lines = lines
        self.options = [PLAIN] * len(lines) if options is None else options
        self._ticket, self._done = ticket or Ticket(), done
        self._found: list[Translation | None] = [None] * len(lines)
        self._taken = self._ready = 0
        self._error: Refusal | None = None
        self._over = threading.Event()
        if not lines:
            self._over.set()
        self._ticket.watch(self)

    @property
    def left(self) -> int:
        """How many sentences no round has taken."""
        return len(self.lines) - self._taken

    def take(self, most: int) -> range:
        """The places of the next sentences, which are no longer left."""
        places = range(self._taken, min(self._taken + most, len(self.lines)))
        self._taken = places.stop
        return places

    def put(self, places: range, found: Sequence[Translation]) -> None:
        """The translations of sentences that were taken."""
        for place, translation in zip(places, found, strict=True):
            self._found[place] = translation
            if self._done is not None and self._error is None:
                self._done(place, translation)
        self._ready += len(places)
        if self._ready == len(self.lines):
            self._over.set()

    def fail(self, error: Refusal) -> None:
        """It will not be translated any further; who waits gets the error."""
        if not self._over.is_set():
            self._error = error
            self._over.set()

    def is_over(self) -> bool:
        """Whether nobody waits for it any more, or nothing is left to be taken."""
        if (why := self._ticket.why_over()) is not None:
            self.fail(why)
        return self._over.is_set() or not self.left

    def check(self) -> None:
        """Raises:
            Refusal: nobody waits for it any more.
        """
        if (why := self._ticket.why_over()) is not None:
            raise why

    def wait(self) -> list[Translation]:
        """The translations of all sentences.

        Raises:
            Refusal: they were not translated, or not in time.
        """
        while not self._over.wait(None if self._ticket.deadline is None
                                  else max(self._ticket.deadline - time.monotonic(), 0) + 0.05):
            if (why := self._ticket.why_over()) is not None:
                self.fail(why)
        if self._error is not None:
            raise self._error
        return [translation for translation in self._found if translation is not None]
