"""The script of the page of curves, in Chromium: axes, running means, hidden runs, values under the pointer."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.waiting import PATIENCE
from towernmt.plots.curve_page import curves_html
from towernmt.plots.recorded_runs import read_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.processes, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

ACTIONS = """
<script>
const said = {}, lines = () => [...document.querySelectorAll("#panels figure:first-child path.line")];
said.figures = [...document.querySelectorAll("#panels figcaption")].map(node => node.textContent);
said.lines = lines().length;
said.dashes = lines().map(line => line.getAttribute("stroke-dasharray"));
said.label = document.querySelector("#panels text.axis:last-of-type").textContent;
const before = lines()[0].getAttribute("d");
at("axes").children[2].click();
said.over = document.querySelector("#panels svg").getAttribute("aria-label");
said.moved = lines()[0].getAttribute("d") !== before;
said.raw = document.querySelectorAll("path.raw").length;
at("window").value = 3; at("window").dispatchEvent(new Event("input"));
said.smoothed = document.querySelectorAll("path.raw").length;
at("window").value = 4; at("window").dispatchEvent(new Event("change")); said.window = at("window").value;
at("legend").children[1].click();
said.without = lines().length;
at("legend").children[1].click();
const bleu = document.querySelectorAll("#panels figure")[1], drawing = bleu.querySelector("svg");
const box = drawing.getBoundingClientRect(), place = {clientX: box.right - 20, clientY: box.top + 20};
drawing.dispatchEvent(new PointerEvent("pointermove", place));
said.tip = bleu.querySelector(".tip").innerText;
said.best = bleu.querySelectorAll("circle.best").length;
said.scripts = document.scripts.length;
document.body.replaceChildren(JSON.stringify(said));
</script>
"""


def said_by(page: str, actions: str, directory: Path) -> Any:
    """Return the text of the page's body after Chromium has run some actions."""
    file = directory / "page.html"
    file.write_text(page.replace("</body>", f"{actions}</body>"), encoding="utf-8")
    dom = subprocess.run([str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                          f"--user-data-dir={directory}/browser", file.as_uri()],
                         capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    return json.loads(html.unescape(re.search(r"<body>(.*?)</body>", dom, re.S)[1]))


def test_a_reader_changes_the_axis_the_means_and_the_runs(make_run, rows, tmp_path: Path) -> None:
    runs = [read_run(make_run(name, rows), f"<b>{name}") for name in ("one", "two")]
    observed = said_by(curves_html(runs, "updates", 1), ACTIONS, tmp_path)
    assert observed["figures"] == ["training loss, nats a target token", "BLEU of validation",
                                   "loss of validation, nats a target token", "learning rate",
                                   "target tokens a second of training"]
    assert observed["lines"] == 2 and observed["dashes"][0] == "" and observed["dashes"][1]
    assert observed["over"] == "training loss, nats a target token over minutes" and observed["moved"]
    assert (observed["raw"], observed["smoothed"], observed["without"], observed["best"]) == (0, 4, 1, 2)
    assert observed["window"] == "5"
    assert "<b>one" in observed["tip"] and "20" in observed["tip"] and observed["scripts"] == 3


def test_means_are_over_as_many_logged_figures_as_the_page_says_in_long_and_in_short_runs(make_run, tmp_path) -> None:
    figures = np.random.default_rng(1).normal(size=6000)
    rows = [{"nll": float(value), "global_step": step} for step, value in enumerate(figures, start=1)]
    runs = [read_run(make_run("long", rows), "long"), read_run(make_run("short", rows[:1500]), "short")]
    tell = "<script>document.body.replaceChildren(JSON.stringify(curvesOf(data.panels[0]).map(one => one.y)))</script>"
    long, short = said_by(curves_html(runs, "updates", 9), tell, tmp_path)
    means = np.convolve(figures, np.ones(9) / 9, mode="valid")      # of figure i - 4 to i + 4, at place i - 4
    assert short[4:-4] == pytest.approx(list(means[:1492]), abs=1e-5)
    assert long[1:-1] == pytest.approx(list(means[::3]), abs=1e-5)
