"""What a model looked at while it translated a sentence, small enough for a page of thousands."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.hypotheses import TokenDetails

_DIGITS = np.array(list("0123456789abcdefghijklmnopqrstuvwxyz"))
LARGEST = len(_DIGITS) - 1


class SentenceAttention(NamedTuple):
    """The attention of a translation.

    Attributes:
        source, target: the tokens.
        weights: a digit to base 36 for each source token of each target token, row by row; `z` is 1.
    """

    source: list[str]
    target: list[str]
    weights: str


def sentence_attention(details: TokenDetails | None, source_vocabulary: Vocabulary,
                       target_vocabulary: Vocabulary) -> SentenceAttention | None:
    """The attention of a hypothesis, in 36 steps; None of a blank line, or where it was not asked for."""
    if details is None or details.attention is None:
        return None
    steps = np.rint(LARGEST * np.clip(details.attention, 0, 1)).astype(np.int64)    # [tokens, source tokens]
    return SentenceAttention([source_vocabulary.id_to_piece(id) for id in details.source_ids],
                             [target_vocabulary.id_to_piece(id) for id in details.ids],
                             "".join(_DIGITS[steps.ravel()]))
