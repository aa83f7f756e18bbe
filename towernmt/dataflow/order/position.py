"""The position: one small value that says where in the order of the training data to go on reading.

The order is a pure function of (seed, epoch, corpus), so the address of the next batch is enough to
resume: one block is reopened, nothing is replayed. Where the block is a window of a stream, the position has
the cursor at which the window begins. The position travels with its batch through the
queue, and the checkpoint keeps that of the last batch that was trained on.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from towernmt.core.errors import DataError


class Position(NamedTuple):
    """The address of the next batch.

    Attributes:
        epoch: passes over the corpus that are complete.
        block: place in the epoch's (shuffled) order of blocks; not the number of the block in the corpus.
        batch: place in the block's (shuffled) order of batches.
        cursor: where the block begins in its source, JSON-serialisable; None where `block` says all.
    """

    epoch: int = 0
    block: int = 0
    batch: int = 0
    cursor: Any = None

    def to_json(self) -> str:
        """The position as a JSON object on one line; without `cursor` if that is None."""
        fields = self._asdict()
        if self.cursor is None:
            del fields["cursor"]
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Read what `to_json` wrote.

        Raises:
            DataError: anything else than an object of epoch, block and batch, whole numbers from 0, and
                perhaps cursor.
        """
        try:
            content = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise _not_a_position(text) from error
        if not isinstance(content, dict) or set(content) - {"cursor"} != {"epoch", "block", "batch"}:
            raise _not_a_position(text)
        if any(type(content[name]) is not int or content[name] < 0 for name in ("epoch", "block", "batch")):
            raise _not_a_position(text)
        return cls(**content)


def _not_a_position(text: object) -> DataError:
    shown = repr(text)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return DataError(f"{shown} is not a data position; expected {Position().to_json()} with whole numbers. "
                     "The checkpoint's state file is damaged, or was not written by towernmt.")
