"""From lines to the inputs of a batch, by name: the ids of the source, and what a caller gives for each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from towernmt.core.errors import DataError
from towernmt.dataflow.order.padding import pad_sentences
from towernmt.dataflow.vocabulary.base import PAD

LineInputs = Mapping[str, Any]
"""Further inputs of a line by name, such as a target prefix: NumPy arrays, or what NumPy makes one of."""


@dataclass(frozen=True)
class Piece:
    """What is translated at once: a line, or a part of a long one. Equal pieces have equal translations.

    Attributes:
        ids: of the source, without EOS; of several streams, tuples of ids.
        key: what tells `inputs` from others.
        inputs: further inputs by name.
    """

    ids: tuple[Any, ...]
    key: tuple[Any, ...] = ()
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.ids)


def piece_of(ids: Iterable[Any], inputs: LineInputs) -> Piece:
    """A piece of a line that has further `inputs`."""
    arrays = {name: np.asarray(value) for name, value in sorted(inputs.items())}
    key = tuple((name, array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items())
    return Piece(tuple(ids), key, arrays)


def batch_inputs(batch: Sequence[Piece], streams: int) -> dict[str, np.ndarray]:
    """The inputs of a batch by name.

    Args:
        streams: ids of a token of the source, as the vocabulary has it.
    Returns:
        `source`, int32 `[batch, source length]` or `[batch, source length, streams]`; `source_length`, int32 `[batch]`;
        and each further input, `[batch, ...]`, padded with PAD (0) to the largest of the batch.
    """
    source, length = pad_sentences([piece.ids for piece in batch], streams)
    return {"source": source, "source_length": length,
            **{name: _stacked([piece.inputs[name] for piece in batch]) for name in batch[0].inputs}}


def inputs_of_lines(lines: Iterable[tuple[int, str]], inputs: Iterable[LineInputs] | None,
                    name: str) -> Iterator[tuple[int, str, LineInputs]]:
    """Each (line number, text) with its further inputs.

    Args:
        inputs: for each line; None for none.
        name: where the lines come from, for errors.
    Raises:
        DataError: there are not as many inputs as lines, or they have not the same names.
    """
    if inputs is None:
        for number, text in lines:
            yield number, text, {}
        return
    rest, number = iter(inputs), 0
    names: set[str] | None = None
    for number, text in lines:
        given = next(rest, None)
        if given is None:
            raise DataError(f"{name} line {number} has no inputs: give as many as there are lines.")
        names = set(given) if names is None else names
        if set(given) != names:
            raise DataError(f"{name} line {number} has the inputs {sorted(given)} where line 1 has {sorted(names)}: "
                            "give every line the same ones.")
        yield number, text, given
    if next(rest, None) is not None:
        raise DataError(f"{name} has {number} lines but more inputs: give as many as there are lines.")


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    shape = np.max([array.shape for array in arrays], axis=0).astype(int)
    stacked = np.full([len(arrays), *shape], PAD, np.result_type(*arrays))
    for row, array in enumerate(arrays):
        place: tuple[int | slice, ...] = (row, *(slice(size) for size in array.shape))
        stacked[place] = array
    return stacked
