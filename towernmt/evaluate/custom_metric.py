"""Custom metrics: functions that score each translation, used like sacreBLEU's metrics.

The score of a test set is the mean of its sentences. sacreBLEU's significance tests draw sentences, so they apply to
such a metric as they do to its own: each sentence has the statistics (score, 1).
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric, Score, Signature

from towernmt.core.errors import DataError, SettingsError, TowerNMTError, exhausted_resource
from towernmt.models.model_location import LocatedKind, find_location, load_attribute

SegmentFunction = Callable[[Sequence[str] | None, Sequence[str], Sequence[Sequence[str]]], Sequence[float]]
"""Return a score for each translation, given the sources or None, the translations, and all references by each
translator. The function may have an attribute `lower_is_better`."""
_METRIC_FUNCTION = LocatedKind("function", "my_metric.py:my_function", "--metric")


@dataclass(frozen=True)
class CustomMetric:
    """A function that scores translations. Equal sentences are scored once.

    Attributes:
        name: name of the function.
        function: scores translations.
    """

    name: str
    function: SegmentFunction
    _scores_by_key: dict[tuple[str | None, str, tuple[str, ...]], float] = field(
        default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, location: str) -> CustomMetric:
        """Load the function of a metric.

        Args:
            location: FILE.py:FUNCTION, or MODULE:FUNCTION of an importable module.

        Raises:
            SettingsError: the function does not exist, or does not accept three arguments.
        """
        function_location = find_location(location, _METRIC_FUNCTION)
        function = load_attribute(function_location)
        try:
            inspect.signature(function).bind(None, [], [])
        except (TypeError, ValueError):
            raise SettingsError(f"--metric {location}: expected a function of sources, translations and references "
                                "that returns a score for each translation.") from None
        return cls(function_location.attribute.rpartition(".")[2], function)

    @property
    def lower_is_better(self) -> bool:
        """Whether a lower score is better."""
        return bool(getattr(self.function, "lower_is_better", False))

    def scores(self, source: Sequence[str] | None, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
               ) -> list[float]:
        """Return the score of each translation.

        Args:
            source: the source text, or None.
            hypotheses: translations, one per sentence.
            references: all sentences by each translator.

        Raises:
            DataError: the function fails, or does not return a finite number for each translation.
        """
        sources_or_none: Sequence[str | None] = [None] * len(hypotheses) if source is None else source
        keys = list(zip(sources_or_none, hypotheses, zip(*references, strict=True), strict=True))
        new = list(dict.fromkeys(key for key in keys if key not in self._scores_by_key))
        if new:
            sources, texts, reference_lines = zip(*new, strict=True)
            values = self._computed(None if source is None else list(sources), list(texts),
                                    [list(lines) for lines in zip(*reference_lines, strict=True)])
            self._scores_by_key.update(zip(new, values, strict=True))
        return [self._scores_by_key[key] for key in keys]

    def check(self, source: Sequence[str] | None, references: Sequence[Sequence[str]]) -> None:
        """Score the first reference of the first sentence as if it were a translation, and ignore the score.

        A function that fails is then found before a test set is translated. It is called with one sentence, because
        some metrics need much time for each.

        Args:
            source: the source text, or None.
            references: all sentences by each translator.

        Raises:
            DataError: the function fails, or does not return one finite number.
        """
        sources = None if source is None else [source[0]]
        self._computed(sources, [references[0][0]], [[lines[0]] for lines in references])

    def _computed(self, sources: list[str] | None, texts: list[str], references: list[list[str]]) -> list[float]:
        """Call the function, and return the score of each translation; see `scores`."""
        try:
            result: Any = self.function(sources, texts, references)
            values = list(result) if isinstance(result, Iterable) else None
        except Exception as error:      # any error of the user's function
            if isinstance(error, TowerNMTError) or exhausted_resource(error):
                raise
            raise DataError(f"The metric {self.name} failed ({_reason_with_line(error)}): correct the function, or "
                            "leave out --metric.") from error
        if values is None:
            raise DataError(f"The metric {self.name} returned {result!r}: it must return a number for each "
                            "translation.")
        if len(values) != len(texts):
            raise DataError(f"The metric {self.name} returned {len(values)} scores for {len(texts)} translations: it "
                            "must return one for each.")
        for text, score in zip(texts, values, strict=True):
            if not isinstance(score, (int, float, np.number)) or not math.isfinite(score):
                raise DataError(f"The metric {self.name} returned {score!r} for '{text[:80]}': it must return a "
                                "finite number.")
        return [float(score) for score in values]


_REASON_LENGTH = 300


def _reason_with_line(error: Exception) -> str:
    """Return the class and message of an exception, with the last line of the function's file in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)[1:]      # the first one is of this module
    lines = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f", line {lines[-1].lineno} of {lines[-1].filename}" if lines else ""
    message = " ".join(str(error).split())[:_REASON_LENGTH]
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}"


class SegmentMetric(Metric):
    """A custom metric with the interface of sacreBLEU's metrics.

    Args:
        metric: the metric.
        source: the source text, or None.
        references: all sentences by each translator.
    """

    def __init__(self, metric: CustomMetric, source: Sequence[str] | None, references: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self._metric, self._source, self._references = metric, source, references
        self.num_refs = len(references)

    def corpus_score(self, hypotheses: Sequence[str], references: Any = None, n_bootstrap: int = 1) -> Score:
        """Return the mean score of translations."""
        return self._aggregate_and_compute(self._extract_corpus_statistics(hypotheses, references))

    def get_signature(self) -> Signature:
        """Return the signature, with the name of the function."""
        signature = Signature({"num_refs": self.num_refs})
        signature.update("function", self._metric.name)
        return signature

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: Any) -> list[list[float]]:
        return [[score, 1.0] for score in self._metric.scores(self._source, hypotheses, self._references)]

    def _aggregate_and_compute(self, stats: Any) -> Score:
        return self._compute_score_from_stats(np.asarray(stats, np.float64).sum(0))

    def _compute_score_from_stats(self, stats: Any) -> Score:
        return Score(self._metric.name, float(stats[0] / stats[1]))

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[Any]:
        raise NotImplementedError("The statistics of all sentences are computed together.")
