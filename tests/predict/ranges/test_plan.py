"""Plans: every line is in one range, ranges begin with windows, and changed lines are detected."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from towernmt.core.errors import DataError
from towernmt.predict.ranges.plan import (
    FileText,
    Plan,
    RangeReader,
    Text,
    is_plan_of,
    make_plan,
    open_texts,
    short_name,
)


def named(*paths: Path) -> list[Text]:
    return open_texts([str(path) for path in paths])


def lines_of(plan: Plan, texts: list[Text], beside: list[Text] | None = None) -> list[bytes]:
    reader = RangeReader(plan, texts, beside or [])
    return [line for line_range in plan.ranges for line in reader.read(line_range).lines]


@pytest.mark.parametrize("window", [1, 7, 500, 2000])
def test_each_line_is_in_one_part_in_order_and_parts_begin_where_windows_do(texts: list[Path], window: int) -> None:
    plan = make_plan(named(*texts), [], [0, 0, 0], window)
    assert b"".join(lines_of(plan, named(*texts))) == b"".join(path.read_bytes() for path in texts)
    assert plan.lines == 5231 and all((line_range.first_line - 1) % window == 0 for line_range in plan.ranges)
    assert [line_range.lines_before for line_range in plan.ranges if line_range.text == 1] == [5230]
    assert len(plan.ranges) == -(-5230 // plan.lines_per_unit) + 1


def test_many_lines_make_larger_parts_and_a_later_plan_keeps_their_size(
        texts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.predict.ranges.plan.MAX_RANGES", 4)
    plan = make_plan(named(*texts), [], [0, 1, 2], 500)
    assert plan.units_per_range == 3
    assert [line_range.num_lines for line_range in plan.ranges] == [1500, 1500, 1500, 730, 1]
    assert [line_range.lines_before for line_range in plan.ranges] == [0] * 5
    assert b"".join(lines_of(plan, named(*texts))) == b"".join(path.read_bytes() for path in texts)
    texts[0].write_bytes(texts[0].read_bytes().replace(b"\n4000 ", b"\nchanged "))
    later = make_plan(named(*texts), [], [0, 1, 2], 500, units_per_range=plan.units_per_range)
    changed = [old.number for old, new in zip(plan.ranges, later.ranges, strict=True)
               if old.fingerprint != new.fingerprint]
    assert changed == [2] and not is_plan_of(plan, named(*texts), [], 500)
    assert is_plan_of(later, named(*texts), [], 500)


def test_parts_of_a_compressed_file_are_read_in_any_order(texts: list[Path], tmp_path: Path) -> None:
    packed = tmp_path / "packed.de.gz"
    packed.write_bytes(gzip.compress(texts[0].read_bytes()))
    plan = make_plan(named(packed), [], [0], 500)
    text, = found = named(packed)
    reader, ranges = RangeReader(plan, found, []), list(plan.ranges)
    random.Random(5).shuffle(ranges)
    read = {line_range.number: reader.read(line_range).lines for line_range in ranges}
    assert b"".join(line for number in sorted(read) for line in read[number]) == texts[0].read_bytes()
    assert short_name(text) == "packed.de"


def test_a_file_with_a_line_for_each_line_goes_with_the_parts_and_must_have_as_many(
        texts: list[Path], tmp_path: Path) -> None:
    prefixes = tmp_path / "prefixes"
    lines = [b"prefix %d\n" % number for number in range(5231)]
    prefixes.write_bytes(b"".join(lines))
    plan = make_plan(named(*texts), named(prefixes), [0, 0, 0], 500)
    reader = RangeReader(plan, named(*texts), named(prefixes))
    for line_range in reversed(plan.ranges):
        begin = line_range.lines_before + line_range.first_line - 1
        assert reader.read(line_range).parallel == [lines[begin:begin + line_range.num_lines]]
    prefixes.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(DataError, match=r"prefixes has no line for .*b.de line 1:"):
        make_plan(named(*texts), named(prefixes), [0, 0, 0], 500)
    prefixes.write_bytes(b"".join([*lines, b"one more\n"]))
    with pytest.raises(DataError, match="has more lines than there are to translate, 5,231"):
        make_plan(named(*texts), named(prefixes), [0, 0, 0], 500)


def test_lines_that_are_others_now_are_not_translated(texts: list[Path]) -> None:
    plan = make_plan(named(*texts), [], [0, 0, 0], 500)
    texts[0].write_bytes(texts[0].read_bytes().replace(b"\n600 ", b"\n 600"))
    reader = RangeReader(plan, named(*texts), [])
    assert len(reader.read(plan.ranges[0]).lines) == 500
    with pytest.raises(DataError, match="lines 501 to 1000 have changed since"):
        reader.read(plan.ranges[1])


def test_texts_are_found_by_patterns_and_a_name_is_taken_once(texts: list[Path], tmp_path: Path) -> None:
    found = open_texts([str(tmp_path / "[ab].de")])
    assert [text.name for text in found] == [str(path) for path in texts[:2]]
    assert all(isinstance(text, FileText) for text in found)
    with pytest.raises(DataError, match="is an input twice"):
        open_texts([str(tmp_path / "*.de"), str(texts[1])])
    with pytest.raises(DataError, match="does not exist"):
        open_texts([str(tmp_path / "missing")])


def test_the_column_of_a_table_is_a_text(tmp_path: Path) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="needs towernmt[sql]")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/mono.db")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE lines (id INTEGER PRIMARY KEY, text VARCHAR NOT NULL)"))
        rows = [{"id": 3 * number, "text": f"row\n{number} ä"} for number in range(1300)]
        connection.execute(sqlalchemy.text("INSERT INTO lines VALUES (:id, :text)"), rows)
    uri = f"sqlite:///{tmp_path}/mono.db?table=lines&source=text"
    plan = make_plan(open_texts([uri]), [], [0], 500)
    assert [line_range.num_lines for line_range in plan.ranges] == [500, 500, 300]
    assert lines_of(plan, open_texts([uri])) == [f"row {number} ä\n".encode() for number in range(1300)]
    reader = RangeReader(plan, open_texts([uri]), [])
    assert reader.read(plan.ranges[2]).lines[0] == "row 1000 ä\n".encode()
    assert reader.read(plan.ranges[1]).lines[-1] == "row 999 ä\n".encode()
