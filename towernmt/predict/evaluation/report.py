"""All that is told of systems on one test set; tables, JSON and the page are made from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from towernmt.core.settings import check_ranges, setting
from towernmt.predict.evaluation.buckets import (
    FREQUENCIES,
    LENGTHS,
    FrequencyBucket,
    LengthBucket,
    by_frequency,
    by_length,
    count_words,
    labels,
)
from towernmt.predict.evaluation.comparison import Comparison, SignificanceSettings, System, check_sentences, compare
from towernmt.predict.evaluation.metrics import MetricSettings, sentence_scores
from towernmt.predict.evaluation.sentences import Picks, pick
from towernmt.predict.evaluation.words import words


@dataclass(frozen=True)
class ReportSettings:
    """What a report tells.

    Raises:
        SettingsError: a value that cannot work.
    """

    metrics: MetricSettings = field(default_factory=MetricSettings)
    significance: SignificanceSettings = field(default_factory=SignificanceSettings)
    length_bounds: Sequence[int] = LENGTHS
    frequency_bounds: Sequence[int] = FREQUENCIES
    examples: int = setting(5, "Worst, best, lost and gained sentences, at most, of each.", at_least=0)
    examples_by: str = setting("chrf", "The score of a sentence alone.", ("chrf", "bleu"))

    def __post_init__(self) -> None:
        check_ranges(self)
        labels(self.length_bounds, 0)
        labels(self.frequency_bounds, 0)


class Report:
    """Systems on one test set; each part is computed when it is first asked for.

    Attributes:
        systems: the first is the baseline.
        references: all sentences by each translator.
        source: the text that was translated, where it is known.
        settings: what is told.
        frequency_text: what the frequencies of words were counted in.
    """

    def __init__(self, systems: Sequence[System], references: Sequence[Sequence[str]],
                 source: Sequence[str] | None = None, settings: ReportSettings | None = None,
                 frequencies: Counter[str] | None = None, frequency_text: str = "the reference") -> None:
        """
        Args:
            systems: at least one; the first is the baseline.
            references: all sentences by each translator.
            source: the text that was translated, if it is at hand.
            settings: what is told; None: the defaults.
            frequencies: of each word, in the training data for instance; None: in the first reference.
            frequency_text: what they were counted in.
        Raises:
            DataError: no sentences, or not as many of a system as of a reference.
        """
        check_sentences(systems, references)
        self.systems, self.references, self.source = systems, references, source
        self.settings, self.frequency_text = settings or ReportSettings(), frequency_text
        self._frequencies = frequencies

    @property
    def lengths_of(self) -> str:
        """The text whose lengths part the sentences: "source", or "reference" where there is no source."""
        return "reference" if self.source is None else "source"

    @cached_property
    def comparison(self) -> Comparison:
        """Scores and significance."""
        return compare(self.systems, self.references, self.settings.metrics, self.settings.significance)

    @cached_property
    def lengths(self) -> list[LengthBucket]:
        """The scores by length."""
        lengths = [len(words(line)) for line in (self.references[0] if self.source is None else self.source)]
        return by_length(lengths, self.systems, self.references, self.settings.metrics, self.settings.length_bounds)

    @cached_property
    def frequencies(self) -> list[FrequencyBucket]:
        """The words by their frequency."""
        lowercase = self.settings.metrics.lowercase
        counts = count_words(self.references[0], lowercase) if self._frequencies is None else self._frequencies
        return by_frequency(counts, self.systems, self.references, lowercase, self.settings.frequency_bounds)

    @cached_property
    def sentence_scores(self) -> list[list[float]]:
        """Of each system, of each sentence alone, by `examples_by`."""
        return [sentence_scores(self.settings.examples_by, self.settings.metrics, system.hypotheses, self.references)
                for system in self.systems]

    @cached_property
    def picks(self) -> Picks:
        """Sentences that stand out."""
        return pick(self.sentence_scores, self.settings.examples)


def as_json(report: Report) -> dict[str, Any]:
    """A report as what JSON can hold; sentences are told by their number, from 0, and their text."""
    comparison, names = report.comparison, [system.name for system in report.systems]
    systems = [{
        "name": system.name, "checkpoint": system.checkpoint, "seconds": system.seconds,
        "scores": {metric: asdict(scores[i]) for metric, scores in comparison.scores.items()},
        "worst": _sentences(report, report.picks.worst[i]), "best": _sentences(report, report.picks.best[i]),
        **({"lost": _sentences(report, report.picks.lost[i - 1]),
            "gained": _sentences(report, report.picks.gained[i - 1])} if i else {})}
        for i, system in enumerate(report.systems)]
    return {
        "sentences": len(report.references[0]), "references": len(report.references), "baseline": names[0],
        "signatures": comparison.signatures, "randomization_signatures": comparison.randomization_signatures,
        "systems": systems,
        "by_length": {"of": report.lengths_of, "buckets": [
            {"words": bucket.label, "sentences": bucket.sentences,
             "scores": {metric: dict(zip(names, values, strict=True)) for metric, values in bucket.scores.items()}}
            for bucket in report.lengths]},
        "by_word_frequency": {"in": report.frequency_text, "buckets": [
            {"frequency": bucket.label, "words": bucket.words,
             "systems": {name: {**asdict(match), "f1": match.f1}
                         for name, match in zip(names, bucket.matches, strict=True)}}
            for bucket in report.frequencies]},
        "examples_by": report.settings.examples_by}


def _sentences(report: Report, numbers: Sequence[int]) -> list[dict[str, Any]]:
    names = [system.name for system in report.systems]
    return [{"sentence": i, "source": None if report.source is None else report.source[i],
             "references": [lines[i] for lines in report.references],
             "scores": {name: scores[i] for name, scores in zip(names, report.sentence_scores, strict=True)},
             "translations": {system.name: system.hypotheses[i] for system in report.systems}} for i in numbers]
