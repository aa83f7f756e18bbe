"""What every architecture here has besides its tower: settings, the sizes of its vocabularies, an optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from towernmt.models.interface import NMTModel
from towernmt.train.optimizer import OptimizerSettings, make_optimizer


@dataclass
class ConfiguredModel(NMTModel):
    """An `NMTModel` made from a dataclass of settings.

    Args:
        settings: sizes, with both vocabulary sizes set, and `label_smoothing`.
        optimizer_settings: which optimizer `optimizer()` makes.
        clip_norm: clip gradients to this global norm; 0 for no clipping.
    """

    settings: Any
    optimizer_settings: OptimizerSettings = field(default_factory=OptimizerSettings)
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        self.source_vocab_size = self.settings.source_vocab_size
        self.target_vocab_size = self.settings.target_vocab_size

    def optimizer(self) -> Any:
        return make_optimizer(self.optimizer_settings, self.clip_norm)

    @property
    def label_smoothing(self) -> float:
        smoothing: float = self.settings.label_smoothing
        return smoothing
