"""Render the report as one self-contained web page, with charts and marked differences."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from difflib import SequenceMatcher
from html import escape
from importlib.resources import files
from typing import Any

from towernmt.dataflow.text.word_segmentation import word_spans, words
from towernmt.evaluate.comparison import System, SystemScore
from towernmt.evaluate.report import Report
from towernmt.evaluate.robustness import RobustnessScore, robustness_rows

WIDTH, HEIGHT = 460, 190
LEFT, BOTTOM, TOP = 34, 34, 8
COLORS = 8
"""Number of colour classes `c0`, `c1`, ... in the style sheet, which repeat for further systems."""


def bar_chart(title: str, unit: str, groups: Sequence[str], notes: Sequence[str], names: Sequence[str],
              values: Sequence[Sequence[float]]) -> str:
    """Return a bar chart as SVG, with one group for each range and one bar for each system.

    Args:
        title: text for screen readers.
        unit: label of the axis of ranges.
        groups: labels of the ranges.
        notes: the size of each range; shown with a bar's value under the pointer.
        names: names of the systems.
        values: for each system the value of each range. A negative value, as of a custom metric, has no bar.
    """
    top = _round_up(max((max(row) for row in values), default=0))
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
             *_grid(top), *_bars(groups, notes, names, values, top),
             f'<text class="unit" x="{LEFT + (WIDTH - LEFT) / 2:g}" y="{HEIGHT - 4}">{escape(unit)}</text>', "</svg>"]
    return "".join(parts)


def _round_up(value: float) -> float:
    """Return the next larger end of an axis that has four round steps."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(step * magnitude for step in (1, 2, 4, 6, 8, 10) if step * magnitude >= value)


def _height(value: float, top: float) -> float:
    """Return the height of a bar, in units of the chart; 0 for a negative value, because the axis begins at 0."""
    return (HEIGHT - TOP - BOTTOM) * min(max(value / top, 0.0), 1.0)


def _grid(top: float) -> Iterator[str]:
    for i in range(5):
        y = HEIGHT - BOTTOM - _height(top * i / 4, top)
        yield (f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
               f'<text class="tick" x="{LEFT - 5}" y="{y + 3.5:.1f}">{top * i / 4:g}</text>')


def _bars(groups: Sequence[str], notes: Sequence[str], names: Sequence[str], values: Sequence[Sequence[float]],
          top: float) -> Iterator[str]:
    group_width = (WIDTH - LEFT) / max(len(groups), 1)
    width = min(0.8 * group_width / len(names), 26)
    for g, (group, note) in enumerate(zip(groups, notes, strict=True)):
        middle = LEFT + (g + 0.5) * group_width
        for i, (name, row) in enumerate(zip(names, values, strict=True)):
            height = _height(row[g], top)
            x = middle + (i - len(names) / 2) * width
            yield (f'<rect class="c{i % COLORS}" x="{x:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
                   f'width="{0.92 * width:.1f}" height="{height:.1f}">'
                   f'<title>{escape(f"{name}: {row[g]:.2f} ({group}, {note})")}</title></rect>')
        yield f'<text class="group" x="{middle:.1f}" y="{HEIGHT - BOTTOM + 13}">{escape(group)}</text>'


Segments = list[str]
"""A text in segments that alternate between matching and differing. The first one matches and may be empty. An empty
differing segment is a gap, where only the other text has words."""


def marked(text: str, compared_texts: Sequence[str]) -> Segments:
    """Return a text with marked differences from the most similar of `compared_texts`, and with gaps."""
    tokens = words(text)
    matches = [_Match(tokens, words(compared)) for compared in compared_texts]
    closest = max(matches, key=lambda match: sum(match.matched))
    return _segments(text, closest.matched, closest.gaps)


def marked_where_no_other(text: str, compared_texts: Sequence[str]) -> Segments:
    """Return a text with marked words that none of `compared_texts` has at the same position."""
    tokens = words(text)
    matched = [_Match(tokens, words(compared)).matched for compared in compared_texts]
    return _segments(text, [any(matches) for matches in zip(*matched, strict=True)], set())


class _Match:
    """An alignment of words with those of another text.

    Attributes:
        matched: for each word, whether the other text has it at the same position.
        gaps: indices of words before which only the other text has words; the number of words for the end.
    """

    def __init__(self, tokens: Sequence[str], other_tokens: Sequence[str]) -> None:
        self.matched, self.gaps = [False] * len(tokens), set()
        end = end_of_other = 0
        for block in SequenceMatcher(None, tokens, other_tokens, autojunk=False).get_matching_blocks():
            if block.a == end and block.b > end_of_other:
                self.gaps.add(block.a)
            end, end_of_other = block.a + block.size, block.b + block.size
            self.matched[block.a:end] = [True] * block.size


def _segments(text: str, matched: Sequence[bool], gaps: Set[int]) -> Segments:
    """Join neighbouring words of one kind; the text between two segments belongs to the matching one."""
    segments, end, in_match = [""], 0, True
    for i, ((start, stop), is_matched) in enumerate(zip(word_spans(text), matched, strict=True)):
        if i in gaps:
            segments[-1] += text[end:start]
            segments += ["", ""]
            end = start
        if is_matched == in_match:
            segments[-1] += text[end:stop]
        elif is_matched:
            segments.append(text[end:stop])
        else:
            segments[-1] += text[end:start]
            segments.append(text[start:stop])
        end, in_match = stop, is_matched
    if end < len(text):
        segments += [""] * (not in_match)
        segments[-1] += text[end:]
    return [*segments, ""] if len(matched) in gaps else segments


SENTENCE_METRICS = {"chrf": "chrF", "bleu": "BLEU"}


def report_html(report: Report, title: str, robustness: Mapping[str, Sequence[RobustnessScore]] | None = None) -> str:
    """Return the page as HTML.

    Args:
        report: the report.
        title: title of the page, plain text.
        robustness: scores of each system on the forms of the test set; None for none.
    """
    assets = files("towernmt.evaluate").joinpath("assets")
    parts = {"title": escape(title), "summary": escape(_summary(report)), "systems": "".join(_systems(report)),
             "scores": "".join(_scores(report)), "signatures": _signatures(report),
             "robustness": "".join(_robustness(robustness or {})),
             "charts": "".join(_charts(report)), "data": _embedded(report_page_data(report)),
             "style": assets.joinpath("page.css").read_text(encoding="utf-8"),
             "script": assets.joinpath("page.js").read_text(encoding="utf-8")}
    text = assets.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda match: parts[match[1]], text)


def _robustness(scores: Mapping[str, Sequence[RobustnessScore]]) -> Iterator[str]:
    """Yield a table for each system."""
    for name, form_scores in scores.items():
        header, *rows = robustness_rows(form_scores)
        yield f"<h2>Robustness of {escape(name)}</h2><table><tr>"
        yield "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>"
        yield "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        yield "</table>"


def report_page_data(report: Report) -> dict[str, Any]:
    """Return the data of the page's script: the sentences, with marked differences."""
    texts = [[system.hypotheses[i] for system in report.systems] for i in range(len(report.references[0]))]
    sentences = []
    for i, (hypotheses, *references) in enumerate(zip(texts, *report.references, strict=True)):
        sentences.append({
            "length": len(words(references[0] if report.source is None else report.source[i])),
            "source": None if report.source is None else report.source[i],
            "references": [marked_where_no_other(text, hypotheses) for text in references],
            "hypotheses": [marked(text, references) for text in hypotheses],
            "changes": [marked(text, hypotheses[:1]) for text in hypotheses[1:]],
            "scores": [round(scores[i], 1) for scores in report.sentence_scores],
            "attention": [_attention(system, i) for system in report.systems]})
    metric = SENTENCE_METRICS.get(report.settings.examples_by, report.settings.examples_by)
    return {"names": [system.name for system in report.systems], "sentences": sentences, "metric": metric,
            "lengthsOf": report.lengths_of}


def _attention(system: System, sentence: int) -> dict[str, Any] | None:
    attention = system.attention[sentence] if system.attention is not None else None
    return None if attention is None else attention._asdict()


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that is safe inside a `<script>`: it cannot end the element or start a comment."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _summary(report: Report) -> str:
    return f"{_count(len(report.references[0]), 'sentence')}, {_count(len(report.references), 'reference')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _systems(report: Report) -> Iterator[str]:
    for i, system in enumerate(report.systems):
        details = ["baseline"] if i == 0 and len(report.systems) > 1 else []
        details += [system.checkpoint] if system.checkpoint else []
        details += [f"{system.seconds:.1f} s"] if system.seconds is not None else []
        yield (f'<li><span class="key c{i % COLORS}"></span><b>{escape(system.name)}</b> '
               f"<small>{escape(', '.join(details))}</small></li>")


def _scores(report: Report) -> Iterator[str]:
    scores = report.comparison.scores
    yield f"<thead><tr><th>system</th>{''.join(_metric(report, name) for name in scores)}</tr></thead><tbody>"
    for i, system in enumerate(report.systems):
        cells = (_score(column[i], column, report.settings.metrics.is_lower_better(metric))
                 for metric, column in scores.items())
        yield f"<tr><th>{escape(system.name)}</th>{''.join(cells)}</tr>"
    yield "</tbody>"


def _metric(report: Report, name: str) -> str:
    note = " <small>(less is better)</small>" if report.settings.metrics.is_lower_better(name) else ""
    return f"<th>{escape(name)}{note}</th>"


def _score(score: SystemScore, column: Sequence[SystemScore], lower_is_better: bool) -> str:
    best_score = (min if lower_is_better else max)(system_score.score for system_score in column)
    lines = [f'<span class="{"best" if score.score == best_score else "other"}">{score.score:.2f}</span> '
             f"<small>± {score.interval:.2f}</small>"]
    for name, p, sure in score.chances:
        lines.append(f'<small class="{"sure" if sure else "unsure"}">{name} p = {p:.4f}{" *" if sure else ""}</small>')
    return f"<td>{'<br>'.join(lines)}</td>"


def _signatures(report: Report) -> str:
    kinds = (("bootstrap", report.comparison.signatures), ("randomisation", report.comparison.randomization_signatures))
    return "<br>".join(f"{kind}: <code>{escape(f'{metric}|{signature}')}</code>"
                       for kind, signatures in kinds for metric, signature in signatures.items())


def _charts(report: Report) -> Iterator[str]:
    names = [system.name for system in report.systems]
    labels = [bucket.label for bucket in report.lengths]
    notes = [_count(bucket.sentences, "sentence") for bucket in report.lengths]
    for metric in report.comparison.scores:
        values = [[bucket.scores[metric][i] for bucket in report.lengths] for i in range(len(names))]
        title = f"{metric} by the length of the {report.lengths_of}"
        title += ", less is better" if report.settings.metrics.is_lower_better(metric) else ""
        yield _figure(title, "words", labels, notes, names, values)
    values = [[100 * bucket.matches[i].f1 for bucket in report.frequencies] for i in range(len(names))]
    yield _figure(f"F1 of words by their frequency in {report.frequency_text}", "frequency",
                  [bucket.label for bucket in report.frequencies],
                  [_count(bucket.words, "word") for bucket in report.frequencies], names, values)


def _figure(title: str, unit: str, labels: Sequence[str], notes: Sequence[str], names: Sequence[str],
            values: Sequence[Sequence[float]]) -> str:
    """Return a chart with an expandable table of its values."""
    head = "".join(f"<th>{escape(text)}</th>" for text in (unit, "", *names))
    rows = "".join(f"<tr><th>{escape(label)}</th><td>{escape(note)}</td>"
                   + "".join(f"<td>{row[i]:.2f}</td>" for row in values) + "</tr>"
                   for i, (label, note) in enumerate(zip(labels, notes, strict=True)))
    return (f"<figure><figcaption>{escape(title)}</figcaption>{bar_chart(title, unit, labels, notes, names, values)}"
            f'<details><summary>figures</summary><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}'
            "</tbody></table></div></details></figure>")
