"""examples/general_queue_runner.py has the effects that its docstring describes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "general_queue_runner.py"

FILE = [f"numbers.bin {numbers}" for numbers in (
    "[0 1 2 3]", "[4 5 6 7]", "[ 8  9 10 11]", "[12 13 14 15]", "[16 17 18 19]")]
DATABASE = [f"sentence {numbers}" for numbers in ("[4 7]", "[3 3 3 5]", "[5 3]", "[5 2 3 7 6]")]
S3 = [f"s3 {numbers}" for numbers in ("[5]", "[3 5 8]", "[1 1]", "[2]", "[3]", "[4]")]


def in_turn(*sources: list[str]) -> list[str]:
    """Return one record from each source in turn, without sources that have ended."""
    return [record for turn in itertools.zip_longest(*sources) for record in turn if record is not None]


def without_log(output: str) -> list[str]:
    """Return the lines of the example's output that are not from its log."""
    return [line.strip() for line in output.splitlines() if "@queue_runner.py" not in line]


@pytest.mark.thorough
def test_the_example_delivers_a_file_and_a_database_in_order_and_then_the_error() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], text=True, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    lines = without_log(done.stdout)
    first, second, third = (lines.index(title) for title in (
        "With a Coordinator:", "With a MonitoredSession:", "With a missing table:"))
    assert lines[0].startswith("S3 is not read: pass --s3") and first == 1
    assert lines[first + 1:second] == [*in_turn(FILE, DATABASE), "the end, after 9 records"]
    assert lines[second + 1:third] == in_turn(FILE, DATABASE)
    assert lines[third + 1] == FILE[0]
    assert lines[third + 2] == "Feeding stopped at sentences.db: OperationalError: no such table: sentences"
    assert len(lines) == third + 3


def test_the_example_delivers_a_file_a_database_and_s3_in_order(s3: Any, start_program: Any) -> None:
    bucket = s3.new_bucket()
    s3.client().put_object(Bucket=bucket, Key="pairs.tsv", Body=b"hallo\thello\nwie gehts heute...\thow are you\n"
                           b"a b\tc\nzu\tto\nund\tand\noder\tor\n")
    result = start_program(f"import runpy\nrunpy.run_path({str(EXAMPLE)!r}, run_name='__main__')", "--s3",
                           f"s3://{bucket}/pairs.tsv?endpoint_url={s3.url}").wait()
    assert result.status == 0, result.text
    lines = without_log(result.output)
    assert lines[0] == "With a Coordinator:"
    assert lines[1:17] == [*in_turn(FILE, DATABASE, S3), "the end, after 15 records"]
