"""The search towers of a translator, which share the weights: the plain search, and variants for line options."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from tensorpack.predict import OfflinePredictor

from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import BUILDING
from towernmt.core.machine import refuse_forked
from towernmt.core.standard_streams import without_noise
from towernmt.core.terminal_log import configure_terminal_log
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.ensemble import TrainedEnsemble, open_trained
from towernmt.predict.line_translator import SearchArguments
from towernmt.predict.lines.hypotheses import SearchOutput
from towernmt.predict.search.decoding_loop import Decoding, LimitAfterPrefix
from towernmt.predict.search.decoding_tower import (
    SearchPredictor,
    bind_inputs,
    build_predictor,
    constrained_beam_search,
    decoding_for,
    decoding_signature,
    decoding_tower,
    output_names,
)
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.search.processors import AvoidedPhrases, Forcing, TargetPrefix, UnlessForced, WordBeginning
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.surfaces import Surfaces
from towernmt.predict.trained_model import TrainedModel


class PlainSearch(NamedTuple):
    """A search without additional inputs of lines.

    Attributes:
        decoding: components of the search.
        settings: its settings.
        vocabulary: target vocabulary.
    """

    decoding: Decoding
    settings: SearchSettings
    vocabulary: Vocabulary


def _prefix(plain: PlainSearch) -> Decoding:
    decoding = _forced(plain.decoding, TargetPrefix())
    return dataclasses.replace(
        decoding, limit=LimitAfterPrefix(decoding.limit, plain.settings.max_length_constant))


def _word_beginning(plain: PlainSearch) -> Decoding:
    return _forced(plain.decoding, WordBeginning(Surfaces(plain.vocabulary).lengths))


def _avoid(plain: PlainSearch) -> Decoding:
    processors = [*plain.decoding.processors, AvoidedPhrases(Surfaces(plain.vocabulary).breaks)]
    return dataclasses.replace(plain.decoding, processors=processors)


def _constraints(plain: PlainSearch) -> Decoding:
    return dataclasses.replace(plain.decoding, strategy=constrained_beam_search(plain.settings))


def _forced(decoding: Decoding, forcing: Forcing) -> Decoding:
    """Return the search with a processor that forces tokens, which the other processors do not change."""
    unless_forced = [UnlessForced(processor, forcing) for processor in decoding.processors]
    return dataclasses.replace(decoding, processors=[forcing, *unless_forced])


SEARCHES_BY_INPUT: dict[str, Callable[[PlainSearch], Decoding]] = {
    "constraints": _constraints,
    "avoid": _avoid,
    "prefix": _prefix,
    "continuation": _word_beginning,
}
"""Functions that add an input to a search, by its name. They apply in this order, those that force tokens last."""


def decoding_with(names: Collection[str], plain: PlainSearch) -> Decoding:
    """Return the search of lines with additional inputs.

    Args:
        names: names of the inputs that the plain search does not have.
        plain: the plain search.

    Raises:
        SettingsError: an input is unknown.
    """
    unknown = sorted(set(names) - SEARCHES_BY_INPUT.keys())
    if unknown:
        raise SettingsError(f"The input '{unknown[0]}' of a line is not known: there are "
                            f"{', '.join(SEARCHES_BY_INPUT)}, and the inputs that the model and custom "
                            "processors declare.")
    for name, add_input in SEARCHES_BY_INPUT.items():
        if name in names:
            plain = plain._replace(decoding=add_input(plain))
    return plain.decoding


log = logging.getLogger(__name__)

MANY_SEARCHES = 20
"""Number of different searches at which a warning is logged."""


class GraphSearch:
    """A search with towers for other inputs and settings, built on demand, so that plain lines cost nothing extra.

    Args:
        predictor: the plain search; all towers share its graph and session.
        trained: trained model whose variables are in the graph.
        decoding: returns the plain search for its settings.
        settings: search settings of `predictor`.
    """

    def __init__(self, predictor: OfflinePredictor, trained: TrainedModel | TrainedEnsemble,
                 decoding: Callable[[SearchSettings], Decoding], settings: SearchSettings) -> None:
        self.predictor, self._model, self._decoding = predictor, trained.model, decoding
        self.checkpoint, self._device = trained.checkpoint, trained.device
        self.source_vocabulary, self.target_vocabulary = trained.source_vocabulary, trained.target_vocabulary
        self._settings, model = settings, trained.model
        plain = decoding(settings)
        self._inputs = [spec.name for spec in decoding_signature(model, plain)]
        self._outputs = output_names(plain)
        self._built: dict[tuple[str, frozenset[str]], SearchPredictor] = {}
        self._building = threading.Lock()
        self._process = os.getpid()

    def __call__(self, **inputs: np.ndarray) -> SearchOutput:
        """Translate a batch of inputs by name.

        Raises:
            SettingsError: an input is missing or unknown, or this process was forked after the towers were built.
        """
        if set(inputs) <= set(self._inputs):
            return self._found(self.predictor(*bind_inputs(self._inputs, (), inputs)))
        return self._search(self._settings, inputs)

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., SearchOutput]:
        """Return a search with some settings changed.

        Raises:
            SettingsError: an invalid value.
        """
        settings = dataclasses.replace(self._settings, **changed)
        return lambda **inputs: self._search(settings, inputs)

    def _search(self, settings: SearchSettings, inputs: Mapping[str, np.ndarray]) -> SearchOutput:
        refuse_forked(self._process)
        extra_inputs = frozenset(inputs) - set(self._inputs)
        key = repr(settings), extra_inputs
        with self._building:
            if key not in self._built:
                self._built[key] = self._tower(settings, extra_inputs)
                if len(self._built) == MANY_SEARCHES:
                    log.warning("The lines request %d different searches. Each takes seconds to build, and memory "
                                "until the end: use the same settings for as many lines as possible.", MANY_SEARCHES)
        return self._found(self._built[key](**inputs))

    def _tower(self, settings: SearchSettings, extra_inputs: frozenset[str]) -> SearchPredictor:
        decoding = decoding_with(extra_inputs, PlainSearch(self._decoding(settings), settings, self.target_vocabulary))
        with BUILDING, without_noise(), self.predictor.graph.as_default():
            tower = build_predictor(self._model, decoding, self._device)
        tower.set_session(self.predictor.sess)
        return tower

    def _found(self, arrays: Any) -> SearchOutput:
        return SearchOutput(**dict(zip(self._outputs, arrays, strict=True)))


def build_graph_search(arguments: SearchArguments) -> GraphSearch:
    """Build the plain search.

    Args:
        arguments: arguments of the search.

    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: an invalid value, not a run, or a missing GPU.
    """
    configure_terminal_log()
    with open_trained(arguments.runs, arguments.checkpoints, arguments.models, ensemble=arguments.ensemble,
                      device=arguments.device, averaged=arguments.search.averaged,
                      precision=arguments.precision) as trained:
        source, target = trained.source_vocabulary, trained.target_vocabulary

        def decoding(settings: SearchSettings) -> Decoding:
            if settings.shortlist:
                Lexicon.load(settings.shortlist).check_vocabularies(source, target, settings.shortlist)
            return decoding_for(settings, arguments.processors, log_probs=arguments.log_probs,
                                attention=arguments.attention)

        plain = decoding(arguments.search)
        signature, outputs = decoding_signature(trained.model, plain), output_names(plain)
        predictor = trained.predictor(decoding_tower(trained.model, plain), signature, outputs, arguments.threads)
        return GraphSearch(predictor, trained, decoding, arguments.search)
