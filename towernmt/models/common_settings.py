"""Settings that every architecture has besides its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.settings import check_ranges, setting
from towernmt.models.choices import FACTORS, STARTS, TIES


@dataclass(frozen=True)
class CommonSettings:
    """Loss, regularisation, adaptation and embeddings."""

    label_smoothing: float = setting(
        0.1, "probability spread over the vocabulary in the training loss", at_least=0, below=1)
    word_dropout: float = setting(
        0.0, "share of the words read, of source and target, that become unknown", at_least=0, below=1)
    r_drop_alpha: float = setting(
        0.0, "R-Drop: weight of the divergence between two passes with different dropout, which take twice the time; "
             "0 for one pass", at_least=0)
    guided_alignment_weight: float = setting(
        0.0, "weight of the loss by which one attention head learns the alignments of the data; 0 for none", at_least=0)
    lhuc: bool = setting(False, "a learned scale for each unit of each layer's output, to adapt to a new domain")
    tie_embeddings: str = setting(
        "all", "which tables are one: all (source, target, softmax), target (target and softmax), or none",
        choices=TIES)
    start: str = setting(
        "bos", "what the decoder reads before the first word: the embedding of BOS, which is learned, or zeros, as in "
               "Marian", choices=STARTS)
    source_factors: str = setting(
        "sum", "how the embeddings of a source word's factors join its own: added, or concatenated and mapped",
        choices=FACTORS)
    source_factor_size: int = setting(
        16, "depth of each factor's embedding, if they are concatenated", at_least=1, at_most=65536)
    source_factor_vocab_sizes: list[int] = setting([], "set from the data", at_least=4)
    source_vocab_size: int = setting(0, "set from the data", at_least=0)
    target_vocab_size: int = setting(0, "set from the data", at_least=0)


def check_common(s: Any) -> None:
    """Check the `CommonSettings` of a model.

    Raises:
        SettingsError: the first that cannot work.
    """
    check_ranges(s, "model.")
    check_vocabularies(s.source_vocab_size, s.target_vocab_size, s.tie_embeddings)


def check_vocabularies(source: int, target: int, tie: str) -> None:
    """Check the sizes of both vocabularies.

    Raises:
        SettingsError: they are not set, or differ where one table is to serve both.
    """
    if source < 5 or target < 5:
        raise SettingsError("model.source_vocab_size and model.target_vocab_size are not set: take them from the "
                            "vocabularies (4 special tokens and at least one word).")
    if tie == "all" and source != target:
        raise SettingsError("model.tie_embeddings=all needs one shared vocabulary: prepare the data with "
                            "--shared-vocab, or set model.tie_embeddings=target.")
