"""Choose the engine of each search: CTranslate2 if its result is that of TensorFlow's graph, otherwise the graph.

A run is exported to CTranslate2 when it is first used: the graph translates the first lines, and the export is written
in the background. Later streams, and later processes, use the export. A stream of lines never changes its engine.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.records import check_vocabulary_of
from towernmt.checkpoint.saved_run import SavedRun, open_run_checkpoint
from towernmt.core.errors import SettingsError, TowerNMTError
from towernmt.core.machine import parse_device
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.line_translator import DividingSearch, Search, SearchArguments, TrainedSearch
from towernmt.predict.lines.batch_inputs import LinePiece
from towernmt.predict.lines.hypotheses import SearchOutput
from towernmt.predict.pair_scorer import PairScore, PairScorer
from towernmt.predict.search.device_batches import uses_gpu
from towernmt.predict.search.search_settings import EnsembleSettings, StreamSettings, as_list

A = TypeVar("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ENGINES = ("auto", "graph")
"""Engines of a `Translator` and a scorer; the first is the default."""
GRAPH = "graph"
"""Name of TensorFlow's graph as an engine."""
WEIGHT_PRECISIONS = ("int16", "int8")
"""Precisions of weights that only CTranslate2 has."""
_ENGINE_LOCATION = "towernmt.interop.ctranslate2_equivalence:{}"

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
            inputs: inputs in addition to `source` and `source_length`, of one line or of a batch.
        """


def _log_graph(run: SavedRun, reason: str) -> None:
    log.info("%s: TensorFlow's graph is used, because %s.", run.name, reason)


def _why_only_graph(members: Sequence[Sequence[Any]], models: Sequence[Any], device: str | None) -> str:
    """Return why only the graph is possible, a clause; "" if another engine may be.

    Args:
        members: lists with an element for each member of an ensemble, or one for all.
        models: models as Python objects; None for those of the runs.
        device: "cpu", "gpu", "gpu:N" or None.

    Raises:
        SettingsError: `device` is not a device.
    """
    if device is not None:
        parse_device(device)
    if max(map(len, members)) > 1:
        return "the model is an ensemble"
    if any(model is not None for model in models):
        return "the model is a Python object"
    return "it runs on a GPU" if uses_gpu(device) else ""


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
    _check_engine(engine, arguments.precision)
    if engine == GRAPH:
        return _graph(arguments)
    reason = "the search has custom processors" if arguments.processors else _why_only_graph(
        [arguments.runs, arguments.checkpoints, arguments.models], arguments.models, arguments.device)
    if not reason:
        fast: FastEngine[FastSearch] = resolve_name(_ENGINE_LOCATION.format("search_engine"))(arguments, stream)
        reason = fast.difference()
        if not reason:
            return EngineChoice(arguments, fast, export_first)
    _log_graph(arguments.runs[0], reason)
    return _graph(dataclasses.replace(arguments, precision=_graph_precision(arguments.precision)))


def default_precision(runs: Sequence[SavedRun], engine: str) -> str:
    """Return the precision for models without a requested precision: that of a package, or float32."""
    if len(runs) == 1 and isinstance(runs[0], PackagedRun) and engine != GRAPH:
        return runs[0].manifest.processor_precision
    return PRECISIONS[0]


def _check_engine(engine: str, precision: str) -> None:
    if engine not in ENGINES:
        raise SettingsError(f"engine '{engine}': choose one of {', '.join(ENGINES)}.")
    check_precision(precision, engine)


def check_precision(precision: str | None, engine: str) -> None:
    """Check that auto or graph supports a precision; CTranslate2 itself checks its precision.

    Args:
        precision: requested precision; None by default.
        engine: one of `ENGINES`, or "ctranslate2".

    Raises:
        SettingsError: the engine does not support the precision.
    """
    precisions = PRECISIONS if engine == GRAPH else (*PRECISIONS, *WEIGHT_PRECISIONS)
    if engine in ENGINES and precision not in (None, *precisions):
        raise SettingsError(f"--precision {precision}: --engine {engine} supports {', '.join(precisions)}.")


def _graph(arguments: SearchArguments) -> TrainedSearch:
    from towernmt.predict.search_towers import build_graph_search  # imports TensorFlow

    return build_graph_search(arguments)


class BackgroundExport(Generic[T]):
    """The export of a run for a fast engine, which a background thread writes if it is missing.

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
        self._export_lock = threading.Lock()    # held while a thread exports, and after a failure, so that none retries
        self._result_lock = threading.Lock()    # held while `result` changes
        self.result = engine.open_existing(checkpoint)
        if self.result is None and export_first:
            self._export_lock.acquire()
            self._export(wait=True)

    def export_during(self, items: Iterator[A]) -> Iterator[A]:
        """Yield the items; if the export is missing, begin to write it in a thread after the first item.

        If another process exports the run, the next stream tries again.
        """
        for number, item in enumerate(items):
            if number == 0 and self.result is None and self._export_lock.acquire(blocking=False):
                threading.Thread(target=self._export, name="export").start()
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
        """Export the run, for later streams; if that is not possible, log the reason."""
        try:
            result = self._engine.export(self._checkpoint, wait)
            with self._result_lock:
                if self.result is None:     # `change_precision` may have been faster
                    self.result = result
            self._export_lock.release()
        except (TowerNMTError, OSError) as error:
            log.info("%s: TensorFlow's graph is used: %s", self._run.name, error)


def _checkpoint_of(run: SavedRun, checkpoint: Any, averaged: bool) -> tuple[str, Any]:
    """Return the prefix of a checkpoint, and the checkpoint for the graph, which training cannot remove.

    Raises:
        CheckpointError: the checkpoint does not exist.
        SettingsError: the vocabulary does not belong to the run, or the run does not have the requested weights.
    """
    run.check_weights(averaged)
    if isinstance(run, PackagedRun) and not isinstance(checkpoint, OpenCheckpoint):
        return run.checkpoint_prefix(checkpoint), checkpoint      # its files are written when the graph needs them
    held = open_run_checkpoint(run, checkpoint)
    check_vocabulary_of(held, run.vocabulary)
    return held.original, held


class EngineChoice:
    """Search towers that choose the engine of each search; see `TrainedSearch`.

    Args:
        arguments: arguments of the search, of one run.
        fast: the engine for searches whose result it does not change.
        export_first: see `open_engines`.

    Attributes:
        checkpoint: prefix of the checkpoint's files.
        source_vocabulary, target_vocabulary: vocabularies of the run.

    Raises:
        CheckpointError: the checkpoint does not match the run's settings.
        SettingsError: the vocabulary does not belong to the run, or an invalid value.
    """

    def __init__(self, arguments: SearchArguments, fast: FastEngine[FastSearch], export_first: bool) -> None:
        run = arguments.runs[0]
        self.checkpoint, held_checkpoint = _checkpoint_of(run, arguments.checkpoints[0], arguments.search.averaged)
        self._arguments = dataclasses.replace(arguments, checkpoints=[held_checkpoint])
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
        return self._graph() if fast is None else FastOrGraphSearch(fast, self._graph, self._log)

    def _graph(self) -> TrainedSearch:
        with self._building:
            if self._towers is None:
                self._towers = _graph(dataclasses.replace(
                    self._arguments, precision=_graph_precision(self._arguments.precision)))
            return self._towers

    def _log(self, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            log.info("%s: TensorFlow's graph translates some lines, because %s.", self._arguments.runs[0].name, reason)


def _graph_precision(precision: str) -> str:
    """Return the graph's precision next to CTranslate2: float32 if only CTranslate2 has the precision."""
    return precision if precision in PRECISIONS else PRECISIONS[0]


class FastOrGraphSearch:
    """A search that chooses the engine of each batch; see `DividingSearch`.

    Args:
        fast: search by the fast engine.
        graph: returns the towers of the graph, which are built by the first call.
        report: called with the reason for each search by the graph.
    """

    def __init__(self, fast: FastSearch, graph: Callable[[], TrainedSearch], report: Callable[[str], None]) -> None:
        self._fast, self._graph, self._report = fast, graph, report
        self._plain_difference = fast.difference({}, {})

    def __call__(self, **inputs: np.ndarray) -> SearchOutput:
        """Translate a batch of inputs by name."""
        return self._search({}, inputs)

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., SearchOutput]:
        """Return a search with some settings changed."""
        return lambda **inputs: self._search(changed, inputs)

    def without_details(self, changed: Mapping[str, Any]) -> Callable[..., SearchOutput]:
        """Return a search with some settings changed; CTranslate2 leaves out log-probabilities and attention."""
        return lambda **inputs: self._search(changed, inputs, details=False)

    def is_undivided(self, piece: LinePiece) -> bool:
        """Return whether all pieces of this kind form one batch, which the fast engine divides itself."""
        return not self._difference(piece.search, piece.inputs)

    def _search(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray],
                details: bool = True) -> SearchOutput:
        extra_inputs = {name: value for name, value in inputs.items() if name not in ("source", "source_length")}
        reason = self._difference(changed, extra_inputs)
        if reason:
            self._report(reason)
        elif not details:
            return self._fast.without_details(changed)(**inputs)
        search: Search = self._graph() if reason else self._fast
        return (search.with_settings(changed) if changed else search)(**inputs)

    def _difference(self, changed: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> str:
        return self._fast.difference(changed, inputs) if changed or inputs else self._plain_difference


def open_scorer(run_dir: Any, checkpoint: Any = None, *, engine: str = ENGINES[0], device: str | None = None,
                averaged: bool = True, batch_tokens: int = 4096, ensemble: EnsembleSettings | None = None,
                precision: str = PRECISIONS[0], trust_code: bool = False) -> PairScorer:
    """Open a scorer of sentence pairs.

    Args:
        run_dir: see `Scorer`.
        checkpoint: see `Scorer`.
        engine: "auto": CTranslate2 if it can score as the graph does; "graph".
        device: see `Scorer`.
        averaged: see `Scorer`.
        batch_tokens: see `Scorer`.
        ensemble: see `Scorer`.
        precision: see `Translator`.
        trust_code: see `Scorer`.

    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: an invalid value, not a run, or a missing GPU.
    """
    _check_engine(engine, precision)
    runs = [open_run(path, trust_code) for path in as_list(run_dir)]
    common: dict[str, Any] = {"device": device, "averaged": averaged, "batch_tokens": batch_tokens}

    def graph(checkpoint_to_score: Any) -> PairScorer:
        from towernmt.predict.scorer import Scorer  # imports TensorFlow

        return Scorer(runs, checkpoint_to_score, ensemble=ensemble, trust_code=trust_code,
                      precision=precision if engine == GRAPH else _graph_precision(precision), **common)

    if engine == GRAPH:
        return graph(checkpoint)
    reason = _why_only_graph([runs, as_list(checkpoint)], (), device)
    if not reason:
        fast: FastEngine[PairScorer] = resolve_name(_ENGINE_LOCATION.format("scoring_engine"))(
            runs[0], averaged, precision, batch_tokens)
        reason = fast.difference()
        if not reason:
            return FastOrGraphScorer(runs[0], as_list(checkpoint)[0], averaged, fast, graph, batch_tokens)
    _log_graph(runs[0], reason)
    return graph(checkpoint)


class FastOrGraphScorer(PairScorer):
    """A scorer that uses the export of a run if it exists, and the graph otherwise.

    Args:
        run: the run.
        checkpoint: the requested checkpoint.
        averaged: whether to use the moving averages of the weights.
        fast: the engine with the results of the graph.
        graph: returns the graph's scorer of a checkpoint.
        batch_tokens: see `PairScorer`.

    Raises:
        CheckpointError: the checkpoint does not exist.
        SettingsError: an invalid value.
    """

    def __init__(self, run: SavedRun, checkpoint: Any, averaged: bool, fast: FastEngine[PairScorer],
                 graph: Callable[[Any], PairScorer], batch_tokens: int) -> None:
        prefix, held = _checkpoint_of(run, checkpoint, averaged)
        super().__init__(*run.vocabularies(), prefix, batch_tokens)
        self._export = BackgroundExport(run, prefix, fast, False)
        self._graph = cache(lambda: graph(held))
        if self._export.result is None:
            self._graph()

    def score_stream(self, pairs: Iterable[tuple[str, str]], name: str = "input",
                     per_token: bool = False) -> Iterator[PairScore]:
        """Yield the score of each pair; see `PairScorer`."""
        return self._export.export_during(self._current().score_stream(pairs, name, per_token))

    def score_ids(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        """Return the log-probabilities of pairs of ids; see `PairScorer`."""
        return self._current().score_ids(sources, targets)

    def _current(self) -> PairScorer:
        fast = self._export.result
        if fast is None:
            return self._graph()
        return _ScorerByLength(fast, self._graph, self.checkpoint, self._batch_tokens)


class _ScorerByLength(PairScorer):
    """A fast scorer of pairs that are short enough for it, and the graph for the others."""

    def __init__(self, fast: PairScorer, graph: Callable[[], PairScorer], checkpoint: str, batch_tokens: int) -> None:
        super().__init__(fast.source_vocabulary, fast.target_vocabulary, checkpoint, batch_tokens)
        self._fast, self._graph = fast, graph

    def score_ids(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        scores: dict[int, tuple[float, np.ndarray]] = {}
        max_length = self._fast.max_length
        short = [i for i, pair in enumerate(zip(sources, targets, strict=True))
                 if max_length is None or max(map(len, pair)) < max_length]
        long = sorted(set(range(len(sources))) - set(short))
        for indices, scorer in ((short, lambda: self._fast), (long, self._graph)):
            if indices:
                scores |= zip(indices, scorer().score_ids([sources[i] for i in indices], [targets[i] for i in indices]),
                              strict=True)
        return [scores[i] for i in range(len(sources))]
