from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.batch import Position

NATURAL = st.integers(min_value=0, max_value=2**63)


@given(NATURAL, NATURAL, NATURAL)
def test_a_position_survives_the_way_through_json(epoch: int, block: int, batch: int) -> None:
    position = Position(epoch, block, batch)
    assert Position.from_json(position.to_json()) == position
    assert Position.from_json(position.to_json().encode()) == position


def test_the_json_is_readable_and_on_one_line() -> None:
    assert Position(1, 2, 3).to_json() == '{"epoch": 1, "block": 2, "batch": 3}'


@pytest.mark.parametrize("garbage", [
    "", "null", "7", "[0, 0, 0]", "{}", '{"epoch": 0, "block": 0}', '{"epoch": 0, "block": 0, "batch": -1}',
    '{"epoch": 0, "block": 0, "batch": 1.0}', '{"epoch": 0, "block": 0, "batch": true}',
    '{"epoch": 0, "block": 0, "batch": "1"}', '{"epoch": 0, "block": 0, "batch": 0, "more": 0}',
    '{"epoch": 0, "block": 0, "ba', b"\xff\xfe\x00", "[" * 100_000, "x" * 1000,
])
def test_anything_else_is_refused_with_one_short_sentence(garbage: str | bytes) -> None:
    with pytest.raises(DataError, match="is not a data position; expected") as error:
        Position.from_json(garbage)
    assert len(str(error.value)) < 400
