"""Build a package: collect the files of a run, evaluate them, and write one archive with checksums."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml

from towernmt import __version__
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
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
from towernmt.checkpoint.weights import saved_name
from towernmt.core.directories import EXPORT_DESCRIPTION
from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.core.files import fixed_entry, replacing
from towernmt.core.structured_files import read_json
from towernmt.dataflow.text.validation_set import check_has_text
from towernmt.evaluate.metrics import corpus_scores
from towernmt.interop.ctranslate2_engine import CTranslate2Scorer, CTranslate2Translator
from towernmt.interop.ctranslate2_models import FORMAT
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
from towernmt.predict.engine_choice import GRAPH
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.text_io import read_text
from towernmt.predict.pair_scorer import PairScorer
from towernmt.predict.scorer import Scorer
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator

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
        SettingsError: the shortlist that the settings name is missing.
    """
    settings = {**settings}
    members: dict[str, bytes | Path] = {}
    shortlist = settings.get("search", {}).get("shortlist")
    if shortlist:
        if not Path(shortlist).is_file():
            raise SettingsError(f"search.shortlist={shortlist} does not exist, and the package needs this file: put it "
                                f"back, or remove the setting from {run.settings_file}.")
        settings["search"] = {**settings["search"], "shortlist": SHORTLIST}
        members[SHORTLIST] = Path(shortlist)
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    members = {SETTINGS: text.encode(), **members, **files_below(run.vocabulary, VOCABULARY)}
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
class _Parts:
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
        front = {CARD_TEXT: card_markdown(card), CARD: card_json(card)}
        with replacing(output) as file:
            write_archive(file, self.manifest, {**front, **self.members})


def package_run(trained: TrainedModel, output: str | Path, text: CardText,
                order: PackageOptions = PackageOptions()) -> dict[str, Any]:  # noqa: B008 -- immutable
    """Write a trained model as a package.

    The same run with the same options results in the same bytes. The file is either complete or missing.

    Args:
        trained: run and checkpoint.
        output: path of the package.
        text: the user's statements for the model card.
        order: options of the package.

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
    tests = [_read_test(*files) for files in order.tests]
    checkpoint = Path(trained.checkpoint).parent
    settings = settings_for_card(trained.run)
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towernmt-")))
        parts = _gathered(trained, settings, order.precision)
        scores: list[dict[str, Any]] = []
        facts = {"date": card_date(order.date, checkpoint), "model": _model(trained, parts.manifest),
                 "training_data": training_data_facts(trained.run), "scores": scores,
                 "settings": without_provenance(settings),
                 "versions": {"trained_with": trained_with(trained.run), "packaged_with": versions()}, "exports": []}
        for format_name, precision in order.exports:
            _add_export(parts, trained, temporary, format_name, precision, text, order.calibration)
        if tests:       # evaluate the package itself, as a user would load it
            parts.write(temporary / "tried.towernmt.zip", make_card(text, facts))
            language = (text.pair() or ("", ""))[1]
            run = PackagedRun(temporary / "tried.towernmt.zip", trust_code=True, cache=temporary)
            translator = Translator(run, device="cpu", engine=GRAPH)
            translations = [translator.translate(test.source) for test in tests]
            scores += _test_scores(translations, tests, language, f"this package ({order.precision})", translator)
            if order.int8 and (exported := _int8_export(trained, temporary)):
                in_int8, int8_scores = _in_int8(exported, tests, language)
                scores += int8_scores
                float32 = _scored(Scorer(run, device="cpu"), tests, translations)
                losses = [int8_loss(before, after, [test.reference], language)
                          for before, after, test in zip(float32, in_int8, tests, strict=True)]
                default = default_on_processors(losses)
                facts["int8"] = {
                    "bleu_loss": max(loss.bleu for loss in losses), "default_on_processors": default == INT8,
                    "losses": [{"test": test.name, **dataclasses.asdict(loss)}
                               for test, loss in zip(tests, losses, strict=True)]}
                parts.manifest = dataclasses.replace(parts.manifest, processor_precision=default)
                if default == INT8:
                    parts.add_export(exported, FORMAT, INT8)
        scores += [{**score, "of": "the training's record (float32, before packing)"}
                   for score in validation_scores(trained.run, checkpoint, parts.manifest.step)]
        facts["exports"] = [dataclasses.asdict(export) for export in parts.manifest.exports]
        card = make_card(text, facts)
        parts.write(path, card)
    return card


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


def _gathered(trained: TrainedModel, settings: dict[str, Any], precision: Precision) -> _Parts:
    weights, files = weight_members(trained.weights(), precision, trained.checkpoint)
    held = OpenCheckpoint(trained.checkpoint)
    saved = held.shapes()
    step = held.state()
    averaged = trained.averaged and any(saved_name(name, saved) != name for name in weights)
    held.close()
    manifest = PackageManifest(
        format="towernmt-package", version=1, towernmt=__version__, step=0 if step is None else step.step,
        precision=precision, averaged=averaged, weights=weights, members={},
        vocabulary=vocabulary_fingerprint(trained.run.vocabulary))
    return _Parts(manifest, {**run_members(trained.run, settings), **files})


def _model(trained: TrainedModel, manifest: PackageManifest) -> dict[str, Any]:
    parameters = sum(math.prod(info.shape) for info in manifest.weights.values())
    return {"architecture": trained.run.architecture(), "parameters": parameters, "precision": manifest.precision,
            "checkpoint": f"step-{manifest.step}", "averaged": manifest.averaged,
            **{f"{side}_vocabulary": {"kind": vocabulary.kind, "size": vocabulary.size} for side, vocabulary in (
                ("source", trained.source_vocabulary), ("target", trained.target_vocabulary))}}


@dataclass(frozen=True)
class _Test:
    name: str
    source: list[str]
    reference: list[str]


def _read_test(source: str, reference: str) -> _Test:
    found = _Test(Path(source).name, read_text(source), read_text(reference))
    check_has_text([(source, found.source), (reference, found.reference)],
                   "pass a --test with text and its translations.")
    if len(found.source) != len(found.reference):
        raise DataError(f"--test {source} {reference}: the files have {len(found.source)} and {len(found.reference)} "
                        "lines; each line of the second must be the translation of the same line of the first.")
    return found


def _test_scores(translations: Sequence[Sequence[str]], tests: Sequence[_Test], target_language: str,
                 subject: str, translator: LineTranslator) -> list[dict[str, Any]]:
    """Return the scores of the translations of all tests; `subject` is the description of the model on the card."""
    found = []
    for test, lines in zip(tests, translations, strict=True):
        scores = corpus_scores(lines, test.reference, target_language=target_language)
        common = {"sentences": len(test.source), "source_sha256": _sha256(test.source),
                  "reference_sha256": _sha256(test.reference),
                  "of": f"{subject}, beam {translator.search.beam_size}"}
        found += [{"test": test.name, "metric": "BLEU", "score": round(scores.bleu, 4), "signature": scores.signature,
                   **common},
                  {"test": test.name, "metric": "chrF2", "score": round(scores.chrf, 4),
                   "signature": scores.chrf_signature, **common}]
    return found


def _in_int8(exported: Path, tests: Sequence[_Test], target_language: str
             ) -> tuple[list[TextResult], list[dict[str, Any]]]:
    """Return the results and the scores of all tests by an export in int8."""
    translator = CTranslate2Translator(exported, device="cpu")
    translations = [translator.translate(test.source) for test in tests]
    scores = _test_scores(translations, tests, target_language, "this package, CTranslate2 in int8", translator)
    return _scored(CTranslate2Scorer(exported, device="cpu"), tests, translations), scores


def _scored(scorer: PairScorer, tests: Sequence[_Test], translations: Sequence[Sequence[str]]) -> list[TextResult]:
    """Return the results of all tests, with the log-probabilities that a scorer gives to their references."""
    return [TextResult(lines, mean_reference_log_prob(scorer, test.source, test.reference))
            for test, lines in zip(tests, translations, strict=True)]


def _sha256(lines: Sequence[str]) -> str:
    """Return the checksum of a text in UTF-8 with a line feed after each line."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _add_export(parts: _Parts, trained: TrainedModel, temporary: Path, format_name: str, precision: str | None,
                text: CardText, calibration: str | None) -> None:
    # Export the weights of the run, since those of the package may be rounded.
    path = export_model(trained, format_name, temporary / f"export-{len(parts.manifest.exports)}",
                         precision=precision, calibration=calibration, languages=text.pair())
    written = str(read_json(path / EXPORT_DESCRIPTION, dict[str, Any], "Export again.")["precision"])
    if not parts.add_export(path, format_name, written):
        raise SettingsError(f"--include {format_name}:{written} was passed twice: leave out one of them.")


def _int8_export(trained: TrainedModel, temporary: Path) -> Path | None:
    """Return the directory of an export in int8; None if CTranslate2 cannot express the model."""
    try:
        return export_model(trained, FORMAT, temporary / "int8", precision=INT8)
    except SettingsError:
        return None


