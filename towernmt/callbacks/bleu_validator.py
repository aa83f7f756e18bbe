"""Validation: translate the validation sets during training, score the texts, and report the scores."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tensorpack.utils import logger

from towernmt.callbacks.stateful import EndOfTraining, Period, StatefulCallback, find_callbacks, saved_number
from towernmt.callbacks.status_line import duration
from towernmt.callbacks.stop_on_signal import StopOnSignal
from towernmt.callbacks.summaries import markdown_cell, text_summary
from towernmt.callbacks.validation_metrics import (
    MEAN_OF_SETS,
    METRICS,
    OF_LOSS,
    ValidationOutcome,
    scores_of_sets,
)
from towernmt.callbacks.validation_towers import StoppedError, ValidationTowers
from towernmt.checkpoint.records import validation_fingerprint
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.world import current_world
from towernmt.dataflow.text.text_lines import line_hash
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.models.interface import NMTModel
from towernmt.predict.search.search_settings import SearchSettings


def describe_outcome(outcome: ValidationOutcome, training_nll: float | None) -> str:
    """Return a text such as `BLEU 31.40, chrF 55.10, nll 2.1234 (training 2.0012)`, all without label smoothing.

    Args:
        outcome: the outcome of the set.
        training_nll: negative log-likelihood of recent training batches, in nats per target token; None: not known.
    """
    texts = []
    for name, metric in METRICS.items():
        value = metric.value(outcome)
        if value is not None:
            training = None
            if training_nll is not None and name in OF_LOSS:
                training = metric.value(ValidationOutcome((), outcome.scores, training_nll))
            of_training = "" if training is None else f" (training {metric.text(training)})"
            texts.append(f"{metric.label} {metric.text(value)}{of_training}")
    return ", ".join(texts)


def sample_numbers(sentences: int, samples: int, step: int, seed: int) -> list[int]:
    """Return the sentences that a validation shows: different ones at each step, but the same if a step is repeated.

    Args:
        sentences: number of sentences in the set.
        samples: number of sentences to draw, without replacement.
        step: step of the validation.
        seed: seed of the run.

    Returns:
        indices from 0, in ascending order.
    """
    key = int(line_hash(np.array([step]), seed)[0] >> np.uint64(1))
    order = np.argsort(line_hash(np.arange(sentences), key), kind="stable")
    return sorted(order[:samples].tolist())


def sample_lines(validation: ValidationSet, translations: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Return one line for the source, each reference and the translation of each selected sentence."""
    lines = []
    for number in numbers:
        lines.append(f"  source      {validation.source[number]}")
        lines += [f"  reference   {reference[number]}" for reference in validation.references]
        lines.append(f"  translation {translations[number]}")
    return lines


def sample_table(validation: ValidationSet, translations: Sequence[str], numbers: Sequence[int]) -> str:
    """Return the lines of `sample_lines` as a Markdown table for TensorBoard."""
    rows = ["| | |", "|---|---|"]
    for number in numbers:
        texts = [("source", validation.source[number]),
                 *(("reference", reference[number]) for reference in validation.references),
                 ("translation", translations[number])]
        rows += [f"| {side} {number + 1} | {markdown_cell(text)} |" for side, text in texts]
    return "\n".join(rows)


_NEVER = -1
"""Step of the last validation in a new run that is validated before its first update, which is step 0."""


class BleuValidator(StatefulCallback):
    """Translates each validation set by beam search at intervals, and computes sacreBLEU scores of detokenised text.

    The search tower is built on the training's variables under reuse and runs in the training session. It reads their
    moving averages if they exist, unless `search.averaged` is off.

    The scalars are `validation_bleu`, `validation_chrf`, and with `loss=True` `validation_loss` (mean negative
    log-likelihood of a target token, in nats, without label smoothing) and `validation_perplexity`. Those of further
    sets are named `validation_bleu/NAME` and so on. The log shows them with the signature and some translations,
    different ones at each step; TensorBoard shows these translations as the text `validation_samples`. `EarlyStopping`,
    `ReduceOnPlateau` and `BestCheckpoints` act on the scalars. Put them after this callback, and the saver after them.

    The end of training is validated too, unless training ended by an error or a signal. A run that resumes from a
    step whose validation is missing starts with it, so that the resumed run equals an uninterrupted one. An interval in
    minutes includes the time before a resume, so that a run which is often interrupted is validated, too.

    Args:
        model: the tower function that is being trained.
        source_lines: raw source text, one sentence per line.
        reference_lines: raw reference text, one line per source line.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.
        every_steps: updates between validations; 0: no interval in steps.
        search: search options; None: `SearchSettings()`.
        batch_tokens: maximum number of padded source (for the loss: target) tokens in a batch; None for the default of
            the device, which for the loss is that of the CPU.
        samples: number of sentences to show.
        loss: compute the teacher-forced loss as well.
        every_minutes: minutes between validations; 0: no interval in time. With neither interval, only the end of
            training is validated.
        more_references: further reference translations of `source_lines`.
        more_sets: further validation sets, each with a unique name.
        metric: bleu, chrf, loss or perplexity; decides which step is the best.
        metric_set: name of the set whose metric decides; "" for `source_lines`; "mean" for the mean over all sets,
            whose scalars are named `validation_bleu/mean` and so on.
        seed: seed of the choice of sentences to show.
        name: name of the set of `source_lines` in reports; its scalars have no name.
        at_start: whether to validate a new run before its first update.
        decides: whether `metric` of `metric_set` decides which step is the best. If not, no step is the best, and the
            scalars of `source_lines` have the name of the set, too.

    Attributes:
        metric: name of the scalar that decides which step is the best; None without `decides`.
        best_score: its best value so far, resumes included; None before the first validation.
        best_step: the step of the best value; of equal values the last step.

    Raises:
        DataError: a validation set has no sentences, or the number of references differs.
        SettingsError: `every_steps` or `every_minutes` is negative, or `metric` or `metric_set` is unknown.
    """

    _chief_only = False     # each process translates a share, and needs all scores to stop and to set its rate
    state_key = "bleu_validator"

    def __init__(self, model: NMTModel, source_lines: Sequence[str], reference_lines: Sequence[str],
                 source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, every_steps: int = 1000,
                 search: SearchSettings | None = None, batch_tokens: int | None = None, samples: int = 3,
                 loss: bool = True, every_minutes: float = 0.0, more_references: Sequence[Sequence[str]] = (),
                 more_sets: Sequence[ValidationSet] = (), metric: str = "bleu", metric_set: str = "",
                 seed: int = 1, name: str = "", at_start: bool = False, decides: bool = True) -> None:
        self._sets = [ValidationSet(name, source_lines, [reference_lines, *more_references]), *more_sets]
        self._tags = ["" if decides else name, *(validation.name for validation in more_sets)]
        if every_steps < 0 or not every_minutes >= 0:
            raise SettingsError(f"validation.steps={every_steps} and validation.minutes={every_minutes:g} must "
                                "not be negative; 0 validates only at the end.")
        scalar = _scalar(metric, metric_set, self._sets, loss)
        self.metric: str | None = scalar if decides else None
        self._with_mean = self.metric == METRICS[metric].scalar(MEAN_OF_SETS) and MEAN_OF_SETS not in self._tags
        self._metric = METRICS[metric]
        self._period, self._samples, self._with_loss, self._seed = (
            Period(every_steps, every_minutes), samples, loss, seed)
        self._towers = ValidationTowers(model, search or SearchSettings(), source_vocabulary, target_vocabulary,
                                        batch_tokens, before_batch=self._check_signals)
        self.best_score: float | None = None
        self.best_step = 0
        self._texts = fingerprints_of_sets(self._sets, self._tags)
        self._last_step = _NEVER if at_start else 0
        self._seconds_before = 0.0      # of the interval in minutes, before a resume

    def state(self) -> dict[str, Any]:
        seconds = {"seconds": self._period.seconds} if self._period.minutes else {}
        return {"best_score": self.best_score, "best_step": self.best_step, "last_step": self._last_step,
                "metric": self.metric, "texts": self._texts, **seconds}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._last_step, self._seconds_before = int(state["last_step"]), float(state.get("seconds", 0.0))
        if state["metric"] == self.metric and not self.had_other_text(state, self.metric or ""):
            best_score = state["best_score"]
            self.best_score, self.best_step = None if best_score is None else float(best_score), int(state["best_step"])

    @classmethod
    def saved_last_step(cls, states: Mapping[str, Any]) -> int | None:
        """Return the step of the last validation in the states of a checkpoint; None without validation."""
        step = saved_number(states, cls.state_key, "last_step")
        return None if step is None else int(step)

    def had_other_text(self, state: dict[str, Any], scalar: str) -> bool:
        """Return whether a scalar was computed on other sentences, so that its values are not comparable.

        Args:
            state: an earlier state of this callback.
            scalar: name of the scalar; False for one that this callback does not record.
        """
        return scalar in self.scalars and is_of_other_text(scalar, state, self._texts)

    def _setup_graph(self) -> None:
        self._towers.build(self.trainer, self._with_loss)

    def _before_train(self) -> None:
        self._end = EndOfTraining()
        self._signals = find_callbacks(self.trainer, StopOnSignal)
        self._towers.open(self.trainer)
        self._period.restart(self._seconds_before)
        self._seconds_before = 0.0

    def _before_epoch(self) -> None:
        self._validate_if_due()

    def _trigger_step(self) -> None:
        self._validate_if_due()

    def _after_train(self) -> None:
        has_failed = self._end.by_error() or getattr(self.trainer, "diverged", False)
        if self.global_step > self._last_step and not has_failed and not current_world().agree(self._signalled()):
            self.validate()

    def _validate_if_due(self) -> None:
        """Validate if this step is not validated yet, and the interval has passed or no update has been made."""
        if self.global_step != self._last_step and (not self.global_step or self._due()):
            self.validate()

    def _due(self) -> bool:
        """Return whether a validation is due; all processes agree on it, because their clocks differ."""
        due = self._period.due(self.global_step)
        return current_world().agree(due) if self._period.minutes else due

    def validate(self) -> None:
        """Validate now, and record the scores. A signal to stop ends the validation without scores."""
        start_time = time.monotonic()
        try:
            outcomes = [self._towers.outcome(validation) for validation in self._sets]
        except StoppedError:
            logger.info(f"The validation of step {self.global_step} will be done by the resumed run.")
            return
        except DivergenceError:
            self.trainer.diverged = True
            raise
        self._last_step = self.global_step
        self._record_scalars(dict(zip(self._tags, outcomes, strict=True)))
        self._report(outcomes, time.monotonic() - start_time)
        self._period.restart()

    @property
    def scalars(self) -> list[str]:
        """The names of all scalars of a validation."""
        tags = [*self._tags, MEAN_OF_SETS] if self._with_mean else self._tags
        return [metric.scalar(tag) for tag in tags for name, metric in METRICS.items()
                if self._with_loss or name not in OF_LOSS]

    def _record_scalars(self, outcomes: dict[str, ValidationOutcome]) -> None:
        """Record the scalars of all sets, by their names, and remember the best value of `metric`."""
        for scalar, value in scores_of_sets(outcomes, self._with_mean).items():
            self.trainer.monitors.put_scalar(scalar, value)
            if scalar == self.metric and not math.isnan(value) and (
                    self.best_score is None or self._metric.at_least_as_good(value, self.best_score)):
                self.best_score, self.best_step = value, self.global_step

    def _report(self, outcomes: Sequence[ValidationOutcome], seconds: float) -> None:
        step = self.global_step
        best_text = "" if self.metric is None else " (the best so far)"
        if self.best_score is not None and self.best_step != step:
            best_text = f" (best {self._metric.label} {self._metric.text(self.best_score)} at step {self.best_step})"
        training = self.trainer.monitors.get_history("nll")
        for tag, validation, outcome in zip(self._tags, self._sets, outcomes, strict=True):
            numbers = sample_numbers(len(validation.source), self._samples, step, self._seed)
            text = describe_outcome(outcome, float(training[-1][1]) if training else None)
            set_name = f" of {validation.name}" if validation.name else ""
            ending = ""
            if validation is self._sets[0]:
                total = sum(len(validation_set.source) for validation_set in self._sets)
                ending = f"{best_text}; {total} sentences in {duration(seconds)}"
            logger.info(f"Validation{set_name} at step {step}: {text}{ending}; {outcome.scores.signature}")
            for line in sample_lines(validation, outcome.translations, numbers):
                logger.info(line)
            table = sample_table(validation, outcome.translations, numbers)
            self.trainer.monitors.put_summary(
                text_summary(f"validation_samples/{tag}" if tag else "validation_samples", table))

    def _check_signals(self) -> None:
        if self._signalled():
            raise StoppedError

    def _signalled(self) -> bool:
        """Return whether this process has received a signal to stop."""
        return any(signals.received is not None for signals in self._signals)


def fingerprints_of_sets(sets: Sequence[ValidationSet], tags: Sequence[str]) -> dict[str, str]:
    """Return the fingerprint of the text of each validation set, by the name of the set in scalars."""
    return {tag: validation_fingerprint([replace(validation, name="")])
            for tag, validation in zip(tags, sets, strict=True)}


def is_of_other_text(scalar: str, state: Mapping[str, Any], fingerprints: Mapping[str, str]) -> bool:
    """Return whether a scalar of a validation was computed on other sentences than those of the present sets.

    Args:
        scalar: name of the scalar.
        state: an earlier state of `BleuValidator`.
        fingerprints: result of `fingerprints_of_sets` for the present sets.
    """
    saved, tag = state.get("texts", {}), scalar.partition("/")[2]
    if tag == MEAN_OF_SETS and tag not in fingerprints:
        return bool(saved) and saved != fingerprints
    return tag in saved and tag in fingerprints and saved[tag] != fingerprints[tag]


def _scalar(metric: str, set_name: str, sets: Sequence[ValidationSet], loss: bool) -> str:
    """Return the name of the scalar that decides which step is the best.

    Raises:
        SettingsError: `metric` or `set_name` is unknown, or two sets have the same name.
    """
    names = [validation.name for validation in sets]
    if len(set(names)) < len(names):
        raise SettingsError(f"Two validation sets are named '{max(names, key=names.count)}': give each a unique name.")
    if metric not in METRICS:
        raise SettingsError(f"validation.metric={metric} is not one of {', '.join(METRICS)}.")
    if set_name and set_name not in (*names, MEAN_OF_SETS):
        choices = ", ".join(filter(None, names))
        raise SettingsError(f"validation.metric_set={set_name}: no validation set has this name; leave it empty for "
                            "the first set" + (f", or choose one of {choices}, or {MEAN_OF_SETS}." if choices else "."))
    if not loss and metric in OF_LOSS:
        raise SettingsError(f"validation.metric={metric} needs the loss of the validation set, which is not computed "
                            "for this model: choose bleu or chrf.")
    return METRICS[metric].scalar_of(set_name, names[0])
