"""Average the last checkpoints at the end of training, and save the result in `averaged/` if it is the best.

The last checkpoint alone is a candidate, too. Training never reads `averaged/`, so a run that resumes with a higher
limit ignores it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorpack.utils import logger

from towernmt.callbacks.validation_metrics import MEAN_OF_SETS, METRICS, OF_LOSS, ValidationOutcome, scores_of_sets
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
from towernmt.predict.search_towers import GraphSearch, build_graph_search
from towernmt.predict.stream import translate_lines
from towernmt.run.assemble import Components, patience_scalar, validation_decides
from towernmt.run.directory import RunDirectory
from towernmt.run.resume import why_finished
from towernmt.run.run_log import begin_log
from towernmt.run.run_settings import Settings
from towernmt.train.monitors import drop_later_entries

MIN_SENTENCES = 1000
"""Minimum number of sentences on which candidates are compared, if the validation set is large enough. A few hundred
are misleading: in a run on 5,000 pairs of Tatoeba, 300 sentences selected a checkpoint with 16.0 BLEU on the test set,
although the last checkpoint had 17.2 (docs/notes/defaults.md, "The mean of the last checkpoints")."""


def check_average(settings: Settings, data: TrainingData) -> None:
    """Refuse `checkpoint.average` if the run cannot compute or evaluate the average.

    Raises:
        SettingsError: the run has no validation, or keeps too few checkpoints.
    """
    checkpoint, count = settings.checkpoint, settings.checkpoint.average
    if not count:
        return
    if not validation_decides(settings, data):
        raise SettingsError(f"checkpoint.average={count} needs validation on text of --data to compare the average, "
                            "but this run has none: pass validation text (and validation.steps), or set "
                            "checkpoint.average=0.")
    if checkpoint.keep < count:
        raise SettingsError(f"checkpoint.average={count} needs {count} checkpoints, but "
                            f"checkpoint.keep={checkpoint.keep}: set checkpoint.keep={count}.")
    if not checkpoint.keep_best:
        raise SettingsError(f"checkpoint.average={count} compares the average with the best checkpoint, but "
                            "checkpoint.keep_best=0 keeps no best checkpoint: set it to 1.")


def set_later_average_aside(run: RunDirectory) -> None:
    """Rename `averaged/` if it was made from another run or from later steps than the last checkpoint."""
    record = read_average_record(run.averaged)
    last = latest_checkpoint(run.checkpoints)
    if record is not None and (last is None or read_state(last).step < record.compared_step):
        logger.warning(f"{run.averaged} contained the average of checkpoints that no longer exist; it was renamed to "
                       f"{set_aside(run.averaged)}.")


def average_if_due(settings: Settings, data: TrainingData, run: RunDirectory, components: Components,
                   gpus: Sequence[int] | None) -> None:
    """Average the last checkpoints, and keep the average if it is better than the checkpoint that translates so far.

    Nothing happens before the run has reached its limit, or if its last checkpoint was already compared. If the
    process is killed, the next start of the run averages.

    Args:
        settings: settings of the run; `checkpoint.average` is the number of checkpoints.
        data: training data, whose validation sets are used.
        run: directory of the run that ended.
        components: components of the run, which make its model.
        gpus: numbers of the GPUs that trained, of which the first one validates; None for the CPU.

    Raises:
        CheckpointError: a checkpoint is damaged, or the average cannot be written.
    """
    count, last = settings.checkpoint.average, latest_checkpoint(run.checkpoints)
    if not count or last is None or not why_finished(run, settings.train, patience_scalar(settings, data, run)):
        return
    record = read_average_record(run.averaged) or AverageRecord(0, 0)
    if (record.compared_step, record.compared_last) == (read_state(last).step, count):
        return
    with in_world(World()), run.writing("towernmt train"):
        if logger.LOG_DIR != str(run.log):      # the run was already finished at its start
            begin_log(run.log)
        _FinishedRun(settings, data, run, components, gpus).average(record)


Outcomes = Mapping[str, ValidationOutcome]
"""The outcomes of one checkpoint by the name of the validation set in scalars."""
_BEST, _AVERAGE, _LAST = "best", "average", "last"
"""The candidates: the checkpoint that translates so far, the average, and the last checkpoint."""
_RESULTS = {_BEST: "not kept", _AVERAGE: "kept", _LAST: "the last one is taken"}
"""The fate of the average in the log, by the best candidate."""


class _FinishedRun:
    """A run that has reached its limit, and its validation."""

    def __init__(self, settings: Settings, data: TrainingData, run: RunDirectory, components: Components,
                 gpus: Sequence[int] | None) -> None:
        self._settings, self._run, self._components = settings, run, components
        self._device = f"gpu:{gpus[0]}" if gpus else "cpu"
        self._metric = METRICS[settings.validation.metric]
        self._sets, self._tag = _validation_sets(settings, data)

    def average(self, record: AverageRecord) -> None:
        """Compare the average and the last checkpoint with the current best checkpoint, and record the result.

        Args:
            record: record of the previous comparison.
        """
        run, count = self._run, self._settings.checkpoint.average
        steps = [step for step in checkpoint_steps(run.checkpoints) if step > 0][-count:]
        if len(steps) < 2:
            logger.info(f"Nothing is averaged, because the run has {len(steps)} checkpoint.")
            return
        new_directory, best = run.averaged.with_name(f"{run.averaged.name}.new"), run.checkpoint()
        outcomes = {_BEST: self._outcome(best)}     # of equal candidates, the first one wins
        outcomes[_AVERAGE] = self._outcome(str(self._average(steps, new_directory) / "model"))
        outcomes[_LAST] = outcomes[_BEST] if _has_weights_of(best, steps[-1]) else self._outcome(
            str(checkpoint_path(run.checkpoints, steps[-1]) / "model"))
        winner = self._best_of(outcomes)
        scores = {name: self._metric.text(self._score(outcome)) for name, outcome in outcomes.items()}
        logger.info(f"Averaging the last {len(steps)} checkpoints: validation {self._metric.label} {scores[_AVERAGE]}, "
                    f"the best so far {scores[_BEST]}, the last one {scores[_LAST]}: {_RESULTS[winner]}.")
        try:
            if winner == _BEST:
                shutil.rmtree(new_directory)
                _write_record(AverageRecord(steps[-1], count, record.kept), run.averaged)
                return
            self._add_to_statistics(steps[-1], self._scores(outcomes[winner]))
            if winner == _LAST:
                self._average(steps := steps[-1:], new_directory)
            finite_scores = {name: score for name, score in self._scores(outcomes[winner]).items()
                             if math.isfinite(score)}
            kept_average = KeptAverage(steps[-1], steps, self._metric.scalar(self._tag), self._metric.mode,
                                       finite_scores)
            _write_record(AverageRecord(steps[-1], count, kept_average), new_directory)
            _replace_directory(new_directory, run.averaged)
        except OSError as error:
            raise CheckpointError(f"{run.averaged}: cannot write the average ({error.strerror}). Free some space or "
                                  "make it writable, and run the same command again.") from error

    def _average(self, steps: Sequence[int], directory: Path) -> Path:
        """Replace the contents of a directory by the average of checkpoints, and return its checkpoint."""
        shutil.rmtree(directory, ignore_errors=True)
        checkpoints = [checkpoint_path(self._run.checkpoints, step) for step in steps]
        return average_checkpoints(self._run, checkpoints, directory, self._components.model(self._settings))

    def _best_of(self, outcomes: Mapping[str, Outcomes]) -> str:
        """Return the name of the best outcome; the first of equal ones."""
        sign = 1 if self._metric.mode == "max" else -1
        return max(outcomes, key=lambda name: sign * self._score(outcomes[name]))

    def _outcome(self, checkpoint: str) -> Outcomes:
        """Validate a checkpoint with the run's search settings, in the precision of training."""
        search, precision = self._run.group("search", SearchSettings()), self._settings.train.precision
        model = self._components.model(self._settings)
        graph = build_graph_search(SearchArguments([self._run], [checkpoint], [model], None, self._device, search, (),
                                                   False, False, precision=precision))
        scorer = None
        if self._metric.name in OF_LOSS:
            scorer = Scorer(self._run, checkpoint, device=self._device, averaged=search.averaged, model=model,
                            precision=precision)
        return {tag: self._outcome_of_set(graph, scorer, validation) for tag, validation in self._sets.items()}

    def _outcome_of_set(self, graph: GraphSearch, scorer: Scorer | None, validation: ValidationSet
                        ) -> ValidationOutcome:
        source, references = validation.source, validation.references
        translations = translate_lines(graph, graph.source_vocabulary, graph.target_vocabulary, source,
                                       device=self._device)
        nll = None
        if scorer is not None:
            scored = scorer.score(zip(source, references[0], strict=True))
            nll = -sum(score.log_prob for score in scored) / sum(score.tokens for score in scored)
        return ValidationOutcome(translations, corpus_scores(translations, *references), nll)

    def _score(self, outcomes: Outcomes) -> float:
        return self._scores(outcomes)[self._metric.scalar(self._tag)]

    def _scores(self, outcomes: Outcomes) -> dict[str, float]:
        """Return the scores of a checkpoint by their names in training."""
        return scores_of_sets(outcomes, with_mean=self._tag not in self._sets)

    def _add_to_statistics(self, step: int, scores: dict[str, float]) -> None:
        """Write the new scores to the statistics, under separate names because they are for more sentences.

        The statistics of a killed process may have later steps, of which the run has no checkpoint.
        """
        row = {**{f"averaged_{name}": score for name, score in scores.items()}, "global_step": step}
        path = self._run.log / "stats.jsonl"
        try:
            drop_later_entries(path, step)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")
        except OSError as error:
            logger.warning(f"{self._run.log}: the scores of the average are not recorded ({error.strerror}).")


def _has_weights_of(checkpoint: str, step: int) -> bool:
    """Return whether a checkpoint has the weights of one step, and is not an average."""
    state = read_state(Path(checkpoint).parent)
    return state.step == step and not state.mean_of


def _validation_sets(settings: Settings, data: TrainingData) -> tuple[dict[str, ValidationSet], str]:
    """Return the validation sets that `validation.metric_set` needs by their names in scalars, and the name of it.

    The name of the first set in scalars is "".
    """
    sets, name, sentences = data.validation_sets, settings.validation.metric_set, settings.validation.sentences
    count = sentences and max(sentences, MIN_SENTENCES)
    sets_by_tag = {"" if validation_set is sets[0] else validation_set.name: validation_set.first(count)
                   for validation_set in sets}
    if name == MEAN_OF_SETS and name not in [validation_set.name for validation_set in sets]:
        return sets_by_tag, MEAN_OF_SETS
    tag = name if name in sets_by_tag else ""
    return {tag: sets_by_tag[tag]}, tag


def _write_record(record: AverageRecord, directory: Path) -> None:
    write_text(directory / RECORD, json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def _replace_directory(new: Path, path: Path) -> None:
    """Replace a directory by a new one; if the process is killed in between, the next start averages again."""
    old = path.with_name(f"{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
        shutil.rmtree(old)
    new.rename(path)
    flush_to_disk(path.parent)
