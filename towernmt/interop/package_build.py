"""Build a package: collect the files of a run, evaluate them, and write one archive with checksums."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml

from towernmt import __version__
from towernmt.checkpoint.package_reader import (
    CARD,
    CARD_TEXT,
    CODE,
    EXPORTS,
    MANIFEST,
    SETTINGS,
    SHORTLIST,
    VOCABULARY,
    WEIGHTS,
    ExportInfo,
    MemberInfo,
    PackageManifest,
    Precision,
    WeightInfo,
    npy,
    store,
)
from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.checkpoint.records import versions, vocabulary_fingerprint, without_provenance
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import EXPORT_DESCRIPTION
from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.core.files import fixed_entry, replacing
from towernmt.core.structured_files import read_json
from towernmt.dataflow.text.validation_set import check_has_text
from towernmt.evaluate.metrics import corpus_scores
from towernmt.interop.ctranslate2_engine import CTranslate2Scorer, CTranslate2Translator
from towernmt.interop.ctranslate2_loader import FORMAT
from towernmt.interop.ctranslate2_requests import difference
from towernmt.interop.export import export_model
from towernmt.interop.int8_measurement import (
    INT8,
    TextResult,
    default_on_processors,
    int8_loss,
    mean_reference_log_prob,
)
from towernmt.interop.model_card import (
    CardText,
    card_date,
    card_json,
    card_markdown,
    make_card,
    settings_for_card,
    trained_with,
    training_data_facts,
    validation_scores,
)
from towernmt.models.architectures import ARCHITECTURES
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.text_io import read_text
from towernmt.predict.scorer import Scorer
from towernmt.predict.search.search_settings import GRAPH, SearchSettings
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator

log = logging.getLogger(__name__)

_CHUNK = 1 << 20

Members = Mapping[str, bytes | Path]
"""The files of a package by name: their contents or their paths."""


def write_archive(file: BinaryIO, manifest: PackageManifest, members: Members) -> None:
    """Write a package; equal members result in equal bytes.

    Args:
        file: file to write to.
        manifest: the manifest without the list of members.
        members: the files in the order of the archive.

    Raises:
        OSError: the package cannot be written, or a member cannot be read.
    """
    infos = {name: _info(content) for name, content in members.items()}
    manifest = dataclasses.replace(manifest, members=infos)
    text = (json.dumps(manifest.to_json(), indent=1, ensure_ascii=False) + "\n").encode()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(fixed_entry(MANIFEST), text)
        for name, content in members.items():
            if isinstance(content, bytes):
                archive.writestr(fixed_entry(name), content)
                continue
            entry = fixed_entry(name)
            entry.file_size = infos[name].bytes     # the header of a large member depends on the size
            with content.open("rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target, _CHUNK)


def _info(content: bytes | Path) -> MemberInfo:
    if isinstance(content, bytes):
        return MemberInfo(len(content), hashlib.sha256(content).hexdigest())
    digest = hashlib.sha256()
    with content.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return MemberInfo(content.stat().st_size, digest.hexdigest())


def run_members(run: SavedRun, settings: Mapping[str, Any]) -> dict[str, bytes | Path]:
    """Return the files of a run except its weights, by their names in the package.

    Args:
        run: the run.
        settings: result of `model_card.settings_for_card`.

    Raises:
        SettingsError: the shortlist that the run's settings name is missing.
    """
    members: dict[str, bytes | Path] = {
        SETTINGS: yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True).encode()}
    if shortlist := run.saved_settings().get("search.shortlist"):
        if not Path(shortlist).is_file():
            raise SettingsError(f"search.shortlist={shortlist} does not exist, and the package needs this file: put it "
                                f"back, or remove the setting from {run.settings_file}.")
        members[SHORTLIST] = Path(shortlist)
    members |= files_below(run.vocabulary, VOCABULARY)
    return members if run.architecture() in ARCHITECTURES else {**members, **files_below(run.code, CODE)}


def files_below(directory: Path, name: str) -> dict[str, bytes | Path]:
    """Return all files of a directory in sorted order, by their names in the package, which begin with `name`."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{name}/{path.relative_to(directory).as_posix()}": path for path in files}


def weight_members(weights: Mapping[str, np.ndarray], precision: Precision, checkpoint: str
                   ) -> tuple[dict[str, WeightInfo], dict[str, bytes]]:
    """Return the weights in a precision: their entries in the manifest, and their files.

    Args:
        weights: the value of each variable, by name.
        precision: precision of the files.
        checkpoint: the checkpoint, for messages.

    Raises:
        CheckpointError: a value is not finite.
    """
    infos: dict[str, WeightInfo] = {}
    files: dict[str, bytes] = {}
    for name, value in sorted(weights.items()):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise CheckpointError(f"{checkpoint}: the variable '{name}' has values that are not finite, because the "
                                  "training diverged: choose an earlier checkpoint.")
        stored = store(value, precision)
        file, scales = f"{WEIGHTS}/{name}.npy", f"{WEIGHTS}/{name}.scales.npy"
        files[file] = npy(stored.values)
        if stored.scales is not None:
            files[scales] = npy(stored.scales)
        infos[name] = WeightInfo(file, stored.stored, list(value.shape), None if stored.scales is None else scales)
    return infos, files


@dataclass(frozen=True)
class PackageOptions:
    """Options of a package.

    Attributes:
        precision: precision of the weights.
        tests: source and reference file of each test set on which the package is evaluated.
        exports: format and precision of each export in the package; None for the format's first precision.
        calibration: file of source sentences, on which int8 exports measure activations.
        date: date of the card, YYYY-MM-DD; None: see `model_card.card_date`.
        int8: whether to measure translation in int8 on the test sets, and make it the default on processors if the
            loss is small; see `int8_measurement.Int8Loss`.
    """

    precision: Precision = "float32"
    tests: Sequence[tuple[str, str]] = ()
    exports: Sequence[tuple[str, str | None]] = ()
    calibration: str | None = None
    date: str | None = None
    int8: bool = True


@dataclass
class _PackageContents:
    """The manifest and the members that were collected so far."""

    manifest: PackageManifest
    members: dict[str, bytes | Path] = field(default_factory=dict)

    def add_export(self, directory: Path, format_name: str, precision: str) -> bool:
        """Add an export; return whether the package did not have it."""
        info = ExportInfo(f"{EXPORTS}/{format_name}-{precision}", format_name, precision)
        if info in self.manifest.exports:
            return False
        self.manifest = dataclasses.replace(self.manifest, exports=[*self.manifest.exports, info])
        self.members.update(files_below(directory, info.folder))
        return True

    def write(self, output: Path, card: dict[str, Any]) -> None:
        card_files = {CARD_TEXT: card_markdown(card), CARD: card_json(card)}
        with replacing(output) as file:
            write_archive(file, self.manifest, {**card_files, **self.members})


def package_run(trained: TrainedModel, output: str | Path, text: CardText,
                options: PackageOptions = PackageOptions()) -> dict[str, Any]:  # noqa: B008 -- immutable
    """Write a trained model as a package.

    The same run with the same options results in the same bytes. The file is either complete or missing.

    Args:
        trained: run and checkpoint.
        output: path of the package.
        text: the user's statements for the model card.
        options: options of the package.

    Returns:
        The model card.

    Raises:
        SettingsError: the output exists already, or an export cannot express the model.
        CheckpointError: the checkpoint is damaged.
        DataError: a test set cannot be read.
        OSError: the package cannot be written.
    """
    path = Path(output)
    check_output(path)
    tests = [_read_test_set(*files) for files in options.tests]
    checkpoint = Path(trained.checkpoint).parent
    settings = settings_for_card(trained.run)
    with tempfile.TemporaryDirectory(prefix="towernmt-") as folder:
        temporary = Path(folder)
        contents = _collect_contents(trained, settings, options.precision)
        facts: dict[str, Any] = {
            "date": card_date(options.date, checkpoint), "model": _model(trained, contents.manifest),
            "training_data": training_data_facts(trained.run), "scores": [], "settings": without_provenance(settings),
            "versions": {"trained_with": trained_with(trained.run), "packaged_with": versions()}, "exports": []}
        for format_name, precision in options.exports:
            _add_export(contents, trained, temporary, format_name, precision, text, options.calibration)
        if tests:       # evaluate the package itself, as a user would load it
            trial = temporary / "tried.towernmt.zip"
            contents.write(trial, make_card(text, facts))
            facts |= _evaluate(trial, trained, contents, tests, (text.pair() or ("", ""))[1], options)
        facts["scores"] += [{**score, "of": "the training's record (float32, before packing)"}
                            for score in validation_scores(trained.run, checkpoint, contents.manifest.step)]
        facts["exports"] = [dataclasses.asdict(export) for export in contents.manifest.exports]
        card = make_card(text, facts)
        contents.write(path, card)
    return card


def _evaluate(package: Path, trained: TrainedModel, contents: _PackageContents, tests: Sequence[_TestSet],
              target_language: str, options: PackageOptions) -> dict[str, Any]:
    """Translate the test sets with a package, and return its scores and its losses in int8 for the model card.

    If the losses are small, int8 becomes the default precision on processors, and its export is added to the contents.

    Args:
        package: the package to evaluate; other files are written next to it.
        trained: run and checkpoint of the package.
        contents: contents of the final package.
        tests: the test sets.
        target_language: code of the language of the translations; "" if unknown.
        options: options of the package.
    """
    run = PackagedRun(package, trust_code=True, cache=package.parent)
    translator = Translator(run, device="cpu", engine=GRAPH)
    translations = [translator.translate(test.source) for test in tests]
    subject = f"this package ({options.precision})"
    scores = _translation_scores(translations, tests, target_language, subject, translator)
    in_int8 = _open_in_int8(trained, translator.search, package.parent / "int8") if options.int8 else None
    if in_int8 is None:
        return {"scores": scores}
    int8_translator, int8_scorer = in_int8
    int8_translations = [int8_translator.translate(test.source) for test in tests]
    scores += _translation_scores(int8_translations, tests, target_language, "this package, CTranslate2 in int8",
                                  int8_translator)
    float32_results, int8_results = (
        [TextResult(lines, mean_reference_log_prob(scorer, test.source, test.reference, int8_scorer.max_length))
         for test, lines in zip(tests, texts, strict=True)]
        for scorer, texts in ((Scorer(run, device="cpu"), translations), (int8_scorer, int8_translations)))
    losses = [int8_loss(float32, int8, [test.reference], target_language)
              for float32, int8, test in zip(float32_results, int8_results, tests, strict=True)]
    default = default_on_processors(losses)
    contents.manifest = dataclasses.replace(contents.manifest, processor_precision=default)
    if default == INT8:
        contents.add_export(Path(int8_translator.checkpoint), FORMAT, INT8)
    return {"scores": scores, "int8": {
        "bleu_loss": max(loss.bleu for loss in losses), "default_on_processors": default == INT8,
        "losses": [{"test": test.name, **dataclasses.asdict(loss)}
                   for test, loss in zip(tests, losses, strict=True)]}}


def check_output(output: Path) -> None:
    """Check that the output does not exist.

    Raises:
        SettingsError: the output exists.
    """
    if output.exists():
        raise SettingsError(f"{output} exists already: choose another --output, or remove it.")


def check_run(run: SavedRun) -> None:
    """Check that a run is not a package, which lacks some of the data that a model card needs.

    Raises:
        SettingsError: the run is a package.
    """
    if isinstance(run, PackagedRun):
        raise SettingsError(f"{run.file} is a package already: pass the run from which it was made.")


def _collect_contents(trained: TrainedModel, settings: dict[str, Any], precision: Precision) -> _PackageContents:
    weights, files = weight_members(trained.weights(), precision, trained.checkpoint)
    manifest = PackageManifest(
        format="towernmt-package", version=1, towernmt=__version__, step=trained.step,
        precision=precision, averaged=trained.uses_averages, weights=weights, members={},
        vocabulary=vocabulary_fingerprint(trained.run.vocabulary))
    return _PackageContents(manifest, {**run_members(trained.run, settings), **files})


def _model(trained: TrainedModel, manifest: PackageManifest) -> dict[str, Any]:
    parameters = sum(math.prod(info.shape) for info in manifest.weights.values())
    return {"architecture": trained.run.architecture(), "parameters": parameters, "precision": manifest.precision,
            "checkpoint": f"step-{manifest.step}", "averaged": manifest.averaged,
            **{f"{side}_vocabulary": {"kind": vocabulary.kind, "size": vocabulary.size} for side, vocabulary in (
                ("source", trained.source_vocabulary), ("target", trained.target_vocabulary))}}


@dataclass(frozen=True)
class _TestSet:
    name: str
    source: list[str]
    reference: list[str]


def _read_test_set(source: str, reference: str) -> _TestSet:
    test_set = _TestSet(Path(source).name, read_text(source), read_text(reference))
    check_has_text([(source, test_set.source), (reference, test_set.reference)],
                   "pass a --test with text and its translations.")
    if len(test_set.source) != len(test_set.reference):
        raise DataError(f"--test {source} {reference}: the files have {len(test_set.source)} and "
                        f"{len(test_set.reference)} lines; each line of the second must be the translation of the same "
                        "line of the first.")
    return test_set


def _translation_scores(translations: Sequence[Sequence[str]], tests: Sequence[_TestSet], target_language: str,
                        subject: str, translator: LineTranslator) -> list[dict[str, Any]]:
    """Return the scores of the translations of all tests; `subject` is the description of the model on the card."""
    entries = []
    for test, lines in zip(tests, translations, strict=True):
        scores = corpus_scores(lines, test.reference, target_language=target_language)
        common = {"sentences": len(test.source), "source_sha256": _sha256(test.source),
                  "reference_sha256": _sha256(test.reference),
                  "of": f"{subject}, beam {translator.search.beam_size}"}
        entries += [{"test": test.name, "metric": "BLEU", "score": round(scores.bleu, 4), "signature": scores.signature,
                     **common},
                    {"test": test.name, "metric": "chrF2", "score": round(scores.chrf, 4),
                     "signature": scores.chrf_signature, **common}]
    return entries


def _sha256(lines: Sequence[str]) -> str:
    """Return the checksum of a text in UTF-8 with a line feed after each line."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _add_export(contents: _PackageContents, trained: TrainedModel, temporary: Path, format_name: str,
                precision: str | None, text: CardText, calibration: str | None) -> None:
    # Export the weights of the run, since those of the package may be rounded.
    path = export_model(trained, format_name, temporary / f"export-{len(contents.manifest.exports)}",
                        precision=precision, calibration=calibration, languages=text.pair())
    written = str(read_json(path / EXPORT_DESCRIPTION, dict[str, Any], "Export again.")["precision"])
    if not contents.add_export(path, format_name, written):
        raise SettingsError(f"--include {format_name}:{written} was passed twice: leave out one of them.")


def _open_in_int8(trained: TrainedModel, search: SearchSettings, directory: Path
                  ) -> tuple[CTranslate2Translator, CTranslate2Scorer] | None:
    """Export a model in int8 and open the export; if the package would not use it by default, log why and return None.

    Args:
        trained: run and checkpoint.
        search: search settings of the package.
        directory: directory of the export.
    """
    try:
        problem = difference(search)
        if not problem:
            export_model(trained, FORMAT, directory, precision=INT8)
            return CTranslate2Translator(directory, device="cpu"), CTranslate2Scorer(directory, device="cpu")
    except SettingsError as error:
        problem = str(error)
    log.info("%s: translation in int8 is not measured: %s", trained.run.name, problem)
    return None
