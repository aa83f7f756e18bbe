"""The towers of a validation, on the variables in training: beam search, and the teacher-forced loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from towernmt.callbacks.hooks.run_hooks import session_for
from towernmt.callbacks.lookup import training_towers
from towernmt.callbacks.validation.batches import teacher_forced_batches
from towernmt.callbacks.validation.dealt import dealt
from towernmt.callbacks.validation.metrics import Outcome
from towernmt.core.runs import Run
from towernmt.core.tf_compat import tf
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.models.interface import ALIGNMENT, NMTModel
from towernmt.optim.ema import averaged_weights
from towernmt.predict.decoding.search import SearchSettings, build_search_predictor
from towernmt.predict.evaluate import corpus_scores
from towernmt.predict.lexical.lexicon import Lexicon
from towernmt.predict.stream import translate_lines


class ValidationTowers:
    """Translates and scores validation sets in a training session; processes that train together share the batches.

    Args:
        model: the tower function that is being trained.
        search: beam size and so on.
        source_vocabulary: of the source.
        target_vocabulary: of the target.
        batch_tokens: padded source (for the loss: target) tokens in a batch, at most.
        between: called before each batch; what it raises ends the validation.
    """

    def __init__(self, model: NMTModel, search: SearchSettings, source_vocabulary: Vocabulary,
                 target_vocabulary: Vocabulary, batch_tokens: int, between: Callable[[], None]) -> None:
        self._model, self._search, self._batch_tokens, self._between = model, search, batch_tokens, between
        self._source_vocabulary, self._target_vocabulary = source_vocabulary, target_vocabulary
        self._loss: Any = None

    def build(self, trainer: Any, loss: bool) -> None:
        """Add the towers to the graph that is being built; that of the `loss` only if it is wanted and can be.

        Raises:
            DataError: the shortlist's file is missing or damaged.
            SettingsError: it was made with other vocabularies.
        """
        if shortlist := self._search.shortlist:
            Lexicon.load(shortlist).check_vocabularies(self._source_vocabulary, self._target_vocabulary, shortlist)
        self._predictor = build_search_predictor(self._model, self._search)
        if loss and training_towers(trainer):
            device = 0 if tf.config.list_physical_devices("GPU") else -1
            names = [spec.name for spec in self._model.inputs() if spec.name != ALIGNMENT]
            with averaged_weights() if self._search.averaged else nullcontext():
                self._loss = trainer.get_predictor(names, ["nll"], device)

    def open(self, trainer: Any) -> None:
        """Run in the trainer's session from now on."""
        session = session_for(trainer, Run.VALIDATION)
        self._predictor.set_session(session)
        if self._loss is not None:
            self._loss.sess = session

    def outcome(self, validation: ValidationSet) -> Outcome:
        """Translate a set, and score it.

        Raises:
            DivergenceError: the model's output is not a number.
        """
        translations = translate_lines(self._translate, self._source_vocabulary, self._target_vocabulary,
                                       validation.source, batch_tokens=self._batch_tokens, deal=dealt)
        nll = None if self._loss is None else self._mean_nll(validation)
        return Outcome(translations, corpus_scores(translations, *validation.references), nll)

    def _translate(self, **inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        self._between()
        return self._predictor(**inputs)

    def _mean_nll(self, validation: ValidationSet) -> float:
        """Negative log-likelihood of a token of the first reference, EOS included, in nats."""
        batches = teacher_forced_batches(validation.source, validation.references[0], self._source_vocabulary,
                                         self._target_vocabulary, self._batch_tokens)
        total = tokens = 0.0
        for mean, count in dealt(self._nll_and_tokens, batches):
            total += count * mean
            tokens += count
        return total / tokens

    def _nll_and_tokens(self, arrays: Sequence[np.ndarray]) -> tuple[float, float]:
        self._between()
        return float(self._loss(*arrays)[0]), float(arrays[-1])
