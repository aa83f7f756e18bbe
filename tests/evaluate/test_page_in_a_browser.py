"""The page's script in Chromium: sorting, filtering, windows, and escaped text."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import PATIENCE
from towernmt.evaluate.comparison import SentenceAttention, SignificanceSettings, System
from towernmt.evaluate.metrics import MetricSettings
from towernmt.evaluate.report import Report, ReportSettings
from towernmt.evaluate.report_page import report_html

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.processes, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

ACTIONS = """
<script>
const lines = () => [...document.querySelectorAll("article h3")].map(node => parseInt(node.textContent.slice(5)));
const said = {};
said.drawn = lines().length;
sort.value = 2; arrange(); said.worst = lines()[0];
document.getElementById("reverse").click(); said.best = lines()[0];
sort.value = 4; arrange(); said.gained = lines()[0];
query.value = "SCRIPT"; query.dispatchEvent(new Event("input")); said.filtered = lines();
said.text = document.querySelector("article .hypothesis .text").textContent;
query.value = "#1234"; arrange(); said.line = lines();
query.value = ""; arrange();
sort.value = 0; turn(); for (let i = 0; i < 60; i++) step(1);
said.stepped = document.activeElement.querySelector("h3").textContent;
sort.value = 0; query.value = "row 2 "; arrange(); document.querySelector(".attend").click();
said.cells = [...document.querySelectorAll(".heat rect:not(.frame)")].map(cell => cell.getAttribute("fill-opacity"));
document.querySelector(".attend").click(); said.closed = document.querySelector(".heat") === null;
query.value = ""; sort.value = 2;
said.milliseconds = Array.from({length: 5}, () => {
    const begun = performance.now(); arrange(); return performance.now() - begun; });
said.scripts = document.scripts.length; said.title = document.title; said.images = document.images.length;
document.body.replaceChildren(JSON.stringify(said));
</script>
"""


def test_a_reader_sorts_filters_steps_and_looks_at_attention(tmp_path: Path) -> None:
    evil = "<script>document.title = 'changed'</script><img src=x onerror=\"document.title = 'changed'\">"
    reference = [f"row {i} of the house" for i in range(2000)]
    first, second = list(reference), [f"{line} here" for line in reference]
    first[7], second[7], first[9], first[11] = evil, evil, "zzz", "row 11 of a house"
    attentions: list[SentenceAttention | None] = [SentenceAttention(["a", "b"], ["c"], "z0")] * 2000
    report = Report([System("one", first), System("two", second, attention=attentions)], [reference], None,
                    ReportSettings(MetricSettings(("bleu",)), SignificanceSettings(5, 5)))
    page = tmp_path / "page.html"
    page.write_text(report_html(report, "Title").replace("</body>", f"{ACTIONS}</body>"), encoding="utf-8")
    dom = subprocess.run([str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                          f"--user-data-dir={tmp_path}/browser", page.as_uri()],
                         capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    body = re.search(r"<body>(.*)</body>", dom, re.S)
    assert body is not None
    observed = json.loads(html.unescape(body[1]))
    assert observed["drawn"] == 40 and observed["worst"] in (8, 10)
    assert observed["best"] == 1 and observed["gained"] == 10
    assert observed["line"] == [1234] and observed["filtered"] == [8] and observed["text"] == evil
    assert observed["stepped"].startswith("line 60 ")           # past the first window
    assert observed["cells"] == ["1.000", "0.000"] and observed["closed"]
    assert min(observed["milliseconds"]) < 1000      # other processes may delay some of them
    assert (observed["title"], observed["images"], observed["scripts"]) == ("Title", 0, 3)
