"""The report on systems on one test set, as data and as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import check_ranges, setting
from towernmt.core.text_table import align_columns
from towernmt.dataflow.text.word_segmentation import words
from towernmt.evaluate.buckets import (
    FREQUENCIES,
    LENGTHS,
    FrequencyBucket,
    LengthBucket,
    TermAccuracy,
    by_frequency,
    by_length,
    count_words,
    labels,
)
from towernmt.evaluate.comparison import (
    SIGNIFICANCE_LEVEL,
    Comparison,
    SignificanceSettings,
    System,
    check_sentences,
    compare,
)
from towernmt.evaluate.metrics import MetricSettings, sentence_scores


@dataclass(frozen=True)
class Picks:
    """Indices of example sentences, from 0.

    Attributes:
        worst, best: for each system, the sentences with the lowest and the highest scores.
        lost, gained: for each system except the baseline, the sentences furthest below and above the baseline.
    """

    worst: list[list[int]]
    best: list[list[int]]
    lost: list[list[int]]
    gained: list[list[int]]


def pick(scores: Sequence[Sequence[float]], count: int) -> Picks:
    """Return the example sentences; of equal scores the first sentences.

    Args:
        scores: for each system, the score of each sentence; higher is better.
        count: maximum number of sentences of each kind.
    """
    baseline, *challengers = scores
    gains = [[score - baseline_score for score, baseline_score in zip(challenger, baseline, strict=True)]
             for challenger in challengers]
    return Picks([_lowest(system, count) for system in scores], [_highest(system, count) for system in scores],
                 [[i for i in _lowest(system, count) if system[i] < 0] for system in gains],
                 [[i for i in _highest(system, count) if system[i] > 0] for system in gains])


def _lowest(values: Sequence[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: values[i])[:count]


def _highest(values: Sequence[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: -values[i])[:count]


@dataclass(frozen=True)
class ReportSettings:
    """Settings of a report.

    Raises:
        SettingsError: a value is out of range.
    """

    metrics: MetricSettings = field(default_factory=MetricSettings)
    significance: SignificanceSettings = field(default_factory=SignificanceSettings)
    length_bounds: Sequence[int] = LENGTHS
    frequency_bounds: Sequence[int] = FREQUENCIES
    examples: int = setting(5, "Maximum number of worst, best, lost and gained sentences each.", at_least=0)
    examples_by: str = setting("chrf", "Score by which sentences are chosen: chrf, bleu, or a custom metric's name.")

    def __post_init__(self) -> None:
        check_ranges(self)
        metrics = ("chrf", "bleu", *(metric.name for metric in self.metrics.custom))
        if self.examples_by not in metrics:
            raise SettingsError(f"--examples-by {self.examples_by}: choose among {', '.join(metrics)}.")
        labels(self.length_bounds, 0)
        labels(self.frequency_bounds, 0)


class Report:
    """A report on systems on one test set; each section is computed at its first use.

    Args:
        systems: at least one; the first is the baseline.
        references: all sentences by each translator.
        source: the source text, or None.
        settings: settings of the report; None: the defaults.
        frequencies: frequency of each word, for example in the training data; None: in the first reference.
        frequency_text: name of the text in which the frequencies were counted.

    Attributes:
        systems: the systems; the first is the baseline.
        references: all sentences by each translator.
        source: the source text, or None.
        settings: settings of the report.
        frequency_text: name of the text in which the frequencies were counted.

    Raises:
        DataError: there are no sentences, or the source or a system has another number of sentences than a
            reference.
    """

    def __init__(self, systems: Sequence[System], references: Sequence[Sequence[str]],
                 source: Sequence[str] | None = None, settings: ReportSettings | None = None,
                 frequencies: Counter[str] | None = None, frequency_text: str = "the reference") -> None:
        check_sentences(systems, references)
        if source is not None and len(source) != len(references[0]):
            raise DataError(f"The source has {len(source)} sentences, and the reference has {len(references[0])}: pass "
                            "one source sentence for each.")
        self.systems, self.references, self.source = systems, references, source
        self.settings, self.frequency_text = settings or ReportSettings(), frequency_text
        self._frequencies = frequencies

    @property
    def lengths_of(self) -> str:
        """The text that determines the length of a sentence: "source", or "reference" without a source."""
        return "reference" if self.source is None else "source"

    @cached_property
    def comparison(self) -> Comparison:
        """Scores and significance of all systems."""
        return compare(self.systems, self.references, self.settings.metrics, self.settings.significance,
                       self.source)

    @cached_property
    def lengths(self) -> list[LengthBucket]:
        """Scores by sentence length."""
        lengths = [len(words(line)) for line in (self.references[0] if self.source is None else self.source)]
        return by_length(lengths, self.systems, self.references, self.settings.metrics, self.settings.length_bounds,
                         self.source)

    @cached_property
    def frequencies(self) -> list[FrequencyBucket]:
        """Precision and recall of words by frequency."""
        lowercase = self.settings.metrics.lowercase
        counts = count_words(self.references[0], lowercase) if self._frequencies is None else self._frequencies
        return by_frequency(counts, self.systems, self.references, lowercase, self.settings.frequency_bounds)

    @cached_property
    def sentence_scores(self) -> list[list[float]]:
        """For each system, the score `examples_by` of each sentence."""
        return [sentence_scores(self.settings.examples_by, self.settings.metrics, system.hypotheses, self.references,
                                self.source) for system in self.systems]

    @cached_property
    def picks(self) -> Picks:
        """The worst, best, lost and gained sentences."""
        sign = -1 if self.settings.metrics.is_lower_better(self.settings.examples_by) else 1
        return pick([[sign * score for score in scores] for scores in self.sentence_scores], self.settings.examples)


def report_as_json(report: Report) -> dict[str, Any]:
    """Return a report as values that JSON can represent; sentences have their index, from 0, and their text."""
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


def score_table(report: Report) -> str:
    """Return a table of scores with confidence intervals and significance against the baseline, and the signatures."""
    comparison = report.comparison
    metrics = list(comparison.scores)
    rows = [["", *metrics]]
    for i, system in enumerate(report.systems):
        scores = [comparison.scores[metric][i] for metric in metrics]
        rows.append([system.name, *(f"{score.score:.2f} ± {score.interval:.2f}" for score in scores)])
        if i:
            chances = zip(*(score.chances for score in scores), strict=True)    # one tuple over all metrics per test
            rows += [[f"  {test[0][0]}", *(f"p = {p:.4f}{' *' if sure else '  '}" for _, p, sure in test)]
                     for test in chances]
    count = len(report.references[0])
    return "\n".join([
        f"{count:,} sentence{'s' * (count != 1)}; ± is the 95 % confidence interval"
        + (f"; p against {report.systems[0].name}, * below {SIGNIFICANCE_LEVEL}" if len(report.systems) > 1 else ""),
        *align_columns(rows), *(f"{name}|{signature}" for name, signature in (
            *comparison.signatures.items(), *comparison.randomization_signatures.items()))])


def bucket_tables(report: Report) -> str:
    """Return tables of scores by sentence length, and of F1 by word frequency."""
    names = [system.name for system in report.systems]
    lines = []
    for metric in report.comparison.scores:
        lines += [f"{metric} by the length of the {report.lengths_of}:", *align_columns([
            ["words", "sentences", *names],
            *([bucket.label, f"{bucket.sentences:,}", *(f"{score:.2f}" for score in bucket.scores[metric])]
              for bucket in report.lengths)]), ""]
    return "\n".join([
        *lines, f"F1 of words by their frequency in {report.frequency_text}:", *align_columns([
            ["frequency", "words", *names],
            *([bucket.label, f"{bucket.words:,}", *(f"{100 * match.f1:.2f}" for match in bucket.matches)]
              for bucket in report.frequencies)])])


def example_list(report: Report) -> str:
    """Return the example sentences with source, references and translations."""
    parts, baseline = [], report.systems[0].name
    for i, system in enumerate(report.systems):
        parts += [_examples(report, f"Worst of {system.name}", report.picks.worst[i], [i]),
                  _examples(report, f"Best of {system.name}", report.picks.best[i], [i])]
    for i, system in enumerate(report.systems[1:], start=1):
        parts += [_examples(report, f"{system.name} is furthest below {baseline}", report.picks.lost[i - 1], [0, i]),
                  _examples(report, f"{system.name} is furthest above {baseline}", report.picks.gained[i - 1], [0, i])]
    return "\n\n".join(part for part in parts if part)


def _examples(report: Report, title: str, numbers: Sequence[int], systems: Sequence[int]) -> str:
    if not numbers:
        return ""
    lines = [f"{title} (sentence {report.settings.examples_by}):"]
    for number in numbers:
        rows = [["source", report.source[number]]] if report.source is not None else []
        rows += [["reference", lines[number]] for lines in report.references]
        rows += [[f"{report.systems[i].name} {report.sentence_scores[i][number]:.1f}",
                  report.systems[i].hypotheses[number]] for i in systems]
        lines += [f"line {number + 1}", *(f"  {line}" for line in align_columns(rows, "<"))]
    return "\n".join(lines)


def term_table(names: Sequence[str], accuracies: Sequence[TermAccuracy]) -> str:
    """Return a table of the required terms and phrases that each system contains."""
    return "\n".join(align_columns([["terms", "met", "of", "%"], *(
        [name, f"{accuracy.met:,}", f"{accuracy.required:,}", f"{100 * accuracy.share:.2f}"]
        for name, accuracy in zip(names, accuracies, strict=True))]))
