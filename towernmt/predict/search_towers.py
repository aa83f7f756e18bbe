"""The towers of a translator: the plain search, and others that lines request, on the same weights."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
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
from towernmt.predict.lines.hypotheses import Found
from towernmt.predict.search.decoding_loop import Decoding, LimitAfterPrefix
from towernmt.predict.search.decoding_tower import (
    SearchPredictor,
    build_predictor,
    by_name,
    constrained_for,
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


class Plain(NamedTuple):
    """A search without the input.

    Attributes:
        decoding: its strategy, processors and limit.
        settings: what it was made from.
        vocabulary: of the target.
    """

    decoding: Decoding
    settings: SearchSettings
    vocabulary: Vocabulary


def _prefix(plain: Plain) -> Decoding:
    decoding = _forced(plain.decoding, TargetPrefix())
    return dataclasses.replace(
        decoding, limit=LimitAfterPrefix(decoding.limit, plain.settings.max_length_constant))


def _word_beginning(plain: Plain) -> Decoding:
    return _forced(plain.decoding, WordBeginning(Surfaces(plain.vocabulary).lengths))


def _avoid(plain: Plain) -> Decoding:
    processors = [*plain.decoding.processors, AvoidedPhrases(Surfaces(plain.vocabulary).breaks)]
    return dataclasses.replace(plain.decoding, processors=processors)


def _constraints(plain: Plain) -> Decoding:
    return dataclasses.replace(plain.decoding, strategy=constrained_for(plain.settings))


def _forced(decoding: Decoding, forcing: Forcing) -> Decoding:
    """With a processor before which the others give way."""
    others = [UnlessForced(processor, forcing) for processor in decoding.processors]
    return dataclasses.replace(decoding, processors=[forcing, *others])


SERVED_BY: dict[str, Callable[[Plain], Decoding]] = {
    "constraints": _constraints,
    "avoid": _avoid,
    "prefix": _prefix,
    "continuation": _word_beginning,
}
"""The search with an input, by the input's name. They change the plain one in this order: what forces comes last."""


def decoding_with(names: Collection[str], plain: Plain) -> Decoding:
    """The search of lines that have the inputs `names` beyond those of the plain one.

    Raises:
        SettingsError: one of them is not known.
    """
    unknown = sorted(set(names) - SERVED_BY.keys())
    if unknown:
        raise SettingsError(f"The input '{unknown[0]}' of a line is not known: there are {', '.join(SERVED_BY)}, and "
                            "the inputs that the model and custom processors declare.")
    for name, serve in SERVED_BY.items():
        if name in names:
            plain = plain._replace(decoding=serve(plain))
    return plain.decoding


log = logging.getLogger(__name__)

MANY = 20
"""Number of different searches at which a warning is logged."""


class Towers:
    """Towers by the inputs and settings of a search, built on demand, so that plain lines cost nothing extra.

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

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch, by the inputs' names.

        Raises:
            SettingsError: an input is missing or not known, or the process was forked from the towers'.
        """
        if set(inputs) <= set(self._inputs):
            return self._found(self.predictor(*by_name(self._inputs, (), inputs)))
        return self._search(self._settings, inputs)

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """The same, with some settings of the search changed.

        Raises:
            SettingsError: an invalid value.
        """
        settings = dataclasses.replace(self._settings, **changed)
        return lambda **inputs: self._search(settings, inputs)

    def _search(self, settings: SearchSettings, inputs: Mapping[str, np.ndarray]) -> Found:
        refuse_forked(self._process)
        further = frozenset(inputs) - set(self._inputs)
        key = repr(settings), further
        with self._building:
            if key not in self._built:
                self._built[key] = self._tower(settings, further)
                if len(self._built) == MANY:
                    log.warning("The lines request %d different searches. Each takes seconds to build, and memory "
                                "until the end: use the same settings for as many lines as possible.", MANY)
        return self._found(self._built[key](**inputs))

    def _tower(self, settings: SearchSettings, further: frozenset[str]) -> SearchPredictor:
        decoding = decoding_with(further, Plain(self._decoding(settings), settings, self.target_vocabulary))
        with BUILDING, without_noise(), self.predictor.graph.as_default():
            tower = build_predictor(self._model, decoding, self._device)
        tower.set_session(self.predictor.sess)
        return tower

    def _found(self, arrays: Any) -> Found:
        return Found(**dict(zip(self._outputs, arrays, strict=True)))


def build_towers(asked: SearchArguments, file: Path | None = None) -> Towers:
    """Build the plain search.

    Args:
        asked: what is searched with.
        file: file to cache its graph in; None means no cache.
    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: an invalid value, not a run, or a missing GPU.
    """
    configure_terminal_log()
    with open_trained(asked.runs, asked.checkpoints, asked.models, ensemble=asked.ensemble, device=asked.device,
                      averaged=asked.search.averaged, precision=asked.precision) as trained:
        source, target = trained.source_vocabulary, trained.target_vocabulary

        def decoding(settings: SearchSettings) -> Decoding:
            if settings.shortlist:
                Lexicon.load(settings.shortlist).check_vocabularies(source, target, settings.shortlist)
            return decoding_for(settings, asked.processors, log_probs=asked.log_probs, attention=asked.attention)

        plain = decoding(asked.search)
        signature, outputs = decoding_signature(trained.model, plain), output_names(plain)
        predictor = trained.predictor(decoding_tower(trained.model, plain), signature, outputs, asked.threads)
        if file is not None and isinstance(trained, TrainedModel):
            from towernmt.predict.trained_model import keep_graph  # imports what only a first start needs

            keep_graph(file, predictor, trained, [spec.name for spec in signature], outputs, asked.threads)
        return Towers(predictor, trained, decoding, asked.search)
