"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from towernmt.predict.evaluation.comparison import LEVEL
from towernmt.predict.evaluation.report import Report
from towernmt.predict.evaluation.terms import TermAccuracy


def score_table(report: Report) -> str:
    """Scores with their confidence intervals, significance against the first system, and signatures."""
    comparison = report.comparison
    metrics = list(comparison.scores)
    rows = [["", *metrics]]
    for i, system in enumerate(report.systems):
        scores = [comparison.scores[metric][i] for metric in metrics]
        rows.append([system.name, *(f"{one.score:.2f} ± {one.interval:.2f}" for one in scores)])
        if i:
            chances = zip(*(one.chances for one in scores), strict=True)    # test by test, of each metric
            rows += [[f"  {of_test[0][0]}", *(f"p = {p:.4f}{' *' if sure else '  '}" for _, p, sure in of_test)]
                     for of_test in chances]
    count = len(report.references[0])
    return "\n".join([
        f"{count:,} sentence{'s' * (count != 1)}; ± is the 95 % confidence interval"
        + (f"; p against {report.systems[0].name}, * below {LEVEL}" if len(report.systems) > 1 else ""),
        *_aligned(rows), *(f"{name}|{signature}" for name, signature in (
            *comparison.signatures.items(), *comparison.randomization_signatures.items()))])


def bucket_tables(report: Report) -> str:
    """The scores by length, and the words by frequency."""
    names = [system.name for system in report.systems]
    lines = []
    for metric in report.comparison.scores:
        lines += [f"{metric} by the length of the {report.lengths_of}:", *_aligned([
            ["words", "sentences", *names],
            *([bucket.label, f"{bucket.sentences:,}", *(f"{score:.2f}" for score in bucket.scores[metric])]
              for bucket in report.lengths)]), ""]
    return "\n".join([
        *lines, f"F1 of words by their frequency in {report.frequency_text}:", *_aligned([
            ["frequency", "words", *names],
            *([bucket.label, f"{bucket.words:,}", *(f"{100 * match.f1:.2f}" for match in bucket.matches)]
              for bucket in report.frequencies)])])


def example_list(report: Report) -> str:
    """The sentences that stand out, with all texts."""
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
        lines += [f"line {number + 1}", *(f"  {line}" for line in _aligned(rows, numbers=False))]
    return "\n".join(lines)


def term_table(names: Sequence[str], accuracies: Sequence[TermAccuracy]) -> str:
    """How many of the terms and phrases that must be there each system has."""
    return "\n".join(_aligned([["terms", "met", "of", "%"], *(
        [name, f"{one.met:,}", f"{one.wanted:,}", f"{100 * one.share:.2f}"]
        for name, one in zip(names, accuracies, strict=True))]))


def _aligned(rows: Iterable[Sequence[str]], numbers: bool = True) -> Iterator[str]:
    """Cells in columns, the first to the left; the others too, or as numbers to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [f"{cell:>{width}}" if numbers else cell for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([f"{first:<{widths[0]}}", *cells]).rstrip()
