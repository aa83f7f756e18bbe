"""The order of a training with monolingual text: its inputs, what it refuses, and how its time is divided."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from towernmt.checkpoint.records import recorded_fingerprints
from towernmt.core.directories import MONOLINGUAL_RECORD
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import write_text
from towernmt.core.structured_files import read_json
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.run.changed_limit import LIMITS
from towernmt.run.resolve import SettingsSources
from towernmt.run.run_settings import Settings
from towernmt.run.started_run import StartingModel, check_data_of_start

STAGES_FOLDER = MONOLINGUAL_RECORD.parent
"""Folder in the directory of a run, with the results of the stages before its training."""
MODEL_LIMIT_SHARE = {"train.steps": 0.5, "train.epochs": 0.5, "train.minutes": 0.25}
"""Limits of the model that translates, as a share of the user's limits."""
TRANSLATION_TIME_SHARE = 0.25
"""Maximum share of `train.minutes` for the translation."""
MIN_TRANSLATED_SHARE, MAX_TRANSLATED_SHARE = 0.0001, 0.5
"""Least and largest share of the translated pairs in the training. With a share of 0, there would be none."""
SPACE_FACTOR = 5
"""Free disk space that the stages need, in sizes of the text: for translations, prepared pairs and temporary files."""


@dataclass(frozen=True)
class MonolingualJob:
    """A training with monolingual text.

    Attributes:
        text: the monolingual text, one sentence per line.
        side: language of the text.
        data: the true pairs.
        logdir: directory of the run.
        sources: sources of the settings of the final model; `run` is the run in `logdir`, if it exists.
        models: models that translate the text, an ensemble if several; empty to train one.
        text_check: whether to check the languages of the text and of the translations by `models`.
    """

    text: Path
    side: Literal["source", "target"]
    data: PreparedData
    logdir: Path
    sources: SettingsSources
    models: Sequence[StartingModel] = ()
    text_check: bool = True

    @property
    def option(self) -> str:
        """The option that names the text, with its value."""
        return f"{'--monolingual' if self.side == 'target' else '--source-monolingual'} {self.text}"

    @property
    def directory(self) -> Path:
        """Directory of the results of the stages."""
        return self.logdir / STAGES_FOLDER

    @property
    def record_file(self) -> Path:
        """File of the `StageRecord`."""
        return self.logdir / MONOLINGUAL_RECORD

    @property
    def has_started(self) -> bool:
        """Whether a stage has stored something that depends on the inputs in the record."""
        return self.record_file.is_file() and any(
            path.name in ("model", "data") or path.name.startswith("translations") for path in self.directory.iterdir())

    @property
    def other_side(self) -> Literal["source", "target"]:
        """Language of the translations."""
        return "source" if self.side == "target" else "target"


@dataclass(frozen=True)
class StageRecord:
    """Content of `record.json`.

    Attributes:
        inputs: checksum of each input, by the name of the input in messages.
        limits: training limits that the user set last, by dotted key.
        seconds: time of the translation so far.
        spent_minutes: part of `train.minutes` that the first stages used; None until they are complete.
        start: checksum of the weights of the model of --start; "" without the option, and None if it is not recorded.
    """

    inputs: dict[str, str]
    limits: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    spent_minutes: float | None = None
    start: str | None = None


def check_job(job: MonolingualJob, settings: Settings) -> None:
    """Check that the data, the settings and the directory suit a training with monolingual text.

    Args:
        job: the training.
        settings: the specified settings.

    Raises:
        SettingsError: the message names the setting, or the directory.
    """
    if job.data.source_vocabulary.streams > 1:
        raise SettingsError(f"{job.option}: {job.data.directory} has source factors, but translations have none: "
                            "prepare the data without --source-factors.")
    unsupported = {"data.subword_sampling": settings.data.subword_sampling, "data.modifiers": settings.data.modifiers,
                   "model.guided_alignment_weight": getattr(settings.model, "guided_alignment_weight", 0)}
    for name, value in unsupported.items():
        if value:
            raise SettingsError(f"{job.option}: {name} does not support mixed data: leave it out.")
    if not settings.data.general_share:
        raise SettingsError(f"{job.option}: data.general_share=0 would leave out all translations: set it above 0, or "
                            f"train without {job.option.split()[0]}.")
    is_validated = job.data.validation_sets and (settings.validation.steps or settings.validation.minutes)
    has_stop = is_validated and (settings.train.stop_patience or job.sources.defaults != "fixed")
    trains_first_model = job.sources.run is None and not job.models
    if trains_first_model and not has_stop and not any(training_limits(settings).values()):
        raise SettingsError(f"{job.option}: without a limit, the training of the first model would never end: set "
                            "train.minutes or train.steps.")
    if job.sources.start is not None:
        check_data_of_start(job.sources.start, job.data)
    if job.sources.run is not None and not job.record_file.is_file():
        if recorded_fingerprints(job.sources.run.saved_settings()).get("data") == job.data.fingerprint:
            raise SettingsError(f"{job.option}: {job.logdir} holds a run that began without monolingual text: pass "
                                "another --logdir, or leave out the option to resume it.")
        raise SettingsError(f"{job.option}: {job.record_file} is missing, so the run in {job.logdir} cannot be resumed "
                            f"with monolingual text: restore {job.directory}, or pass another --logdir, with --start "
                            f"{job.logdir} to begin with its model.")


def check_space(job: MonolingualJob, size: int) -> None:
    """Check that the disk has space for the translations of a text.

    Args:
        job: the training.
        size: size of the text in bytes.

    Raises:
        SettingsError: the disk has too little free space.
    """
    existing = next(path for path in (job.logdir.absolute(), *job.logdir.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(existing).free, SPACE_FACTOR * size
    if free < needed:
        raise SettingsError(f"{job.option}: the disk of {existing} has {free / 1e9:.1f} GB of free space, but the "
                            f"translations of the text need about {needed / 1e9:.1f} GB: free some, or pass a --logdir "
                            "on another disk.")


def open_record(job: MonolingualJob, text_checksum: str) -> StageRecord:
    """Return the record of the first start, or a new one.

    Args:
        job: the training.
        text_checksum: checksum of the monolingual text.

    Raises:
        DataError: an input has changed since the first start, or another version of towernmt has written the record.
        SettingsError: the final model has not begun, and --start names another model than at the first start, or none.
    """
    start = job.sources.start
    start_checksum = "" if start is None else start.weights_checksum()
    inputs = {job.option: f"{job.side} {text_checksum}", f"--data {job.data.directory}": job.data.fingerprint,
              "--teacher": " ".join(model.weights_checksum() for model in job.models)}
    if not job.has_started:
        return StageRecord(inputs, start=start_checksum)
    record = read_json(job.record_file, StageRecord, f"Pass another --logdir than {job.logdir}.")
    if len(record.inputs) != len(inputs):
        raise DataError(f"{job.record_file} has {len(record.inputs)} inputs where {len(inputs)} are expected: resume "
                        f"with the version of towernmt that began the run, or pass another --logdir than {job.logdir}.")
    for (name, checksum), recorded in zip(inputs.items(), record.inputs.values(), strict=True):
        if checksum != recorded:
            raise DataError(f"{name} is not what {job.logdir} was begun with (its content or the option changed): "
                            "restore it to resume, or pass another --logdir.")
    # The settings of the final model name the model from which it has begun; see `check_resumed_start`.
    if job.sources.run is None and record.start not in (None, start_checksum):
        if start is None:
            raise SettingsError(f"{job.logdir} was begun with --start: pass the same --start to resume it, or another "
                                "--logdir.")
        began, advice = (("with another model", "pass that model") if record.start else
                         ("without --start", "leave it out"))
        raise SettingsError(f"--start {start.name}: {job.logdir} was begun {began}: {advice} to resume it, or pass "
                            "another --logdir.")
    return record


def save_record(job: MonolingualJob, record: StageRecord) -> None:
    """Write `record.json`."""
    write_text(job.record_file, json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def model_limits(limits: Mapping[str, float]) -> dict[str, float]:
    """Return the limits of the model that translates the text: a share of each of the user's limits.

    Args:
        limits: training limits by dotted key; 0 for no limit.
    """
    shares = {key: value * MODEL_LIMIT_SHARE[key] for key, value in limits.items() if value}
    return {key: value if key == "train.minutes" else math.ceil(value) for key, value in shares.items()}


def final_limits(limits: Mapping[str, float], spent_minutes: float) -> dict[str, float]:
    """Return the limits of the final model: the user's limits, without the minutes that the first stages used.

    Args:
        limits: training limits by dotted key; 0 for no limit.
        spent_minutes: minutes of the first stages.
    """
    limits_left = {key: value if key == "train.minutes" else int(value) for key, value in limits.items() if value}
    if "train.minutes" in limits_left:
        limits_left["train.minutes"] = round(max(limits_left["train.minutes"] - spent_minutes, 0.01), 2)
    return limits_left


def translated_share(pairs: int, translated: int) -> float:
    """Return the share of the translated pairs in training: that in all pairs, within the limits of the share."""
    return min(MAX_TRANSLATED_SHARE, max(MIN_TRANSLATED_SHARE, round(translated / (translated + pairs), 4)))


def training_limits(settings: Settings) -> dict[str, float]:
    """Return the training limits by dotted key; 0 for no limit."""
    return {key: float(getattr(settings.train, key.partition(".")[2])) for key in LIMITS}
