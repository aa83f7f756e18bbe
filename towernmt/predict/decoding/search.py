"""Search as a tower: `beam_search` behind tensorpack's predictors, or inside a training session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel, batch_signature
from towernmt.optim.ema import averaged_weights
from towernmt.predict.decoding.beam import SearchResult, beam_search
from towernmt.predict.decoding.settings import SearchSettings

__all__ = ["INPUT_NAMES", "OUTPUT_NAMES", "SearchPredictor", "SearchResult", "SearchSettings", "beam_search",
           "build_search_predictor", "search_signature", "search_tower"]

INPUT_NAMES = ["source", "source_length"]
OUTPUT_NAMES = ["tokens", "scores"]


def search_signature(model: NMTModel) -> list[Any]:
    """The search tower's inputs: the model's `source` and `source_length`."""
    return batch_signature(model.source_factor_count)[:2]


def search_tower(model: NMTModel, settings: SearchSettings,
                 device: str | None = None) -> Callable[..., SearchResult]:
    """A tower function over `search_signature(model)`.

    For `PredictConfig(tower_func=search_tower(...), input_signature=search_signature(model))`; do not wrap
    it in a `TowerFunc` there, which tensorpack 0.11 then calls without end.

    Its outputs are named `tokens` (int32 `[batch, n_best, length]`) and `scores` (float32
    `[batch, n_best]`) in the tower; see `SearchResult`.

    Args:
        device: TensorFlow's name, such as "/cpu:0"; None leaves the placement to TensorFlow.
    """
    def tower(source: Any, source_length: Any) -> SearchResult:
        with tf1.device(device) if device else nullcontext():
            result = beam_search(model, source, source_length, settings)
            return SearchResult(tf.identity(result.tokens, name="tokens"),
                                tf.identity(result.scores, name="scores"))
    return tower


class SearchPredictor:
    """Search in a session of somebody else's (a trainer's): call it with arrays.

    It is made by `build_search_predictor` while the graph is built (a callback's `_setup_graph`), and
    gets its session later (`_before_train`).
    """

    def __init__(self, inputs: list[Any], outputs: list[Any]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._call: Callable[..., Any] | None = None

    def set_session(self, session: Any) -> None:
        """Run in `session` from now on.

        A `MonitoredSession` is entered by its raw session, so that no training hook runs (a hook would take
        a batch from the input queue).
        """
        if hasattr(session, "_tf_sess"):
            session = session._tf_sess()
        self._call = session.make_callable(self._outputs, feed_list=self._inputs)

    def __call__(self, source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Translate a batch.

        Args:
            source: int32 `[batch, source length]`, ending with EOS, padded with PAD.
            source_length: int32 `[batch]`.
        Returns:
            tokens int32 `[batch, n_best, length]` and scores float32 `[batch, n_best]`.
        """
        if self._call is None:
            raise RuntimeError("SearchPredictor: call set_session(session) before the first batch.")
        tokens, scores = self._call(source, source_length)
        return tokens, scores


def build_search_predictor(model: NMTModel, settings: SearchSettings,
                           device: str | None = None) -> SearchPredictor:
    """Build a search tower in the current graph on the variables of a training tower that is already there.

    It reads the moving averages of the variables if the graph has them and `settings.averaged` says so.

    Args:
        model: the model that is being trained.
        device: TensorFlow's name, such as "/gpu:0"; None leaves the placement to TensorFlow.
    Raises:
        ValueError: the graph has no training tower yet (TensorFlow's error for reuse of a missing variable).
    """
    name = tf1.get_default_graph().unique_name("tower-search", mark_as_used=False)
    weights = averaged_weights() if settings.averaged else nullcontext()
    with weights, tf1.variable_scope(tf1.get_variable_scope(), reuse=True), PredictTowerContext(name):
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in search_signature(model)]
        result = search_tower(model, settings, device)(*inputs)
    return SearchPredictor(inputs, list(result))
