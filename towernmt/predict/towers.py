"""The towers of a translator: the plain search, and others that lines ask for, on the same variables in one session."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorpack.predict import OfflinePredictor

from towernmt.core.graph_state import BUILDING
from towernmt.core.machine.forked import refuse_forked
from towernmt.core.terminal.stderr_noise import without_noise
from towernmt.core.terminal.terminal_log import mend_terminal
from towernmt.predict.asked_search import AskedSearch
from towernmt.predict.decoding.assembly import decoding_for
from towernmt.predict.decoding.inputs import by_name, decoding_signature
from towernmt.predict.decoding.line_inputs import Plain, decoding_with
from towernmt.predict.decoding.loop import Decoding
from towernmt.predict.decoding.search import (
    SearchPredictor,
    build_predictor,
    decoding_tower,
    output_names,
)
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.ensemble.trained_ensemble import TrainedEnsemble, open_trained
from towernmt.predict.hypotheses import Found
from towernmt.predict.lexical.lexicon import Lexicon
from towernmt.predict.trained_model import TrainedModel

log = logging.getLogger(__name__)

MANY = 20
"""So many searches that lines ask for are told as too many."""


class Towers:
    """Searches by the inputs that a batch has: each set of inputs, and of settings, has a tower, built when it is first
    asked for. So a plain line pays nothing for what others ask for. See `SearchTowers`.
    """

    def __init__(self, predictor: OfflinePredictor, trained: TrainedModel | TrainedEnsemble,
                 decoding: Callable[[SearchSettings], Decoding], settings: SearchSettings) -> None:
        """
        Args:
            predictor: the plain search. Its graph and session are the other towers' as well.
            trained: the variables of its model are in the graph.
            decoding: gives the plain search by its settings.
            settings: those of `predictor`.
        """
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
            SettingsError: a value that cannot work.
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
                    log.warning("Lines have asked for %d different searches. Each takes seconds to build, and memory "
                                "until the end: give lines the same settings where they can have them.", MANY)
        return self._found(self._built[key](**inputs))

    def _tower(self, settings: SearchSettings, further: frozenset[str]) -> SearchPredictor:
        decoding = decoding_with(further, Plain(self._decoding(settings), settings, self.target_vocabulary))
        with BUILDING, without_noise(), self.predictor.graph.as_default():
            tower = build_predictor(self._model, decoding, self._device)
        tower.set_session(self.predictor.sess)
        return tower

    def _found(self, arrays: Any) -> Found:
        return Found(**dict(zip(self._outputs, arrays, strict=True)))


def build_towers(asked: AskedSearch, file: Path | None = None) -> Towers:
    """Build the plain search.

    Args:
        asked: what is searched with.
        file: where its graph is kept for the next start; None: nowhere.
    Raises:
        CheckpointError: there is no such checkpoint, or it does not fit the run's settings.
        SettingsError: a value that cannot work, no run, or a GPU that is not there.
    """
    mend_terminal()
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
            from towernmt.predict.kept.keep import keep_graph  # imports what only a first start needs

            keep_graph(file, predictor, trained, [spec.name for spec in signature], outputs, asked.threads)
        return Towers(predictor, trained, decoding, asked.search)
