"""A model in service. Another one takes its place without a pause: it is loaded, warmed up, and only then asked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from towernmt.core.errors import TowerNMTError
from towernmt.serve.engine.batcher import Batcher, Round
from towernmt.serve.engine.opening import OpenedModel, warm_up, warm_up_constraints
from towernmt.serve.languages import Direction

log = logging.getLogger(__name__)


class ServedModel:
    """A model, and the thread that asks it.

    Attributes:
        direction: from which language to which.
        place: where it comes from.
        model: what translates now.
        batcher: the thread.
        loaded: when it was loaded, in seconds since 1970.
    """

    def __init__(self, direction: Direction, place: str, open_model: Callable[[], OpenedModel], round_size: int,
                 longest_queue: int, watch: Callable[[Round], None] = lambda _: None) -> None:
        """
        Args:
            open_model: loads it; called again for each exchange.
            round_size, longest_queue, watch: as of `Batcher`.
        Raises:
            TowerNMTError: it cannot be loaded, or does not translate.
        """
        self.direction, self.place, self._open = direction, place, open_model
        self._exchanging = threading.Lock()
        self.model = self._loaded()
        self.loaded = time.time()
        self.batcher = Batcher(self.model.translate, round_size, longest_queue, watch)
        self._closing = False
        self._warming = threading.Thread(target=self._warm_up_further, args=(self.model,), name="warm up", daemon=True)
        self._warming.start()

    def close(self) -> None:
        """Translate what was submitted, and nothing more."""
        self._closing = True
        self.batcher.close()
        self._warming.join()

    def exchange(self) -> None:
        """Load what is at its place now, and let it translate from the next round on.

        Raises:
            TowerNMTError: it cannot be loaded; the former one goes on.
        """
        with self._exchanging:
            model = self._loaded()
            warm_up_constraints(model)
            self.model = model
            self.batcher.translate = self.model.translate
            self.loaded = time.time()

    def _warm_up_further(self, model: OpenedModel) -> None:
        """While it answers already: to build further searches takes longer than to load the model."""
        try:
            warm_up_constraints(model)
        except TowerNMTError as error:
            log.warning("%s: %s", self.direction, error)

    def _loaded(self) -> OpenedModel:
        begun = time.monotonic()
        model = self._open()
        warm_up(model)
        log.info("%s: %s is ready after %.1f s.", self.direction, self.place, time.monotonic() - begun)
        return model
