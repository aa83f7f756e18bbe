"""`towernmt translate` in ranges writes the same output as in one piece, with a translator that reverses words."""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from towernmt.cli import translate, translate_ranges
from towernmt.core import machine
from towernmt.core.errors import DataError, SettingsError
from towernmt.farm.farm import Event, Ready, call
from towernmt.predict.lines.faults import RETRY_ADVICE, counted
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.lines.line_options import line_requests
from towernmt.predict.ranges.job import RangeTask
from towernmt.predict.search.search_settings import SearchSettings

LINES = 2345


class Reverser:
    """A fake `Translator`: returns the prefix, the phrases and the inputs of a line, followed by the reversed line."""

    checkpoint, engine = "runs/x/best/step-1/model", "graph"
    target_vocabulary = None
    search = SearchSettings()
    faults = None

    def translate_stream(self, lines: Any, name: str = "input", options: Any = None, first: int = 1) -> Any:
        return counted(self._found(lines, name, options, first), name, first, self.faults, RETRY_ADVICE)

    def _found(self, lines: Any, name: str, options: Any, first: int) -> Any:
        for request in line_requests(lines, name, first, options):
            words = reversed(request.text.split())
            text = " ".join([request.options.prefix, *request.options.constraints, *words])
            looks_wrong = "loop" if request.text.startswith("7") else None
            yield Translation([Hypothesis(text, -0.5, fault=looks_wrong, tokens=3), Hypothesis("", -2.0)])


class WorkersHere:
    """`Workers` that run in this process."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self.count, self._make, self._made = count, make, dict[int, Any]()
        self._events: deque[tuple[int, Event]] = deque()

    def start(self, number: int) -> None:
        self._made[number] = self._make(number)
        self._events.append((number, Ready(self._made[number].description)))

    def submit(self, number: int, work: RangeTask) -> None:
        self._events.append((number, call(lambda: self._made[number](work))))

    def wait(self, seconds: float) -> list[tuple[int, Event]]:
        return [self._events.popleft()] if self._events else []

    def stop(self) -> None:
        self._events.clear()


@pytest.fixture(autouse=True)
def without_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (translate, translate_ranges):
        monkeypatch.setattr(module, "make_translator", lambda args, **details: Reverser())
    monkeypatch.setattr(translate_ranges, "LocalWorkers", WorkersHere)
    monkeypatch.setattr(machine, "_share", None)
    monkeypatch.setattr("logging.disable", lambda level: None)
    monkeypatch.chdir(tmp_path)
    for name, kind in (("a", str), ("b", lambda number: json.dumps(
            {"text": f"{number} ä", "prefix": "p", "id": "\ud83d"}))):
        Path(f"{name}.de").write_text("".join(f"{kind(number)} x\n" if kind is str else f"{kind(number)}\n"
                                              for number in range(LINES)))


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    translate.add_translate_arguments(parser)
    assert translate.run_translate(parser.parse_args(["--model", "runs/x", "--window", "500", *arguments])) == 0


@pytest.mark.parametrize("options", [
    [], ["--n-best", "2"], ["--scores"], ["--prefix", "beside"], ["--constraints", "beside"],
    ["--prefix", "beside", "--constraints", "beside"], ["--prefix", "one text"]], ids=" ".join)
def test_the_bytes_are_those_of_one_process(options: list[str]) -> None:
    Path("beside").write_text("".join(f"beside {number}\n" for number in range(LINES)))
    run("--input", "a.de", "--output", "one", *options)
    run("--input", "a.de", "--output", "ranges", "--workers", "3", *options)
    assert Path("ranges").read_bytes() == Path("one").read_bytes() and len(Path("one").read_text()) > 7 * LINES
    assert not list(Path().glob("*.ranges"))


def test_objects_of_json_are_numbered_and_answered_as_by_one_process() -> None:
    run("--json", "--input", "b.de", "--output", "one", "--n-best", "2")
    run("--json", "--input", "b.de", "--output", "ranges", "--workers", "2", "--n-best", "2")
    assert Path("ranges").read_bytes() == Path("one").read_bytes()
    assert json.loads(Path("one").read_text().splitlines()[-1])["sentence_id"] == LINES


def test_each_text_has_a_separate_output_or_all_share_one_with_consecutive_line_numbers() -> None:
    Path("c.de.gz").write_bytes(gzip.compress(Path("a.de").read_bytes()))
    run("--input", "a.de", "--output", "one", "--n-best", "1")
    run("--input", "[ac].de*", "--output", "out/{name}.en", "--n-best", "1")
    assert {path.name for path in Path("out").iterdir()} == {"a.de.en", "c.de.en"}
    assert Path("out/a.de.en").read_bytes() == Path("out/c.de.en").read_bytes() == Path("one").read_bytes()
    run("--input", "a.de", "c.de.gz", "--output", "all", "--n-best", "1")
    assert [int(line.split()[0]) for line in Path("all").read_text().splitlines()] == list(range(2 * LINES))
    run("--input", "a.de", "c.de.gz", "--output", "out/")
    assert {path.name for path in Path("out").iterdir()} == {"a.de.en", "c.de.en", "a.de", "c.de"}


def test_the_output_of_one_text_is_named_by_it() -> None:
    run("--input", "a.de", "--output", "one")
    run("--input", "a.de", "--output", "out/{name}.en")
    run("--input", "a.de", "--output", "out/")
    assert {path.name for path in Path("out").iterdir()} == {"a.de.en", "a.de"}
    assert Path("out/a.de.en").read_bytes() == Path("out/a.de").read_bytes() == Path("one").read_bytes()
    with pytest.raises(SettingsError, match="pass --input and --output"):
        run("--output", "out/{name}.en")


def test_suspicious_translations_are_counted_over_all_ranges(caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    run("--input", "a.de", "--output", "one")
    run("--input", "a.de", "--output", "ranges", "--workers", "2")
    messages = [record.getMessage() for record in caplog.records if "look wrong" in record.getMessage()]
    messages += [line for line in capfd.readouterr().err.splitlines() if "look wrong" in line]
    assert "a.de: 111 of 2345 translations look wrong: 111 in a loop (the first: line 8)" in messages[0]
    assert {line.removeprefix("WARNING ") for line in messages} == {messages[0]}


@pytest.mark.parametrize(("arguments", "message"), [
    (["--workers", "0"], "must be at least 1"), (["--workers", "2"], "pass --input and --output"),
    (["--workers", "2", "--input", "a.de", "--output", "x", "--window", "0"], "window=0"),
    (["--workers", "2", "--input", "a.de", "--output", "a.de"], "same file"),
    (["--workers", "2", "--input", "a.de", "--output", "/dev/null"], "not a regular file"),
    (["--workers", "2", "--input", "a.de", "--output", "/dev/stdout"], "not a regular file"),
    (["--workers", "2", "--input", "a.de", "--output", "w/", "--work-directory", "w"], "lies in --work-directory w"),
    (["--workers", "2", "--input", "a.de", "--output", "w/{name}.en", "--work-directory", "./w"], "lies in --work-dir"),
    (["--input", "a.de", "b.de", "--output", "x/", "--alignments", "y"], "a file for each text to both"),
    (["--input", "a.de", "b.de", "--output", "x", "--plot", "y"], "single process"),
    (["--input", "a.de", "b.de", "--output", "x", "--ray", "local", "--gpu", "3"], "leave out --gpu"),
    (["--input", "a.de", "sub/a.de", "--output", "x/"], "would both be written to x/a.de"),
    (["--input", "http://x/a.de", "--output", "x"], "files cannot be read from"),
    (["--input", "a.de", "--output", "gs://x/a.en"], "--output gs://x/a.en: .* pass a path or s3://bucket/key"),
    (["--input", "a.de", "--output", "x", "--plot", "s3://x/a.png"], "--plot s3://x/a.png: .* pass a path"),
    (["--output", "s3://x/a.en"], "pass --input and --output"),
    *((["--workers", "2", "--input", "a.de", "--output", "x", option, "pipe"], "pipe: a pipe or a device can be read")
      for option in ("--avoid", "--terminology", "--replace-unknown")),
    (["--input", "?.fr", "--output", "x"], "no file matches")])
def test_impossible_options_are_refused_before_anything_is_translated(arguments: list[str], message: str) -> None:
    Path("sub").mkdir()
    Path("sub/a.de").write_text("x\n")
    os.mkfifo("pipe")
    with pytest.raises((SettingsError, DataError), match=message):
        run(*arguments)
    assert not list(Path().glob("*.ranges"))


def test_a_line_that_is_not_json_is_named_and_the_other_ranges_are_kept() -> None:
    content = Path("b.de").read_text()
    Path("b.de").write_text(content.replace('{"text": "1700', '{"text" "1700'))
    with pytest.raises(DataError, match=r"1 of 5 ranges could not be translated: b.de line 1701: this is not JSON"):
        run("--json", "--input", "b.de", "--output", "ranges", "--workers", "2")
    assert len(list(Path("ranges.ranges/ranges").glob("*/done.json"))) == 4
    Path("b.de").write_text(content)
    with pytest.raises(DataError, match=r"was begun with --n-best: the default, and not with 2: use the same value,"):
        run("--json", "--input", "b.de", "--output", "ranges", "--workers", "2", "--n-best", "2")
    run("--json", "--input", "b.de", "--output", "ranges", "--workers", "1")
    run("--json", "--input", "b.de", "--output", "one")
    assert Path("ranges").read_bytes() == Path("one").read_bytes()


def test_a_machine_that_begins_later_has_the_batches_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    command, plan = ["--input", "a.de", "--output", "ranges", "--workers", "1"], translate_ranges._plan

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    def plan_after_another_machine(*arguments: Any) -> Any:
        monkeypatch.setattr(translate_ranges, "_plan", plan)
        with monkeypatch.context() as other, pytest.raises(KeyboardInterrupt):
            other.setattr(translate_ranges, "processors", lambda: 7)
            other.setattr(translate_ranges, "_translate", interrupt)
            run(*command)
        return plan(*arguments)

    monkeypatch.setattr(translate_ranges, "processors", lambda: 3)
    monkeypatch.setattr(translate_ranges, "_plan", plan_after_another_machine)
    run(*command)
    run("--input", "a.de", "--output", "one")
    assert Path("ranges").read_bytes() == Path("one").read_bytes()


TABLE = "sqlite:///mono.db?table=mono&source=text"


def make_table(lines: list[str]) -> Any:
    """Write the lines into the column `text` of `TABLE`, with even keys, and return SQLAlchemy's engine."""
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="needs towernmt[sql]")
    engine = sqlalchemy.create_engine("sqlite:///mono.db")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE mono (id INTEGER PRIMARY KEY, text VARCHAR NOT NULL)"))
        connection.execute(sqlalchemy.text("INSERT INTO mono VALUES (:id, :text)"),
                           [{"id": 2 * number, "text": line} for number, line in enumerate(lines)])
    return engine


def test_a_column_of_a_table_is_translated() -> None:
    make_table(Path("a.de").read_text().splitlines())
    run("--input", "a.de", "--output", "one")
    run("--input", TABLE, "--output", "table")
    assert Path("table").read_bytes() == Path("one").read_bytes()


def test_a_corrected_row_of_a_table_is_translated_by_the_same_command() -> None:
    lines = Path("b.de").read_text().splitlines()
    engine = make_table([line if number != 1700 else "not JSON" for number, line in enumerate(lines)])
    with pytest.raises(DataError, match=r"1 of 5 ranges could not be translated: .*this is not JSON"):
        run("--json", "--input", TABLE, "--output", "table")
    assert len(list(Path("table.ranges/ranges").glob("*/done.json"))) == 4
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE mono SET text = ? WHERE id = 3400", (lines[1700],))
    run("--json", "--input", TABLE, "--output", "table")
    run("--json", "--input", "b.de", "--output", "one")
    assert Path("table").read_bytes() == Path("one").read_bytes()


@pytest.mark.thorough
def test_more_files_than_can_be_open_are_translated() -> None:
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    open_now = max(map(int, os.listdir("/proc/self/fd"))) if Path("/proc/self/fd").is_dir() else 100
    limit = open_now + 100
    Path("many").mkdir()
    for number in range(limit + 20):
        Path(f"many/{number:04d}").write_text(f"{number} x\n")
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, former[1]))
        run("--input", "many/*", "--output", "back/")
        run("--input", "many/*", "--output", "all", "--workers", "2")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
    assert Path("back/0119").read_text() == " x 119\n" and len(list(Path("back").iterdir())) == limit + 20
    assert Path("all").read_text() == "".join(f" x {number}\n" for number in range(limit + 20))
