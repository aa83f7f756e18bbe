"""A report as one page that needs nothing else: no other file, no server, no other host.

Tables and charts are written here; the sentences are data, of which the page's script (`assets/page.js`) shows those
that are looked at. The script puts text into the page as text, and never as markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from towernmt.predict.evaluation.charts import COLORS, bar_chart
from towernmt.predict.evaluation.comparison import System, SystemScore
from towernmt.predict.evaluation.differences import marked, marked_where_no_other
from towernmt.predict.evaluation.metrics import LOWER_IS_BETTER
from towernmt.predict.evaluation.report import Report
from towernmt.predict.evaluation.words import words

SENTENCE_METRICS = {"chrf": "chrF", "bleu": "BLEU"}


def html_page(report: Report, title: str) -> str:
    """The page, as HTML.

    Args:
        report: what it tells.
        title: of the page, plain text.
    """
    assets = files("towernmt.predict.evaluation").joinpath("assets")
    parts = {"title": escape(title), "summary": escape(_summary(report)), "systems": "".join(_systems(report)),
             "scores": "".join(_scores(report)), "signatures": _signatures(report),
             "charts": "".join(_charts(report)), "data": _embedded(page_data(report)),
             "style": assets.joinpath("page.css").read_text(encoding="utf-8"),
             "script": assets.joinpath("page.js").read_text(encoding="utf-8")}
    text = assets.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda found: parts[found[1]], text)


def page_data(report: Report) -> dict[str, Any]:
    """What the page's script shows: the sentences, with their differences marked."""
    texts = [[system.hypotheses[i] for system in report.systems] for i in range(len(report.references[0]))]
    sentences = []
    for i, (said, *wanted) in enumerate(zip(texts, *report.references, strict=True)):
        sentences.append({
            "length": len(words(wanted[0] if report.source is None else report.source[i])),
            "source": None if report.source is None else report.source[i],
            "references": [marked_where_no_other(text, said) for text in wanted],
            "hypotheses": [marked(text, wanted) for text in said],
            "changes": [marked(text, said[:1]) for text in said[1:]],
            "scores": [round(scores[i], 1) for scores in report.sentence_scores],
            "attention": [_attention(system, i) for system in report.systems]})
    return {"names": [system.name for system in report.systems], "sentences": sentences,
            "metric": SENTENCE_METRICS[report.settings.examples_by], "lengthsOf": report.lengths_of}


def _attention(system: System, sentence: int) -> dict[str, Any] | None:
    found = system.attention[sentence] if system.attention is not None else None
    return None if found is None else found._asdict()


def _embedded(data: dict[str, Any]) -> str:
    """JSON that may stand in a `<script>`: nothing in it can end that, or begin a comment."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _summary(report: Report) -> str:
    return f"{_count(len(report.references[0]), 'sentence')}, {_count(len(report.references), 'reference')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _systems(report: Report) -> Iterator[str]:
    for i, system in enumerate(report.systems):
        more = ["baseline"] if i == 0 and len(report.systems) > 1 else []
        more += [system.checkpoint] if system.checkpoint else []
        more += [f"{system.seconds:.1f} s"] if system.seconds is not None else []
        yield (f'<li><span class="key c{i % COLORS}"></span><b>{escape(system.name)}</b> '
               f"<small>{escape(', '.join(more))}</small></li>")


def _scores(report: Report) -> Iterator[str]:
    scores = report.comparison.scores
    yield f"<thead><tr><th>system</th>{''.join(map(_metric, scores))}</tr></thead><tbody>"
    for i, system in enumerate(report.systems):
        cells = (_score(of_all[i], of_all, metric in LOWER_IS_BETTER) for metric, of_all in scores.items())
        yield f"<tr><th>{escape(system.name)}</th>{''.join(cells)}</tr>"
    yield "</tbody>"


def _metric(name: str) -> str:
    return f"<th>{escape(name)}{' <small>(less is better)</small>' if name in LOWER_IS_BETTER else ''}</th>"


def _score(one: SystemScore, of_all: Sequence[SystemScore], lower_is_better: bool) -> str:
    best = (min if lower_is_better else max)(other.score for other in of_all)
    lines = [f'<span class="{"best" if one.score == best else "other"}">{one.score:.2f}</span> '
             f"<small>± {one.interval:.2f}</small>"]
    for name, p, sure in one.chances:
        lines.append(f'<small class="{"sure" if sure else "unsure"}">{name} p = {p:.4f}{" *" if sure else ""}</small>')
    return f"<td>{'<br>'.join(lines)}</td>"


def _signatures(report: Report) -> str:
    kinds = (("bootstrap", report.comparison.signatures), ("randomisation", report.comparison.randomization_signatures))
    return "<br>".join(f"{kind}: <code>{escape(f'{metric}|{signature}')}</code>"
                       for kind, found in kinds for metric, signature in found.items())


def _charts(report: Report) -> Iterator[str]:
    names = [system.name for system in report.systems]
    labels = [bucket.label for bucket in report.lengths]
    notes = [_count(bucket.sentences, "sentence") for bucket in report.lengths]
    for metric in report.comparison.scores:
        values = [[bucket.scores[metric][i] for bucket in report.lengths] for i in range(len(names))]
        title = f"{metric} by the length of the {report.lengths_of}"
        title += ", less is better" if metric in LOWER_IS_BETTER else ""
        yield _figure(title, "words", labels, notes, names, values)
    values = [[100 * bucket.matches[i].f1 for bucket in report.frequencies] for i in range(len(names))]
    yield _figure(f"F1 of words by their frequency in {report.frequency_text}", "frequency",
                  [bucket.label for bucket in report.frequencies],
                  [_count(bucket.words, "word") for bucket in report.frequencies], names, values)


def _figure(title: str, unit: str, labels: Sequence[str], notes: Sequence[str], names: Sequence[str],
            values: Sequence[Sequence[float]]) -> str:
    """A chart, with its figures as a table on demand."""
    head = "".join(f"<th>{escape(text)}</th>" for text in (unit, "", *names))
    rows = "".join(f"<tr><th>{escape(label)}</th><td>{escape(note)}</td>"
                   + "".join(f"<td>{row[i]:.2f}</td>" for row in values) + "</tr>"
                   for i, (label, note) in enumerate(zip(labels, notes, strict=True)))
    return (f"<figure><figcaption>{escape(title)}</figcaption>{bar_chart(title, unit, labels, notes, names, values)}"
            f'<details><summary>figures</summary><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}'
            "</tbody></table></div></details></figure>")
