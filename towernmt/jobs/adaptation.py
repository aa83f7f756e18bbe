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

import numpy as np
from numpy.typing import NDArray

from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError
from towernmt.core.files import write_text
from towernmt.core.settings import apply_overrides
from towernmt.dataflow.batches.training_data import TrainingData, is_prepared, with_general_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import open_prepared
from towernmt.dataflow.text.language_codes import written_language
from towernmt.dataflow.text.text_lines import clean, read_lines
from towernmt.dataflow.text.validation_set import ValidationFiles, ValidationSet, read_lines_of_set
from towernmt.evaluate.comparison import SIGNIFICANCE_LEVEL, SignificanceSettings, System, compare
from towernmt.evaluate.metrics import MetricSettings
from towernmt.interop.model_card import CardText
from towernmt.interop.package_build import PackageOptions, package_run
from towernmt.interop.starting_models import with_vocabulary_of
from towernmt.jobs.corrections import (
    MIN_CORRECTIONS,
    Correction,
    read_corrections,
    save_corrections,
    split_corrections,
)
from towernmt.predict.engine_support import ENGINES, default_precision
from towernmt.predict.scorer import Scorer
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator
from towernmt.run.directory import RunDirectory
from towernmt.run.launch import train_resolved_settings
from towernmt.run.resolve import LIMITS, Overrides, ResolvedSettings, SettingsSources, resolve_settings
from towernmt.run.rules.automatic_value import AutomaticSetting
from towernmt.run.started_run import StartingModel

MIN_TEST_SENTENCES = 100
"""Minimum number of sentences of the old test set; on fewer, a loss of several BLEU points may not be significant."""
_TEST_ADVICE = "pass text of the old domain with its translations as --test."
MAX_CHECKED_PAIRS = 100
"""Maximum number of pairs of a text that the model judges."""
MIN_GAIN = 2.0
"""Least gain, in standard errors, of translations over the translations of other lines."""
GENERAL_SHARE = 0.75
"""Share of general pairs. With 0.5, which is automatic for other trainings, the model became significantly worse on the
old test set (docs/notes/measurements.md, "A trained model in another domain")."""
RATE_FACTOR_OF_MUON = 0.3
"""Learning rate with Muon, divided by the automatic one. At the automatic rate of 0.001, a good model lost 2.4 BLEU
points on the old test set, and at 0.0003 0.6 points (p = 0.145), while it gained 9.8 and 8.5 points on held-out
corrections (docs/notes/measurements.md, "A trained model in another domain")."""
_SIGNIFICANCE = SignificanceSettings(trials=1)
"""The bootstrap decides, so the approximate randomisation, which takes longer, is as short as possible."""
_CORRECTIONS, _FINISHED = "corrections.tsv", "finished"
"""Files in the directory of an adaptation: its corrections, and an empty file after the comparison."""


def check_pairs(model: StartingModel, texts: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Refuse texts of the opposite direction, and texts whose lines are no translations of each other.

    The log-probabilities of targets by the model are compared with those of sources by targets, and with those of the
    same targets after the sources of the next lines.

    Args:
        model: the model to adapt.
        texts: by the name for messages, pairs of source and target; the first `MAX_CHECKED_PAIRS` are judged, and of
            fewer than 20 only the direction.

    Raises:
        DataError: a text is empty, less probable than in the opposite direction, or hardly more than after other
            sources.
    """
    scorer = Scorer(model.run, model.checkpoint, device="cpu")

    def score_targets(sources: Sequence[str], targets: Sequence[str]) -> NDArray[np.float64]:
        """Return the log-probability and the number of tokens of each target."""
        scores = scorer.score([*zip(sources, targets, strict=True)])
        return np.array([(score.log_prob, score.tokens) for score in scores])

    def mean_log_prob(scored: NDArray[np.float64]) -> float:
        log_probability, tokens = scored.sum(axis=0)
        return float(log_probability / tokens)

    for name, text in texts.items():
        if not text:
            raise DataError(f"{name} has no pair with text on both sides: pass sources with their translations.")
        sources, targets = ([pair[side] for pair in text[:MAX_CHECKED_PAIRS]] for side in (0, 1))
        scored = score_targets(sources, targets)
        forward, backward = mean_log_prob(scored), mean_log_prob(score_targets(targets, sources))
        if backward > forward:
            raise DataError(f"{name}: {model.name} translates in the opposite direction: by its probabilities, the "
                            f"sources are translations of the targets ({backward:.2f} and {forward:.2f} nats per "
                            "token): pass text of this direction, the model of the other one, or --no-text-check if "
                            "the direction is right.")
        if len(targets) < MIN_CORRECTIONS["train"]:       # too few for a standard error
            continue
        shuffled = score_targets([*sources[1:], sources[0]], targets)
        gains = (scored[:, 0] - shuffled[:, 0]) / scored[:, 1]
        if gains.mean() <= MIN_GAIN * gains.std() / len(gains) ** 0.5:
            raise DataError(f"{name}: by the probabilities of {model.name}, the targets are no translations of the "
                            f"sources ({forward:.2f} nats per token, and {mean_log_prob(shuffled):.2f} with other "
                            "sources): pass sources with their translations, or --no-text-check if they are.")


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
class SetResult:
    """The BLEU of both models on one set.

    Attributes:
        name: name of the set.
        sentences: number of sentences.
        old, new: BLEU of both models.
        p: p-value of the difference by paired bootstrap.
    """

    name: str
    sentences: int
    old: float
    new: float
    p: float

    @property
    def is_better(self) -> bool:
        """Whether the new model has the higher score."""
        return self.new > self.old

    @property
    def is_significantly_worse(self) -> bool:
        """Whether the new model has a lower score, and the difference is significant."""
        return self.new < self.old and self.p < SIGNIFICANCE_LEVEL

    @property
    def line(self) -> str:
        """The result as a line of text."""
        return (f"{self.name}: {self.sentences} sentences, BLEU {self.old:.2f} before and {self.new:.2f} after "
                f"(p = {self.p:.3f}, paired bootstrap)")


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
        TowerNMTError: a file cannot be read, the corrections do not fit the model, the test set is too small, or a
            setting is invalid.
        DirectoryInUseError: another process adapts a model in `work`.
    """
    _resolve(job)       # refuses invalid settings before `work` is made
    direction, corrections = read_corrections(job.corrections, job.direction)
    splits = split_corrections(corrections, job.corrections)
    test = read_lines_of_set(ValidationFiles("test", job.test[0], [job.test[1]]), _read_test_lines, _TEST_ADVICE)
    unseen_sentences(test, splits, job)
    test_pairs = [pair for pair in zip(test.source, test.references[0], strict=True) if all(pair)]
    test_name = f"--test {' '.join(job.test)}"
    if job.text_check:
        check_pairs(job.model, {str(job.corrections): splits["train"], test_name: test_pairs})
    with DirectoryLock(job.work, "towernmt adapt"):
        return _train_and_compare(job, *_begin_or_resume(job, direction, corrections, report), test, report)


def unseen_sentences(test: ValidationSet, splits: Mapping[str, Sequence[Correction]], job: AdaptationJob
                     ) -> ValidationSet:
    """Return the sentences of the old test set that are not sources of corrections for training or validation.

    An adapted model has learned the translations of these sources, so they would hide what it has forgotten.

    Args:
        test: the old test set.
        splits: the corrections; see `split_corrections`.
        job: the job, for the message.

    Raises:
        DataError: fewer than `MIN_TEST_SENTENCES` of them have text on both sides.
    """
    seen = {correction.source for name in ("train", "valid") for correction in splits[name]}
    rows = [row for row in zip(test.source, *test.references, strict=True) if row[0] not in seen]
    usable, left_out = sum(map(all, rows)), len(test.source) - len(rows)
    if usable < MIN_TEST_SENTENCES:
        among = f", without the {left_out} that are sources of corrections" if left_out else ""
        raise DataError(f"--test {' '.join(job.test)} has {usable} sentences with a translation{among}: pass at least "
                        f"{MIN_TEST_SENTENCES} of the old domain, because on fewer, even a loss of several BLEU points "
                        "may not be significant.")
    source, *references = map(list, zip(*rows, strict=True))
    return ValidationSet(test.name, source, references)


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
            (other / _CORRECTIONS).unlink(missing_ok=True)      # first, so that the rest is not resumed after a kill
            shutil.rmtree(other, ignore_errors=True)


def _train_and_compare(job: AdaptationJob, directory: Path, corrections: Sequence[Correction], test: ValidationSet,
                       report: Callable[[str], None]) -> AdaptationResult:
    """Train the model, compare it with the old one, and write the package if it is better; see `adapt_model`."""
    splits = split_corrections(corrections, directory / _CORRECTIONS)
    report(f"Corrections: {len(splits['train'])} for training, {len(splits['valid'])} for validation, "
           f"{len(splits['test'])} held out.")
    unseen = unseen_sentences(test, splits, job)
    if left_out := len(test.source) - len(unseen.source):
        report(f"--test: {left_out} sentences are left out, because they are sources of corrections.")
    run = RunDirectory(directory / "run")
    status = _train(job, with_general_data(_prepare_corrections(job.model, splits, directory), job.general), run)
    if status:
        return AdaptationResult(status)
    # Adaptations in two work directories may have the same output.
    unfinished = job.output.with_name(f"{job.output.name}.{_short_hash(str(job.work.resolve()))}.new")
    unfinished.unlink(missing_ok=True)
    try:
        _write_package(job, run, unfinished, _test_files(job, unseen, directory) if left_out else job.test)
        held_out = [*map(list, zip(*splits["test"], strict=True))]
        rejection = _rejection(*_compare_models(job, unfinished, directory / "package", {
            "held-out corrections": held_out, "test set": [unseen.source, *unseen.references]}, report))
        if not rejection:
            os.replace(unfinished, job.output)
    finally:
        unfinished.unlink(missing_ok=True)
    _finish(directory)
    return AdaptationResult(rejection=rejection)


def _test_files(job: AdaptationJob, test: ValidationSet, directory: Path) -> tuple[str, str]:
    """Write the sentences of a test set to files with the names of those of the job, and return their paths."""
    paths = [directory / "test" / side / Path(file).name.removesuffix(".gz")
             for side, file in zip(("source", "reference"), job.test, strict=True)]
    for path, lines in zip(paths, (test.source, *test.references), strict=True):
        write_text(path, "".join(f"{line}\n" for line in lines))
    return str(paths[0]), str(paths[1])


def _read_test_lines(file: str) -> list[str]:
    return [clean(line) for line in read_lines(file)]


def _adaptation_key(job: AdaptationJob, direction: str) -> str:
    """Return a key of the model, the direction, the general data and the settings of a run, except its limits.

    A run can resume with other limits.
    """
    general = job.general
    if general is not None and is_prepared(general):    # others are refused by `with_general_data`
        general = open_prepared(general).fingerprint
    settings = {name: str(value) for name, value in sorted(job.overrides.items()) if name not in LIMITS}
    return _short_hash((job.model.name, job.model.weights_checksum(), direction, general, settings))


def _short_hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _prepare_corrections(model: StartingModel, splits: Mapping[str, Sequence[Correction]],
                         directory: Path) -> TrainingData:
    """Prepare the corrections for training and validation in a directory, with the vocabularies of the model."""
    for name in ("train", "valid"):
        for side, lines in zip(("source", "target"), zip(*splits[name], strict=True), strict=True):
            write_text(directory / f"{name}.{side}", "".join(f"{line}\n" for line in lines))
    settings = PrepareSettings(
        source=str(directory / "train.source"), target=str(directory / "train.target"), valid_name=["corrections"],
        valid_source=str(directory / "valid.source"), valid_target=str(directory / "valid.target"),
        output=str(directory / "data"), workers=1)
    return prepare(with_vocabulary_of(settings, model.name, model.run.vocabulary))


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
    defaults = {} if job.general is None else {"data.general_share": GENERAL_SHARE}
    overrides = Overrides("towernmt adapt", defaults), Overrides("--set", job.overrides)
    return resolve_settings(SettingsSources(start=job.model, overrides=overrides, **sources))


def _compare_models(job: AdaptationJob, package: Path, unpacked: Path, sets: Mapping[str, Sequence[Sequence[str]]],
                    report: Callable[[str], None]) -> list[SetResult]:
    """Translate sets with the old model and the new package as users do, and return the scores.

    Both models have the precision and the languages of the new package, so that only the training makes a difference.

    Args:
        job: model, text, settings and output of the adaptation.
        package: the new package.
        unpacked: directory in which it is unpacked.
        sets: source and references of each set, by name.
        report: called with the result of each set.
    """
    run = PackagedRun(package, trust_code=True, cache=unpacked)
    languages = job.card.pair()
    options: dict[str, Any] = {"precision": default_precision([run], ENGINES[0]), "export_first": True,
                               "languages": languages and tuple(map(written_language, languages))}
    translators = {"old": Translator(job.model.run, checkpoint=job.model.checkpoint, **options),
                   "new": Translator(run, **options)}
    metric, results = MetricSettings(("bleu",), target_language=languages[1] if languages else ""), []
    for name, (source, *references) in sets.items():
        systems = [System(label, translator.translate(list(source))) for label, translator in translators.items()]
        old, new = compare(systems, references, metric, _SIGNIFICANCE).scores["BLEU"]
        p = new.bootstrap_p if new.bootstrap_p is not None and new.differs else 1.0
        results.append(SetResult(name, len(source), old.score, new.score, p))
        report(results[-1].line)
    return results


def _rejection(corrections: SetResult, test: SetResult) -> str:
    """Return the reason for which the new model is not packaged, a clause; "" if it is packaged."""
    if not corrections.is_better:
        return "the new model is not better on the held-out corrections"
    if test.is_significantly_worse:
        return "the new model is significantly worse on the old test set"
    return ""


def _write_package(job: AdaptationJob, run: RunDirectory, output: Path, test: tuple[str, str]) -> None:
    averaged = run.group("search", SearchSettings()).averaged
    with TrainedModel(run, None, device="cpu", averaged=averaged) as trained:
        package_run(trained, output, job.card, PackageOptions(tests=[test]))
