"""Measure how much BLEU a model loses in int8, which decides whether int8 is its default precision on processors.

`towernmt package` measures the model on test sets, and writes the result into the model card. `towernmt serve` measures
a run on its validation text, and keeps the result next to the cached int8 export of the checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from towernmt.checkpoint.records import MADE_FROM, validation_fingerprint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.files import write_text
from towernmt.core.structured_files import Natural, read_json
from towernmt.dataflow.batches.training_data import open_training_data
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.evaluate.metrics import corpus_scores
from towernmt.interop.ctranslate2_engine import CTranslate2Translator
from towernmt.interop.ctranslate2_equivalence import CTranslate2Engine
from towernmt.interop.ctranslate2_models import FORMAT, Wanted, kept_export
from towernmt.predict.lines.faults import FaultCounts

INT8_LOSS = 0.2
"""Maximum loss of BLEU with which int8 is the default precision on processors."""
MAX_SENTENCES = 500
"""Maximum number of validation sentences on which a run is measured."""
FLOAT32: Final = "float32"
INT8: Final = "int8"
_RESULT = "int8_measurement.json"
"""File of the result in the directory of an int8 export."""

log = logging.getLogger(__name__)


def bleu_loss(float32: Sequence[float], int8: Sequence[float]) -> float:
    """Return the largest loss of BLEU in int8; negative if int8 is always better.

    Args:
        float32: BLEU of each text in float32, 0 to 100.
        int8: BLEU of each text in int8.
    """
    return max(one - other for one, other in zip(float32, int8, strict=True))


def default_on_processors(loss: float) -> Literal["float32", "int8"]:
    """Return the default precision on processors of a model that loses this much BLEU in int8."""
    return INT8 if loss <= INT8_LOSS else FLOAT32


@dataclass(frozen=True)
class Int8Measurement:
    """BLEU of a checkpoint in both precisions, 0 to 100.

    Attributes:
        sentences: number of validation sentences.
        float32_bleu: BLEU in float32.
        int8_bleu: BLEU in int8.
    """

    sentences: Natural
    float32_bleu: float
    int8_bleu: float

    @property
    def precision(self) -> str:
        """The default precision on processors."""
        return default_on_processors(bleu_loss([self.float32_bleu], [self.int8_bleu]))


class MeasuredCheckpoint:
    """A checkpoint of a run whose loss in int8 is measured once.

    Args:
        run: the run, not a package.
        averaged: whether to use the moving averages of the weights.

    Attributes:
        checkpoint: prefix of the checkpoint's files, the default checkpoint of the run.

    Raises:
        CheckpointError: the run has no checkpoint.
    """

    def __init__(self, run: SavedRun, averaged: bool) -> None:
        self._run, self._averaged, self.checkpoint = run, averaged, run.checkpoint()

    def kept(self) -> Int8Measurement | None:
        """Return the measurement that an earlier process made of the same weights, or None."""
        directory = self._int8_export()
        if directory is None or not (directory / _RESULT).is_file():
            return None
        try:
            return read_json(directory / _RESULT, Int8Measurement, "Remove it to measure again.")
        except DataError as error:
            log.warning("%s", error)
            return None

    def measure(self, target_language: str, stopped: Callable[[], bool]) -> Int8Measurement | None:
        """Translate the validation text in both precisions by CTranslate2, and keep the result.

        A log line reports the result, or why the run was not measured.

        Args:
            target_language: code of the language of the translations, for the tokeniser of BLEU; "" if unknown.
            stopped: called for each sentence; True ends the measurement.

        Returns:
            The measurement; None if it is not possible or was stopped.
        """
        try:
            text = self._text().first(MAX_SENTENCES)
            scores = {}
            for precision in (FLOAT32, INT8):
                found = self._translated(text.source, precision, stopped)
                if len(found) < len(text.source):
                    return None
                scores[precision] = round(corpus_scores(
                    found, *text.references, target_language=target_language).bleu, 4)
        except (TowerNMTError, OSError) as error:
            log.info("%s: CTranslate2 uses float32, because int8 could not be measured: %s", self._run.name, error)
            return None
        measured = Int8Measurement(len(text.source), scores[FLOAT32], scores[INT8])
        directory = self._int8_export()
        if directory is not None:
            with suppress(OSError):     # the next start measures again
                write_text(directory / _RESULT, json.dumps(dataclasses.asdict(measured)) + "\n")
        log.info("%s: BLEU of %d validation sentences is %.2f in float32 and %.2f in int8, so CTranslate2 uses %s on "
                 "processors.", self._run.name, measured.sentences, measured.float32_bleu, measured.int8_bleu,
                 measured.precision)
        return measured

    def _translated(self, lines: Sequence[str], precision: str, stopped: Callable[[], bool]) -> list[str]:
        """Return the translations of the lines, or of the first ones if the measurement is stopped.

        Raises:
            TowerNMTError: CTranslate2 cannot express or load the model.
            OSError: the export cannot be written.
        """
        engine = CTranslate2Engine(self._run, self._averaged, precision,
                                   lambda directory: CTranslate2Translator(directory, device="cpu"))
        translator = None if stopped() else engine.exported(self.checkpoint, wait=True)
        found: list[str] = []
        if translator is not None:
            translator.faults = FaultCounts("validation")       # counted, but not logged
            for translation in translator.translate_stream(lines):
                found.append(translation[0].text)
                if stopped():
                    break
        return found

    def _int8_export(self) -> Path | None:
        return kept_export(Wanted(self._run, self.checkpoint, self._averaged, FORMAT, INT8))

    def _text(self) -> ValidationSet:
        """Return the first validation set of the data that the run was trained on.

        Raises:
            TowerNMTError: the data are missing, have no validation text, or their validation text has changed.
        """
        saved = self._run.saved_settings()
        place, fingerprint = (saved.get(f"{MADE_FROM}.{name}") for name in ("data_path", "validation"))
        if not place or not fingerprint:
            raise SettingsError("the run has no validation text.")
        sets = open_training_data(str(place), default_vocabulary=self._run.vocabulary).validation_sets
        if validation_fingerprint(sets) != fingerprint:
            raise SettingsError(f"the validation text of {place} is not that of the run.")
        return sets[0]
