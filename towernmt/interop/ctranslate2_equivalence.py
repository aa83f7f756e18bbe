"""CTranslate2 as an engine for the searches and scores whose results equal those of TensorFlow's graph."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, DirectoryInUseError, SettingsError
from towernmt.interop.ctranslate2_engine import CTranslate2Scorer
from towernmt.interop.ctranslate2_loader import FORMAT, ExportedModel, import_ctranslate2
from towernmt.interop.ctranslate2_model_support import unsupported_by_ctranslate2
from towernmt.interop.ctranslate2_requests import difference
from towernmt.interop.ctranslate2_search import CTranslate2Search
from towernmt.interop.export_cache import CACHE, ExportSpec, cached_export, exported_run
from towernmt.models.architectures import settings_and_presets
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.line_translator import SearchArguments
from towernmt.predict.search.search_settings import StreamSettings

T = TypeVar("T")

log = logging.getLogger(__name__)


def search_engine(arguments: SearchArguments, stream: StreamSettings) -> CTranslate2Engine[CTranslate2Search]:
    """Return CTranslate2 as the engine of a `Translator`.

    Args:
        arguments: arguments of the search, of one run.
        stream: settings of the batches.
    """
    def open_search(directory: Path) -> CTranslate2Search:
        threads = 1 if stream.window == 1 else stream.threads       # a single sentence uses all processors
        model = ExportedModel(directory, "cpu", threads)
        return CTranslate2Search(model, arguments.search, stream, arguments.log_probs, arguments.attention)

    return CTranslate2Engine(arguments.runs[0], arguments.search.averaged, arguments.precision, open_search,
                             difference(arguments.search))


def scoring_engine(run: SavedRun, averaged: bool, precision: str,
                   batch_tokens: int) -> CTranslate2Engine[CTranslate2Scorer]:
    """Return CTranslate2 as the engine of a scorer; see `open_scorer` for the arguments."""
    return CTranslate2Engine(run, averaged, precision,
                             lambda directory: CTranslate2Scorer(directory, device="cpu", batch_tokens=batch_tokens))


class CTranslate2Engine(Generic[T]):
    """CTranslate2 for a run; see `FastEngine`.

    Args:
        run: the run.
        averaged: whether to use the moving averages of the weights.
        precision: precision of the weights.
        open_export: opens the directory of an export.
        problem: why results would differ from those of the graph, a clause; "" if they are the same.
    """

    def __init__(self, run: SavedRun, averaged: bool, precision: str, open_export: Callable[[Path], T],
                 problem: str = "") -> None:
        self._run, self._averaged, self._precision = run, averaged, precision
        self._open, self._problem = open_export, problem

    def difference(self) -> str:
        """Return why CTranslate2's results would always differ from those of the graph, a clause; "" if not."""
        if self._precision in PRECISIONS[1:]:
            return f"precision={self._precision} is that of the graph's matrix products"
        if self._problem:
            return self._problem
        architecture = self._run.architecture()
        if architecture != "transformer":
            return f"CTranslate2 supports only the architecture transformer, not {architecture}"
        if problem := unsupported_by_ctranslate2(self._run.group("model", settings_and_presets(architecture)[0])):
            return problem
        try:
            import_ctranslate2()
        except SettingsError as error:
            return str(error).removesuffix(".")
        return ""

    def with_precision(self, precision: str) -> CTranslate2Engine[T]:
        """Return the engine with another precision of the weights."""
        return CTranslate2Engine(self._run, self._averaged, precision, self._open, self._problem)

    def open_existing(self, checkpoint: str) -> T | None:
        """Open an export that exists; return None if it is missing or cannot be loaded."""
        directory = self._included() or cached_export(self._export_spec(checkpoint))
        try:
            return None if directory is None else self._open(directory)
        except (SettingsError, DataError) as error:
            log.info("%s", error)
            return None

    def export(self, checkpoint: str, wait: bool) -> T | None:
        """Export the run and open the export; return None if another process exports the run now."""
        lock = DirectoryLock(self._run.path / CACHE, "export to CTranslate2")
        try:
            with suppress(OSError):     # the run cannot be written: the export has another directory
                lock.acquire(math.inf if wait else 0.0)
            with exported_run(self._export_spec(checkpoint)) as (directory, _):
                return self._open(directory)
        except DirectoryInUseError:
            return None
        finally:
            lock.release()

    def _included(self) -> Path | None:
        """Return an export in a package whose weights are those of the graph, or have the requested low precision."""
        run, precision = self._run, self._precision
        if not isinstance(run, PackagedRun) or precision in PRECISIONS and precision != run.manifest.precision:
            return None
        return run.included_export(FORMAT, precision)

    def _export_spec(self, checkpoint: str) -> ExportSpec:
        return ExportSpec(self._run, checkpoint, self._averaged, self._precision)
