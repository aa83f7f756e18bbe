"""Train with monolingual text: a model translates it, and training mixes the translations with the true pairs.

Text of the target language is translated by a model of the opposite direction (back-translation, Sennrich et al. 2016).
Each translated source begins with BOS as a tag (Caswell et al. 2019), which every vocabulary contains and no other
source has. Text of the source language is translated by a teacher, without a tag. All results are stored in the
directory of the run, and the same command resumes at the stage that was interrupted:

```
LOGDIR/monolingual/record.json        the inputs with which the stages were begun, and the time of the translation
                  /model/             run of the model that translates, unless the user names a model
                  /translations       a line for each line of the text
                  /data/              the translated pairs, prepared with the vocabularies of the true pairs
LOGDIR/                               the run of the final model
```
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from towernmt.checkpoint.checkpoint_files import latest_checkpoint, read_state
from towernmt.checkpoint.records import read_record
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.mixed_data import MixedData
from towernmt.dataflow.batches.training_data import TrainingData
from towernmt.dataflow.preparation.corpus_statistics import dropped_in_words
from towernmt.dataflow.preparation.manifest import MANIFEST
from towernmt.dataflow.preparation.preparation import NoPairLeftError, prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData, ReversedData
from towernmt.dataflow.text.language_codes import parse_direction, two_letter_code
from towernmt.dataflow.text.pair_filters import TextFilters
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.interop.starting_models import with_vocabulary_of
from towernmt.jobs.monolingual_job import (
    MODEL_LIMIT_SHARE,
    TRANSLATION_TIME_SHARE,
    MonolingualJob,
    check_job,
    check_space,
    final_limits,
    model_limits,
    open_record,
    save_record,
    training_limits,
    translated_share,
)
from towernmt.jobs.monolingual_text import TextFacts, are_nearly_all_faulty, check_side, check_source_tags, text_facts
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.lines.resumable import resumable_output, task_of_unfinished, weight_fingerprints
from towernmt.predict.lines.text_io import open_input
from towernmt.predict.translator import Translator
from towernmt.run.assemble import check_tracker
from towernmt.run.directory import RunDirectory
from towernmt.run.launch import train_resolved_settings
from towernmt.run.resolve import Overrides, SettingsSources, resolve_settings
from towernmt.run.resume import trained_seconds
from towernmt.run.run_settings import Settings

SETTINGS_OF_STARTED_MODEL = ("architecture", "model.", "optimizer.", "schedule.")
"""Beginnings of the settings that a user chooses for the model of `--start`, and that do not suit a new model."""
MAX_CHECKED_TRANSLATIONS = 100
"""Number of translations of the user's models whose language is checked."""


def train_with_monolingual_text(job: MonolingualJob, report: Callable[[str], None]) -> int:
    """Train a model on true pairs and on translations of monolingual text.

    Args:
        job: the text, the data, and the settings.
        report: called with sentences for the user.

    Returns:
        The exit status; see `train`.

    Raises:
        TowerNMTError: the text, the data or a setting is unsuitable, or an input has changed since the first start.
    """
    settings = resolve_settings(dataclasses.replace(job.sources, open_data=None)).settings
    check_job(job, settings)
    check_tracker(settings)     # before the translation, which may take hours
    facts = text_facts(job.text)
    if not job.has_started:     # so that an unsuitable text leaves no files
        if job.models or job.sources.start is not None:     # the first stages take long, and have other settings
            resolve_settings(dataclasses.replace(
                job.sources, overrides=_without(job.sources, "data.general_share"), open_data=lambda: job.data))
        if job.text_check:
            if job.side == "source":
                check_source_tags(job.data, facts.sample, job.option,
                                  "write the tag of the target language before each line")
            check_side(job.data, job.side, facts.sample, job.option)
        check_space(job, facts.bytes)
    is_new = not job.logdir.exists()
    try:
        with DirectoryLock(job.directory, "towernmt train"):
            try:
                return _Stages(job, settings, facts, report).run()
            finally:
                if not job.has_started:
                    job.record_file.unlink(missing_ok=True)
    finally:
        with suppress(OSError):     # not empty, unless a teacher or a setting was unsuitable
            job.directory.rmdir()
            if is_new:
                job.logdir.rmdir()


class _Stages:
    """The stages of one training, each of which is skipped if it is complete."""

    def __init__(self, job: MonolingualJob, settings: Settings, facts: TextFacts, report: Callable[[str], None]
                 ) -> None:
        self._job, self._facts, self._report = job, facts, report
        self._model = RunDirectory(job.directory / "model")
        self._translations, self._prepared = job.directory / "translations", job.directory / "data"
        self._count = 3 if job.models else 4
        self._record = open_record(job, facts.sha256)
        specified = {key for _, values in job.sources.overrides for key in values}
        self._languages = settings.data.modifier_languages
        has_share = "data.general_share" in specified or job.sources.run is not None
        self._specified_share = settings.data.general_share if has_share else None
        self._limits = {**self._record.limits, **{
            key: value for key, value in training_limits(settings).items() if key in specified}}
        self._save(limits=self._limits)

    def run(self) -> int:
        """Run all stages that are not complete, and return the exit status of the last one."""
        if self._record.spent_minutes is None:
            if not self._translations.is_file():
                if not self._job.models and (status := self._train_model()):
                    return status
                self._translate()
            self._remove_unfinished_translations()      # a kill may have left the journal of the complete ones
            self._prepare()
            self._save(spent_minutes=((self._model_seconds() or 0.0) + self._record.seconds) / 60)
        return self._train_final()

    def _save(self, **changes: Any) -> None:
        self._record = dataclasses.replace(self._record, **changes)
        save_record(self._job, self._record)

    def _begin_stage(self, number: int, activity: str, seconds_left: float | None = None) -> None:
        left = "" if seconds_left is None else f" About {_minutes(seconds_left)} left for all stages."
        self._report(f"Stage {number} of {self._count}: {activity}.{left}")

    def _train_model(self) -> int:
        job, minutes = self._job, self._limits.get("train.minutes")
        direction = "the opposite direction" if job.side == "target" else "the same direction"
        self._begin_stage(1, f"train a model of {direction}, which will translate the text ({self._model.path})",
                          60 * minutes - (self._model_seconds() or 0.0) if minutes else None)
        sources, data = job.sources, job.data
        # Frozen variables need the initial values of the final model. A shortlist lists translations in its direction.
        final_only = ["init.", "train.only", "train.freeze", "data.general_share"]
        final_only += ["search.shortlist"] if job.side == "target" else []
        final_only += SETTINGS_OF_STARTED_MODEL if sources.start is not None else []
        overrides = _without(sources, *final_only)
        own_values: dict[str, Any] = dict(model_limits(self._limits))
        if job.side == "target" and self._languages:
            source, target = map(two_letter_code, parse_direction(self._languages))
            own_values["data.modifier_languages"] = f"{target}-{source}"
        return self._train(dataclasses.replace(sources, start=None, run=self._model if self._model.exists() else None,
                                               overrides=(*overrides, Overrides(job.option, own_values))),
                           ReversedData(data) if job.side == "target" else data, self._model.path)

    def _train(self, sources: SettingsSources, data: TrainingData, logdir: Path) -> int:
        resolved = resolve_settings(dataclasses.replace(sources, open_data=lambda: data))
        return train_resolved_settings(resolved, data, logdir, sources.gpus)

    def _translate(self) -> None:
        job = self._job
        self._begin_stage(self._count - 2, f"translate {self._facts.lines:,} lines of {job.text}",
                          self._seconds_left(0.0))
        translator = self._open_translator()
        translator.faults = FaultCounts("")     # the written lines are counted here
        task = {"engine": translator.engine, "weights": weight_fingerprints(translator.checkpoint),
                **json.loads(json.dumps(dataclasses.asdict(translator.search)))}
        resume = task_of_unfinished(str(self._translations)) == task    # another engine or model begins again
        window, limit = translator.stream.window, 60 * TRANSLATION_TIME_SHARE * self._limits.get("train.minutes", 0.0)
        if not resume:
            self._remove_unfinished_translations()
            self._save(seconds=0.0)
        clock = _Clock(self._record.seconds)
        with open_input(job.text) as text, resumable_output(str(self._translations), window, task, resume) as output:
            done, faults = output.start.lines, FaultCounts(str(job.text))
            if output.start.faults is not None:
                faults.merge(output.start.faults)
            translations = translator.translate_stream(output.lines_of(text, str(job.text)), str(job.text),
                                                       first=done + 1)
            for number, translation in enumerate(translations, done + 1):
                faults.add(number, translation)
                output.write(number, [translation[0].text], faults)
                if number % window == 0:
                    self._save(seconds=clock.seconds)
                    self._report_lines(number, (self._facts.lines - number) * clock.since_start / (number - done))
                    if limit and clock.seconds >= limit and number < self._facts.lines:
                        self._report(f"The translation ends after {number:,} lines, because it has used "
                                     f"{TRANSLATION_TIME_SHARE:.0%} of train.minutes.")
                        break
        self._save(seconds=clock.seconds)
        self._report_faults(faults)

    def _remove_unfinished_translations(self) -> None:
        for file in self._job.directory.glob(f"{self._translations.name}.unfinished-*"):
            file.unlink()

    def _report_faults(self, faults: FaultCounts) -> None:
        counts = faults.as_json()
        if faulty := sum(counts["counts"].values()):
            advice = " The model has learned too little to help: pass another --logdir with a higher limit, or a " \
                     "better model as --teacher." if faulty > counts["lines"] / 2 else ""
            self._report(f"{faulty:,} of {counts['lines']:,} translations look wrong (empty, repetitive or cut)."
                         f"{advice}")

    def _open_translator(self) -> Translator:
        """Return the translator, greedy for back-translation, which takes the least time.

        Raises:
            SettingsError: the models of the user translate into another language, or translate nothing.
            DataError: their translations lack the tags of the sources.
        """
        job = self._job
        checkpoints: Any = [model.checkpoint for model in job.models] or None
        translator = Translator(
            [model.run for model in job.models] or self._model.path, 1 if job.side == "target" else None,
            checkpoint=checkpoints, device="cpu" if job.sources.gpus is None else None, export_first=True)
        if job.models and job.text_check:
            translator.faults = FaultCounts("")     # these lines are translated and counted again
            self._check_translations(translator.translate([*self._facts.sample[:MAX_CHECKED_TRANSLATIONS]]))
        return translator

    def _check_translations(self, lines: Sequence[str]) -> None:
        job = self._job
        teacher = f"--teacher {' '.join(model.name for model in job.models)}"
        if not any(map(str.strip, lines)):
            raise SettingsError(f"{teacher}: its translations of the first {len(lines)} lines of {job.text} are empty: "
                                "pass another model.")
        if job.side == "target":
            check_source_tags(job.data, lines, teacher, "pass a model that writes these tags")
        try:
            check_side(job.data, job.other_side, [line for line in lines if line.strip()], "--teacher")
        except DataError:
            raise SettingsError(f"{teacher} does not translate into the {job.other_side} language of "
                                f"{job.data.directory}: pass a model of the other direction, or --no-text-check if the "
                                "direction is right.") from None

    def _report_lines(self, number: int, seconds_left: float) -> None:
        after = self._seconds_left(seconds_left)
        self._report(f"Translated {number:,} of {self._facts.lines:,} lines; {_minutes(seconds_left)} left for the "
                     f"translation{'' if after is None else f', about {_minutes(after)} for all stages'}.")

    def _seconds_left(self, translation: float) -> float | None:
        """Return the seconds until the end of all stages, from those of the translation; None if unknown."""
        trained = self._model_seconds()
        if minutes := self._limits.get("train.minutes"):
            return max(60 * minutes - (trained or 0.0) - self._record.seconds, translation)
        shares = [MODEL_LIMIT_SHARE[key] for key, value in self._limits.items() if value]
        return None if not shares or trained is None else translation + trained / shares[0]

    def _model_seconds(self) -> float | None:
        """Return the seconds of training of the first model, with its validations; None if unknown."""
        checkpoint = None if self._job.models else latest_checkpoint(self._model.checkpoints)
        return None if checkpoint is None else trained_seconds(read_state(checkpoint))

    def _prepare(self) -> None:
        if (self._prepared / MANIFEST).is_file():
            return
        self._begin_stage(self._count - 1, "prepare the translated pairs", self._seconds_left(0.0))
        try:
            self._prepare_pairs()
        except NoPairLeftError as error:
            shutil.rmtree(self._prepared, ignore_errors=True)
            self._refuse_translations(f"are dropped by the filters of {self._job.data.directory} "
                                       f"({dropped_in_words(error.dropped)})")

    def _prepare_pairs(self) -> None:
        job, lines = self._job, self._translated_lines()
        if are_nearly_all_faulty(job.text, self._translations, lines):
            self._refuse_translations("are empty or repetitive")
        pairs, vocabulary = self._pair_files(lines), job.directory / "vocabulary"
        job.data.copy_vocabularies(vocabulary)
        data_settings = job.data.manifest["settings"]
        names = (*TextFilters.__dataclass_fields__, "max_length_ratio")
        filters = {name: data_settings[name] for name in names if name in data_settings}
        limit = data_settings["max_length"] - (1 if job.side == "target" else 0)    # the tag needs a position
        settings = PrepareSettings(source=str(pairs["source"]), target=str(pairs["target"]), max_length=max(1, limit),
                                   output=str(self._prepared), **filters)
        prepare(with_vocabulary_of(settings, str(job.data.directory), vocabulary))

    def _refuse_translations(self, problem: str) -> NoReturn:
        """Remove useless translations, so that the same command translates again, and raise an error.

        Args:
            problem: end of a sentence about the translations.

        Raises:
            DataError: always.
        """
        job = self._job
        self._translations.unlink()
        names = {model.name: model.run for model in job.models} or {str(self._model.path): self._model}
        translators = " and ".join(f"{name}{_validation_score(run)}" for name, run in names.items())
        limits = [] if job.models else [key for key, value in self._limits.items() if value]
        advice = f"run the same command with a higher {limits[0]} to train this model further, or " if limits else ""
        raise DataError(f"{job.option}: all or nearly all translations by {translators} {problem}: {advice}pass a "
                        "better model as --teacher with another --logdir.")

    def _translated_lines(self) -> int:
        with open_input(self._translations) as translations:
            return sum(1 for _ in translations)

    def _pair_files(self, lines: int) -> dict[str, Path]:
        """Return the files of both sides with the same number of lines: those that are translated."""
        text = self._job.text
        if lines < self._facts.lines:
            text = self._job.directory / "text"
            with open_input(self._job.text) as stream, open(text, "wb") as output:
                output.writelines(islice(stream, lines))
        return {self._job.side: text, self._job.other_side: self._translations}

    def _train_final(self) -> int:
        job = self._job
        translated = PreparedData(self._prepared)
        mixed = MixedData(job.data, translated, BOS if job.side == "target" else None, translated=True)
        share = self._specified_share
        if share is None:
            share = translated_share(job.data.pairs, translated.pairs)
        self._begin_stage(self._count, f"train on {job.data.pairs:,} true pairs and {translated.pairs:,} translated "
                          f"pairs, which are {share:.0%} of each epoch", self._seconds_left(0.0))
        limits = final_limits(self._limits, self._record.spent_minutes or 0.0)
        return self._train(dataclasses.replace(job.sources, overrides=(
            Overrides(job.option, {"data.general_share": share}), *job.sources.overrides,
            Overrides(job.option, limits))), mixed, job.logdir)


def _without(sources: SettingsSources, *beginnings: str) -> tuple[Overrides, ...]:
    """Return the specified values, except settings with these beginnings."""
    return tuple(Overrides(origin, {key: value for key, value in values.items() if not key.startswith(beginnings)})
                 for origin, values in sources.overrides)


class _Clock:
    """Seconds of a stage, with those before a resume."""

    def __init__(self, before: float) -> None:
        self._before, self._start = before, time.monotonic()

    @property
    def since_start(self) -> float:
        """Seconds of this process."""
        return time.monotonic() - self._start

    @property
    def seconds(self) -> float:
        """Seconds of all processes."""
        return self._before + self.since_start


def _validation_score(run: SavedRun) -> str:
    """Return the validation score of a run, in brackets; "" without one."""
    best = next(iter(read_record(run.best)), None)
    return "" if best is None else f" ({best.metric} {best.score:.2f} at update {best.step:,})"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes"
