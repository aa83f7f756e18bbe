"""The scores of a package on test sets, and its losses in int8, for the model card."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.clean_text import with_tag
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
from towernmt.interop.package_archive import PackageContents
from towernmt.predict.line_translator import LineTranslator, languages_of
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.text_io import read_text
from towernmt.predict.scorer import Scorer
from towernmt.predict.search.search_settings import GRAPH, SearchSettings
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackageTestSet:
    """A test set of a package.

    Attributes:
        name: name of its source file.
        source: its sentences.
        reference: their translations.
    """

    name: str
    source: list[str]
    reference: list[str]


def read_test_set(source: str, reference: str) -> PackageTestSet:
    """Read a test set from its two files.

    Raises:
        DataError: a file cannot be read or has no text, or the files have different numbers of lines.
    """
    test_set = PackageTestSet(Path(source).name, read_text(source), read_text(reference))
    check_has_text([(source, test_set.source), (reference, test_set.reference)],
                   "pass a --test with text and its translations.")
    if len(test_set.source) != len(test_set.reference):
        raise DataError(f"--test {source} {reference}: the files have {len(test_set.source)} and "
                        f"{len(test_set.reference)} lines; each line of the second must be the translation of the same "
                        "line of the first.")
    return test_set


def _translation_scores(translations: Sequence[Sequence[str]], tests: Sequence[PackageTestSet], target_language: str,
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


def evaluate_package(package: Path, trained: TrainedModel, contents: PackageContents, tests: Sequence[PackageTestSet],
                     target_language: str, int8: bool) -> dict[str, Any]:
    """Translate the test sets with a package, and return its scores and its losses in int8 for the model card.

    If the losses are small, int8 becomes the default precision on processors, and its export is added to the contents.

    Args:
        package: the package to evaluate; other files are written next to it.
        trained: run and checkpoint of the package.
        contents: contents of the final package.
        tests: the test sets.
        target_language: code of the language of the translations; "" if unknown.
        int8: whether to measure translation in int8.
    """
    run = PackagedRun(package, trust_code=True, cache=package.parent)
    translator = Translator(run, device="cpu", engine=GRAPH)
    translations = [translator.translate(test.source) for test in tests]
    subject = f"this package ({contents.manifest.precision})"
    scores = _translation_scores(translations, tests, target_language, subject, translator)
    in_int8 = _open_in_int8(trained, run, translator.search, package.parent / "int8") if int8 else None
    if in_int8 is None:
        return {"scores": scores}
    int8_translator, int8_scorer = in_int8
    int8_translations = [int8_translator.translate(test.source) for test in tests]
    scores += _translation_scores(int8_translations, tests, target_language, "this package, CTranslate2 in int8",
                                  int8_translator)
    float32_results, int8_results = (
        [TextResult(lines, mean_reference_log_prob(scorer, [with_tag(run.source_prefix, line) for line in test.source],
                                                   test.reference, int8_scorer.max_length))
         for test, lines in zip(tests, texts, strict=True)]
        for scorer, texts in ((Scorer(run, device="cpu"), translations), (int8_scorer, int8_translations)))
    losses = [int8_loss(float32_result, int8_result, [test.reference], target_language)
              for float32_result, int8_result, test in zip(float32_results, int8_results, tests, strict=True)]
    default = default_on_processors(losses)
    contents.manifest = dataclasses.replace(contents.manifest, processor_precision=default)
    if default == INT8:
        contents.add_export(Path(int8_translator.checkpoint), FORMAT, INT8)
    return {"scores": scores, "int8": {
        "bleu_loss": max(loss.bleu for loss in losses), "default_on_processors": default == INT8,
        "losses": [{"test": test.name, **dataclasses.asdict(loss)}
                   for test, loss in zip(tests, losses, strict=True)]}}


def _open_in_int8(trained: TrainedModel, run: PackagedRun, search: SearchSettings, directory: Path
                  ) -> tuple[CTranslate2Translator, CTranslate2Scorer] | None:
    """Export a model in int8 and open the export; if the package would not use it by default, log why and return None.

    Args:
        trained: run and checkpoint.
        run: the package.
        search: search settings of the package.
        directory: directory of the export.
    """
    try:
        problem = difference(search)
        if not problem:
            export_model(trained, FORMAT, directory, precision=INT8)
            options = LineOptions(source_prefix=run.source_prefix)
            return (CTranslate2Translator(directory, device="cpu", languages=languages_of(run), options=options),
                    CTranslate2Scorer(directory, device="cpu"))
    except SettingsError as error:
        problem = str(error)
    log.info("%s: translation in int8 is not measured: %s", trained.run.name, problem)
    return None
