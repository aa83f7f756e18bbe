"""Settings that every architecture has, beside its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.errors import SettingsError
from towernmt.models.embeddings import FACTORS, TIES, check_vocabularies
from towernmt.settings import setting


@dataclass(frozen=True)
class CommonSettings:
    """Loss, regularisation, adaptation and embeddings."""

    label_smoothing: float = setting(0.1, "probability spread over the vocabulary in the training loss")
    word_dropout: float = setting(0.0, "share of the words read, of source and target, that become unknown")
    dropout_divergence: float = setting(
        0.0, "R-Drop: weight of the divergence between two passes with different dropout, which take twice the time; "
             "0 for one pass")
    guided_alignment_weight: float = setting(
        0.0, "weight of the loss by which one attention head learns the alignments of the data; 0 for none")
    lhuc: bool = setting(False, "a learned scale for each unit of each layer's output, to adapt to a new domain")
    tie_embeddings: str = setting(
        "all", "which tables are one: all (source, target, softmax), target (target and softmax), or none",
        choices=TIES)
    source_factors: str = setting(
        "sum", "how the embeddings of a source word's factors join its own: added, or concatenated and mapped",
        choices=FACTORS)
    source_factor_size: int = setting(16, "depth of each factor's embedding, if they are concatenated")
    source_factor_vocab_sizes: list[int] = setting([], "set from the data")
    source_vocab_size: int = setting(0, "set from the data")
    target_vocab_size: int = setting(0, "set from the data")


def check_common(s: Any) -> None:
    """Check the `CommonSettings` of a model.

    Raises:
        SettingsError: the first that cannot work.
    """
    check_vocabularies(s.source_vocab_size, s.target_vocab_size, s.tie_embeddings)
    if any(size < 4 for size in s.source_factor_vocab_sizes):
        raise SettingsError(f"model.source_factor_vocab_sizes={s.source_factor_vocab_sizes} is set from the data: each "
                            "vocabulary of factors has at least its 4 special tokens.")
    if s.source_factor_size < 1:
        raise SettingsError(f"model.source_factor_size={s.source_factor_size} must be at least 1.")
    if not 0.0 <= s.word_dropout < 1.0:
        raise SettingsError(f"model.word_dropout={s.word_dropout} must be from 0 to below 1: it is a share of words.")
    if not s.dropout_divergence >= 0.0:
        raise SettingsError(f"model.dropout_divergence={s.dropout_divergence} must not be negative: 0 is for one pass, "
                            "5 is usual.")
    if not s.guided_alignment_weight >= 0.0:
        raise SettingsError(f"model.guided_alignment_weight={s.guided_alignment_weight} must not be negative: 0 is for "
                            "no guidance.")
