"""Pieces of lines, and the inputs of a batch of pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.predict.lines.terminology import Term

LineInputs = Mapping[str, Any]
"""Additional inputs of a line by name, such as a target prefix: NumPy arrays, or values that NumPy converts."""


@dataclass(frozen=True)
class LinePiece:
    """A line, or a piece of a long line, that is translated at once. Equal pieces have equal translations.

    Attributes:
        ids: source ids without EOS; with several streams, tuples of ids.
        kind: names of the inputs, and the changed search settings; pieces of one kind can share a batch.
        key: content of the inputs.
        inputs: additional inputs by name, arrays without the batch dimension.
        search: search settings that differ for this piece.
        terms: requested terms of a terminology that occur in the piece.
    """

    ids: tuple[Any, ...]
    kind: tuple[tuple[str, ...], str] = ((), "")
    key: tuple[Any, ...] = ()
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)
    search: Mapping[str, Any] = field(default_factory=dict, compare=False)
    terms: Sequence[Term] = field(default=(), compare=False)

    @classmethod
    def of(cls, ids: Iterable[Any], inputs: LineInputs, search: Mapping[str, Any], terms: Sequence[Term]) -> LinePiece:
        """Return a piece with the kind and the key of its inputs."""
        arrays = {name: np.asarray(value) for name, value in sorted(inputs.items())}
        kind = tuple(arrays), repr(sorted(search.items())) if search else ""
        key = tuple((array.dtype.str, array.shape, array.tobytes()) for array in arrays.values())
        return cls(tuple(ids), kind, key, arrays, search, terms)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Sort key: groups pieces of one kind, short ones first."""
        return self.kind, len(self), self.ids, self.key

    def with_search(self, settings: Mapping[str, Any]) -> LinePiece:
        """Return the piece with other search settings."""
        return self.of(self.ids, self.inputs, {**self.search, **settings}, self.terms)


def batch_inputs(batch: Sequence[LinePiece], streams: int) -> dict[str, np.ndarray]:
    """Return the inputs of a batch by name.

    Args:
        batch: pieces of one kind.
        streams: number of ids of a source token.

    Returns:
        `source`, int32 `[batch, source length]` or `[batch, source length, streams]`; `source_length`, int32 `[batch]`;
        and each additional input, `[batch, ...]`, padded with PAD (0) to the largest of the batch.
    """
    source, length = pad_sentences([piece.ids for piece in batch], streams)
    return {"source": source, "source_length": length,
            **{name: _stacked([piece.inputs[name] for piece in batch]) for name in batch[0].inputs}}


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    shape = np.max([array.shape for array in arrays], axis=0).astype(int)
    stacked = np.full([len(arrays), *shape], PAD, np.result_type(*arrays))
    for row, array in enumerate(arrays):
        index: tuple[int | slice, ...] = (row, *(slice(size) for size in array.shape))
        stacked[index] = array
    return stacked
