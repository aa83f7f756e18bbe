"""The end of a training.

Save the average of the last checkpoints, or the last one, in `averaged/` if it is the best.

Training never reads `averaged/`, so a run that resumes with a higher limit ignores it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorpack.utils import logger

from towernmt.callbacks.validation_metrics import METRICS, OF_LOSS, ValidationOutcome
from towernmt.checkpoint.averaging import average_checkpoints
from towernmt.checkpoint.checkpoint_files import (
    checkpoint_path,
    checkpoint_steps,
    latest_checkpoint,
    read_state,
    set_aside,
)
from towernmt.checkpoint.records import RECORD, AverageRecord, KeptAverage, read_average_record
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files import flush_to_disk, write_text
from towernmt.core.world import World, in_world
from towernmt.dataflow.batches.training_data import TrainingData
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.evaluate.metrics import corpus_scores
from towernmt.predict.line_translator import SearchArguments
from towernmt.predict.scorer import Scorer
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search_towers import build_towers
from towernmt.predict.stream import translate_lines
from towernmt.run.assemble import Components
from towernmt.run.directory import RunDirectory
from towernmt.run.resume import finished
from towernmt.run.run_log import begin_log
from towernmt.run.run_settings import Settings

DECIDING = 1000
"""Sentences, where there are so many, that are translated to decide. A few hundred mislead: of a run on 5,000 pairs of
Tatoeba, 300 chose a checkpoint of 16.0 BLEU on the test set, whose last had 17.2 (docs/notes/defaults.md)."""


def check_average(settings: Settings, data: TrainingData) -> None:
    """Refuse `checkpoint.average` where no mean could be made, or compared.

    Raises:
        SettingsError: there is no validation, or too few checkpoints stay.
    """
    kept, wanted = settings.checkpoint, settings.checkpoint.average
    if not wanted:
        return
    if not data.validation_sets or not (settings.validation.steps or settings.validation.minutes):
        raise SettingsError(f"checkpoint.average={wanted} keeps the mean of checkpoints if validation finds it better, "
                            "but there is no validation in this run: give validation text (and validation.steps), or "
                            "set checkpoint.average=0.")
    if kept.keep < wanted:
        raise SettingsError(f"checkpoint.average={wanted} needs as many checkpoints, but checkpoint.keep={kept.keep} "
                            f"of them stay: set checkpoint.keep={wanted}.")
    if not kept.keep_best:
        raise SettingsError(f"checkpoint.average={wanted} compares the mean with the best checkpoint, but "
                            "checkpoint.keep_best=0 keeps none: set it to 1.")


def set_later_average_aside(run: RunDirectory) -> None:
    """Rename `averaged/` if it was made from another run or from later steps than the last checkpoint."""
    record = read_average_record(run.averaged)
    last = latest_checkpoint(run.checkpoints)
    if record is not None and (last is None or read_state(last).step < record.compared_step):
        logger.warning(f"{run.averaged} held the mean of checkpoints that are not there any more: that is now in "
                       f"{set_aside(run.averaged)}.")


def average_if_due(settings: Settings, data: TrainingData, run: RunDirectory, components: Components,
                   gpus: Sequence[int] | None) -> None:
    """Average the last checkpoints, and keep the average if it is better than the checkpoint that translates so far.

    Nothing happens before the run has reached its limit, or if its last checkpoint was already compared. If the
    process is killed, the next start of the run averages.

    Args:
        settings: of the run; `checkpoint.average` is the number of checkpoints.
        data: its validation sets decide.
        run: the run that ended.
        components: its model.
        gpus: those of the training; the first one validates. None for the CPU.

    Raises:
        CheckpointError: a checkpoint is damaged, or the average cannot be written.
    """
    wanted, last = settings.checkpoint.average, latest_checkpoint(run.checkpoints)
    if not wanted or last is None or not finished(run, settings.train):
        return
    record = read_average_record(run.averaged) or AverageRecord(0, 0)
    if (record.compared_step, record.compared_last) == (read_state(last).step, wanted):
        return
    with in_world(World()), run.writing("towernmt train"):
        if logger.LOG_DIR != str(run.log):      # the run was finished when it was started
            begin_log(run.log)
        _End(settings, data, run, components, gpus).average(record)


class _End:
    """A run that has ended, and its validation."""

    def __init__(self, settings: Settings, data: TrainingData, run: RunDirectory, components: Components,
                 gpus: Sequence[int] | None) -> None:
        self._settings, self._run, self._components = settings, run, components
        self._device = f"gpu:{gpus[0]}" if gpus else "cpu"
        self._metric = METRICS[settings.validation.metric]
        self._validation, self._tag = _deciding_set(settings, data)

    def average(self, record: AverageRecord) -> None:
        """Make the mean, compare it and the last checkpoint with what is taken so far, and record what came of it.

        Args:
            record: of what was compared before.
        """
        run, wanted = self._run, self._settings.checkpoint.average
        steps = [step for step in checkpoint_steps(run.checkpoints) if step > 0][-wanted:]
        if len(steps) < 2:
            logger.info(f"Averaging is left out: the run has {len(steps)} checkpoint to be averaged.")
            return
        new, former = run.averaged.with_name(f"{run.averaged.name}.new"), run.checkpoint()
        found = {"not kept": self._outcome(former), "kept": self._outcome(str(self._mean(steps, new) / "model"))}
        found["the last one is taken"] = found["not kept"] if _is_that_of(former, steps[-1]) else self._outcome(
            str(checkpoint_path(run.checkpoints, steps[-1]) / "model"))
        result = self._best_of(found)
        before, now, alone = (self._metric.text(self._score(outcome)) for outcome in found.values())
        logger.info(f"Averaging the last {len(steps)} checkpoints: validation {self._metric.label} {now}, the best so "
                    f"far {before}, the last one {alone}: {result}.")
        try:
            if result == "not kept":
                shutil.rmtree(new)
                _write_record(AverageRecord(steps[-1], wanted, record.kept), run.averaged)
                return
            self._add_to_statistics(steps[-1], self._scores(found[result]))
            if result != "kept":
                self._mean(steps := steps[-1:], new)
            kept = KeptAverage(steps[-1], steps, self._metric.scalar(self._tag), self._metric.mode,
                               self._scores(found[result]))
            _write_record(AverageRecord(steps[-1], wanted, kept), new)
            _take_place(new, run.averaged)
        except OSError as error:
            raise CheckpointError(f"{run.averaged}: the mean could not be kept ({error.strerror}); free some space or "
                                  "make it writable, and start the same command again.") from error

    def _mean(self, steps: Sequence[int], place: Path) -> Path:
        """Write the mean of checkpoints, and nothing else, into a directory; returns it as a checkpoint."""
        shutil.rmtree(place, ignore_errors=True)
        return average_checkpoints(self._run, [checkpoint_path(self._run.checkpoints, step) for step in steps], place,
                                   self._components.model(self._settings))

    def _best_of(self, found: Mapping[str, ValidationOutcome]) -> str:
        """The name of the best outcome; of equal ones the first."""
        sign = 1 if self._metric.mode == "max" else -1
        return max(found, key=lambda name: sign * self._score(found[name]))

    def _outcome(self, checkpoint: str) -> ValidationOutcome:
        """Validate a checkpoint as training does: with the run's search, in the precision of training."""
        source, references = self._validation.source, self._validation.references
        search, precision = self._run.group("search", SearchSettings()), self._settings.train.precision
        model = self._components.model(self._settings)
        towers = build_towers(SearchArguments([self._run], [checkpoint], [model], None, self._device, search, (), False,
                                          False, precision=precision))
        translations = translate_lines(towers, towers.source_vocabulary, towers.target_vocabulary, source)
        nll = None
        if self._metric.name in OF_LOSS:
            scorer = Scorer(self._run, checkpoint, device=self._device, averaged=search.averaged, model=model,
                            precision=precision)
            scored = scorer.score(zip(source, references[0], strict=True))
            nll = -sum(score.log_prob for score in scored) / sum(score.tokens for score in scored)
        return ValidationOutcome(translations, corpus_scores(translations, *references), nll)

    def _score(self, outcome: ValidationOutcome) -> float:
        return self._scores(outcome)[self._metric.scalar(self._tag)]

    def _scores(self, outcome: ValidationOutcome) -> dict[str, float]:
        """Return the scores of an outcome by their names in training."""
        values = {metric.scalar(self._tag): metric.value(outcome) for metric in METRICS.values()}
        return {name: value for name, value in values.items() if value is not None}

    def _add_to_statistics(self, step: int, scores: dict[str, float]) -> None:
        """Write the new scores to the statistics, under other names because they are of more sentences."""
        row = {**{f"averaged_{name}": score for name, score in scores.items()}, "global_step": step}
        try:
            with (self._run.log / "stats.jsonl").open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")
        except OSError as error:
            logger.warning(f"{self._run.log}: the scores of the mean are not recorded ({error.strerror}).")


def _is_that_of(checkpoint: str, step: int) -> bool:
    """Whether a checkpoint has the weights of a step, and is no mean."""
    state = read_state(Path(checkpoint).parent)
    return state.step == step and not state.mean_of


def _deciding_set(settings: Settings, data: TrainingData) -> tuple[ValidationSet, str]:
    """The validation set whose score decides, and what its scalars are called after ("" for the first)."""
    sets, wanted, sentences = data.validation_sets, settings.validation.metric_set, settings.validation.sentences
    found = next((one for one in sets if wanted and one.name == wanted), sets[0])
    return found.first(sentences and max(sentences, DECIDING)), "" if found is sets[0] else found.name


def _write_record(record: AverageRecord, directory: Path) -> None:
    write_text(directory / RECORD, json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def _take_place(new: Path, place: Path) -> None:
    """Give a directory the name of another, which is removed. Killed in between, the mean is due again."""
    former = place.with_name(f"{place.name}.old")
    shutil.rmtree(former, ignore_errors=True)
    if place.exists():
        place.rename(former)
        shutil.rmtree(former)
    new.rename(place)
    flush_to_disk(place.parent)
