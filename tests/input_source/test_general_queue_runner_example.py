"""examples/general_queue_runner.py does what its docstring says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RECORDS = ["[0 1 2 3]", "[4 7]", "[4 5 6 7]", "[3 3 3 5]", "[ 8  9 10 11]", "[5 3]", "[12 13 14 15]",
           "[5 2 3 7 6]", "[16 17 18 19]"]


def test_the_example_delivers_both_sources_in_order_and_then_the_error() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "examples" / "general_queue_runner.py")], text=True,
                          capture_output=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines() if "@queue_runner.py" not in line]  # its log
    first, second, third = (lines.index(title) for title in (
        "With a Coordinator:", "With a MonitoredSession:", "With a table that is not there:"))
    assert lines[first + 1:second] == [*RECORDS, "the end, after 9 records"]
    assert lines[second + 1:third] == RECORDS
    assert lines[third + 1] == RECORDS[0]
    assert lines[third + 2] == "Feeding stopped at sentences.db: OperationalError: no such table: sentences"
    assert len(lines) == third + 3
