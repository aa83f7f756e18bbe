"""State that all interfaces share: models, limits, keys and rates of callers, documents, glossaries and metrics."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from towernmt.dataflow.text.language_codes import Direction
from towernmt.serve.batcher import Cancellation, RoundStatistics
from towernmt.serve.document_jobs import Documents
from towernmt.serve.glossaries import Glossaries
from towernmt.serve.request_limits import RequestError, ServerLimits, server_stopping, unavailable
from towernmt.serve.served_models import Models
from towernmt.serve.suggestions import Suggestions
from towernmt.serve.web.callers import MAX_CALLERS, KeysFile, Proxies, Rates
from towernmt.serve.web.observability import SECONDS, SENTENCES, Metrics
from towernmt.serve.web.request_bodies import RequestBodies

T = TypeVar("T")
log = logging.getLogger(__name__)
MAX_ROUND_SECONDS = 30.0
"""Maximum seconds of a round before the model counts as hanging, unless `--seconds` is larger."""


@dataclass(frozen=True)
class Access:
    """Access control of a server.

    Attributes:
        keys: API keys; None means open access.
        rate: requests per minute of an address, or of a key without its own rate; 0 means no limit.
        characters: characters per minute, likewise.
        origins: web sites whose pages may send requests; "*" means all.
        proxies: proxies that are trusted to report the address of a client.
    """

    keys: KeysFile | None = None
    rate: float = 0.0
    characters: float = 0.0
    origins: Sequence[str] = ()
    proxies: Proxies = field(default_factory=Proxies)


@dataclass
class Service:
    """State of the server that all interfaces share.

    Attributes:
        models: the models by direction.
        limits: limits of requests and documents.
        access: access control.
        glossaries: glossaries of callers.
        suggestions: suggestions of better translations.
        characters: number of translated characters by caller, of the `MAX_CALLERS` callers that sent texts last.
        page: whether to serve the page for browsers.
        documents: documents of callers.
        bodies: bodies that are being received.
        stopping: whether the server is shutting down.
    """

    models: Models
    limits: ServerLimits = field(default_factory=ServerLimits)
    access: Access = field(default_factory=Access)
    metrics: Metrics = field(default_factory=lambda: server_metrics())
    rates: Rates = field(default_factory=Rates)
    glossaries: Glossaries = field(default_factory=Glossaries)
    suggestions: Suggestions = field(default_factory=Suggestions)
    characters: OrderedDict[str, int] = field(default_factory=OrderedDict)
    page: bool = True
    stopping: bool = False

    def __post_init__(self) -> None:
        self.documents = Documents(self.limits)
        self.bodies = RequestBodies(self.limits)
        self._threads = ThreadPoolExecutor(self.limits.max_requests, thread_name_prefix="request")
        self._running: dict[asyncio.Future[Any], tuple[Cancellation, asyncio.Future[Any]]] = {}
        self._has_failed_unfinished = False
        self._reload_threads: list[threading.Thread] = []
        self._character_lock = threading.Lock()
        metrics = self.metrics
        metrics.gauge("towernmt_queue_sentences", "Sentences that wait for a model.", lambda: {
            _labels(model.direction): float(model.batcher.queue_length()) for model in self.models})
        metrics.gauge("towernmt_requests_running", "Requests that are being translated.",
                      lambda: {(): float(len(self._running))})
        metrics.gauge("towernmt_documents_running", "Documents that are translated, or wait for their turn.",
                      lambda: {(): float(self.documents.unfinished())})
        metrics.gauge("towernmt_model_loaded_seconds", "When a model was loaded, in seconds since 1970.", lambda: {
            _labels(model.direction): model.loaded_at for model in self.models})

    def readiness_error(self) -> RequestError | None:
        """Return the error for `/ready` if the server should not receive requests now, or None."""
        if self.stopping:
            return unavailable("The server is shutting down.", 5.0)
        if not all(model.is_warm for model in self.models):
            return unavailable("The server is still preparing searches with constraints, glossaries and prefixes.", 5.0)
        problem = self.models.health_problem(max(self.limits.seconds, MAX_ROUND_SECONDS))
        return None if problem is None else unavailable(problem, 60.0)

    async def run_in_thread(self, cancellation: Cancellation, function: Callable[[], T]) -> T:
        """Run a function that waits for translations in a separate thread and return its result.

        Args:
            cancellation: is cancelled if the request ends before the function.
            function: the function to run.

        Raises:
            RequestError: too many requests are running, the server is stopping, or the function raised it.
        """
        if len(self._running) >= self.limits.max_requests:
            raise unavailable("Too many requests are being translated: try again in a moment.")
        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        shielded = asyncio.shield(future)
        self._running[future] = cancellation, shielded
        future.add_done_callback(self._running.pop)
        try:
            return await shielded
        except asyncio.CancelledError:
            cancellation.cancel()
            if self._has_failed_unfinished:
                raise server_stopping() from None
            raise

    def stop_accepting(self, seconds: float) -> None:
        """Refuse new requests, and limit the time for bodies that are being received."""
        self.stopping = True
        self.documents.stop_accepting()
        self.bodies.shorten_timeouts(asyncio.get_running_loop().time() + seconds)

    def fail_unfinished(self) -> None:
        """Answer all unfinished requests with an error."""
        self._has_failed_unfinished = True
        self.documents.fail_unfinished()
        for cancellation, _ in list(self._running.values()):
            cancellation.cancel(server_stopping())

    def abandon_threads(self) -> None:
        """Answer the requests whose threads run on after `fail_unfinished`, such as one that splits a large file."""
        for _, shielded in list(self._running.values()):
            shielded.cancel()

    def count_characters(self, caller: str, direction: str, characters: int) -> None:
        """Count characters that a caller had translated."""
        with self._character_lock:
            self.characters[caller] = self.characters.pop(caller, 0) + characters
            if len(self.characters) > MAX_CALLERS:
                self.characters.popitem(last=False)
        self.metrics.add("towernmt_characters_total", characters, direction=direction)

    def reload_in_background(self) -> None:
        """Reload all models in a thread; see `reload`."""
        thread = threading.Thread(target=self.reload, name="reload", daemon=True)
        self._reload_threads = [*(other for other in self._reload_threads if other.is_alive()), thread]
        thread.start()

    def reload(self) -> dict[str, str]:
        """Reload all models and return an error by direction ("" for success). After an error, the old model stays."""
        errors = self.models.reload()
        for direction, error in errors.items():
            self.metrics.add("towernmt_reloads_total", direction=direction, outcome="failed" if error else "done")
            if error:
                log.error("%s: the model was not replaced; the server keeps the previous model: %s", direction, error)
            else:
                log.info("%s: the model was replaced; new requests use the new one.", direction)
        return errors

    def close(self) -> None:
        """Translate the requests that were accepted, end all documents, and wait for all threads."""
        self.documents.close()
        self.models.close()
        self._threads.shutdown()
        for thread in self._reload_threads:
            thread.join()


def server_metrics() -> Metrics:
    """Return the counters and histograms of a server."""
    metrics = Metrics()
    metrics.counter("towernmt_requests_total", "Answered requests by route and status.")
    metrics.histogram("towernmt_request_seconds", "Seconds until a request was answered.", SECONDS)
    metrics.counter("towernmt_characters_total", "Translated characters.")
    metrics.histogram("towernmt_batch_sentences", "Sentences per round.", SENTENCES)
    metrics.counter("towernmt_sentences_total", "Translated sentences.")
    metrics.counter("towernmt_batch_seconds_total", "Seconds that models spent on translation.")
    metrics.counter("towernmt_reloads_total", "Reloads of models, by outcome.")
    return metrics


def record_rounds(metrics: Metrics, direction: Direction) -> Callable[[RoundStatistics], None]:
    """Return a function that records the rounds of a model."""
    name = str(direction)

    def record(statistics: RoundStatistics) -> None:
        metrics.observe("towernmt_batch_sentences", statistics.sentences, direction=name)
        metrics.add("towernmt_sentences_total", statistics.sentences, direction=name)
        metrics.add("towernmt_batch_seconds_total", statistics.seconds, direction=name)

    return record


def _labels(direction: Direction) -> tuple[tuple[str, str], ...]:
    return (("direction", str(direction)),)
