"""The export of a run for a faster engine, which is written while TensorFlow's graph translates or scores."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import TowerNMTError
from towernmt.core.unfinished_work import start_background_thread

A = TypeVar("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

RETRY_SECONDS = 600.0
"""Minimum number of seconds between a failure that may pass, such as a full disk, and the next export."""

log = logging.getLogger(__name__)


class FastEngine(Protocol[T_co]):
    """An engine for a run, which searches or scores."""

    def difference(self) -> str:
        """Return why results would always differ from those of the graph, a clause; "" if they can be the same."""

    def with_precision(self, precision: str) -> FastEngine[T_co]:
        """Return the engine with another precision of the weights."""

    def open_existing(self, checkpoint: str) -> T_co | None:
        """Open an export that exists; return None if it is missing or cannot be loaded.

        Args:
            checkpoint: prefix of the checkpoint's files.
        """

    def export(self, checkpoint: str, wait: bool) -> T_co | None:
        """Export the run and open the export; return None if another process exports the run now.

        Args:
            checkpoint: prefix of the checkpoint's files.
            wait: whether to wait for another process instead.

        Raises:
            TowerNMTError: the engine cannot express or load the model.
            OSError: the export cannot be written.
        """


class BackgroundExport(Generic[T]):
    """The export of a run for a fast engine, which a background thread writes if it is missing.

    If the engine cannot express the model, no later stream tries to export it. After any other failure, a stream that
    begins at least `RETRY_SECONDS` later tries again.

    Args:
        run: the run.
        checkpoint: prefix of the checkpoint's files.
        engine: the engine.
        export_first: whether a missing export is written now.

    Attributes:
        result: search or scorer that uses the export; None until the export exists.
    """

    def __init__(self, run: SavedRun, checkpoint: str, engine: FastEngine[T], export_first: bool) -> None:
        self._run, self._checkpoint, self._engine = run, checkpoint, engine
        self._export_lock = threading.Lock()    # held while a thread exports, or if no export is possible
        self._result_lock = threading.Lock()    # held while `result` changes
        self._next_export = -float("inf")       # earliest time of an export, by `time.monotonic`
        self.result = engine.open_existing(checkpoint)
        if self.result is None and export_first:
            self._export_lock.acquire()
            self._export(wait=True)

    def export_during(self, items: Iterator[A]) -> Iterator[A]:
        """Yield the items; if the export is missing, begin to write it in a thread after the first item.

        If another process exports the run, the next stream tries again.
        """
        for number, item in enumerate(items):
            if number == 0 and self.result is None and time.monotonic() >= self._next_export and (
                    self._export_lock.acquire(blocking=False)):
                start_background_thread(self._export, "export")
            yield item

    def change_precision(self, precision: str) -> None:
        """Export the run in another precision unless it is exported already, and use the export for later streams.

        Raises:
            TowerNMTError: the engine cannot express or load the model.
            OSError: the export cannot be written.
        """
        engine = self._engine.with_precision(precision)
        result = engine.export(self._checkpoint, wait=True)
        with self._result_lock:
            self._engine, self.result = engine, result

    def _export(self, wait: bool = False) -> None:
        """Export the run, for later streams; if that is not possible, log the reason.

        The caller holds `_export_lock`. It is released unless the engine cannot express the model.
        """
        try:
            result = self._engine.export(self._checkpoint, wait)
        except TowerNMTError as error:
            log.info("%s: TensorFlow's graph is used: %s", self._run.name, error)
            return
        except Exception as error:  # noqa: BLE001 -- the graph translates, whatever prevents the export
            self._next_export = time.monotonic() + RETRY_SECONDS
            log.warning("%s: TensorFlow's graph is used, because the export failed with %s. The export is tried again "
                        "after %d minutes.", self._run.name, " ".join(f"{type(error).__name__}: {error}".split()),
                        RETRY_SECONDS / 60)
        else:
            with self._result_lock:
                if self.result is None:     # `change_precision` may have been faster
                    self.result = result
        self._export_lock.release()
