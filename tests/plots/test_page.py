"""The page of curves: its data, that no text becomes markup, and that it loads nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

from towernmt.plots.curve_page import curves_html, write_page
from towernmt.plots.recorded_runs import read_named_runs, read_run

EVIL = "</script><script>alert(1)</script> <!-- <img src=x onerror=alert(2)> &amp; \"'"


class Elements(HTMLParser):
    """The elements of a page with their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tables.append([tag, dict(attrs), ""])

    def handle_data(self, data):
        if self.tables:
            self.tables[-1][2] += data

    def texts(self, tag: str) -> list[str]:
        return [text for name, _, text in self.tables if name == tag]


def test_the_page_has_curves_over_all_axes_and_tables(make_run, rows) -> None:
    runs = [read_run(make_run("a", rows, {"model": {"size": 1}}), "a"),
            read_run(make_run("b", settings={"model": {"size": 2}}), "b")]
    page = Elements(curves_html(runs, "minutes", 5))
    data = json.loads(page.texts("script")[0])
    assert (data["axis"], data["window"]) == ("minutes", 5)
    assert [run["name"] for run in data["runs"]] == ["a", "b"]
    bleu = next(panel for panel in data["panels"] if panel["title"] == "BLEU of validation")
    assert bleu["mode"] == "max" and bleu["curves"] == [
        {"updates": [300, 600], "tokens": [300_000, 600_000], "minutes": [5, 11], "y": [10, 20], "each": 1},
        {"updates": [], "tokens": [], "minutes": [], "y": [], "each": 1}]
    assert {"20.00", "600k", "11.0"} <= set(page.texts("td")) and "model.size" in page.texts("th")
    assert [text.strip() for text in page.texts("li")] == ["b: nothing is recorded yet."]


def test_a_long_curve_tells_how_many_figures_each_of_its_points_is(make_run) -> None:
    rows = [{"nll": 1.0, "learning_rate": 1.0, "global_step": step} for step in range(1, 12_001)]
    text = curves_html([read_run(make_run("a", rows), "a"), read_run(make_run("b", rows[:1000]), "b")])
    page = Elements(text)
    data = json.loads(page.texts("script")[0])
    assert [(len(curve["y"]), curve["each"]) for curve in data["panels"][0]["curves"]] == [(2000, 6), (1000, 1)]
    window = next(attributes for _, attributes, _ in page.tables if attributes.get("id") == "window")
    assert data["window"] == 301 <= int(window.get("max", 301))


def test_the_page_says_the_odd_number_of_figures_that_a_mean_takes(make_run, rows) -> None:
    page = Elements(curves_html([read_run(make_run("a", rows), "a")], "updates", 2))
    assert json.loads(page.texts("script")[0])["window"] == 3


def test_the_page_has_every_kind_of_panel_that_there_are_figures_of(make_run) -> None:
    rows = [{"validation_loss": 1.0, "validation_perplexity": 2.7, "global_step": 1}]
    page = Elements(curves_html([read_run(make_run("a", rows), "a")]))
    assert [panel["title"] for panel in json.loads(page.texts("script")[0])["panels"]] == [
        "loss of validation, nats a target token", "perplexity of validation"]


def test_names_stay_text_and_no_other_host_is_asked(make_run, rows) -> None:
    settings = {"model": {"size": EVIL}}
    runs = [read_run(make_run("a", rows, settings), EVIL), read_run(make_run("b", rows), "b")]
    text = curves_html(runs)
    page = Elements(text)
    assert len(page.texts("script")) == 2 and not page.texts("img") and "default-src 'none'" in text
    assert json.loads(page.texts("script")[0])["runs"][0]["name"] == EVIL
    linked = [attribute for _, attributes, _ in page.tables for attribute in attributes
              if attribute in ("src", "href", "srcset", "data")]
    assert linked == [] and not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|//[a-z]+\.", text.replace(
        "http://www.w3.org/2000/svg", ""))


def test_a_name_that_is_not_utf8_can_be_written(make_run, rows, tmp_path: Path) -> None:
    broken = os.fsdecode(b"a\xff\n")
    runs, _ = read_named_runs([str(make_run(broken, rows, {"init": {"checkpoint": broken}})),
                               f"b={make_run('b', rows, {'init': {'checkpoint': 'b'}})}"])
    write_page(runs, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert runs[0].name == "a\ufffd " and "<td>a\ufffd </td>" in text and f"{tmp_path}/a\ufffd , " in text


def test_the_page_of_equal_runs_says_why_nothing_differs(make_run, rows) -> None:
    recorded, unrecorded = read_run(make_run("a", rows), "a"), read_run(make_run("b", rows), "b")
    unrecorded.settings.clear()
    assert "There is one run, so nothing differs." in curves_html([recorded])
    assert "Not all runs record their settings." in curves_html([recorded, unrecorded])
