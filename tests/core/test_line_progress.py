"""Progress over lines: their number, their rate, and the remaining time."""

from __future__ import annotations

import io

import pytest

from towernmt.core.line_progress import LineProgress


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
