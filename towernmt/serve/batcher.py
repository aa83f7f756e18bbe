"""Dynamic batching: one thread per model translates the queued sentences of all requests together.

While a round of sentences is translated, further requests queue for the next round. A single request therefore does not
wait for others, and concurrent requests share the cost of a batch. Each round takes sentences from all requests in
turn, so that a long text does not delay a short one. The translator sorts the sentences of a round by length and cuts
them into batches bounded by tokens.

The sentences of a request are one `Work`, whose result the client waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.predict.lines.hypotheses import Hypothesis, TokenDetails, Translation
from towernmt.predict.lines.line_options import PLAIN, LineOptions
from towernmt.serve.request_limits import Refusal, bad, busy

log = logging.getLogger(__name__)
GONE = Refusal(499, "The client closed the connection.")
STOPPED = busy("The server is stopping, and did not finish this translation: send it again in a moment.", 5.0)


class EngineError(TowerNMTError):
    """An engine failed, or returned something that is not a list of translations."""


class Ticket:
    """A waiting client: its deadline, and the reason why it no longer waits. Any thread may end it.

    Args:
        seconds: time limit from now; None means no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.begun = time.monotonic()
        self._ended: Refusal | None = None
        self._works: list[Work] = []
        self._lock = threading.Lock()

    def watch(self, work: Work) -> None:
        """End this work when the ticket ends."""
        with self._lock:
            self._works = [*(one for one in self._works if not one.is_over()), work]
        if self._ended is not None:
            work.fail(self._ended)

    def end(self, why: Refusal = GONE) -> None:
        """Cancel all work of the client; whoever waits for it gets the exception `why`."""
        with self._lock:
            self._ended = self._ended or why
            works = list(self._works)
        for work in works:
            work.fail(self._ended)

    def why_over(self) -> Refusal | None:
        """Return the reason why the client no longer waits, or None while it waits."""
        if self._ended is not None:
            return self._ended
        if self.deadline is not None and time.monotonic() > self.deadline:
            return busy("The translation took too long: send less text at once, or try again later.", 5.0)
        return None

    def check(self) -> None:
        """Raise a Refusal if the client no longer waits."""
        if (why := self.why_over()) is not None:
            raise why


class Work:
    """The sentences of a request.

    Args:
        lines: sentences to translate.
        options: options of each sentence; None means no options.
        ticket: the client that waits.
        done: called with (index, translation) in the model's thread for each sentence. An exception that it raises ends
            only this work.
    """

    def __init__(self, lines: Sequence[str], options: Sequence[LineOptions] | None = None,
                 ticket: Ticket | None = None, done: Callable[[int, Translation], None] | None = None) -> None:
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
        """Number of sentences that no round has taken yet."""
        return len(self.lines) - self._taken

    def take(self, most: int) -> range:
        """Take the next sentences, at most `most`, and return their indices."""
        places = range(self._taken, min(self._taken + most, len(self.lines)))
        self._taken = places.stop
        return places

    def put(self, places: range, found: Sequence[Translation]) -> None:
        """Store the translations of taken sentences and report each one to `done`."""
        for place, translation in zip(places, found, strict=True):
            self._found[place] = translation
            if self._done is not None and self._error is None:
                try:
                    self._done(place, translation)
                except BaseException as error:   # noqa: BLE001 -- the error belongs to this request, not to the thread
                    self.fail(refusal_of(error))
        self._ready += len(places)
        if self._ready == len(self.lines):
            self._over.set()

    def fail(self, error: Refusal) -> None:
        """End this work with an error, which `wait` raises."""
        if not self._over.is_set():
            self._error = error
            self._over.set()

    def is_over(self) -> bool:
        """Return whether all sentences are translated or the work has failed."""
        return self._over.is_set()

    def is_taken(self) -> bool:
        """Return whether no sentence is left to take, or no client waits for the result."""
        if (why := self._ticket.why_over()) is not None:
            self.fail(why)
        return self._over.is_set() or not self.left

    def check(self) -> None:
        """Raise a Refusal if the client no longer waits."""
        self._ticket.check()

    def wait(self) -> list[Translation]:
        """Wait for the translations of all sentences and return them.

        Raises:
            Refusal: the translation failed, or took longer than the time limit.
        """
        while not self._over.wait(None if self._ticket.deadline is None
                                  else max(self._ticket.deadline - time.monotonic(), 0) + 0.05):
            if (why := self._ticket.why_over()) is not None:
                self.fail(why)
        if self._error is not None:
            raise self._error
        return [translation for translation in self._found if translation is not None]


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal that a client gets for an exception, and log an unexpected exception."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, (DataError, SettingsError)):
        return bad(str(error))
    reason = f": {error}" if isinstance(error, EngineError) else "."     # other messages may quote a user's text
    log.error("A batch could not be translated%s", reason, exc_info=error)
    return Refusal(500, "The translation failed on the server; see its log for the reason.")


Translate = Callable[[Sequence[str], Sequence[LineOptions] | None], Sequence[Translation]]
"""Function from sentences and their options (None: no options) to the translations of each sentence, best first."""


class Round(NamedTuple):
    """Figures of one round, for metrics.

    Attributes:
        sentences: number of sentences.
        requests: number of requests that they belong to.
        seconds: duration.
    """

    sentences: int
    requests: int
    seconds: float


class Batcher:
    """Thread that translates the submitted work of all requests, round by round.

    Args:
        translate: translates the sentences of a round. It may be replaced at any time; the next round uses the new one.
        round_size: maximum number of sentences in a round.
        longest_queue: maximum number of waiting sentences.
        watch: called with the figures of each round.
    """

    def __init__(self, translate: Translate, round_size: int, longest_queue: int,
                 watch: Callable[[Round], None] = lambda _: None) -> None:
        self.translate = translate
        self._round_size, self._longest, self._watch = round_size, longest_queue, watch
        self._works: deque[Work] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._rate = 0.0
        self._round_begun: float | None = None
        self._thread = threading.Thread(target=self._run, name="translate", daemon=True)
        self._thread.start()

    def waiting(self) -> int:
        """Return the number of waiting sentences."""
        with self._changed:
            return sum(work.left for work in self._works)

    def why_unwell(self, longest: float) -> str | None:
        """Return why requests are not being answered, or None if they are.

        Args:
            longest: maximum seconds of a round.
        """
        if not self._thread.is_alive():
            return "its thread has ended: restart the server"
        begun = self._round_begun
        if begun is not None and (seconds := time.monotonic() - begun) > longest:
            return f"it has been busy with the same sentences for {seconds:.0f} seconds"
        return None

    def translations_of(self, lines: Sequence[str], options: Sequence[LineOptions], ticket: Ticket,
                        done: Callable[[int, Translation], None], blocking: bool = False) -> list[Translation]:
        """Queue sentences and wait for their translations; see `Work` and `submit` for arguments and errors."""
        work = Work(lines, options, ticket, done)
        self.submit(work, blocking)
        return work.wait()

    def submit(self, work: Work, blocking: bool = False) -> None:
        """Queue work for translation.

        Args:
            work: the sentences of a request.
            blocking: wait for queue space instead of refusing the work.

        Raises:
            Refusal: the queue is full, or the server is shutting down.
        """
        with self._changed:
            while not self._closed and (waiting := sum(other.left for other in self._works)) and (
                    waiting + work.left > self._longest):
                if not blocking:
                    raise busy("Too many sentences are waiting to be translated: try again in a moment.",
                               self._seconds_of(waiting))
                work.check()
                self._changed.wait(0.5)
            if self._closed:
                raise busy("The server is shutting down: try again in a moment.")
            self._works.append(work)
            self._changed.notify_all()

    def close(self) -> None:
        """Translate the submitted work, refuse new work, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _seconds_of(self, sentences: int) -> float:
        """Return the estimated seconds for a number of sentences, from 1 to 60."""
        return min(max(sentences / self._rate if self._rate else 1.0, 1.0), 60.0)

    def _run(self) -> None:
        """Translate round after round. An exception in a round fails its requests, but not the thread."""
        try:
            while (parts := self._next()) is not None:
                begun = self._round_begun = time.monotonic()
                try:
                    self._answer(parts)
                    seconds = time.monotonic() - begun
                    sentences = sum(len(places) for _, places in parts)
                    self._rate = sentences / max(seconds, 1e-6)
                    self._watch(Round(sentences, len(parts), seconds))
                except BaseException as error:   # noqa: BLE001 -- the requests of the round get it
                    for work, _ in parts:
                        work.fail(refusal_of(error))
                self._round_begun = None
        except BaseException as error:   # noqa: BLE001 -- logged here, and reported by `/ready`
            log.critical("The thread of a model has ended.", exc_info=error)
        finally:
            self._end()

    def _end(self) -> None:
        """Fail all waiting work, since no thread can translate it."""
        with self._changed:
            self._closed = True
            left, self._works = list(self._works), deque()
            self._changed.notify_all()
        for work in left:
            work.fail(busy("The server can no longer translate: its translation thread has ended.", 60.0))

    def _next(self) -> list[tuple[Work, range]] | None:
        """Wait for work and return the sentences of the next round by request, or None after `close`."""
        with self._changed:
            while True:
                self._works = deque(work for work in self._works if not work.is_taken())
                if self._works:
                    return self._shares()
                if self._closed:
                    return None
                self._changed.wait()

    def _shares(self) -> list[tuple[Work, range]]:
        """Divide a round among the requests. A request with sentences left moves to the end of the queue."""
        parts: list[tuple[Work, range]] = []
        free = self._round_size
        share = max(1, free // len(self._works))
        for work in [*self._works]:
            taken = work.take(min(share if len(self._works) > 1 else free, free))
            parts.append((work, taken))
            free -= len(taken)
            self._works.remove(work)
            if work.left:
                self._works.append(work)
            if free == 0:
                break
        self._changed.notify_all()
        return parts

    def _answer(self, parts: list[tuple[Work, range]]) -> None:
        """Translate a round and store the results. After an error, repeat it by request, to fail only the cause."""
        try:
            found = self._translated(parts)
        except BaseException as error:   # noqa: BLE001 -- even `sys.exit()` in an engine fails only its request
            if len(parts) > 1:
                for part in parts:
                    self._answer([part])
            else:
                parts[0][0].fail(refusal_of(error))
            return
        for work, places in parts:
            work.put(places, found[:len(places)])
            del found[:len(places)]

    def _translated(self, parts: list[tuple[Work, range]]) -> list[Translation]:
        lines = [work.lines[place] for work, places in parts for place in places]
        options = [work.options[place] for work, places in parts for place in places]
        translations = self.translate(lines, None if all(given == PLAIN for given in options) else options)
        return check_translations(translations, len(lines))


def check_translations(found: Any, sentences: int) -> list[Translation]:
    """Check and return the result of an engine.

    Raises:
        EngineError: the result is not a list of `sentences` translations.
    """
    if isinstance(found, (str, bytes)) or not hasattr(found, "__iter__"):
        raise EngineError(f"the engine returned a value of the type {_kind(found)}: it must return a list of "
                          "`towernmt.predict.lines.hypotheses.Translation`, one for each sentence.")
    translations = list(found)
    if len(translations) != sentences:
        raise EngineError(f"the engine returned {len(translations)} translations of {sentences} sentences: it must "
                          "return one `Translation` for each sentence.")
    for translation in translations:
        if not isinstance(translation, Translation) or not translation:
            what = "an empty Translation" if isinstance(translation, Translation) else f"a {_kind(translation)}"
            raise EngineError(f"the engine returned {what} for a sentence: it must be a "
                              "`towernmt.predict.lines.hypotheses.Translation` of one Hypothesis or more.")
        for one in translation:
            if not isinstance(one, Hypothesis):
                raise EngineError(f"the engine returned a Translation with a {_kind(one)} in it: write "
                                  "Translation([Hypothesis(text, score)]).")
            if not isinstance(one.text, str) or not _is_number(one.score):
                raise EngineError(f"the engine returned a Hypothesis of a {_kind(one.text)} and a {_kind(one.score)}: "
                                  "it takes a text and a number.")
            if not isinstance(one.details, TokenDetails | None):
                raise EngineError(f"the engine returned a Hypothesis with details of the type {_kind(one.details)}: "
                                  "they must be `TokenDetails`, or left out.")
    return translations


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, (str, bytes))


def _kind(value: Any) -> str:
    return type(value).__name__
