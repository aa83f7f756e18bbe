"""Pieces of lines, and the inputs of a batch of pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.predict.lines.terminology import Term

LineInputs = Mapping[str, Any]
"""Additional inputs of a line by name, such as a target prefix: NumPy arrays, or values that NumPy converts."""


class SearchRequest(NamedTuple):
    """The options of a line as inputs and settings of the search.

    Attributes:
        inputs: additional inputs by name; they may differ between lines.
        search: search settings that differ for this line.
        n_best: maximum number of hypotheses; None for all.
        terms: terms of a terminology that occur in the line and are requested.
        of_piece: returns the request of a piece of the line from the text of the piece, its index from 0, and whether
            it is the last; None: each piece has the request of the line.
    """

    inputs: LineInputs = {}
    search: Mapping[str, Any] = {}
    n_best: int | None = None
    terms: Sequence[Term] = ()
    of_piece: Callable[[str, int, bool], SearchRequest] | None = None


NOTHING = SearchRequest()


@dataclass(frozen=True)
class Piece:
    """A line, or a part of a long line, that is translated at once. Equal pieces have equal translations.

    Attributes:
        ids: source ids without EOS; with several streams, tuples of ids.
        kind: names of the inputs, and the settings; pieces of one kind can share a batch.
        key: content of the inputs.
        asked: request of the piece.
    """

    ids: tuple[Any, ...]
    kind: tuple[tuple[str, ...], str] = ((), "")
    key: tuple[Any, ...] = ()
    asked: SearchRequest = field(default=NOTHING, compare=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Sort key: groups pieces of one kind, short ones first."""
        return self.kind, len(self), self.ids, self.key

    def searched(self, settings: Mapping[str, Any]) -> Piece:
        """Return the piece with other search settings."""
        return piece_of(self.ids, self.asked._replace(search={**self.asked.search, **settings}))


def piece_of(ids: Iterable[Any], asked: SearchRequest = NOTHING) -> Piece:
    """Return a piece with these ids and this request."""
    if not asked.inputs and not asked.search:
        return Piece(tuple(ids))
    arrays = {name: np.asarray(value) for name, value in sorted(asked.inputs.items())}
    key = tuple((array.dtype.str, array.shape, array.tobytes()) for array in arrays.values())
    kind = tuple(arrays), repr(sorted(asked.search.items())) if asked.search else ""
    return Piece(tuple(ids), kind, key, asked._replace(inputs=arrays))


def batch_inputs(batch: Sequence[Piece], streams: int) -> dict[str, np.ndarray]:
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
            **{name: _stacked([piece.asked.inputs[name] for piece in batch]) for name in batch[0].asked.inputs}}


def asked_of_lines(lines: Iterable[tuple[int, str]], asked: Iterable[SearchRequest] | SearchRequest,
                   name: str) -> Iterator[tuple[int, str, SearchRequest]]:
    """Yield each line number and text with its request.

    Args:
        asked: requests of the lines, or one request of all lines.
        name: name of the input, for errors.
    Raises:
        DataError: the number of requests differs from the number of lines.
    """
    if isinstance(asked, SearchRequest):
        for number, text in lines:
            yield number, text, asked
        return
    rest, count = iter(asked), 0
    for number, text in lines:
        request = next(rest, None)
        if request is None:
            raise DataError(f"{name} line {number} has no inputs: pass inputs for each line.")
        count += 1
        yield number, text, request
    if next(rest, None) is not None:
        raise DataError(f"{name} has {count} lines but more inputs: pass one for each line.")


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    shape = np.max([array.shape for array in arrays], axis=0).astype(int)
    stacked = np.full([len(arrays), *shape], PAD, np.result_type(*arrays))
    for row, array in enumerate(arrays):
        index: tuple[int | slice, ...] = (row, *(slice(size) for size in array.shape))
        stacked[index] = array
    return stacked
