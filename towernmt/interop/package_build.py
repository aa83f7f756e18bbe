"""Build a package: collect the files of a run, evaluate the package, and write it with its model card."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towernmt import __version__
from towernmt.checkpoint.package_manifest import PackageManifest
from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.checkpoint.records import versions, vocabulary_fingerprint, without_provenance
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.stored_weights import Precision
from towernmt.core.errors import SettingsError
from towernmt.core.temporary_directories import temporary_directory
from towernmt.evaluate.metrics import MetricSettings, make_metrics
from towernmt.interop.export import UnsupportedModelError, export_model, export_precision
from towernmt.interop.model_card import CardText, card_date, make_card
from towernmt.interop.model_card_facts import settings_for_card, trained_with, training_data_facts, validation_scores
from towernmt.interop.package_archive import PackageContents, run_members, weight_members
from towernmt.interop.package_evaluation import evaluate_package, read_test_set
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.trained_model import TrainedModel


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
        SettingsError: the output exists already, an export cannot express the model, the source vocabulary does not
            know the source prefix, or the scores need a package that is not installed.
        CheckpointError: the checkpoint is damaged.
        DataError: a test set cannot be read.
        OSError: the package cannot be written.
    """
    path = Path(output)
    check_output(path)
    RequestEncoder(SearchSettings(), *trained.run.vocabularies()).check(LineOptions(source_prefix=text.source_prefix))
    tests = [read_test_set(*files) for files in options.tests]
    target_language = (text.pair() or ("", ""))[1]
    if tests:       # refuses missing packages before anything is exported and translated
        make_metrics(MetricSettings(target_language=target_language))
    exports = [(name, export_precision(name, precision)) for name, precision in options.exports]
    for name, precision in exports:
        if exports.count((name, precision)) > 1:
            raise SettingsError(f"--include {name}:{precision} was passed twice: leave out one of them.")
    checkpoint = Path(trained.checkpoint).parent
    date = card_date(options.date, checkpoint)
    settings = settings_for_card(trained.run)
    with temporary_directory("towernmt package") as temporary:
        contents = _collect_contents(trained, settings, options.precision)
        facts: dict[str, Any] = {
            "date": date, "model": _model(trained, contents.manifest),
            "training_data": training_data_facts(trained.run), "scores": [], "settings": without_provenance(settings),
            "versions": {"trained_with": trained_with(trained.run), "packaged_with": versions()}, "exports": []}
        for name, precision in exports:
            # Export the weights of the run, since those of the package may be rounded.
            try:
                folder = export_model(trained, name, temporary / f"{name}-{precision}", precision=precision,
                                      calibration=options.calibration, languages=text.pair())
            except UnsupportedModelError as error:
                raise SettingsError(f"--include {name}:{precision}: {error} Choose another format, or leave this one "
                                    "out.") from error
            contents.add_export(folder, name, precision)
        if tests:       # evaluate the package itself, as a user would load it
            trial = temporary / "tried.towernmt.zip"
            contents.write(trial, make_card(text, facts))
            facts |= evaluate_package(trial, trained, contents, tests, target_language, options.int8)
        facts["scores"] += [{**score, "of": "the training's record (float32, before packing)"}
                            for score in _validation_scores(trained, checkpoint)]
        facts["exports"] = [dataclasses.asdict(export) for export in contents.manifest.exports]
        card = make_card(text, facts)
        contents.write(path, card)
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


def _collect_contents(trained: TrainedModel, settings: dict[str, Any], precision: Precision) -> PackageContents:
    weights, files = weight_members(trained.weights(), precision, trained.checkpoint)
    manifest = PackageManifest(
        format="towernmt-package", version=1, towernmt=__version__, step=trained.step,
        precision=precision, averaged=trained.uses_averages, weights=weights, members={},
        vocabulary=vocabulary_fingerprint(trained.run.vocabulary))
    return PackageContents(manifest, {**run_members(trained.run, settings), **files})


def _validation_scores(trained: TrainedModel, checkpoint: Path) -> list[dict[str, Any]]:
    """Return the scores that training recorded for the packed weights, the moving averages or the last update."""
    validated_averages = trained.has_averages and trained.run.group("search", SearchSettings()).averaged
    if trained.uses_averages != validated_averages:
        return []
    return validation_scores(trained.run, checkpoint, trained.state)


def _model(trained: TrainedModel, manifest: PackageManifest) -> dict[str, Any]:
    parameters = sum(math.prod(info.shape) for info in manifest.weights.values())
    return {"architecture": trained.run.architecture(), "parameters": parameters, "precision": manifest.precision,
            "checkpoint": f"step-{manifest.step}", "averaged": manifest.averaged,
            **{f"{side}_vocabulary": {"kind": vocabulary.kind, "size": vocabulary.size} for side, vocabulary in (
                ("source", trained.source_vocabulary), ("target", trained.target_vocabulary))}}
