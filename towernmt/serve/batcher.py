"""Dynamic batching: one thread per model translates the queued sentences of all requests together.

While a round of sentences is translated, further requests queue for the next round. A single request therefore does not
wait for others, and concurrent requests share the cost of a batch. Each round takes sentences from all requests in
turn, so that a long text does not delay a short one. The translator sorts the sentences of a round by length and cuts
them into batches bounded by tokens.

The sentences of a request are `QueuedSentences`, whose translations the client waits for.
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
from towernmt.serve.request_limits import RequestError, bad_request, client_disconnected, unavailable

log = logging.getLogger(__name__)


class EngineError(TowerNMTError):
    """An engine failed, or returned something that is not a list of translations."""


class Cancellation:
    """The time limit of a request, and the reason why its client no longer waits. Thread-safe.

    Args:
        seconds: time limit from now; None means no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self._error: RequestError | None = None
        self._queued: list[QueuedSentences] = []
        self._lock = threading.Lock()

    def register(self, queued: QueuedSentences) -> None:
        """Fail these sentences when the request is cancelled."""
        with self._lock:
            self._queued = [*(other for other in self._queued if not other.is_finished()), queued]
        if self._error is not None:
            queued.fail(self._error)

    def cancel(self, error: RequestError | None = None) -> None:
        """Fail all queued sentences of the request with an error; None means that the client has disconnected."""
        with self._lock:
            self._error = self._error or error or client_disconnected()
            all_queued = list(self._queued)
        for queued in all_queued:
            queued.fail(self._error)

    def error(self) -> RequestError | None:
        """Return the reason why the client no longer waits, or None while it waits."""
        if self._error is not None:
            return self._error
        if self.deadline is not None and time.monotonic() > self.deadline:
            return unavailable("The translation took too long: send less text at once, or try again later.", 5.0)
        return None

    def check(self) -> None:
        """Raise a RequestError if the client no longer waits."""
        if (error := self.error()) is not None:
            raise error


class QueuedSentences:
    """The sentences of a request in the queue of a model.

    Args:
        sentences: sentences to translate.
        options: options of each sentence; None means no options.
        cancellation: cancels the translation.
        on_result: called with (index, translation) in the model's thread for each sentence. An exception that it raises
            fails only this request.
    """

    def __init__(self, sentences: Sequence[str], options: Sequence[LineOptions] | None = None,
                 cancellation: Cancellation | None = None,
                 on_result: Callable[[int, Translation], None] | None = None) -> None:
        self.sentences = sentences
        self.options = [PLAIN] * len(sentences) if options is None else options
        self._cancellation, self._on_result = cancellation or Cancellation(), on_result
        self._translations: list[Translation | None] = [None] * len(sentences)
        self._taken = self._translated = 0
        self._error: RequestError | None = None
        self._finished = threading.Event()
        if not sentences:
            self._finished.set()
        self._cancellation.register(self)

    @property
    def remaining(self) -> int:
        """Number of sentences that no round has taken yet."""
        return len(self.sentences) - self._taken

    def take(self, count: int) -> range:
        """Take the next sentences, at most `count`, and return their indices."""
        indices = range(self._taken, min(self._taken + count, len(self.sentences)))
        self._taken = indices.stop
        return indices

    def store(self, indices: range, translations: Sequence[Translation]) -> None:
        """Store the translations of taken sentences and report each one to `on_result`."""
        for index, translation in zip(indices, translations, strict=True):
            self._translations[index] = translation
            if self._on_result is not None and self._error is None:
                try:
                    self._on_result(index, translation)
                except BaseException as error:   # noqa: BLE001 -- the error belongs to this request, not to the thread
                    self.fail(request_error_of(error))
        self._translated += len(indices)
        if self._translated == len(self.sentences):
            self._finished.set()

    def fail(self, error: RequestError) -> None:
        """Finish with an error, which `wait` raises, unless all sentences are translated."""
        if not self._finished.is_set():
            self._error = error
            self._finished.set()

    def is_finished(self) -> bool:
        """Return whether all sentences are translated or the translation has failed."""
        return self._finished.is_set()

    def needs_round(self) -> bool:
        """Return whether sentences remain to be taken, and the client still waits for them."""
        if (error := self._cancellation.error()) is not None:
            self.fail(error)
        return not self._finished.is_set() and self.remaining > 0

    def check(self) -> None:
        """Raise a RequestError if the client no longer waits."""
        self._cancellation.check()

    def wait(self) -> list[Translation]:
        """Wait for the translations of all sentences and return them.

        Raises:
            RequestError: the translation failed, or took longer than the time limit.
        """
        while not self._finished.wait(None if self._cancellation.deadline is None
                                      else max(self._cancellation.deadline - time.monotonic(), 0) + 0.05):
            if (error := self._cancellation.error()) is not None:
                self.fail(error)
        if self._error is not None:
            raise self._error
        return [translation for translation in self._translations if translation is not None]


def request_error_of(error: BaseException) -> RequestError:
    """Return the error that a client gets for an exception, and log an unexpected exception."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, (DataError, SettingsError)):
        return bad_request(str(error))
    reason = f": {error}" if isinstance(error, EngineError) else "."     # other messages may quote a user's text
    log.error("A batch could not be translated%s", reason, exc_info=error)
    return RequestError(500, "The translation failed on the server; see its log for the reason.")


Translate = Callable[[Sequence[str], Sequence[LineOptions] | None], Sequence[Translation]]
"""Function from sentences and their options (None: no options) to the translations of each sentence, best first."""
Share = tuple[QueuedSentences, range]
"""The sentences that one request has in a round, by their indices in the request."""


class RoundStatistics(NamedTuple):
    """Statistics of one round, for metrics.

    Attributes:
        sentences: number of sentences.
        requests: number of requests that they belong to.
        seconds: duration.
    """

    sentences: int
    requests: int
    seconds: float


class Batcher:
    """Thread that translates the queued sentences of all requests, round by round.

    Args:
        translate: translates the sentences of a round. It may be replaced at any time; the next round uses the new one.
        round_size: maximum number of sentences in a round.
        max_queue: maximum number of waiting sentences.
        on_round: called with the statistics of each round.
    """

    def __init__(self, translate: Translate, round_size: int, max_queue: int,
                 on_round: Callable[[RoundStatistics], None] = lambda _: None) -> None:
        self.translate = translate
        self._round_size, self._max_queue, self._on_round = round_size, max_queue, on_round
        self._queue: deque[QueuedSentences] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._sentences_per_second = 0.0
        self._round_start: float | None = None
        self._thread = threading.Thread(target=self._run, name="translate", daemon=True)
        self._thread.start()

    def queue_length(self) -> int:
        """Return the number of waiting sentences."""
        with self._changed:
            return self._waiting_sentences()

    def health_problem(self, max_seconds: float) -> str | None:
        """Return why requests are not being answered, or None if they are.

        Args:
            max_seconds: maximum seconds of a round.
        """
        if not self._thread.is_alive():
            return "its thread has ended: restart the server"
        start = self._round_start
        if start is not None and (seconds := time.monotonic() - start) > max_seconds:
            return f"it has been busy with the same sentences for {seconds:.0f} seconds"
        return None

    def submit(self, queued: QueuedSentences, blocking: bool = False) -> None:
        """Queue the sentences of a request for translation.

        Args:
            queued: the sentences of a request.
            blocking: wait for queue space instead of refusing the sentences.

        Raises:
            RequestError: the queue is full, or the server is shutting down.
        """
        with self._changed:
            while not self._closed and (waiting := self._waiting_sentences()) and (
                    waiting + queued.remaining > self._max_queue):
                if not blocking:
                    raise unavailable("Too many sentences are waiting to be translated: try again in a moment.",
                                      self._estimated_seconds(waiting))
                queued.check()
                self._changed.wait(0.5)
            if self._closed:
                raise unavailable("The server is shutting down: try again in a moment.")
            self._queue.append(queued)
            self._changed.notify_all()

    def close(self) -> None:
        """Translate the queued sentences, refuse new ones, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _waiting_sentences(self) -> int:
        return sum(queued.remaining for queued in self._queue if queued.needs_round())

    def _estimated_seconds(self, sentences: int) -> float:
        """Return the estimated seconds for a number of sentences, from 1 to 60."""
        rate = self._sentences_per_second
        return min(max(sentences / rate if rate else 1.0, 1.0), 60.0)

    def _run(self) -> None:
        """Translate round after round. An exception in a round fails its requests, but not the thread."""
        try:
            while (shares := self._wait_for_round()) is not None:
                start = self._round_start = time.monotonic()
                try:
                    self._translate_round(shares)
                    seconds = time.monotonic() - start
                    sentences = sum(len(indices) for _, indices in shares)
                    self._sentences_per_second = sentences / max(seconds, 1e-6)
                    self._on_round(RoundStatistics(sentences, len(shares), seconds))
                except BaseException as error:   # noqa: BLE001 -- the requests of the round get it
                    for queued, _ in shares:
                        queued.fail(request_error_of(error))
                self._round_start = None
        except BaseException as error:   # noqa: BLE001 -- logged here, and reported by `/ready`
            log.critical("The thread of a model has ended.", exc_info=error)
        finally:
            self._fail_waiting()

    def _fail_waiting(self) -> None:
        """Fail all waiting sentences, since no thread can translate them."""
        with self._changed:
            self._closed = True
            waiting, self._queue = list(self._queue), deque()
            self._changed.notify_all()
        for queued in waiting:
            queued.fail(unavailable("The server can no longer translate: its translation thread has ended.", 60.0))

    def _wait_for_round(self) -> list[Share] | None:
        """Wait for sentences and return those of the next round by request, or None after `close`."""
        with self._changed:
            while True:
                self._queue = deque(queued for queued in self._queue if queued.needs_round())
                if self._queue:
                    return self._take_round()
                if self._closed:
                    return None
                self._changed.wait()

    def _take_round(self) -> list[Share]:
        """Divide a round among the requests. A request with sentences left moves to the end of the queue."""
        shares: list[Share] = []
        free = self._round_size
        share_size = max(1, free // len(self._queue)) if len(self._queue) > 1 else free
        for queued in [*self._queue]:
            indices = queued.take(min(share_size, free))
            shares.append((queued, indices))
            free -= len(indices)
            self._queue.remove(queued)
            if queued.remaining:
                self._queue.append(queued)
            if free == 0:
                break
        self._changed.notify_all()
        return shares

    def _translate_round(self, shares: list[Share]) -> None:
        """Translate a round and store the results. After an error, repeat it by request, to fail only the cause."""
        try:
            translations = self._run_engine(shares)
        except BaseException as error:   # noqa: BLE001 -- even `sys.exit()` in an engine fails only its request
            if len(shares) > 1:
                for share in shares:
                    self._translate_round([share])
            else:
                shares[0][0].fail(request_error_of(error))
            return
        for queued, indices in shares:
            queued.store(indices, translations[:len(indices)])
            del translations[:len(indices)]

    def _run_engine(self, shares: list[Share]) -> list[Translation]:
        """Return the translations of all sentences of a round, in the order of its shares."""
        sentences = [queued.sentences[index] for queued, indices in shares for index in indices]
        options = [queued.options[index] for queued, indices in shares for index in indices]
        translations = self.translate(sentences, None if all(line == PLAIN for line in options) else options)
        return check_translations(translations, len(sentences))


def check_translations(result: Any, sentences: int) -> list[Translation]:
    """Check and return the result of an engine.

    Args:
        result: value that the engine returned.
        sentences: number of sentences that were passed to the engine.

    Raises:
        EngineError: the result is not a list of `sentences` translations.
    """
    if isinstance(result, (str, bytes)) or not hasattr(result, "__iter__"):
        raise EngineError(f"the engine returned a value of the type {_type_name(result)}: it must return a list of "
                          "`towernmt.predict.lines.hypotheses.Translation`, one for each sentence.")
    translations = list(result)
    if len(translations) != sentences:
        raise EngineError(f"the engine returned {len(translations)} translations of {sentences} sentences: it must "
                          "return one `Translation` for each sentence.")
    for translation in translations:
        if not isinstance(translation, Translation) or not translation:
            what = "an empty Translation" if isinstance(translation, Translation) else f"a {_type_name(translation)}"
            raise EngineError(f"the engine returned {what} for a sentence: it must be a "
                              "`towernmt.predict.lines.hypotheses.Translation` of one Hypothesis or more.")
        for hypothesis in translation:
            _check_hypothesis(hypothesis)
    return translations


def _check_hypothesis(hypothesis: Any) -> None:
    if not isinstance(hypothesis, Hypothesis):
        raise EngineError(f"the engine returned a Translation with a {_type_name(hypothesis)} in it: write "
                          "Translation([Hypothesis(text, score)]).")
    text, score, details = hypothesis.text, hypothesis.score, hypothesis.details
    if not isinstance(text, str) or not _is_number(score):
        raise EngineError(f"the engine returned a Hypothesis of a {_type_name(text)} and a {_type_name(score)}: it "
                          "takes a text and a number.")
    if not isinstance(details, TokenDetails | None):
        raise EngineError(f"the engine returned a Hypothesis with details of the type {_type_name(details)}: they must "
                          "be `TokenDetails`, or left out.")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, (str, bytes))


def _type_name(value: Any) -> str:
    return type(value).__name__
