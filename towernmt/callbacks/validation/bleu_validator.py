"""Validation: translate the validation sets in the training session, score the text, and keep the best score."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from tensorpack.utils import logger

from towernmt.callbacks.lookup import EndOfTraining, find_callbacks
from towernmt.callbacks.period import Period
from towernmt.callbacks.reporting.figures import duration
from towernmt.callbacks.reporting.summaries import text_summary
from towernmt.callbacks.stateful import StatefulCallback
from towernmt.callbacks.stopping.stop_signal import StopOnSignal
from towernmt.callbacks.validation import report
from towernmt.callbacks.validation.dealt import StoppedError
from towernmt.callbacks.validation.metrics import METRICS, OF_LOSS, Outcome
from towernmt.callbacks.validation.towers import ValidationTowers
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.world import present_world
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.models.interface import NMTModel
from towernmt.predict.decoding.search import SearchSettings


class BleuValidator(StatefulCallback):
    """Every `every_steps` updates or `every_minutes`: beam search over each set, and sacreBLEU on detokenised text.

    The search tower is built on the training's variables under reuse and runs in the training session; it reads
    their moving averages where there are some, unless `search.averaged` is off.
    Puts the scalars `validation_bleu`, `validation_chrf`, and with `loss=True` `validation_loss` (mean
    negative log-likelihood of a target token, in nats, without label smoothing) and `validation_perplexity`; those of
    further sets are called `validation_bleu/NAME` and so on. Writes them with the signature and some translations,
    others at each step, into the log, and the translations as the text `validation_samples` for TensorBoard.
    `EarlyStopping`, `ReduceOnPlateau` and `BestCheckpoints` act on the scalars; put them after this callback, and the
    saver after them.

    Validates at the end of training too if the last step has not been validated, unless training ended
    by an error or a signal. A run that resumes from a step whose validation is missing makes it first,
    so that it goes on as the run that was never stopped.

    Attributes:
        metric: the scalar that decides which step is the best.
        best_score: the best of it so far, over resumes; None before the first.
        best_step: the step of it; of equal ones the last.
    """

    _chief_only = False     # each process does a share, and has all scores, by which it stops and sets its rate
    state_key = "bleu_validator"

    def __init__(self, model: NMTModel, source_lines: Sequence[str], reference_lines: Sequence[str],
                 source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, every_steps: int = 1000,
                 search: SearchSettings | None = None, batch_tokens: int = 4096, samples: int = 3,
                 loss: bool = True, every_minutes: float = 0.0, more_references: Sequence[Sequence[str]] = (),
                 more_sets: Sequence[ValidationSet] = (), metric: str = "bleu", metric_set: str = "",
                 seed: int = 1, name: str = "") -> None:
        """
        Args:
            model: the tower function that is being trained.
            source_lines: raw source text, a sentence each.
            reference_lines: raw reference text, as many.
            source_vocabulary: of the source.
            target_vocabulary: of the target.
            every_steps: updates between validations; 0 for none by steps.
            search: beam size and so on; by default `SearchSettings()`.
            batch_tokens: padded source (for the loss: target) tokens in a batch, at most.
            samples: how many sentences are shown.
            loss: whether the teacher-forced loss is computed as well.
            every_minutes: minutes between validations; 0 for none by the clock. With neither there is only one, at the
                end.
            more_references: further translations of `source_lines`, by other people.
            more_sets: further validation sets, each with a name of its own.
            metric: decides which step is the best: bleu, chrf, loss or perplexity.
            metric_set: the name of the set whose metric that is; "" for `source_lines`.
            seed: of the choice of sentences that are shown.
            name: what reports call the set of `source_lines`; its scalars are without a name.
        Raises:
            DataError: no sentences, or not as many references.
            SettingsError: `every_steps` or `every_minutes` is negative, or there is no such metric or set.
        """
        self._sets = [ValidationSet(name, source_lines, [reference_lines, *more_references]), *more_sets]
        self._tags = ["", *(validation.name for validation in more_sets)]
        if every_steps < 0 or not every_minutes >= 0:
            raise SettingsError(f"validation.steps={every_steps} and validation.minutes={every_minutes:g} must "
                                "be 0 (only at the end) or more.")
        self.metric = _scalar(metric, metric_set, self._sets, loss)
        self._metric = METRICS[metric]
        self._period, self._samples, self._with_loss, self._seed = (
            Period(every_steps, every_minutes), samples, loss, seed)
        self._towers = ValidationTowers(model, search or SearchSettings(), source_vocabulary, target_vocabulary,
                                        batch_tokens, between=self._check_signals)
        self.best_score: float | None = None
        self.best_step = 0
        self._last_step = 0

    def state(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_step": self.best_step, "last_step": self._last_step,
                "metric": self.metric}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._last_step = int(state["last_step"])
        if state.get("metric", "validation_bleu") == self.metric:
            best = state["best_score"]
            self.best_score, self.best_step = None if best is None else float(best), int(state["best_step"])

    def _setup_graph(self) -> None:
        self._towers.build(self.trainer, self._with_loss)

    def _before_train(self) -> None:
        self._end = EndOfTraining()
        self._signals = find_callbacks(self.trainer, StopOnSignal)
        self._towers.open(self.trainer)
        self._period.restart()

    def _before_epoch(self) -> None:
        self._validate_if_due()

    def _trigger_step(self) -> None:
        self._validate_if_due()

    def _after_train(self) -> None:
        broken = self._end.by_error() or getattr(self.trainer, "diverged", False)
        if self.global_step > self._last_step and not broken and not present_world().agree(self._signalled()):
            self.validate()

    def _validate_if_due(self) -> None:
        if self.global_step and self.global_step != self._last_step and self._due():
            self.validate()

    def _due(self) -> bool:
        """Whether it is time, in all processes at once: their clocks differ, their steps do not."""
        due = self._period.due(self.global_step)
        return present_world().agree(due) if self._period.minutes else due

    def validate(self) -> None:
        """Validate now, and put the scores. A signal to stop ends it without scores."""
        started = time.monotonic()
        try:
            outcomes = [self._towers.outcome(validation) for validation in self._sets]
        except StoppedError:
            logger.info(f"The validation of step {self.global_step} is left to the resumed run.")
            return
        except DivergenceError:
            self.trainer.diverged = True
            raise
        self._last_step = self.global_step
        for tag, outcome in zip(self._tags, outcomes, strict=True):
            self._put(tag, outcome)
        self._report(outcomes, time.monotonic() - started)
        self._period.restart()

    @property
    def scalars(self) -> list[str]:
        """The names of all scalars that a validation puts."""
        return [metric.scalar(tag) for tag in self._tags for name, metric in METRICS.items()
                if self._with_loss or name not in OF_LOSS]

    def _put(self, tag: str, outcome: Outcome) -> None:
        """Put the figures of a set, and note the one that counts."""
        for metric in METRICS.values():
            value = metric.value(outcome)
            if value is None:
                continue
            scalar = metric.scalar(tag)
            self.trainer.monitors.put_scalar(scalar, value)
            if scalar == self.metric and not math.isnan(value) and (
                    self.best_score is None or metric.at_least_as_good(value, self.best_score)):
                self.best_score, self.best_step = value, self.global_step

    def _report(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        step = self.global_step
        best = "the best so far"
        if self.best_score is not None and self.best_step != step:
            best = f"best {self._metric.label} {self._metric.text(self.best_score)} at step {self.best_step}"
        training = self.trainer.monitors.get_history("nll")
        for tag, validation, outcome in zip(self._tags, self._sets, outcomes, strict=True):
            numbers = report.sample_numbers(len(validation.source), self._samples, step, self._seed)
            text = report.figures(outcome, float(training[-1][1]) if training else None)
            of_set = f" of {validation.name}" if validation.name else ""
            ending = ""
            if validation is self._sets[0]:
                total = sum(len(one.source) for one in self._sets)
                ending = f" ({best}); {total} sentences in {duration(seconds)}"
            logger.info(f"Validation{of_set} at step {step}: {text}{ending}; {outcome.scores.signature}")
            for line in report.sample_lines(validation, outcome.translations, numbers):
                logger.info(line)
            table = report.sample_table(validation, outcome.translations, numbers)
            self.trainer.monitors.put_summary(
                text_summary(f"validation_samples/{tag}" if tag else "validation_samples", table))

    def _check_signals(self) -> None:
        if self._signalled():
            raise StoppedError

    def _signalled(self) -> bool:
        """Whether this process got a signal to stop."""
        return any(signals.received is not None for signals in self._signals)


def _scalar(metric: str, set_name: str, sets: Sequence[ValidationSet], loss: bool) -> str:
    """The name of the scalar that decides.

    Raises:
        SettingsError: there is none.
    """
    names = [validation.name for validation in sets]
    if len(set(names)) < len(names):
        raise SettingsError(f"Two validation sets are called '{max(names, key=names.count)}': give each its own name.")
    if metric not in METRICS:
        raise SettingsError(f"validation.metric={metric} is not one of {', '.join(METRICS)}.")
    if set_name and set_name not in names:
        others = ", ".join(filter(None, names))
        raise SettingsError(f"validation.metric_set={set_name}: there is no such validation set; leave it empty for "
                            "the first one" + (f", or take one of {others}." if others else "."))
    if not loss and metric in OF_LOSS:
        raise SettingsError(f"validation.metric={metric} needs the loss of the validation set, which is not computed "
                            "for this model: take bleu or chrf.")
    return METRICS[metric].scalar("" if set_name == names[0] else set_name)
