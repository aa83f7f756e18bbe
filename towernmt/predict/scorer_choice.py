"""Choose the engine of a scorer: CTranslate2 if it scores as TensorFlow's graph does, otherwise the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pkgutil import resolve_name
from typing import Any

import numpy as np

from towernmt.checkpoint.packaged_run import open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.background_export import BackgroundExport, FastEngine
from towernmt.predict.engine_support import (
    ENGINES,
    check_engine,
    checkpoint_of,
    graph_precision,
    log_graph,
    why_only_graph,
)
from towernmt.predict.pair_scorer import PairScore, PairScorer
from towernmt.predict.search.search_settings import GRAPH, EnsembleSettings, as_list

_ENGINE_LOCATION = "towernmt.interop.ctranslate2_equivalence:scoring_engine"


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
    check_engine(engine, precision)
    runs = [open_run(path, trust_code) for path in as_list(run_dir)]
    common: dict[str, Any] = {"device": device, "averaged": averaged, "batch_tokens": batch_tokens}

    def graph(checkpoint_to_score: Any) -> PairScorer:
        from towernmt.predict.scorer import Scorer  # imports TensorFlow

        return Scorer(runs, checkpoint_to_score, ensemble=ensemble, trust_code=trust_code,
                      precision=precision if engine == GRAPH else graph_precision(precision), **common)

    if engine == GRAPH:
        return graph(checkpoint)
    reason = why_only_graph([runs, as_list(checkpoint)], (), device, ensemble)
    if not reason:
        fast: FastEngine[PairScorer] = resolve_name(_ENGINE_LOCATION)(
            runs[0], averaged, precision, batch_tokens)
        reason = fast.difference()
        if not reason:
            return FastOrGraphScorer(runs[0], as_list(checkpoint)[0], averaged, fast, graph, batch_tokens)
    log_graph(runs[0], reason)
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
        prefix, held = checkpoint_of(run, checkpoint, averaged)
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
    """A scorer that uses the fast scorer for short pairs and the graph for pairs that are too long for it."""

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
