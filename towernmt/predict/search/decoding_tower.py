"""Decoding as a tower, for tensorpack's predictors and training sessions, assembled from settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.check.tower_check import TowerWatch
from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS, PAD
from towernmt.models.interface import NMTModel
from towernmt.optim.optimizer import averaged_weights
from towernmt.predict.search.beam_search import BeamSearch, GreedySearch, Stopping
from towernmt.predict.search.constrained_beam import ConstrainedBeamSearch
from towernmt.predict.search.decoding_interfaces import Decoded, LogitsProcessor, Strategy
from towernmt.predict.search.decoding_loop import Decoding, LengthLimit, decode
from towernmt.predict.search.diverse_beam import DiverseBeamSearch
from towernmt.predict.search.processors import (
    ForbiddenTokens,
    MinimumLength,
    NoRepeatedNgrams,
    RepetitionPenalty,
    Temperature,
)
from towernmt.predict.search.sampling_search import AncestralSampling, Truncation
from towernmt.predict.search.scores import Average, CoveragePenalty, LengthPenalty, Scoring, WordReward
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.shortlist import Shortlist


def decoding_signature(model: NMTModel, decoding: Decoding) -> list[TensorSpec]:
    """Return all inputs of a decoding tower in their order, those of the encoder first.

    Raises:
        SettingsError: an input has no name, or is declared twice and differently.
    """
    return _merged([model.encoder_inputs(), decoding.strategy.inputs(),
                    *(processor.inputs() for processor in decoding.processors)])


def bind_inputs(names: Sequence[str], positional: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return the values of all inputs in the order of `names`.

    Args:
        names: names of the inputs.
        positional: values of the first inputs.
        named: values of the other inputs by name.

    Raises:
        SettingsError: an input is missing, passed twice, or unknown.
    """
    values = dict(zip(names, positional, strict=False))
    twice, unknown = values.keys() & named.keys(), [name for name in named if name not in names]
    missing = [name for name in names if name not in values and name not in named]
    if missing or twice or unknown or len(positional) > len(names):
        passed = [*(f"value {number}" for number in range(1, len(positional) + 1)), *named]
        raise SettingsError(f"Decoding has the inputs {', '.join(names)}, each to be passed once. These were "
                            f"passed: {', '.join(passed) or 'none'}.")
    return [{**values, **named}[name] for name in names]


def _merged(declared: Iterable[Sequence[TensorSpec]]) -> list[TensorSpec]:
    by_name: dict[str, TensorSpec] = {}
    for spec in (spec for specs in declared for spec in specs):
        if not spec.name:
            raise SettingsError(f"The input {spec} of decoding has no name: give its TensorSpec one.")
        if by_name.setdefault(spec.name, spec) != spec:
            raise SettingsError(f"The input '{spec.name}' of decoding is declared twice and differently, as "
                                f"{by_name[spec.name]} and {spec}: give one of them another name.")
    return list(by_name.values())


def decoding_for(settings: SearchSettings, processors: Sequence[LogitsProcessor] = (), *,
                 attention: bool = False, log_probs: bool = False) -> Decoding:
    """Return the search that the settings describe.

    Args:
        settings: search settings.
        processors: custom processors, which act after those of the settings.
        attention: whether to return the attention of each hypothesis; see `Decoded`.
        log_probs: whether to return the log-probabilities of its tokens.

    Raises:
        DataError: the file of a shortlist is missing or damaged.
        SettingsError: one of `processors` is not a `LogitsProcessor`.
    """
    for processor in processors:
        if not isinstance(processor, LogitsProcessor):
            raise SettingsError(f"processors contains {processor!r}: pass instances of classes derived from "
                                "LogitsProcessor (towernmt.predict).")
    shortlist = None
    if settings.shortlist:
        shortlist = Shortlist.from_file(settings.shortlist, settings.shortlist_size, settings.shortlist_frequent)
    return Decoding(_strategy(settings), [*_processors(settings), *processors], _limit(settings), attention, log_probs,
                    shortlist)


def _strategy(settings: SearchSettings) -> Strategy:
    if settings.selection == "sampling":
        truncation = Truncation(settings.top_k, settings.top_p, settings.epsilon)
        return AncestralSampling(settings.n_best, truncation, settings.seed)
    scoring = _scoring(settings)
    if settings.beam_size == 1:
        return GreedySearch(scoring)
    stopping = _stopping(settings, settings.beam_size // settings.beam_groups)
    if settings.beam_groups == 1:
        return BeamSearch(settings.beam_size, settings.n_best, scoring, stopping)
    return DiverseBeamSearch(settings.beam_size, settings.beam_groups, settings.diversity, settings.n_best, scoring,
                             stopping)


def constrained_beam_search(settings: SearchSettings) -> ConstrainedBeamSearch:
    """Return the search strategy for translations that must contain phrases.

    Raises:
        SettingsError: the settings describe a search without lexical constraints.
    """
    settings.check_lexical_constraints()
    return ConstrainedBeamSearch(settings.beam_size, settings.n_best, _scoring(settings),
                                 _stopping(settings, settings.beam_size))


def _stopping(settings: SearchSettings, beam_size: int) -> Stopping:
    max_finished = math.ceil(settings.patience * beam_size) if settings.stopping == "first" else 0
    return Stopping(exact=settings.stopping != "none", max_finished=max_finished)


def _scoring(settings: SearchSettings) -> Scoring:
    normalised = {"gnmt": LengthPenalty, "average": Average}[settings.length_normalization](settings.length_penalty)
    scoring: Scoring = WordReward(settings.word_reward, normalised) if settings.word_reward else normalised
    return CoveragePenalty(settings.coverage_penalty, scoring) if settings.coverage_penalty else scoring


def _processors(settings: SearchSettings) -> list[LogitsProcessor]:
    """Return the processors that change logits, in the order in which they act, then those that forbid tokens."""
    chain: list[LogitsProcessor] = []
    if settings.temperature != 1.0:
        chain.append(Temperature(settings.temperature))
    if settings.repetition_penalty != 1.0:
        chain.append(RepetitionPenalty(settings.repetition_penalty))
    if settings.no_repeat_ngram:
        chain.append(NoRepeatedNgrams(settings.no_repeat_ngram))
    chain.append(ForbiddenTokens([PAD, BOS]))
    if settings.min_length or settings.min_length_factor:
        chain.append(MinimumLength(settings.min_length, settings.min_length_factor))
    return chain


def _limit(settings: SearchSettings) -> LengthLimit:
    return LengthLimit(settings.max_length_factor, settings.max_length_constant, settings.max_tokens)


__all__ = ["OUTPUT_NAMES", "SearchPredictor", "SearchResult", "SearchSettings", "beam_search", "build_predictor",
           "build_search_predictor", "search_signature", "search_tower"]

OUTPUT_NAMES = ["tokens", "scores"]
"""Tensors that every search tower has, by name."""


class SearchResult(NamedTuple):
    """Translations of a batch, best first.

    Attributes:
        tokens: int32 `[batch, n_best, length]`: no BOS; EOS at the end, except in a hypothesis that was cut at the
            length limit; then PAD.
        scores: float32 `[batch, n_best]`, the `Scoring` of the settings, or the log-probability of samples; -inf (and
            only PAD) if fewer than n_best hypotheses exist.
    """

    tokens: Tensor
    scores: Tensor


def beam_search(model: NMTModel, source: Tensor, source_length: Tensor, settings: SearchSettings,
                processors: Sequence[LogitsProcessor] = (),
                inputs: Mapping[str, Tensor] | None = None) -> SearchResult:
    """Build a search for the most probable translations in the current graph.

    By default the score of a hypothesis Y is log p(Y | source) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016), where |Y|
    counts EOS. PAD and BOS are never generated, but keep their share of the probability, so that a score equals that
    of teacher forcing. With equal scores, the earlier hypothesis and the smaller token id win.

    Args:
        model: the model; its variables are created, or reused under `reuse`.
        source: int32 `[batch, source length]`, ending with EOS, padded with PAD.
        source_length: int32 `[batch]`, in tokens, EOS included.
        settings: search settings.
        processors: custom processors, which act after those of the settings.
        inputs: additional inputs by name, which the model or the processors declare.
    """
    named_inputs = {"source": source, "source_length": source_length, **(inputs or {})}
    decoded = decode(model, named_inputs, decoding_for(settings, processors))
    return SearchResult(decoded.tokens, decoded.scores)


def search_signature(model: NMTModel, settings: SearchSettings | None = None,
                     processors: Sequence[LogitsProcessor] = ()) -> list[TensorSpec]:
    """Return the inputs of `search_tower(model, settings, processors=processors)`.

    They are `source`, `source_length`, and further inputs that the model and the processors declare.
    """
    return decoding_signature(model, decoding_for(settings or SearchSettings(), processors))


def search_tower(model: NMTModel, settings: SearchSettings, device: str | None = None,
                 processors: Sequence[LogitsProcessor] = ()) -> Callable[..., SearchResult]:
    """Return a tower function for the inputs of `search_signature(model, settings, processors)`.

    Use it as `PredictConfig(tower_func=search_tower(...), input_signature=search_signature(...))`. Do not wrap it in a
    `TowerFunc`: tensorpack 0.11 would then call it in an endless recursion.

    Its outputs have the names `tokens` (int32 `[batch, n_best, length]`) and `scores` (float32 `[batch, n_best]`) in
    the tower; see `SearchResult`. `decoding_tower` also returns attention and log-probabilities.

    Args:
        model: the model.
        settings: search settings.
        device: TensorFlow's name of a device, such as "/cpu:0"; None leaves the placement to TensorFlow.
        processors: custom processors, which act after those of the settings.
    """
    tower = decoding_tower(model, decoding_for(settings, processors), device)

    def search(*tensors: Tensor) -> SearchResult:
        decoded = tower(*tensors)
        return SearchResult(decoded.tokens, decoded.scores)
    return search


def output_names(decoding: Decoding) -> list[str]:
    """Return the names of the outputs of a decoding tower: fields of `Decoded`."""
    optional = {"log_probs": decoding.log_probs, "attention": decoding.attention}
    return [*OUTPUT_NAMES, *(name for name, is_requested in optional.items() if is_requested)]


class SearchPredictor:
    """Function of arrays that decodes in an existing session, such as that of a trainer.

    `build_search_predictor` makes it while the graph is built (in `_setup_graph` of a callback). It gets its session
    later (in `_before_train`).

    Args:
        inputs: placeholders by name, in their order.
        outputs: tensors by name, in the order of the results.
    """

    def __init__(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        self._names, self._inputs, self._outputs = list(inputs), list(inputs.values()), dict(outputs)
        self._call: Callable[..., Any] | None = None

    def set_session(self, session: Any) -> None:
        """Set the session of all further calls, such as `trainer.session(Run.SAMPLING)`.

        Of a `MonitoredSession`, the raw session is used, so that no training hook runs (a hook would take a batch from
        the input queue).
        """
        if hasattr(session, "_tf_sess"):
            session = session._tf_sess()
        self._call = session.make_callable(list(self._outputs.values()), feed_list=self._inputs)

    def __call__(self, *arrays: np.ndarray, **named: np.ndarray | int) -> tuple[np.ndarray, ...]:
        """Translate a batch: `predictor(source, source_length)`.

        Args:
            arrays: inputs in their order: source int32 `[batch, source length]`, ending with EOS, padded with PAD;
                source_length int32 `[batch]`; and the inputs that the model, the strategy and the processors declare.
            named: inputs by name.

        Returns:
            Tokens int32 `[batch, n, length]`, scores float32 `[batch, n]`, and further outputs of the decoding.

        Raises:
            SettingsError: an input is missing, passed twice, or unknown.
        """
        if self._call is None:
            raise RuntimeError("SearchPredictor: call set_session(session) before the first batch.")
        return tuple(self._call(*bind_inputs(self._names, arrays, named)))


def build_search_predictor(model: NMTModel, settings: SearchSettings, device: str | None = None,
                           processors: Sequence[LogitsProcessor] = ()) -> SearchPredictor:
    """Build a search tower in the current graph on the variables of an existing training tower.

    It reads the moving averages of the variables if `settings.averaged` is set and the graph contains averages.

    Args:
        model: the model that is being trained.
        settings: search settings.
        device: TensorFlow's name of a device, such as "/gpu:0"; None leaves the placement to TensorFlow.
        processors: custom processors, which act after those of the settings.

    Raises:
        TowerRuleError: the graph has no training tower yet, or the search uses a variable that no training tower has.
    """
    with averaged_weights() if settings.averaged else nullcontext():
        return build_predictor(model, decoding_for(settings, processors), device)


def build_predictor(model: NMTModel, decoding: Decoding, device: str | None = None) -> SearchPredictor:
    """Build a decoding tower in the current graph on the trained variables; see `build_search_predictor`.

    Raises:
        TowerRuleError: the search uses a variable that no training tower has.
    """
    name = tf1.get_default_graph().unique_name("tower-search", mark_as_used=False)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True), PredictTowerContext(name):
        inputs = {spec.name: tf1.placeholder(spec.dtype, spec.shape, spec.name)
                  for spec in decoding_signature(model, decoding)}
        result = TowerWatch().around(decoding_tower(model, decoding, device))(*inputs.values())
    return SearchPredictor(inputs, {name: getattr(result, name) for name in output_names(decoding)})


def decoding_tower(model: NMTModel, decoding: Decoding, device: str | None = None) -> Callable[..., Decoded]:
    """Return a tower function from `decoding_signature(model, decoding)` to `output_names(decoding)`."""
    names = [spec.name for spec in decoding_signature(model, decoding)]

    def tower(*tensors: Tensor) -> Decoded:
        with tf1.device(device) if device else nullcontext():
            decoded = decode(model, dict(zip(names, tensors, strict=True)), decoding)
            return Decoded(**{name: tf.identity(getattr(decoded, name), name=name) for name in output_names(decoding)})
    return tower
