"""Progress over lines: their number, their rate, and the remaining time."""

from __future__ import annotations

import io

import pytest

from towernmt.core.line_progress import LineProgress, StageProgress


def test_the_rest_is_estimated_from_what_this_process_did(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stream = 0.0, io.StringIO()
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = LineProgress("encoding", 10_000, stream, done=4000)
    for now, lines in ((10.0, 5000), (20.0, 6000)):  # noqa: B007
        progress.update(lines)
    now = 60.0
    progress.update(10_000)
    progress.done()
    assert stream.getvalue().splitlines()[:2] == [
        "encoding: 5,000 of 10,000 lines, 10.0 s, 100 lines/s, 50 s left",
        "encoding: 6,000 of 10,000 lines, 20.0 s, 100 lines/s, 40 s left"]
    assert stream.getvalue().splitlines()[-1] == "encoding: 10,000 of 10,000 lines, 60.0 s, 100 lines/s"


def test_only_stages_that_take_long_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stream = 0.0, io.StringIO()
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = StageProgress(stream)
    progress.begin("reading", "lines")
    assert [*progress.counted("ab")] == ["a", "b"]
    for work in (progress, progress.of_part("checking a.txt")):
        work.begin("learning", "pairs", 300)
        work.add(100)
        now += 10.0
        work.add(100)
        work.add(100)
        work.end()
    assert stream.getvalue().splitlines() == [
        f"{name}learning: {report}" for name in ("", "checking a.txt: ") for report in (
            "200 of 300 pairs, 10.0 s, 20 pairs/s, 5 s left", "300 of 300 pairs, 10.0 s, 30 pairs/s")]


def test_other_text_begins_on_a_new_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("towernmt.core.line_progress.report_interval", lambda terminal: 0.0)
    progress = StageProgress(stream)
    progress.begin("reading", "lines")
    progress.break_line()
    assert not stream.getvalue()
    progress.add()
    progress.break_line()
    progress.break_line()
    assert stream.getvalue().endswith("\r\n") and stream.getvalue().count("\n") == 1
