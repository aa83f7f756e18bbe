"""What the interfaces ask: the models, and all that is shared among requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from towernmt.serve.documents import Documents
from towernmt.serve.engine.batcher import Round
from towernmt.serve.engine.models import Models
from towernmt.serve.engine.work import Ticket
from towernmt.serve.glossaries import Glossaries
from towernmt.serve.languages import Direction
from towernmt.serve.limits import Limits
from towernmt.serve.refusal import busy
from towernmt.serve.web.keys import KeysFile
from towernmt.serve.web.metrics import SECONDS, SENTENCES, Metrics
from towernmt.serve.web.rates import Rates

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """Who may ask, and how much.

    Attributes:
        keys: the keys of callers; None: anybody may ask.
        rate: requests a minute of a caller whose key says nothing, or of an address; 0 for as many as there come.
        characters: the same of characters.
        origins: web sites whose pages may ask; "*" for all.
    """

    keys: KeysFile | None = None
    rate: float = 0.0
    characters: float = 0.0
    origins: Sequence[str] = ()


@dataclass
class Service:
    """The server's state.

    Attributes:
        models: what translates.
        limits, access: see there.
        glossaries: of callers.
        characters: that each caller has let be translated.
        page: whether there is a page for browsers.
        documents: of callers.
        stopping: whether the server is about to stop.
    """

    models: Models
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    metrics: Metrics = field(default_factory=lambda: server_metrics())
    rates: Rates = field(default_factory=Rates)
    glossaries: Glossaries = field(default_factory=Glossaries)
    characters: dict[str, int] = field(default_factory=dict)
    page: bool = True
    stopping: bool = False

    def __post_init__(self) -> None:
        self.documents = Documents(self.limits)
        self._threads = ThreadPoolExecutor(self.limits.max_requests, thread_name_prefix="request")
        self._running = 0
        metrics = self.metrics
        metrics.gauge("towernmt_queue_sentences", "Sentences that wait for a model.", lambda: {
            _direction(model.direction): float(model.batcher.waiting()) for model in self.models})
        metrics.gauge("towernmt_requests_running", "Requests that are being translated.",
                      lambda: {(): float(self._running)})
        metrics.gauge("towernmt_model_loaded_seconds", "When a model was loaded, in seconds since 1970.", lambda: {
            _direction(model.direction): model.loaded for model in self.models})

    async def in_thread(self, ticket: Ticket, function: Callable[[], T]) -> T:
        """What a function gives, which waits for translations; it runs in a thread of its own.

        Raises:
            Refusal: there are too many already.
        """
        if self._running >= self.limits.max_requests:
            raise busy("Too many requests are being translated: try again in a moment.")
        self._running += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        future.add_done_callback(lambda _: self._one_less())
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            ticket.leave()
            raise

    def _one_less(self) -> None:
        self._running -= 1

    def count(self, caller: str, direction: Direction, characters: int) -> None:
        """Characters that a caller lets be translated."""
        self.characters[caller] = self.characters.get(caller, 0) + characters
        self.metrics.add("towernmt_characters_total", characters, direction=str(direction))

    def exchange(self) -> dict[str, str]:
        """Load all models anew; for each direction an error, or "". A model that cannot be loaded leaves the former."""
        told = self.models.exchange()
        for direction, error in told.items():
            self.metrics.add("towernmt_exchanges_total", direction=direction, outcome="failed" if error else "done")
            if error:
                log.error("%s: the model is not exchanged, the former one goes on: %s", direction, error)
        return told

    def close(self) -> None:
        """Translate what was accepted, and nothing more."""
        self.documents.close()
        self.models.close()
        self._threads.shutdown()


def server_metrics() -> Metrics:
    """The figures of a server, but for those that are read from it."""
    metrics = Metrics()
    metrics.counter("towernmt_requests_total", "Requests that were answered, by route and status.")
    metrics.histogram("towernmt_request_seconds", "Seconds until a request was answered.", SECONDS)
    metrics.counter("towernmt_characters_total", "Characters that were translated.")
    metrics.histogram("towernmt_batch_sentences", "Sentences that were translated at once.", SENTENCES)
    metrics.counter("towernmt_sentences_total", "Sentences that were translated.")
    metrics.counter("towernmt_batch_seconds_total", "Seconds that models spent translating.")
    metrics.counter("towernmt_exchanges_total", "Exchanges of models, by outcome.")
    return metrics


def watch_rounds(metrics: Metrics, direction: Direction) -> Callable[[Round], None]:
    """What counts the rounds of a model."""
    def watch(one: Round) -> None:
        metrics.observe("towernmt_batch_sentences", one.sentences, direction=str(direction))
        metrics.add("towernmt_sentences_total", one.sentences, direction=str(direction))
        metrics.add("towernmt_batch_seconds_total", one.seconds, direction=str(direction))

    return watch


def _direction(direction: Direction) -> tuple[tuple[str, str], ...]:
    return (("direction", str(direction)),)
