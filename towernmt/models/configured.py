"""What every architecture here has besides its tower: settings, the sizes of its vocabularies, an optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from towernmt.models.interface import NMTModel
from towernmt.models.lhuc import lhuc
from towernmt.train.optimizer import OptimizerSettings, make_optimizer


@dataclass
class ConfiguredModel(NMTModel):
    """An `NMTModel` made from a dataclass of settings.

    Args:
        settings: `CommonSettings` and sizes, with the sizes of the vocabularies set.
        optimizer_settings: which optimizer `optimizer()` makes.
        clip_norm: clip gradients to this global norm; 0 for no clipping.
    """

    settings: Any
    optimizer_settings: OptimizerSettings = field(default_factory=OptimizerSettings)
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        self.source_vocab_size = self.settings.source_vocab_size
        self.target_vocab_size = self.settings.target_vocab_size

    @property
    def source_factor_count(self) -> int:
        return len(self.settings.source_factor_vocab_sizes)

    def optimizer(self) -> Any:
        return make_optimizer(self.optimizer_settings, self.clip_norm)

    @property
    def label_smoothing(self) -> float:
        smoothing: float = self.settings.label_smoothing
        return smoothing

    @property
    def word_dropout(self) -> float:
        rate: float = self.settings.word_dropout
        return rate

    @property
    def dropout_divergence(self) -> float:
        weight: float = self.settings.dropout_divergence
        return weight

    @property
    def guided_alignment_weight(self) -> float:
        weight: float = self.settings.guided_alignment_weight
        return weight

    def adapted(self, x: Any, name: str) -> Any:
        """`x` `[..., depth]`, scaled by `lhuc` under that variable scope if the settings ask for it."""
        return lhuc(x, name) if self.settings.lhuc else x
