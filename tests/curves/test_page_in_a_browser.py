"""The script of the page of curves, in Chromium: axes, running means, hidden runs, values under the pointer."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from towernmt.curves.page import html_page
from towernmt.curves.recorded_run import read_run

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


def test_a_reader_changes_the_axis_the_means_and_the_runs(make_run, rows, tmp_path: Path) -> None:
    runs = [read_run(make_run(name, rows), f"<b>{name}") for name in ("one", "two")]
    page = tmp_path / "page.html"
    page.write_text(html_page(runs, "updates", 1).replace("</body>", f"{ACTIONS}</body>"), encoding="utf-8")
    dom = subprocess.run([str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                          f"--user-data-dir={tmp_path}/browser", page.as_uri()],
                         capture_output=True, text=True, timeout=120, check=True).stdout
    said = json.loads(html.unescape(re.search(r"<body>(.*?)</body>", dom, re.S)[1]))
    assert said["figures"] == ["training loss, nats a target token", "BLEU of validation",
                               "loss of validation, nats a target token", "learning rate",
                               "target tokens a second of training"]
    assert said["lines"] == 2 and said["dashes"][0] == "" and said["dashes"][1]
    assert said["over"] == "training loss, nats a target token over minutes" and said["moved"]
    assert (said["raw"], said["smoothed"], said["without"], said["best"]) == (0, 4, 1, 2)
    assert "<b>one" in said["tip"] and "20" in said["tip"] and said["scripts"] == 3
