"""A trained run to a package: its parts are gathered, tried on test sets, described by the card, and written."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towernmt import __version__
from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.packaged.manifest import CARD, CARD_TEXT, EXPORTS, ExportInfo, PackageManifest, Precision
from towernmt.checkpoint.packaged.packaged_run import PackagedRun
from towernmt.checkpoint.provenance import versions, vocabulary_fingerprint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.weights import saved_name
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.atomic_files import replacing
from towernmt.core.files.json_files import read_json
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.export.exporter import DESCRIPTION, export_model
from towernmt.package.archive import write_archive
from towernmt.package.card import as_json, as_markdown, card_of
from towernmt.package.card_text import CardText
from towernmt.package.contents import files_below, run_members, weight_members
from towernmt.package.facts import (
    card_date,
    settings_to_tell,
    trained_with,
    training_data,
    training_settings,
    validation_scores,
)
from towernmt.predict.evaluate import corpus_scores
from towernmt.predict.text_io import read_text
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator


@dataclass(frozen=True)
class PackageOrder:
    """What is to be packed.

    Attributes:
        precision: of the weights.
        tests: source and reference files, which the packed model is tried on.
        exports: format and precision (None: the format's first) of each export inside.
        calibration: a file of source sentences for exports that measure the model at work.
        date: of the card, YYYY-MM-DD; None: see `facts.card_date`.
    """

    precision: Precision = "float32"
    tests: Sequence[tuple[str, str]] = ()
    exports: Sequence[tuple[str, str | None]] = ()
    calibration: str | None = None
    date: str | None = None


@dataclass
class _Parts:
    """The members and what the manifest tells of them, while they are gathered."""

    manifest: PackageManifest
    members: dict[str, bytes | Path] = field(default_factory=dict)

    def write(self, output: Path, card: dict[str, Any]) -> None:
        front = {CARD_TEXT: as_markdown(card), CARD: as_json(card)}
        with replacing(output) as file:
            write_archive(file, self.manifest, {**front, **self.members})


def package_run(trained: TrainedModel, output: str | Path, text: CardText,
                order: PackageOrder = PackageOrder()) -> dict[str, Any]:  # noqa: B008 -- immutable
    """Write a trained model as a package.

    The same run and the same order give the same bytes. The file is complete or not there.

    Args:
        trained: the run and its checkpoint.
        output: the file.
        text: what the user tells of the model.
        order: what is to be packed.
    Returns:
        The card.
    Raises:
        SettingsError: the output is there already, or an export cannot express the model.
        CheckpointError: the checkpoint is damaged.
        DataError: a test set cannot be read.
        OSError: it cannot be written.
    """
    place = Path(output)
    check_output(place)
    tests = [_read_test(*files) for files in order.tests]
    checkpoint = Path(trained.checkpoint).parent
    settings = settings_to_tell(trained.run)
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towernmt-")))
        parts = _gathered(trained, settings, order.precision)
        scores: list[dict[str, Any]] = []
        facts = {"date": card_date(order.date, checkpoint), "model": _model(trained, parts.manifest),
                 "training_data": training_data(trained.run), "scores": scores, "settings": training_settings(settings),
                 "versions": {"trained_with": trained_with(trained.run), "packaged_with": versions()}, "exports": []}
        if tests:       # on what is packed, read as its user reads it
            parts.write(temporary / "tried.towernmt.zip", card_of(text, facts))
            scores += _tried(temporary, tests, order.precision)
        scores += [{**score, "of": "the training's record (float32, before packing)"}
                            for score in validation_scores(trained.run, checkpoint, parts.manifest.step)]
        for format_name, precision in order.exports:
            _add_export(parts, trained, temporary, format_name, precision, text, order.calibration)
        facts["exports"] = [dataclasses.asdict(export) for export in parts.manifest.exports]
        card = card_of(text, facts)
        parts.write(place, card)
    return card


def check_output(output: Path) -> None:
    """Refuse to replace what is there.

    Raises:
        SettingsError: there is something.
    """
    if output.exists():
        raise SettingsError(f"{output} is there already: choose another --output, or remove it.")


def check_run(run: SavedRun) -> None:
    """Refuse to pack a package again: of its run it does not have all that a card tells.

    Raises:
        SettingsError: it is one.
    """
    if isinstance(run, PackagedRun):
        raise SettingsError(f"{run.file} is a package already: pack the run that it was made of.")


def _gathered(trained: TrainedModel, settings: dict[str, Any], precision: Precision) -> _Parts:
    weights, files = weight_members(trained.weights(), precision, trained.checkpoint)
    held = HeldCheckpoint(trained.checkpoint)
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
    parameters = sum(math.prod(told.shape) for told in manifest.weights.values())
    return {"architecture": trained.run.architecture(), "parameters": parameters, "precision": manifest.precision,
            "checkpoint": f"step-{manifest.step}", "averaged": manifest.averaged,
            "source_vocabulary": _vocabulary(trained.source_vocabulary),
            "target_vocabulary": _vocabulary(trained.target_vocabulary)}


def _vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    return {"kind": vocabulary.kind, "size": vocabulary.size}


@dataclass(frozen=True)
class _Test:
    name: str
    source: list[str]
    reference: list[str]


def _read_test(source: str, reference: str) -> _Test:
    found = _Test(Path(source).name, read_text(source), read_text(reference))
    if not found.source or len(found.source) != len(found.reference):
        raise DataError(f"--test {source} {reference}: {len(found.source)} and {len(found.reference)} lines; they must "
                        "be translations of each other, line by line.")
    return found


def _tried(temporary: Path, tests: Sequence[_Test], precision: str) -> list[dict[str, Any]]:
    """The scores of the package in this directory."""
    run = PackagedRun(temporary / "tried.towernmt.zip", trust_code=True, cache=temporary)
    translator = Translator(run, device="cpu")
    found = []
    for test in tests:
        scores = corpus_scores(translator.translate(test.source), test.reference)
        common = {"sentences": len(test.source), "source_sha256": _sha256(test.source),
                  "reference_sha256": _sha256(test.reference),
                  "of": f"this package ({precision}), beam {translator.search.beam_size}"}
        found += [{"test": test.name, "metric": "BLEU", "score": round(scores.bleu, 4), "signature": scores.signature,
                   **common},
                  {"test": test.name, "metric": "chrF2", "score": round(scores.chrf, 4),
                   "signature": scores.chrf_signature, **common}]
    return found


def _sha256(lines: Sequence[str]) -> str:
    """Of a text in UTF-8 with a line feed behind each line."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _add_export(parts: _Parts, trained: TrainedModel, temporary: Path, format_name: str, precision: str | None,
                text: CardText, calibration: str | None) -> None:
    # Of the run's own weights: those of the package may be rounded already.
    place = export_model(trained, format_name, temporary / f"export-{len(parts.manifest.exports)}",
                         precision=precision, calibration=calibration, languages=text.pair())
    written = str(read_json(place / DESCRIPTION, dict[str, Any], "Export again.")["precision"])
    told = ExportInfo(f"{EXPORTS}/{format_name}-{written}", format_name, written)
    if told in parts.manifest.exports:
        raise SettingsError(f"--include {format_name}:{written} is there twice: leave one out.")
    parts.manifest = dataclasses.replace(parts.manifest, exports=[*parts.manifest.exports, told])
    parts.members.update(files_below(place, told.folder))
