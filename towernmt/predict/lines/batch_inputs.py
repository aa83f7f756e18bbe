"""Pieces of lines, and their batches with the inputs of the search."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np

from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.predict.lines.terminology import Term
from towernmt.predict.search.search_settings import StreamSettings, sentences_of_hypotheses

S = TypeVar("S", bound=Sized)
LEAST_SHARE = 8
"""Minimum number of sentences to divide among threads: a batch of half as many takes nearly as long."""
LineInputs = Mapping[str, Any]
"""Additional inputs of a line by name, such as a target prefix: NumPy arrays, or values that NumPy converts."""


@dataclass(frozen=True)
class LinePiece:
    """A line, or a piece of a long line, that is translated at once. Equal pieces have equal translations.

    Attributes:
        ids: source ids without EOS, after those of the source prefix; with several streams, tuples of ids.
        kind: names of the inputs, and the changed search settings; pieces of one kind can share a batch.
        key: dtype, shape and digest of each input, because a line may avoid thousands of segmentations.
        inputs: additional inputs by name, arrays without the batch dimension.
        search: search settings that differ for this piece.
        terms: requested terms of a terminology that occur in the piece.
        details: whether its translations need log-probabilities and attention; see `LineOptions`.
        prefix_size: number of ids of the source prefix.
    """

    ids: tuple[Any, ...]
    kind: tuple[tuple[str, ...], str] = ((), "")
    key: tuple[Any, ...] = ()
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)
    search: Mapping[str, Any] = field(default_factory=dict, compare=False)
    terms: Sequence[Term] = field(default=(), compare=False)
    details: bool = True
    prefix_size: int = 0

    @classmethod
    def of(cls, ids: Iterable[Any], inputs: LineInputs, search: Mapping[str, Any], terms: Sequence[Term],
           details: bool = True, prefix_size: int = 0) -> LinePiece:
        """Return a piece with the kind and the key of its inputs."""
        arrays = {name: np.asarray(value) for name, value in sorted(inputs.items())}
        kind = tuple(arrays), repr(sorted(search.items())) if search else ""
        key = tuple((array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
                    for array in arrays.values())
        return cls(tuple(ids), kind, key, arrays, search, terms, details, prefix_size)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def text_ids(self) -> tuple[Any, ...]:
        """The ids without those of the source prefix."""
        return self.ids[self.prefix_size:]

    def with_search(self, settings: Mapping[str, Any]) -> LinePiece:
        """Return the piece with other search settings."""
        return self.of(self.ids, self.inputs, {**self.search, **settings}, self.terms, self.details, self.prefix_size)


class PieceBatch(NamedTuple):
    """Pieces that are translated together.

    Attributes:
        pieces: pieces of one kind and similar lengths.
        inputs: inputs of the search; see `batch_inputs`.
    """

    pieces: Sequence[LinePiece]
    inputs: dict[str, np.ndarray]


def piece_batches(pieces: Iterable[LinePiece], settings: StreamSettings, streams: int,
                  is_undivided: Callable[[LinePiece], bool] | None = None) -> list[PieceBatch]:
    """Return the batches of pieces: with threads, the longest first, and enough for every thread.

    Args:
        pieces: pieces of any kinds.
        settings: maximum sizes of the batches, and the number of threads.
        streams: number of ids of a source token.
        is_undivided: returns whether a piece belongs to the batch of all such pieces of its kind that need the same
            details; None if none does.
    """
    divided: list[LinePiece] = []
    undivided: list[LinePiece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.kind, len(piece.ids), piece.ids, piece.key)):
        (undivided if is_undivided is not None and is_undivided(piece) else divided).append(piece)
    sentences, shares = settings.batch_sentences, settings.shares or settings.threads
    if shares > 1:
        sentences = min(sentences, max(LEAST_SHARE, -(-len(divided) // shares)))
    batches: list[PieceBatch] = []
    for _, group in groupby(divided, key=lambda piece: piece.kind):
        pieces_of_kind = list(group)
        search = pieces_of_kind[0].search       # may have a wider beam, or more samples, than other lines
        most = sentences_of_hypotheses(max(search.get("beam_size", 1), search.get("n_best", 1)))
        batches += [PieceBatch(batch, batch_inputs(batch, streams))
                    for batch in plan_batches(pieces_of_kind, settings.batch_tokens, min(sentences, most))]
    undivided.sort(key=_kind_and_details)
    for _, group in groupby(undivided, key=_kind_and_details):
        pieces_of_kind = list(group)
        batches.append(PieceBatch(pieces_of_kind, batch_inputs(pieces_of_kind, streams)))
    return batches[::-1] if settings.threads > 1 else batches


def _kind_and_details(piece: LinePiece) -> tuple[Any, bool]:
    return piece.kind, piece.details


def plan_batches(pieces: Iterable[S], batch_tokens: int, batch_sentences: int) -> Iterator[list[S]]:
    """Cut pieces, shortest first, into batches; the tokens of a batch count EOS and padding."""
    batch: list[S] = []
    for piece in pieces:
        if batch and (len(batch) == batch_sentences or (len(batch) + 1) * (len(piece) + 1) > batch_tokens):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


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
