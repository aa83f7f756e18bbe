"""Adapt a model to corrections of its translations: train, compare with the old model, and package the better one.

Each adaptation has a directory in the work directory, with its corrections, their prepared data and the run. The name
of the directory is a key of the model and the settings, and a hash of the corrections. An interrupted adaptation
resumes with its own corrections, because the file of a server can grow meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, SettingsError, mask_uri
from towernmt.core.files import copy_access, has_package_manifest, write_text
from towernmt.core.settings import apply_overrides
from towernmt.dataflow.batches.mixed_data import check_mixable
from towernmt.dataflow.batches.training_data import TrainingData, is_prepared, with_general_data
from towernmt.dataflow.preparation.corpus_statistics import dropped_in_words
from towernmt.dataflow.preparation.preparation import NoPairLeftError, prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import open_prepared
from towernmt.dataflow.text.clean_text import clean, with_tag
from towernmt.dataflow.text.text_lines import is_compressed, read_lines
from towernmt.dataflow.text.validation_set import ValidationFiles, ValidationSet, read_lines_of_set
from towernmt.evaluate.metrics import make_metrics
from towernmt.interop.model_card import CardText
from towernmt.interop.package_build import PackageOptions, package_run
from towernmt.interop.starting_models import with_vocabulary_of
from towernmt.jobs.adaptation_checks import check_direction, check_pairs, unseen_sentences
from towernmt.jobs.adaptation_comparison import compare_models, metrics_of_comparison, rejection_of
from towernmt.jobs.corrections import (
    MIN_CORRECTIONS,
    Correction,
    read_corrections,
    save_corrections,
    split_corrections,
)
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.trained_model import TrainedModel
from towernmt.run.assemble import check_tracker
from towernmt.run.changed_limit import LIMITS
from towernmt.run.directory import RunDirectory, differing_vocabulary
from towernmt.run.ineffective_settings import COMMAND_LINE, NEEDS_GENERAL_DATA, notes_of_ineffective_settings
from towernmt.run.launch import train_resolved_settings
from towernmt.run.resolve import Overrides, ResolvedSettings, SettingsSources, resolve_settings
from towernmt.run.rules.automatic_value import AutomaticSetting
from towernmt.run.started_run import StartingModel

_TEST_ADVICE = "pass text of the old domain with its translations as --test."
GENERAL_SHARE = 0.75
"""Share of general pairs. With 0.5, which is automatic for other trainings, the model became significantly worse on the
old test set (docs/notes/measurements.md, "A trained model in another domain")."""
RATE_FACTOR_OF_MUON = 0.3
"""Learning rate with Muon, divided by the automatic one. At the automatic rate of 0.001, a good model lost 2.4 BLEU
points on the old test set, and at 0.0003 0.6 points (p = 0.145), while it gained 9.8 and 8.5 points on held-out
corrections (docs/notes/measurements.md, "A trained model in another domain")."""
_CORRECTIONS, _FINISHED = "corrections.tsv", "finished"
"""Files in the directory of an adaptation: its corrections, and an empty file after the comparison."""


@dataclass(frozen=True)
class AdaptationJob:
    """The model to adapt, its text, its settings, and the output.

    Attributes:
        model: the old model.
        corrections: file of corrections.
        test: source and reference file of the old test set.
        output: file of the new package.
        work: directory of the adaptations, each with its corrections, their prepared data and the run.
        card: the user's statements for the model card.
        direction: direction of the corrections; None if the file has only one.
        general: prepared data that are mixed in; None for no general data.
        overrides: settings of the training, by dotted key.
        text_check: whether the model judges the corrections and the test set (`check_pairs`).
    """

    model: StartingModel
    corrections: Path
    test: tuple[str, str]
    output: Path
    work: Path
    card: CardText
    direction: str | None = None
    general: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    text_check: bool = True


@dataclass(frozen=True)
class AdaptationResult:
    """The result of an adaptation.

    Attributes:
        status: exit status of the training; without the comparison if a signal stopped it.
        rejection: why no package was written after the comparison; "" if one was written.
    """

    status: int = 0
    rejection: str = ""


def adapt_model(job: AdaptationJob, report: Callable[[str], None]) -> AdaptationResult:
    """Adapt a model to corrections, and write a package if it is better on them and not worse on the old test set.

    The same job resumes an interrupted adaptation, with the corrections with which it began. A better model replaces an
    existing package at `output`. Adaptations to earlier corrections are removed from `work`.

    Args:
        job: model, text, settings and output of the adaptation.
        report: called with sentences for the user.

    Raises:
        TowerNMTError: a file cannot be read, the corrections do not fit the model, the test set is too small, a
            setting is invalid, or `output` is a directory, the file of the model, or no package.
        DirectoryInUseError: another process adapts a model in `work`.
    """
    _check_output(job)
    _check_settings(job)
    direction, corrections = read_corrections(job.corrections, job.direction)
    check_direction(str(job.corrections), direction, job.card.pair())
    splits = split_corrections(corrections, job.corrections)
    test = read_lines_of_set(ValidationFiles("test", job.test[0], [job.test[1]]), _read_test_lines, _TEST_ADVICE)
    unseen_sentences(test, splits, job.test)
    test_pairs = [pair for pair in zip(test.source, test.references[0], strict=True) if all(pair)]
    test_name = f"--test {' '.join(job.test)}"
    if job.text_check:
        check_pairs(job.model, job.card.source_prefix, {str(job.corrections): splits["train"], test_name: test_pairs})
    with DirectoryLock(job.work, "towernmt adapt"):
        return _train_and_compare(job, *_begin_or_resume(job, direction, corrections, report), test, report)


def _check_output(job: AdaptationJob) -> None:
    """Refuse an output that the package cannot replace, or must not.

    Raises:
        SettingsError: the output is a directory, the file of the model to adapt, or another file than a package.
    """
    if job.output.is_dir():
        raise SettingsError(f"--output {job.output} is a directory: pass the path of a file for the package.")
    model = Path(job.model.name)
    if job.output.exists() and model.exists() and job.output.samefile(model):
        raise SettingsError(f"--output {job.output} is the file of --model, which the adapted model would replace: "
                            "pass another file, because each adaptation begins with the original model.")
    if job.output.exists() and not has_package_manifest(job.output):
        raise SettingsError(f"--output {job.output} exists and is not a package, so the adapted model would replace "
                            "another file: pass another path, or remove the file.")


def _check_settings(job: AdaptationJob) -> None:
    """Refuse settings and general data that cannot work, before `work` is made and the corrections are prepared.

    Raises:
        SettingsError: a setting is invalid or has no effect, the general data are not prepared or have another
            vocabulary than the model, or a package that the training or the comparison needs is missing.
    """
    settings = _resolve(job).settings
    check_tracker(settings)
    make_metrics(metrics_of_comparison(job.card))
    if job.general is None:
        notes_of_ineffective_settings(settings, _overrides(job), None, [NEEDS_GENERAL_DATA])
        return
    check_mixable(settings.data)
    advice = f"prepare it with `towernmt prepare --vocabulary-of {job.model.name}`"
    if not is_prepared(job.general):
        raise SettingsError(f"--general {mask_uri(job.general)} is not prepared data: {advice}.")
    if differing_file := differing_vocabulary(job.model.run.vocabulary, open_prepared(job.general)):
        raise SettingsError(f"--general {mask_uri(job.general)} has another vocabulary than the model of --model "
                            f"{job.model.name} ({differing_file} differs): {advice}.")


def _begin_or_resume(job: AdaptationJob, direction: str, corrections: Sequence[Correction],
                     report: Callable[[str], None]) -> tuple[Path, Sequence[Correction]]:
    """Return the directory and the corrections of an interrupted adaptation, or of a new one.

    Args:
        job: model, text, settings and output of the adaptation.
        direction: direction of the corrections.
        corrections: content of the file of corrections.
        report: called with a sentence if an interrupted adaptation has other corrections.
    """
    key = _adaptation_key(job, direction)
    for file in job.work.glob(f"{key}-*/{_CORRECTIONS}"):
        if not (file.parent / _FINISHED).exists():
            unfinished = read_corrections(file)[1]
            if unfinished != corrections:
                report(f"Resuming the interrupted adaptation in {file.parent} with its own {len(unfinished)} "
                       f"corrections; the next adaptation uses those that {job.corrections} has now (remove the "
                       "directory to begin with them).")
            return file.parent, unfinished
    directory = job.work / f"{key}-{_short_hash(corrections)}"
    if not (directory / _CORRECTIONS).exists():
        shutil.rmtree(directory, ignore_errors=True)    # the rest of a removal by `_finish` that was killed
        save_corrections(directory / _CORRECTIONS, direction, corrections)
    (directory / _FINISHED).unlink(missing_ok=True)
    return directory, corrections


def _finish(directory: Path) -> None:
    """Mark an adaptation as finished, and remove adaptations of the same model and settings with other corrections."""
    write_text(directory / _FINISHED, "")
    key = directory.name.partition("-")[0]
    for other in [*directory.parent.glob(f"{key}-*")]:
        if other != directory:
            _remove(other)


def _remove(directory: Path) -> None:
    (directory / _CORRECTIONS).unlink(missing_ok=True)      # first, so that the rest is not resumed after a kill
    shutil.rmtree(directory, ignore_errors=True)


def _train_and_compare(job: AdaptationJob, directory: Path, corrections: Sequence[Correction], test: ValidationSet,
                       report: Callable[[str], None]) -> AdaptationResult:
    """Train the model, compare it with the old one, and write the package if it is better; see `adapt_model`."""
    splits = split_corrections(corrections, directory / _CORRECTIONS)
    report(f"Corrections: {len(splits['train'])} for training, {len(splits['valid'])} for validation, "
           f"{len(splits['test'])} held out.")
    unseen = unseen_sentences(test, splits, job.test)
    if left_out := len(test.source) - len(unseen.source):
        report(f"--test: {left_out} sentences are left out, because they are sources of corrections.")
    run = RunDirectory(directory / "run")
    prepared = _prepare_corrections(job, splits, directory, report)
    status = _train(job, with_general_data(prepared, job.general), run)
    if status:
        return AdaptationResult(status)
    # Adaptations in two work directories may have the same output.
    unfinished = job.output.with_name(f"{job.output.name}.{_short_hash(str(job.work.resolve()))}.new")
    unfinished.unlink(missing_ok=True)
    try:
        _write_package(job, run, unfinished, _test_files(job, unseen, directory))
        held_out = [*map(list, zip(*splits["test"], strict=True))]
        rejection = rejection_of(*compare_models(job.model, unfinished, directory / "package", job.card, {
            "held-out corrections": held_out, "test set": [unseen.source, *unseen.references]}, report))
        if not rejection:
            copy_access(job.output, unfinished)
            os.replace(unfinished, job.output)
    finally:
        unfinished.unlink(missing_ok=True)
    _finish(directory)
    return AdaptationResult(rejection=rejection)


def _test_files(job: AdaptationJob, test: ValidationSet, directory: Path) -> tuple[str, str]:
    """Write the sentences of a test set to files with the names of those of the job, and return their paths.

    The files of the job may be compressed, or pipes that cannot be read again.
    """
    names = (Path(file).stem if is_compressed(file) else Path(file).name for file in job.test)
    paths = [directory / "test" / side / name for side, name in zip(("source", "reference"), names, strict=True)]
    for path, lines in zip(paths, (test.source, *test.references), strict=True):
        write_text(path, "".join(f"{line}\n" for line in lines))
    return str(paths[0]), str(paths[1])


def _read_test_lines(file: str) -> list[str]:
    return [clean(line) for line in read_lines(file)]


def _adaptation_key(job: AdaptationJob, direction: str) -> str:
    """Return a key of the model, the direction, the source prefix, the general data and the settings except limits.

    A run can resume with other limits.
    """
    general = job.general
    if general is not None and is_prepared(general):    # others are refused by `with_general_data`
        general = open_prepared(general).fingerprint
    settings = {name: str(value) for name, value in sorted(job.overrides.items()) if name not in LIMITS}
    return _short_hash((job.model.name, job.model.weights_checksum(), direction, job.card.source_prefix, general,
                        settings))


def _short_hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _prepare_corrections(job: AdaptationJob, splits: Mapping[str, Sequence[Correction]], directory: Path,
                         report: Callable[[str], None]) -> TrainingData:
    """Prepare the corrections for training and validation in a directory, with the vocabularies of the model.

    The corrections that the preparation leaves out are reported.

    Raises:
        DataError: too few corrections remain for training. The directory is removed, because an adaptation with more
            corrections would resume this one.
    """
    model, tags = job.model, {"source": job.card.source_prefix, "target": ""}
    for name in ("train", "valid"):
        for (side, tag), lines in zip(tags.items(), zip(*splits[name], strict=True), strict=True):
            write_text(directory / f"{name}.{side}", "".join(f"{with_tag(tag, line)}\n" for line in lines))
    settings = PrepareSettings(
        source=str(directory / "train.source"), target=str(directory / "train.target"), valid_name=["corrections"],
        valid_source=str(directory / "valid.source"), valid_target=str(directory / "valid.target"),
        output=str(directory / "data"), workers=1)
    total = len(splits["train"])
    try:
        data = prepare(with_vocabulary_of(settings, model.name, model.run.vocabulary))
    except NoPairLeftError as error:
        raise _too_few_corrections(job, directory, 0, _left_out(settings, total, total, error.dropped)) from error
    if data.pairs < total:
        sentence = _left_out(settings, total - data.pairs, total, data.statistics["dropped"])
        if data.pairs < MIN_CORRECTIONS["train"]:
            raise _too_few_corrections(job, directory, data.pairs, sentence)
        report(f"{sentence}.")
    return data


def _left_out(settings: PrepareSettings, left_out: int, total: int, dropped: Mapping[str, dict[str, Any]]) -> str:
    # Without the lines, which are not those of the file of corrections.
    reasons = dropped_in_words(dropped, with_lines=False)
    return (f"{left_out} of {total} corrections for training are left out: {reasons} (the limits are "
            f"{settings.max_length} tokens, and the ratio {settings.max_length_ratio:g})")


def _too_few_corrections(job: AdaptationJob, directory: Path, remaining: int, left_out: str) -> DataError:
    _remove(directory)
    return DataError(f"{job.corrections}: {left_out}, and {remaining} remain, where at least "
                     f"{MIN_CORRECTIONS['train']} are needed: divide long corrections into sentences, or collect more.")


def _train(job: AdaptationJob, data: TrainingData, run: RunDirectory) -> int:
    resolved = _resolve(job, run=run if run.exists() else None, defaults="automatic", open_data=lambda: data)
    return train_resolved_settings(with_rate_of_adaptation(resolved), data, run.path)


def with_rate_of_adaptation(resolved: ResolvedSettings) -> ResolvedSettings:
    """Return the settings with `RATE_FACTOR_OF_MUON` times the automatic learning rate of Muon.

    A rate that the user specifies, that of a resumed run, and that of other optimizers stay.
    """
    key, settings = "optimizer.learning_rate", resolved.settings
    if settings.optimizer.name != "muon" or key not in {setting.key for setting in resolved.automatic or ()}:
        return resolved
    lower = AutomaticSetting(key, float(f"{RATE_FACTOR_OF_MUON * settings.optimizer.learning_rate:.3g}"),
                             "a higher rate would make the model worse on its old domain")
    automatic = [lower if setting.key == key else setting for setting in resolved.automatic or ()]
    return replace(resolved, settings=apply_overrides(settings, {key: lower.value}), automatic=automatic)


def _resolve(job: AdaptationJob, **sources: Any) -> ResolvedSettings:
    """Return the settings of the training; without other sources, with their defaults instead of automatic values."""
    return resolve_settings(SettingsSources(start=job.model, overrides=_overrides(job), **sources))


def _overrides(job: AdaptationJob) -> tuple[Overrides, ...]:
    defaults = {} if job.general is None else {"data.general_share": GENERAL_SHARE}
    return Overrides("towernmt adapt", defaults), Overrides(COMMAND_LINE, job.overrides)


def _write_package(job: AdaptationJob, run: RunDirectory, output: Path, test: tuple[str, str]) -> None:
    averaged = run.group("search", SearchSettings()).averaged
    with TrainedModel(run, None, device="cpu", averaged=averaged) as trained:
        package_run(trained, output, job.card, PackageOptions(tests=[test]))
