"""The towers of a translator: the plain search, and others that lines ask for, on the same variables in one session."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tensorpack.predict import OfflinePredictor

from towernmt.core.session import refuse_forked
from towernmt.core.terminal.stderr_noise import without_noise
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.models.interface import NMTModel
from towernmt.predict.decoding.inputs import by_name, decoding_signature
from towernmt.predict.decoding.line_inputs import Plain, decoding_with
from towernmt.predict.decoding.loop import Decoding
from towernmt.predict.decoding.search import SearchPredictor, build_predictor, output_names
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.hypotheses import Found
from towernmt.predict.trained_model import BUILDING


class Towers:
    """Searches by the inputs that a batch has: each set of inputs, and of settings, has a tower, built when it is first
    asked for. So a plain line pays nothing for what others ask for.
    """

    def __init__(self, predictor: OfflinePredictor, model: NMTModel, decoding: Callable[[SearchSettings], Decoding],
                 settings: SearchSettings, vocabulary: Vocabulary, device: str | None) -> None:
        """
        Args:
            predictor: the plain search. Its graph and session are the other towers' as well.
            model: its variables are in the graph.
            decoding: gives the plain search by its settings.
            settings: those of `predictor`.
            vocabulary: of the target.
            device: TensorFlow's name; None leaves it to TensorFlow.
        """
        self._predictor, self._model, self._decoding = predictor, model, decoding
        self._settings, self._vocabulary, self._device = settings, vocabulary, device
        plain = decoding(settings)
        self._inputs = [spec.name for spec in decoding_signature(model, plain)]
        self._outputs = output_names(plain)
        self._built: dict[tuple[str, frozenset[str]], SearchPredictor] = {}
        self._process = os.getpid()

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch, by the inputs' names.

        Raises:
            SettingsError: an input is missing or not known, or the process was forked from the towers'.
        """
        if set(inputs) <= set(self._inputs):
            return self._found(self._predictor(*by_name(self._inputs, (), inputs)))
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
        if key not in self._built:
            self._built[key] = self._tower(settings, further)
        return self._found(self._built[key](**inputs))

    def _tower(self, settings: SearchSettings, further: frozenset[str]) -> SearchPredictor:
        decoding = decoding_with(further, Plain(self._decoding(settings), settings, self._vocabulary))
        with BUILDING, without_noise(), self._predictor.graph.as_default():
            tower = build_predictor(self._model, decoding, self._device)
        tower.set_session(self._predictor.sess)
        return tower

    def _found(self, arrays: Any) -> Found:
        return Found(**dict(zip(self._outputs, arrays, strict=True)))
