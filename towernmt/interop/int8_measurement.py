"""Measure how much worse a model translates in int8, which decides whether int8 is its default on processors.

`towernmt package` measures the model on test sets, and writes the result into the model card. `towernmt serve` measures
a run on its validation text, and keeps the result next to the cached int8 export of the checkpoint.

BLEU alone cannot decide: on 500 sentences, its loss has a standard deviation of 0.38, and the limit is 0.2. The mean
log-probability of a reference token is far more precise: a loss of 0.012 nats has a standard error of 0.001, and a nat
is 20 to 24 BLEU (docs/notes/translation-speed.md).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from towernmt.checkpoint.records import MADE_FROM, validation_fingerprint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.files import write_text
from towernmt.core.structured_files import Natural, read_json
from towernmt.dataflow.batches.training_data import open_training_data
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.evaluate.comparison import bleu_difference
from towernmt.evaluate.metrics import corpus_scores
from towernmt.interop.ctranslate2_engine import CTranslate2Scorer, CTranslate2Translator
from towernmt.interop.ctranslate2_equivalence import CTranslate2Engine
from towernmt.interop.export_cache import ExportSpec, cached_export
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.pair_scorer import PairScorer

T = TypeVar("T")

MAX_INT8_BLEU_LOSS = 0.2
"""Limit of the loss of BLEU: int8 is not the default precision on processors if its loss is significantly larger."""
MAX_INT8_LOG_PROB_LOSS = 0.01
"""Limit of the loss of log-probability of a reference token, in nats, which is about 0.2 BLEU."""
MAX_SENTENCES, MAX_SECONDS = 3_000, 300.0
"""Maximum number of validation sentences on which a run is measured, and of seconds for their translations."""
CHUNK_SENTENCES = 200
"""Number of sentences between two checks of the time limit."""
FLOAT32: Final = "float32"
INT8: Final = "int8"
_RESULT = "int8_measurement.json"
"""File of the result in the directory of an int8 export."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Int8Loss:
    """How much worse a model translates a text in int8 than in float32; negative numbers: how much better.

    Attributes:
        bleu: loss of BLEU.
        bleu_low, bleu_high: limits of its 95 % confidence interval, by paired bootstrap.
        log_prob: loss of log-probability of a reference token, in nats.
    """

    bleu: float
    bleu_low: float
    bleu_high: float
    log_prob: float

    @property
    def is_small(self) -> bool:
        """Whether int8 can be the default precision on processors."""
        return self.log_prob <= MAX_INT8_LOG_PROB_LOSS and self.bleu_low <= MAX_INT8_BLEU_LOSS

    def __str__(self) -> str:
        return (f"loss of {self.bleu:.2f} BLEU, 95 % interval {self.bleu_low:.2f} to {self.bleu_high:.2f}; of "
                f"{self.log_prob:.4f} nats per reference token")


@dataclass(frozen=True)
class TextResult:
    """A text translated and scored in one precision.

    Attributes:
        translations: translations of its sentences.
        log_prob: mean log-probability of a reference token, in nats.
    """

    translations: Sequence[str]
    log_prob: float


def int8_loss(float32: TextResult, int8: TextResult, references: Sequence[Sequence[str]],
              target_language: str = "") -> Int8Loss:
    """Return the loss of a text in int8.

    Args:
        float32: its result in float32.
        int8: its result in int8.
        references: all references by each translator.
        target_language: code of the language of the translations, for the tokeniser of BLEU; "" if unknown.
    """
    bleu, low, high = bleu_difference(float32.translations, int8.translations, references, target_language)
    return Int8Loss(round(bleu, 4), round(low, 4), round(high, 4), round(float32.log_prob - int8.log_prob, 6))


def default_on_processors(losses: Iterable[Int8Loss]) -> Literal["float32", "int8"]:
    """Return the default precision on processors of a model that has these losses: float32 if any of them is large."""
    return INT8 if all(loss.is_small for loss in losses) else FLOAT32


def mean_reference_log_prob(scorer: PairScorer, sources: Sequence[str], references: Sequence[str],
                            max_length: int | None) -> float:
    """Return the mean log-probability of a reference token, EOS included, in nats.

    Args:
        scorer: the scorer.
        sources: source sentences.
        references: reference of each sentence.
        max_length: pairs with a longer sentence are left out, in tokens, EOS included; None to score all pairs.
            Means that are compared need the same pairs.
    """
    pairs = zip(scorer.source_vocabulary.encode_batch(list(sources)),
                scorer.target_vocabulary.encode_batch(list(references)), strict=True)
    scorable = [pair for pair in pairs if max_length is None or max(map(len, pair)) < max_length]
    scores = scorer.score_ids([source for source, _ in scorable], [target for _, target in scorable])
    return sum(log_prob for log_prob, _ in scores) / max(1, sum(len(log_probs) for _, log_probs in scores))


@dataclass(frozen=True)
class Int8Measurement:
    """The loss of a checkpoint in int8 on its validation text.

    Attributes:
        sentences: number of validation sentences.
        float32_bleu, int8_bleu: BLEU in each precision, 0 to 100.
        loss: the loss.
    """

    sentences: Natural
    float32_bleu: float
    int8_bleu: float
    loss: Int8Loss

    @property
    def precision(self) -> str:
        """The default precision on processors."""
        return default_on_processors([self.loss])


class _StoppedError(Exception):
    """The measurement is stopped."""


def _raise_if_stopped(is_stopped: Callable[[], bool]) -> None:
    if is_stopped():
        raise _StoppedError


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

    def stored(self) -> Int8Measurement | None:
        """Return the measurement that an earlier process made of the same weights, or None."""
        directory = self._int8_export()
        if directory is None or not (directory / _RESULT).is_file():
            return None
        try:
            return read_json(directory / _RESULT, Int8Measurement, "Remove it to measure again.")
        except DataError as error:
            log.warning("%s", error)
            return None

    def measure(self, target_language: str, is_stopped: Callable[[], bool]) -> Int8Measurement | None:
        """Translate and score the validation text in both precisions by CTranslate2, and keep the result.

        A log line reports the result, or why the run was not measured.

        Args:
            target_language: code of the language of the translations, for the tokeniser of BLEU; "" if unknown.
            is_stopped: called for each sentence; True ends the measurement.

        Returns:
            The measurement; None if it is not possible or was stopped.
        """
        try:
            text = self._validation_text().first(MAX_SENTENCES)
            results = []
            for precision, seconds in ((FLOAT32, MAX_SECONDS / 2), (INT8, math.inf)):      # int8 is the faster one
                translations = self._translate(text.source, precision, seconds, is_stopped)
                text = text.first(len(translations))
                results.append(TextResult(translations, self._log_prob(text, precision, is_stopped)))
        except _StoppedError:
            return None
        except (TowerNMTError, OSError) as error:
            log.info("%s: CTranslate2 uses float32, because int8 could not be measured: %s", self._run.name, error)
            return None
        float32, int8 = results
        loss = int8_loss(float32, int8, text.references, target_language)
        float32_bleu, int8_bleu = (
            round(corpus_scores(result.translations, *text.references, target_language=target_language).bleu, 4)
            for result in results)
        measurement = Int8Measurement(len(text.source), float32_bleu, int8_bleu, loss)
        directory = self._int8_export()
        if directory is not None:
            with suppress(OSError):     # the next start measures again
                write_text(directory / _RESULT, json.dumps(dataclasses.asdict(measurement)) + "\n")
        log.info("%s: BLEU of %d validation sentences is %.2f in float32 and %.2f in int8, so CTranslate2 uses %s on "
                 "processors: %s.", self._run.name, measurement.sentences, measurement.float32_bleu,
                 measurement.int8_bleu, measurement.precision, loss)
        return measurement

    def _translate(self, lines: Sequence[str], precision: str, seconds: float,
                   is_stopped: Callable[[], bool]) -> list[str]:
        """Return the translations of the first lines, as many as the seconds allow, at least `CHUNK_SENTENCES`.

        Raises:
            TowerNMTError: CTranslate2 cannot express or load the model.
            OSError: the export cannot be written.
            _StoppedError: the measurement is stopped.
        """
        translator = self._open(precision, CTranslate2Translator, is_stopped)
        translator.faults = FaultCounts("validation")       # counted, but not logged
        translations, start = list[str](), time.monotonic()
        while len(translations) < len(lines) and (not translations or time.monotonic() < start + seconds):
            chunk = lines[len(translations):len(translations) + CHUNK_SENTENCES]
            for translation in translator.translate_stream(chunk):
                translations.append(translation[0].text)
                _raise_if_stopped(is_stopped)
        return translations

    def _log_prob(self, text: ValidationSet, precision: str, is_stopped: Callable[[], bool]) -> float:
        scorer = self._open(precision, CTranslate2Scorer, is_stopped)
        return mean_reference_log_prob(scorer, text.source, text.references[0], scorer.max_length)

    def _open(self, precision: str, kind: Callable[..., T], is_stopped: Callable[[], bool]) -> T:
        """Return a `CTranslate2Translator` or a `CTranslate2Scorer` of the checkpoint in a precision."""
        _raise_if_stopped(is_stopped)
        engine = CTranslate2Engine(self._run, self._averaged, precision, lambda path: kind(path, device="cpu"))
        opened = engine.export(self.checkpoint, wait=True)
        if opened is None:
            raise SettingsError("another process exports the run.")
        return opened

    def _int8_export(self) -> Path | None:
        return cached_export(ExportSpec(self._run, self.checkpoint, self._averaged, INT8))

    def _validation_text(self) -> ValidationSet:
        """Return the first validation set of the data that the run was trained on.

        Raises:
            TowerNMTError: the data are missing, have no validation text, or their validation text has changed.
        """
        saved = self._run.saved_settings()
        data_path, fingerprint = (saved.get(f"{MADE_FROM}.{name}") for name in ("data_path", "validation"))
        if not data_path or not fingerprint:
            raise SettingsError("the run has no validation text.")
        sets = open_training_data(str(data_path), default_vocabulary=self._run.vocabulary).validation_sets
        if validation_fingerprint(sets) != fingerprint:
            raise SettingsError(f"the validation text of {data_path} is not that of the run.")
        return sets[0]
