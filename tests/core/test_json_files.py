"""Reading JSON into dataclasses: a wrong value is reported in one sentence with file and field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from towernmt.core.errors import CheckpointError, DataError
from towernmt.core.structured_files import Between, Natural, parse_json, read_json


@dataclass(frozen=True)
class Part:
    file: str
    pairs: Natural
    share: Annotated[float, Between(0, 1)] = 1.0


@dataclass(frozen=True)
class Record:
    step: int
    parts: list[Part]
    kind: Literal["a", "b"] = "a"
    best: float | None = None
    inner: Part | None = None
    scores: dict[str, float] = field(default_factory=dict)
    anything: Any = None


WHOLE = {"step": 3, "parts": [{"file": "x", "pairs": 0}], "kind": "b", "best": 2, "scores": {"bleu": 1.5}}


def test_a_file_is_read_as_its_dataclass(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(WHOLE))
    record = read_json(path, Record, "Train again.")
    assert record == Record(3, [Part("x", 0)], "b", 2.0, None, {"bleu": 1.5})
    assert isinstance(record.best, float)
    assert parse_json(b"[1, 2]", list[int], "x", "") == [1, 2]


@pytest.mark.parametrize(("change", "reason"), [
    ({"step": "3"}, 'the field `step` holds "3" where a whole number is expected'),
    ({"step": True}, "the field `step` holds true where a whole number is expected"),
    ({"step": 1.5}, "the field `step` holds 1.5 where a whole number is expected"),
    ({"step": None}, "the field `step` holds null where a whole number is expected"),
    ({"parts": None}, "the field `parts` holds null where a list is expected"),
    ({"parts": {}}, "the field `parts` holds an object where a list is expected"),
    ({"parts": [{"file": "x", "pairs": -5}]}, r"the field `parts\[0\].pairs` holds -5 where 0 or more is expected"),
    ({"parts": [{"file": "x", "pairs": 2**63}]},
     rf"the field `parts\[0\].pairs` holds {2**63} where {2**63 - 1} or less is expected"),
    ({"parts": [{"file": "x", "pairs": 1, "share": 1.1}]}, r"`parts\[0\].share` holds 1.1 where 1 or less is expected"),
    ({"parts": [{"file": "x", "pairs": 1, "evil": 1}]}, r"the field `parts\[0\].evil` is not known"),
    ({"parts": [{"file": "x"}]}, r"the field `parts\[0\].pairs` is missing"),
    ({"parts": [7]}, r"the field `parts\[0\]` holds 7 where an object is expected"),
    ({"kind": "c"}, 'the field `kind` holds "c" where "a" or "b" is expected'),
    ({"best": "high"}, 'the field `best` holds "high" where a number or null is expected'),
    ({"best": 10 ** 400}, "the field `best` holds 1000.* where a number or null is expected"),
    ({"inner": {"file": 3, "pairs": 1}}, "the field `inner.file` holds 3 where a text is expected"),
    ({"scores": {"bleu": []}}, "the field `scores.bleu` holds a list where a number is expected"),
    ({"other": 1}, "the field `other` is not known")])
def test_the_error_of_a_wrong_value_names_file_and_field(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=rf"^record.json: .*{reason}\S*\. Train again\.$"):
        parse_json(json.dumps(WHOLE | change).encode(), Record, "record.json", "Train again.")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"step": NaN}', b'{"step": Infinity}', b"[" * 100_000,
                                     b"1" * 10_000])
def test_a_file_that_is_not_json_is_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^x: (cannot be read \(.*\)|it holds .* is expected)\. Mend it\.$"):
        parse_json(content, Record, "x", "Mend it.", CheckpointError)


def test_the_error_of_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing.json: cannot be read \(No such file"):
        read_json(tmp_path / "nothing.json", Record, "Train again.")
