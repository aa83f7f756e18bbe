"""What every architecture here has besides its tower: settings and the sizes of its vocabularies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.core.tensors import Tensor
from towernmt.models.interface import NMTModel
from towernmt.models.layers.lhuc import lhuc


@dataclass
class ConfiguredModel(NMTModel):
    """An `NMTModel` made from a dataclass of settings.

    Args:
        settings: sizes, with those of the vocabularies set, and those of `CommonSettings` that the model has.
        optimizer_settings: `OptimizerSettings`, which make the optimizer; None for the default one, or for a model that
            is handed one (`make_optimizer`).
        clip_norm: with `optimizer_settings`: clip gradients to this global norm; 0 for no clipping.
    """

    settings: Any
    optimizer_settings: Any = None
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        self.source_vocab_size = self.settings.source_vocab_size
        self.target_vocab_size = self.settings.target_vocab_size

    @property
    def source_factor_count(self) -> int:
        return len(getattr(self.settings, "source_factor_vocab_sizes", []))

    @property
    def label_smoothing(self) -> float:
        return self._rate("label_smoothing")

    @property
    def word_dropout(self) -> float:
        return self._rate("word_dropout")

    @property
    def dropout_divergence(self) -> float:
        return self._rate("r_drop_alpha") or self._rate("dropout_divergence")

    @property
    def guided_alignment_weight(self) -> float:
        return self._rate("guided_alignment_weight")

    def _rate(self, name: str) -> float:
        """One of `CommonSettings`, 0 where a model of one's own has no such setting."""
        return float(getattr(self.settings, name, 0.0))

    def adapted(self, x: Tensor, name: str) -> Tensor:
        """`x` `[..., depth]`, scaled by `lhuc` under that variable scope if the settings ask for it."""
        return lhuc(x, name) if getattr(self.settings, "lhuc", False) else x
