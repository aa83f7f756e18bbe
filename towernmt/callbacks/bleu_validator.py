"""Validation by BLEU: translate the validation set in the training session, and score the text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from tensorpack.utils import logger

from towernmt.callbacks.progress import duration, perplexity
from towernmt.callbacks.run_hooks import session_for
from towernmt.callbacks.stateful import StatefulCallback
from towernmt.callbacks.stop_signal import StopOnSignal
from towernmt.callbacks.surroundings import EndOfTraining, find_callbacks, training_towers
from towernmt.callbacks.validation_batches import teacher_forced_batches
from towernmt.dataflow.vocabulary import Vocabulary
from towernmt.errors import DataError, DivergenceError, SettingsError
from towernmt.models.interface import ALIGNMENT, NMTModel
from towernmt.predict.evaluate import corpus_scores
from towernmt.predict.search import SearchSettings, build_search_predictor
from towernmt.predict.stream import translate_lines
from towernmt.runs import Run
from towernmt.tf_compat import tf
from towernmt.train.ema import averaged_weights


class BleuValidator(StatefulCallback):
    """Every `every_steps` updates: beam search over the validation set, and sacreBLEU on detokenised text.

    The search tower is built on the training's variables under reuse and runs in the training session; it reads
    their moving averages where there are some, unless `search.averaged` is off.
    Puts the scalars `validation_bleu`, `validation_chrf`, and with `loss=True` `validation_loss` (mean
    negative log-likelihood of a target token, in nats, without label smoothing) and `validation_perplexity`;
    writes them with the signature and some translations into the log. `EarlyStopping`,
    `ReduceOnPlateau` and `BestCheckpoints` act on the scalars; they stand behind this callback, and the
    saver behind them.

    Validates at the end of training too if the last step has not been validated, unless training ended
    by an error or a signal. A run that resumes from a step whose validation is missing makes it first,
    so that it goes on as the run that was never stopped.

    Attributes:
        best_score: the best BLEU so far, over resumes; None before the first.
        best_step: the step of it.
    """

    state_key = "bleu_validator"

    def __init__(self, model: NMTModel, source_lines: Sequence[str], reference_lines: Sequence[str],
                 source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, every_steps: int = 1000,
                 search: SearchSettings | None = None, batch_tokens: int = 4096, samples: int = 3,
                 loss: bool = True) -> None:
        """
        Args:
            model: the tower function that is being trained.
            source_lines: raw source text, a sentence each.
            reference_lines: raw reference text, as many.
            source_vocabulary: of the source.
            target_vocabulary: of the target.
            every_steps: updates between validations; 0 for only one, at the end.
            search: beam size and so on; by default `SearchSettings()`.
            batch_tokens: padded source (for the loss: target) tokens in a batch, at most.
            samples: how many sentences are shown.
            loss: whether the teacher-forced loss is computed as well.
        Raises:
            DataError: no sentences, or not as many references.
            SettingsError: `every_steps` is negative.
        """
        if len(source_lines) != len(reference_lines):
            raise DataError(f"The validation set has {len(source_lines)} source and {len(reference_lines)} "
                            "reference lines: there must be as many of each.")
        if not source_lines:
            raise DataError("The validation set is empty: give a sentence pair at least, or leave it out.")
        if every_steps < 0:
            raise SettingsError(f"train.validate_steps={every_steps} must be 0 (only at the end) or more.")
        self._model, self._search = model, search or SearchSettings()
        self._source, self._reference = list(source_lines), list(reference_lines)
        self._source_vocabulary, self._target_vocabulary = source_vocabulary, target_vocabulary
        self._every_steps, self._batch_tokens, self._samples = every_steps, batch_tokens, samples
        self._with_loss = loss
        self.best_score: float | None = None
        self.best_step = 0
        self._last_step = 0

    def state(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_step": self.best_step, "last_step": self._last_step}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.best_score, self.best_step = state["best_score"], int(state["best_step"])
        self._last_step = int(state["last_step"])

    def _setup_graph(self) -> None:
        self._predictor = build_search_predictor(self._model, self._search)
        self._loss: Any = None
        if self._with_loss and training_towers(self.trainer):
            device = 0 if tf.config.list_physical_devices("GPU") else -1
            names = [spec.name for spec in self._model.inputs() if spec.name != ALIGNMENT]
            with averaged_weights() if self._search.averaged else nullcontext():
                self._loss = self.trainer.get_predictor(names, ["nll"], device)

    def _before_train(self) -> None:
        self._end = EndOfTraining()
        self._signals = find_callbacks(self.trainer, StopOnSignal)
        session = session_for(self.trainer, Run.VALIDATION)
        self._predictor.set_session(session)
        if self._loss is not None:
            self._loss.sess = session

    def _before_epoch(self) -> None:
        self._validate_if_due()

    def _trigger_step(self) -> None:
        self._validate_if_due()

    def _after_train(self) -> None:
        broken = self._end.by_error() or getattr(self.trainer, "diverged", False)
        if self.global_step > self._last_step and not broken and not self._stop_received():
            self.validate()

    def _validate_if_due(self) -> None:
        step = self.global_step
        if self._every_steps and step and step % self._every_steps == 0 and step != self._last_step:
            self.validate()

    def validate(self) -> None:
        """Validate now, and put the scores. A signal to stop ends it without scores."""
        started = time.monotonic()
        try:
            hypotheses = translate_lines(
                self._translate_batch, self._source_vocabulary, self._target_vocabulary, self._source,
                batch_tokens=self._batch_tokens)
            nll = None if self._loss is None else self._mean_nll()
        except _Stopped:
            logger.info(f"The validation of step {self.global_step} is left to the resumed run.")
            return
        except DivergenceError:
            self.trainer.diverged = True
            raise
        scores = corpus_scores(hypotheses, self._reference)
        self._last_step = self.global_step
        if self.best_score is None or scores.bleu > self.best_score:
            self.best_score, self.best_step = scores.bleu, self.global_step
        values = {"validation_bleu": scores.bleu, "validation_chrf": scores.chrf}
        if nll is not None:
            values.update(validation_loss=nll, validation_perplexity=perplexity(nll))
        for name, value in values.items():
            self.trainer.monitors.put_scalar(name, value)
        self._report(values, scores.signature, hypotheses, time.monotonic() - started)

    def _report(self, values: dict[str, float], signature: str, hypotheses: list[str],
                seconds: float) -> None:
        step = self.global_step
        text = (f"Validation at step {step}: BLEU {values['validation_bleu']:.2f}, "
                f"chrF {values['validation_chrf']:.2f}")
        if "validation_loss" in values:
            text += (f", loss {values['validation_loss']:.4f}, "
                     f"perplexity {values['validation_perplexity']:.2f}")
        best = "the best so far"
        if self.best_step != step:
            best = f"best {self.best_score:.2f} at step {self.best_step}"
        logger.info(f"{text} ({best}); {len(hypotheses)} sentences in {duration(seconds)}; {signature}")
        stride = max(1, len(hypotheses) // max(1, self._samples))
        for i in range(0, len(hypotheses), stride)[:self._samples]:
            logger.info(f"  source      {self._source[i]}")
            logger.info(f"  reference   {self._reference[i]}")
            logger.info(f"  translation {hypotheses[i]}")

    def _translate_batch(self, source: np.ndarray,
                         source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._check_signals()
        return self._predictor(source, source_length)

    def _mean_nll(self) -> float:
        """Negative log-likelihood of a reference token, EOS included, in nats."""
        total = tokens = 0.0
        for arrays in teacher_forced_batches(self._source, self._reference, self._source_vocabulary,
                                             self._target_vocabulary, self._batch_tokens):
            self._check_signals()
            count = float(arrays[-1])
            total += count * float(self._loss(*arrays)[0])
            tokens += count
        return total / tokens

    def _check_signals(self) -> None:
        if self._stop_received():
            raise _Stopped

    def _stop_received(self) -> bool:
        return any(signals.received is not None for signals in self._signals)


class _Stopped(Exception):
    """A signal asked for the end of training while the validation set was being translated."""
