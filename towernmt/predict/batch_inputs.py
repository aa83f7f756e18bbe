"""From lines to the inputs of a batch, by name: the ids of the source, and what is asked for each line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from towernmt.core.errors import DataError
from towernmt.dataflow.order.padding import pad_sentences
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.predict.lexical.terminology import Term

LineInputs = Mapping[str, Any]
"""Further inputs of a line by name, such as a target prefix: NumPy arrays, or what NumPy makes one of."""


class Asked(NamedTuple):
    """What is asked for a line, in the terms of the search.

    Attributes:
        inputs: further inputs. Lines may have different ones.
        search: settings of the search that are others for this line.
        n_best: so many hypotheses at most; None for all.
        terms: of a terminology that were found in the line, and are asked for.
        of_piece: what is asked for a piece of the line in place of this, by the text of the piece and its number, from
            0; None: the same.
    """

    inputs: LineInputs = {}
    search: Mapping[str, Any] = {}
    n_best: int | None = None
    terms: Sequence[Term] = ()
    of_piece: Callable[[str, int], Asked] | None = None


NOTHING = Asked()


@dataclass(frozen=True)
class Piece:
    """What is translated at once: a line, or a part of a long one. Equal pieces have equal translations.

    Attributes:
        ids: of the source, without EOS; of several streams, tuples of ids.
        kind: the names of its inputs, and its settings: pieces of one kind can share a batch.
        key: what tells `inputs` from others.
        asked: for its line.
    """

    ids: tuple[Any, ...]
    kind: tuple[tuple[str, ...], str] = ((), "")
    key: tuple[Any, ...] = ()
    asked: Asked = field(default=NOTHING, compare=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def place(self) -> tuple[Any, ...]:
        """By which pieces are sorted: those of a kind together, short ones first."""
        return self.kind, len(self), self.ids, self.key

    def searched(self, settings: Mapping[str, Any]) -> Piece:
        """The same piece, to be searched for with other settings."""
        return piece_of(self.ids, self.asked._replace(search={**self.asked.search, **settings}))


def piece_of(ids: Iterable[Any], asked: Asked = NOTHING) -> Piece:
    """A piece of a line."""
    if not asked.inputs and not asked.search:
        return Piece(tuple(ids))
    arrays = {name: np.asarray(value) for name, value in sorted(asked.inputs.items())}
    key = tuple((array.dtype.str, array.shape, array.tobytes()) for array in arrays.values())
    kind = tuple(arrays), repr(sorted(asked.search.items())) if asked.search else ""
    return Piece(tuple(ids), kind, key, asked._replace(inputs=arrays))


def batch_inputs(batch: Sequence[Piece], streams: int) -> dict[str, np.ndarray]:
    """The inputs of a batch by name.

    Args:
        batch: of one kind.
        streams: ids of a token of the source, as the vocabulary has it.
    Returns:
        `source`, int32 `[batch, source length]` or `[batch, source length, streams]`; `source_length`, int32 `[batch]`;
        and each further input, `[batch, ...]`, padded with PAD (0) to the largest of the batch.
    """
    source, length = pad_sentences([piece.ids for piece in batch], streams)
    return {"source": source, "source_length": length,
            **{name: _stacked([piece.asked.inputs[name] for piece in batch]) for name in batch[0].asked.inputs}}


def asked_of_lines(lines: Iterable[tuple[int, str]], asked: Iterable[Asked] | None,
                   name: str) -> Iterator[tuple[int, str, Asked]]:
    """Each (line number, text) with what is asked for it.

    Args:
        asked: for each line; None for nothing.
        name: where the lines come from, for errors.
    Raises:
        DataError: it is not given for as many lines as there are.
    """
    if asked is None:
        for number, text in lines:
            yield number, text, NOTHING
        return
    rest, count = iter(asked), 0
    for number, text in lines:
        given = next(rest, None)
        if given is None:
            raise DataError(f"{name} line {number} has no inputs: give as many as there are lines.")
        count += 1
        yield number, text, given
    if next(rest, None) is not None:
        raise DataError(f"{name} has {count} lines but more inputs: give as many as there are lines.")


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    shape = np.max([array.shape for array in arrays], axis=0).astype(int)
    stacked = np.full([len(arrays), *shape], PAD, np.result_type(*arrays))
    for row, array in enumerate(arrays):
        place: tuple[int | slice, ...] = (row, *(slice(size) for size in array.shape))
        stacked[place] = array
    return stacked
