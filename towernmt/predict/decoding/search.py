"""Decoding as a tower: behind tensorpack's predictors, or inside a training session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel
from towernmt.optim.ema import averaged_weights
from towernmt.predict.decoding.assembly import decoding_for
from towernmt.predict.decoding.inputs import by_name, decoding_signature
from towernmt.predict.decoding.loop import Decoding, decode
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.decoding.strategies.strategy import Decoded

__all__ = ["OUTPUT_NAMES", "SearchPredictor", "SearchResult", "SearchSettings", "beam_search", "build_predictor",
           "build_search_predictor", "search_signature", "search_tower"]

OUTPUT_NAMES = ["tokens", "scores"]
"""Tensors that every search tower has, by name."""


class SearchResult(NamedTuple):
    """Translations, best first.

    Attributes:
        tokens: int32 `[batch, n_best, length]`: no BOS; EOS where the hypothesis ended by itself (a
            hypothesis cut at the length limit has none); PAD behind.
        scores: float32 `[batch, n_best]`, as the settings have them (`Scoring`), of samples their log-probability;
            -inf (and only PAD) where fewer than n_best hypotheses exist.
    """

    tokens: Tensor
    scores: Tensor


def beam_search(model: NMTModel, source: Tensor, source_length: Tensor, settings: SearchSettings,
                processors: Sequence[LogitsProcessor] = (),
                inputs: Mapping[str, Tensor] | None = None) -> SearchResult:
    """Search the most probable translations.

    By default the score of a hypothesis Y is log p(Y | source) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016), where |Y|
    counts EOS. PAD and BOS are never generated, yet keep their share of the probability, so that a score agrees with
    teacher forcing. At equal scores the earlier hypothesis and the smaller token id win.

    Args:
        model: its variables are created here or, under reuse, found.
        source: int32 `[batch, source length]`, ending with EOS, padded with PAD.
        source_length: int32 `[batch]`, EOS counted.
        processors: of one's own; they act behind those of the settings.
        inputs: further inputs by name, which the model or the processors declare.
    """
    everything = {"source": source, "source_length": source_length, **(inputs or {})}
    found = decode(model, everything, decoding_for(settings, processors))
    return SearchResult(found.tokens, found.scores)


def search_signature(model: NMTModel, settings: SearchSettings | None = None,
                     processors: Sequence[LogitsProcessor] = ()) -> list[TensorSpec]:
    """The inputs of `search_tower(model, settings, processors=processors)`: `source` and `source_length`, and what the
    model and the processors declare beyond these.
    """
    return decoding_signature(model, decoding_for(settings or SearchSettings(), processors))


def search_tower(model: NMTModel, settings: SearchSettings, device: str | None = None,
                 processors: Sequence[LogitsProcessor] = ()) -> Callable[..., SearchResult]:
    """A tower function over `search_signature(model, settings, processors)`.

    For `PredictConfig(tower_func=search_tower(...), input_signature=search_signature(...))`; do not wrap
    it in a `TowerFunc` there, which tensorpack 0.11 then calls without end.

    Its outputs are named `tokens` (int32 `[batch, n_best, length]`) and `scores` (float32
    `[batch, n_best]`) in the tower; see `SearchResult`. `decoding_tower` gives more of each hypothesis.

    Args:
        device: TensorFlow's name, such as "/cpu:0"; None leaves the placement to TensorFlow.
        processors: of one's own; they act behind those of the settings.
    """
    tower = decoding_tower(model, decoding_for(settings, processors), device)

    def search(*tensors: Tensor) -> SearchResult:
        found = tower(*tensors)
        return SearchResult(found.tokens, found.scores)
    return search


def output_names(decoding: Decoding) -> list[str]:
    """The names of the tensors that a decoding tower has: fields of `Decoded`."""
    asked = {"log_probs": decoding.log_probs, "attention": decoding.attention}
    return [*OUTPUT_NAMES, *(name for name, given in asked.items() if given)]


class SearchPredictor:
    """Decoding in a session of somebody else's (a trainer's): call it with arrays.

    It is made by `build_search_predictor` while the graph is built (a callback's `_setup_graph`), and
    gets its session later (`_before_train`).
    """

    def __init__(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """
        Args:
            inputs: placeholders by name, in their order.
            outputs: tensors by name, in the order in which they are given.
        """
        self._names, self._inputs, self._outputs = list(inputs), list(inputs.values()), dict(outputs)
        self._call: Callable[..., Any] | None = None

    def set_session(self, session: Any) -> None:
        """Run in `session` from now on, such as `trainer.session(Run.SAMPLING)`.

        A `MonitoredSession` is entered by its raw session, so that no training hook runs (a hook would take
        a batch from the input queue).
        """
        if hasattr(session, "_tf_sess"):
            session = session._tf_sess()
        self._call = session.make_callable(list(self._outputs.values()), feed_list=self._inputs)

    def __call__(self, *arrays: np.ndarray, **named: np.ndarray | int) -> tuple[np.ndarray, ...]:
        """Translate a batch: `predictor(source, source_length)`.

        Args:
            arrays: the inputs in their order: source int32 `[batch, source length]`, ending with EOS, padded with PAD;
                source_length int32 `[batch]`; and what the model, the strategy and the processors declare.
            named: any of them by name.
        Returns:
            tokens int32 `[batch, n, length]` and scores float32 `[batch, n]`, and what else the decoding gives.
        Raises:
            SettingsError: an input is missing, given twice or not known.
        """
        if self._call is None:
            raise RuntimeError("SearchPredictor: call set_session(session) before the first batch.")
        return tuple(self._call(*by_name(self._names, arrays, named)))


def build_search_predictor(model: NMTModel, settings: SearchSettings, device: str | None = None,
                           processors: Sequence[LogitsProcessor] = ()) -> SearchPredictor:
    """Build a search tower in the current graph on the variables of a training tower that is already there.

    It reads the moving averages of the variables if the graph has them and `settings.averaged` says so.

    Args:
        model: the model that is being trained.
        device: TensorFlow's name, such as "/gpu:0"; None leaves the placement to TensorFlow.
        processors: of one's own; they act behind those of the settings.
    Raises:
        ValueError: the graph has no training tower yet (TensorFlow's error for reuse of a missing variable).
    """
    with averaged_weights() if settings.averaged else nullcontext():
        return build_predictor(model, decoding_for(settings, processors), device)


def build_predictor(model: NMTModel, decoding: Decoding, device: str | None = None) -> SearchPredictor:
    """As `build_search_predictor`, for any decoding, with the variables that are trained."""
    name = tf1.get_default_graph().unique_name("tower-search", mark_as_used=False)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True), PredictTowerContext(name):
        inputs = {spec.name: tf1.placeholder(spec.dtype, spec.shape, spec.name)
                  for spec in decoding_signature(model, decoding)}
        result = decoding_tower(model, decoding, device)(*inputs.values())
    return SearchPredictor(inputs, {name: getattr(result, name) for name in output_names(decoding)})


def decoding_tower(model: NMTModel, decoding: Decoding, device: str | None = None) -> Callable[..., Decoded]:
    """A tower function over `decoding_signature(model, decoding)`, with outputs `output_names(decoding)`."""
    names = [spec.name for spec in decoding_signature(model, decoding)]

    def tower(*tensors: Tensor) -> Decoded:
        with tf1.device(device) if device else nullcontext():
            found = decode(model, dict(zip(names, tensors, strict=True)), decoding)
            return Decoded(**{name: tf.identity(getattr(found, name), name=name) for name in output_names(decoding)})
    return tower
