"""Choose the engine of each search: CTranslate2 if its result is that of TensorFlow's graph, otherwise the graph.

A run is exported to CTranslate2 when it is first used: the graph translates the first lines, and the export is written
in the background. Later streams, and later processes, use the export. A stream of lines never changes its engine.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any, Protocol

import numpy as np

from towernmt.core.standard_streams import without_noise
from towernmt.predict.background_export import BackgroundExport, FastEngine
from towernmt.predict.engine_support import (
    ENGINES,
    check_engine,
    checkpoint_of,
    graph_precision,
    log_graph,
    why_only_graph,
)
from towernmt.predict.line_translator import DividingSearch, Search, SearchArguments, TrainedSearch
from towernmt.predict.lines.batch_inputs import LinePiece
from towernmt.predict.lines.hypotheses import SearchOutput
from towernmt.predict.pair_scorer import token_batches
from towernmt.predict.search.search_settings import GRAPH, StreamSettings

_ENGINE_LOCATION = "towernmt.interop.ctranslate2_equivalence:search_engine"

log = logging.getLogger(__name__)


class FastSearch(DividingSearch, Protocol):
    """A search by a `FastEngine`.

    Attributes:
        engine: name, version and precision of the engine.
    """

    engine: str

    def difference(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> str:
        """Return why the result of a search may differ from that of the graph, a clause; "" if it is the same.

        Args:
            changed: changed search settings.
            inputs: inputs of one line or of a batch by name, without `source`. `source_length` is the number of tokens
                of each source, EOS included.
        """

    def search_rows(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray],
                    details: bool) -> tuple[SearchOutput, Mapping[int, str]]:
        """Translate a batch for which `difference` returns "".

        Args:
            changed: changed search settings.
            inputs: inputs of the batch by name.
            details: whether log-probabilities and attention are needed, if the search has them.

        Returns:
            the translations; by row, why its translations may still differ from those of the graph, a clause.
        """

    def among_others(self) -> FastSearch:
        """Return a search that divides only large batches, because other searches use the same threads meanwhile."""


def open_engines(arguments: SearchArguments, stream: StreamSettings, engine: str = ENGINES[0],
                 export_first: bool = False) -> TrainedSearch:
    """Open the engine of a translator.

    Args:
        arguments: arguments of the search.
        stream: settings of the batches.
        engine: one of `ENGINES`.
        export_first: whether a run without an export is exported now, not in the background of its first lines.

    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: an invalid value, not a run, or a missing GPU.
    """
    check_engine(engine, arguments.precision)
    if engine == GRAPH:
        return _graph(arguments)
    reason = "the search has custom processors" if arguments.processors else why_only_graph(
        [arguments.runs, arguments.checkpoints, arguments.models], arguments.models, arguments.device,
        arguments.ensemble)
    if not reason:
        fast: FastEngine[FastSearch] = resolve_name(_ENGINE_LOCATION)(arguments, stream)
        reason = fast.difference()
        if not reason:
            return EngineChoice(arguments, fast, export_first, stream.batch_tokens)
    log_graph(arguments.runs[0], reason)
    return _graph(dataclasses.replace(arguments, precision=graph_precision(arguments.precision)))


def _graph(arguments: SearchArguments) -> TrainedSearch:
    with without_noise():
        from towernmt.predict.search_towers import build_graph_search  # imports TensorFlow

    return build_graph_search(arguments)


class EngineChoice:
    """Search towers that choose the engine of each search; see `TrainedSearch`.

    Args:
        arguments: arguments of the search, of one run.
        fast: the engine for searches whose result it does not change.
        export_first: see `open_engines`.
        batch_tokens: maximum number of source tokens in a batch of the graph, padding included.

    Attributes:
        checkpoint: prefix of the checkpoint's files.
        source_vocabulary, target_vocabulary: vocabularies of the run.

    Raises:
        CheckpointError: the checkpoint does not match the run's settings.
        SettingsError: the vocabulary does not belong to the run, or an invalid value.
    """

    def __init__(self, arguments: SearchArguments, fast: FastEngine[FastSearch], export_first: bool,
                 batch_tokens: int) -> None:
        run = arguments.runs[0]
        self.checkpoint, held_checkpoint = checkpoint_of(run, arguments.checkpoints[0], arguments.search.averaged)
        self._arguments = dataclasses.replace(arguments, checkpoints=[held_checkpoint])
        self._batch_tokens = batch_tokens
        self.source_vocabulary, self.target_vocabulary = run.vocabularies()
        self._towers: TrainedSearch | None = None
        self._building, self._logged = threading.Lock(), set[str]()
        self._export = BackgroundExport(run, self.checkpoint, fast, export_first)
        self.export_during, self.change_precision = self._export.export_during, self._export.change_precision
        if self._export.result is None:
            self._graph()

    @property
    def engine(self) -> str:
        """The engine of lines without options."""
        return GRAPH if self._export.result is None else self._export.result.engine

    @property
    def predictor(self) -> Any:
        """The plain search as tensorpack's `OfflinePredictor`."""
        return self._graph().predictor

    def __call__(self, **inputs: np.ndarray) -> SearchOutput:
        """Translate a batch of inputs by name."""
        return self.current()(**inputs)

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., SearchOutput]:
        """Return a search with some settings changed."""
        return self.current().with_settings(changed)

    def current(self) -> Search:
        """Return the search for a stream that begins now, whose engines do not change."""
        fast = self._export.result
        return self._graph() if fast is None else FastOrGraphSearch(fast, self._graph, self._log, self._batch_tokens)

    def _graph(self) -> TrainedSearch:
        with self._building:
            if self._towers is None:
                self._towers = _graph(dataclasses.replace(
                    self._arguments, precision=graph_precision(self._arguments.precision)))
            return self._towers

    def _log(self, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            log.info("%s: TensorFlow's graph translates some lines, because %s.", self._arguments.runs[0].name, reason)


class FastOrGraphSearch:
    """A search that chooses the engine of each batch; see `DividingSearch`.

    The graph repeats the rows of a batch for which the fast engine finds out that it cannot have the graph's result.

    Args:
        fast: search by the fast engine.
        graph: returns the towers of the graph, which are built by the first call.
        report: called with the reason for each search by the graph.
        batch_tokens: maximum number of source tokens in a batch of repeated rows, padding included.
    """

    def __init__(self, fast: FastSearch, graph: Callable[[], TrainedSearch], report: Callable[[str], None],
                 batch_tokens: int) -> None:
        self._fast, self._graph, self._report, self._batch_tokens = fast, graph, report, batch_tokens

    def __call__(self, **inputs: np.ndarray) -> SearchOutput:
        """Translate a batch of inputs by name."""
        return self._search({}, inputs)

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., SearchOutput]:
        """Return a search with some settings changed."""
        return lambda **inputs: self._search(changed, inputs)

    def without_details(self, changed: Mapping[str, Any]) -> Callable[..., SearchOutput]:
        """Return a search with some settings changed; CTranslate2 leaves out log-probabilities and attention."""
        return lambda **inputs: self._search(changed, inputs, details=False)

    def among_others(self) -> FastOrGraphSearch:
        """Return a search whose fast engine divides only large batches; see `DividingSearch`."""
        return FastOrGraphSearch(self._fast.among_others(), self._graph, self._report, self._batch_tokens)

    def is_undivided(self, piece: LinePiece) -> bool:
        """Return whether all pieces of this kind form one batch, which the fast engine divides itself."""
        return not self._fast.difference(piece.search, {**piece.inputs, "source_length": np.array(len(piece) + 1)})

    def _search(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray],
                details: bool = True) -> SearchOutput:
        reason = self._fast.difference(changed, {name: value for name, value in inputs.items() if name != "source"})
        if reason:
            self._report(reason)
            return self._search_by_graph(changed, inputs)
        output, reasons = self._fast.search_rows(changed, inputs, details)
        for reason in set(reasons.values()):
            self._report(reason)
        rows = np.array([*reasons], int)
        for batch in token_batches(inputs["source_length"][rows].tolist(), self._batch_tokens):
            batch_inputs = {name: value[rows[batch]] for name, value in inputs.items()}
            batch_inputs["source"] = batch_inputs["source"][:, :batch_inputs["source_length"].max()]
            output = _with_rows(output, rows[batch], self._search_by_graph(changed, batch_inputs))
        return output

    def _search_by_graph(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> SearchOutput:
        search: Search = self._graph()
        return (search.with_settings(changed) if changed else search)(**inputs)


def _with_rows(output: SearchOutput, rows: np.ndarray, new: SearchOutput) -> SearchOutput:
    """Return the output of a batch with the translations of some rows replaced.

    Args:
        output: output of the batch.
        rows: int `[n]`.
        new: output of the rows. Log-probabilities and attention that `output` does not have are left out.
    """
    def merged(old_array: np.ndarray, new_array: np.ndarray) -> np.ndarray:
        shape = np.maximum(old_array.shape, (len(old_array), *new_array.shape[1:]))
        array = np.zeros(shape, old_array.dtype)        # PAD is 0
        array[tuple(map(slice, old_array.shape))] = old_array
        array[rows] = 0
        index: tuple[Any, ...] = (rows, *map(slice, new_array.shape[1:]))
        array[index] = new_array
        return array

    def merged_details(old_array: np.ndarray | None, new_array: np.ndarray | None) -> np.ndarray | None:
        return None if old_array is None or new_array is None else merged(old_array, new_array)

    return SearchOutput(merged(output.tokens, new.tokens), merged(output.scores, new.scores),
                        merged_details(output.log_probs, new.log_probs),
                        merged_details(output.attention, new.attention))
