"""The sentences of a search by CTranslate2, with their limits, prefixes and avoided phrases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from towernmt.dataflow.vocabulary.base import BOS, PAD
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.surfaces import WORD_BREAK

EXACT_PATIENCE, PREFIX_PATIENCE, NO_END = 2.0, 4.0, 1e4
"""Number of finished hypotheses that ends a search, divided by the beam size: for `stopping=exact`, the same after an
(often improbable) prefix, and for a search that runs up to its maximum length."""
MAX_PENALTY = 1.0
"""Maximum length penalty with which `EXACT_PATIENCE` finds the best hypothesis. A higher one favours hypotheses that
end long after the first ones (docs/notes/translation-speed.md)."""
Ids = tuple[int, ...]


class LengthLimits(NamedTuple):
    """Limits of the number of tokens in a translation.

    Attributes:
        maximum: maximum, EOS included.
        minimum: minimum, EOS excluded.
    """

    maximum: int
    minimum: int


class AvoidedIds(NamedTuple):
    """Phrases that a translation must not contain.

    Attributes:
        anywhere: ids of the phrases without a mark before them, which CTranslate2 can forbid.
        marks: by the ids of each phrase, the marks before it: BOS, `WORD_BREAK`, or None for a phrase of `anywhere`.
        lengths: numbers of ids of the phrases.
    """

    anywhere: tuple[Ids, ...]
    marks: Mapping[Ids, set[int | None]]
    lengths: frozenset[int]

    @classmethod
    def of(cls, rows: np.ndarray) -> AvoidedIds:
        """Return the phrases of a sentence from the graph's input `avoid`, int32 `[phrases, length]`."""
        anywhere, marks = [], dict[Ids, set[int | None]]()
        for row in rows.tolist():
            ids = tuple(id for id in row if id != PAD)
            is_marked = ids[:1] in ((BOS,), (WORD_BREAK,))
            if phrase := ids[is_marked:]:
                marks.setdefault(phrase, set()).add(ids[0] if is_marked else None)
                anywhere += [] if is_marked else [phrase]
        return cls(tuple(anywhere), marks, frozenset(map(len, marks)))

    def occurrences(self, ids: Sequence[int], free: int, breaks: Callable[[], np.ndarray]
                    ) -> Iterator[tuple[int, Ids]]:
        """Yield the index and the ids of each phrase that a hypothesis contains.

        Args:
            ids: tokens of the hypothesis.
            free: number of tokens with which it had to begin. A phrase that ends among them is accepted.
            breaks: returns bool `[vocabulary]`, whether a token matches `WORD_BREAK`.
        """
        for length in self.lengths:
            for start in range(max(0, free + 1 - length), len(ids) - length + 1):
                phrase = tuple(ids[start:start + length])
                marks = self.marks.get(phrase, set())
                if None in marks or (marks and start == 0) or (WORD_BREAK in marks and breaks()[ids[start - 1]]):
                    yield start, phrase


NOTHING_AVOIDED = AvoidedIds((), {}, frozenset())


class SentenceRequest(NamedTuple):
    """A sentence of a batch, with the restrictions of its translation.

    Attributes:
        source: ids without EOS.
        limits: limits of its translation.
        prefix: ids with which its translation begins.
        avoided: phrases that its translation must not contain.
        forbidden: sequences of ids that CTranslate2 forbids.
    """

    source: list[Any]
    limits: LengthLimits
    prefix: Ids = ()
    avoided: AvoidedIds = NOTHING_AVOIDED
    forbidden: tuple[Ids, ...] = ()


def sentence_requests(inputs: Mapping[str, np.ndarray], search: SearchSettings) -> list[SentenceRequest]:
    """Return the sentences of a batch.

    Args:
        inputs: inputs of `CTranslate2Search`.
        search: search settings.
    """
    sentences = []
    phrases: dict[bytes, AvoidedIds] = {}       # many sentences avoid the same phrases
    # PAD and BOS are never sampled. A beam forbids them only if they occur.
    never: tuple[Ids, ...] = ((PAD,), (BOS,)) if search.selection == "sampling" else ()
    for row, length in enumerate(inputs["source_length"].tolist()):
        prefix = [id for id in inputs["prefix"][row].tolist() if id != PAD] if "prefix" in inputs else []
        avoided = NOTHING_AVOIDED
        if "avoid" in inputs:
            key = inputs["avoid"][row].tobytes()
            avoided = phrases[key] if key in phrases else AvoidedIds.of(inputs["avoid"][row])
            phrases[key] = avoided
        sentences.append(SentenceRequest(
            inputs["source"][row, :length - 1].tolist(), limits_of(search, length, len(prefix)), tuple(prefix), avoided,
            avoided.anywhere + never))
    return sentences


def limits_of(search: SearchSettings, source_length: int, prefix_length: int = 0) -> LengthLimits:
    """Return the limits of a translation.

    Args:
        search: search settings.
        source_length: in tokens, EOS included.
        prefix_length: number of tokens with which the translation begins.
    """
    def share(tokens: int, factor: float) -> int:
        return int(np.floor(np.float32(tokens) * np.float32(factor)))       # as TensorFlow computes it

    maximum = max(share(source_length, search.max_length_factor) + search.max_length_constant, 1)
    maximum = min(maximum, search.max_tokens) if search.max_tokens else maximum
    if prefix_length:
        maximum = max(maximum, prefix_length + max(search.max_length_constant, 1))
    minimum = max(share(source_length - 1, search.min_length_factor), search.min_length)
    return LengthLimits(maximum, min(minimum, maximum))


def longest_of(search: SearchSettings, source_lengths: np.ndarray, prefixes: np.ndarray | None = None) -> int:
    """Return the maximum number of tokens of sources and their translations, EOS included.

    Args:
        search: search settings.
        source_lengths: int32 `[batch]`, or `[]` for one sentence, in tokens, EOS included.
        prefixes: ids with which the translations begin, int32 `[batch, tokens]` or `[tokens]`, padded with PAD; None
            without prefixes.
    """
    lengths = np.atleast_1d(source_lengths)
    prefix_lengths = np.zeros_like(lengths) if prefixes is None else np.atleast_1d((prefixes != PAD).sum(axis=-1))
    pairs = set(zip(lengths.tolist(), prefix_lengths.tolist(), strict=True))
    return max((max(length, limits_of(search, length, prefix_length).maximum) for length, prefix_length in pairs),
               default=0)


def patience_of(search: SearchSettings, prefix_length: int = 0) -> float:
    """Return the number of finished hypotheses that ends a search, divided by the beam size.

    Args:
        search: search settings.
        prefix_length: number of tokens with which the translation begins.
    """
    if search.beam_size == 1:
        return 1.0
    if search.stopping == "first":
        return math.ceil(search.patience * search.beam_size) / search.beam_size
    if search.stopping == "none" or search.word_reward or search.length_penalty > MAX_PENALTY:
        return NO_END
    return PREFIX_PATIENCE if prefix_length else EXACT_PATIENCE
