"""The page of a report: its content, and that no text becomes markup."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml
from html.parser import HTMLParser

import numpy as np
import pytest

from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.evaluate.comparison import SignificanceSettings, System, sentence_attention
from towernmt.evaluate.report import Report, ReportSettings
from towernmt.evaluate.report_page import bar_chart, marked, marked_where_no_other, report_html
from towernmt.predict.lines.hypotheses import TokenDetails

EVIL = "</script><script>alert(1)</script> <!-- <img src=x onerror=alert(2)> \u2028 &amp; \"'"


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def report_of(systems, references, source=None) -> Report:
    return Report(systems, references, source, ReportSettings(significance=SignificanceSettings(20, 20)))


def data_of(text: str) -> dict:
    return json.loads(Elements(text).scripts[0])


@pytest.mark.parametrize(("text", "compared_texts", "expected"), [
    ("a b c", ["a x c"], ["a ", "b", " c"]),
    ("a b c", ["q", "a b"], ["a b ", "c"]),
    ("x a", ["a"], ["", "x", " a"]),
    ("a c", ["a b c"], ["a ", "", "c"]), ("b", ["a b"], ["", "", "b"]), ("a", ["a b"], ["a", ""]),
    ("a x", ["a b c x d"], ["a ", "", "x", ""]), ("", ["a"], ["", ""]), (" ", ["a"], [" ", ""]),
    ("a, b.", ["a b."], ["a", ",", " b."]),
    ("x y", ["a"], ["", "x y"]),
    ("a x y b", ["a b"], ["a ", "x y", " b"]),
    ("same ", ["same"], ["same "]),
    ("", [""], [""]), ("a ", [""], ["", "a", " "]),
    ("我喜欢狗", ["我喜欢猫"], ["我喜欢", "狗"]),
])
def test_words_that_the_nearest_other_text_lacks_are_marked(text, compared_texts, expected):
    assert marked(text, compared_texts) == expected


def test_a_reference_is_marked_where_no_system_has_its_words():
    assert marked_where_no_other("a b c d", ["a b", "c"]) == ["a b c ", "d"]


def test_the_page_has_the_numbers_of_the_report_and_asks_no_other_host(systems, references):
    report = report_of(systems, references, references[0])
    text = report_html(report, "Test & trial")
    for metric, scores in report.comparison.scores.items():
        assert report.comparison.signatures[metric] in text
        assert all(f"{score.score:.2f}" in text and f"p = {score.bootstrap_p:.4f}" in text for score in scores[1:])
    assert "<title>Test &amp; trial</title>" in text and "default-src 'none'" in text
    linked = [attribute for _, attributes in Elements(text).tags for attribute in attributes
              if attribute in ("src", "href", "srcset", "data")]
    assert linked == [] and not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|//[a-z]+\.", text.replace(
        "http://www.w3.org/2000/svg", ""))


def test_the_pages_data_are_the_sentences_with_their_scores(systems, references):
    report = report_of(systems, references)
    data = data_of(report_html(report, "x"))
    assert data["names"] == ["base", "better", "same"] and len(data["sentences"]) == 60
    sentence = data["sentences"][7]
    assert sentence["source"] is None
    assert ["".join(parts) for parts in sentence["hypotheses"]] == [system.hypotheses[7] for system in systems]
    assert ["".join(parts) for parts in sentence["changes"]] == [system.hypotheses[7] for system in systems[1:]]
    assert ["".join(parts) for parts in sentence["references"]] == [lines[7] for lines in references]
    assert sentence["scores"] == [round(scores[7], 1) for scores in report.sentence_scores]


def test_markup_in_texts_and_names_is_shown_as_text():
    plain = report_html(report_of([System("n", ["a"]), System("m", ["b"])], [["a"]], ["s"]), "t")
    evil = report_html(report_of([System(EVIL, [EVIL]), System("m" + EVIL, ["b"])], [["a" + EVIL]], [EVIL]), EVIL)
    tags = [[tag for tag, _ in Elements(text).tags if tag not in ("rect", "text", "title", "line", "th", "td", "tr")]
            for text in (plain, evil)]
    assert tags[0] == tags[1] and tags[0].count("script") == 2
    data = data_of(evil)
    assert data["names"][0] == data["sentences"][0]["source"] == EVIL
    assert "".join(data["sentences"][0]["hypotheses"][0]) == EVIL
    assert "innerHTML" not in plain and "insertAdjacentHTML" not in plain


def test_bars_are_as_high_as_their_values_and_the_chart_is_well_formed():
    chart = xml.fromstring(bar_chart("t", "u", ["1", "2+"], ["3", "4"], ["a", "<b>"], [[10, 0], [20, 35.5]]))
    bars = chart.findall("rect")
    heights = [float(bar.get("height") or 0) for bar in bars]
    assert heights[0] > 0 and heights[1] == pytest.approx(2 * heights[0], abs=0.1) and heights[2] == 0
    assert heights[3] == pytest.approx(3.55 * heights[0], abs=0.1)
    titles = [bar.findtext("title") for bar in bars]
    assert titles[0] == "a: 10.00 (1, 3)" and titles[3] == "<b>: 35.50 (2+, 4)"
    assert [tick.text for tick in chart.findall("text[@class='tick']")] == ["0", "10", "20", "30", "40"]


def test_a_negative_score_of_a_custom_metric_has_no_bar_and_the_chart_is_well_formed():
    chart = xml.fromstring(bar_chart("t", "u", ["1", "2+"], ["3", "4"], ["a"], [[-0.5, 0.25]]))
    heights = [float(bar.get("height") or 0) for bar in chart.findall("rect")]
    assert heights[0] == 0 and heights[1] > 0       # SVG has no negative heights


def test_attention_is_encoded_by_36_digits_row_by_row():
    vocabulary = WordVocabulary([*SPECIAL_PIECES, "a", "b"])
    details = TokenDetails([4, 2], [5, 4, 2], None, np.array([[1, 0], [0.5, 0.5], [0.01, 0.99]], np.float32))
    attention = sentence_attention(details, vocabulary, vocabulary)
    assert attention is not None and (attention.source, attention.target) == (["a", "</s>"], ["b", "a", "</s>"])
    assert [int(digit, 36) for digit in attention.weights] == [35, 0, 18, 18, 0, 35]
    assert sentence_attention(None, vocabulary, vocabulary) is None
    report = report_of([System("x", ["b"], attention=[attention]), System("y", ["b"])], [["b"]])
    data = data_of(report_html(report, "t"))
    assert data["sentences"][0]["attention"] == [
        {"source": ["a", "</s>"], "target": ["b", "a", "</s>"], "weights": attention.weights}, None]
