"""What a translator searches with: models, settings, and what is asked for besides. Nothing here needs TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.models.choices import PRECISIONS
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.ensemble.settings import EnsembleSettings
from towernmt.predict.hypotheses import Found

if TYPE_CHECKING:
    from towernmt.predict.decoding.processors.processor import LogitsProcessor


@dataclass(frozen=True)
class AskedSearch:
    """The arguments of `Translator` that say what is searched; see there.

    Attributes:
        runs, checkpoints, models: of each member, or one for all.
        attention: also where something else than the caller needs it.
        threads: how many threads search at the same time.
        precision: of matrix products.
    """

    runs: Sequence[SavedRun]
    checkpoints: Sequence[str | HeldCheckpoint | None]
    models: Sequence[Any]
    ensemble: EnsembleSettings | None
    device: str | None
    search: SearchSettings
    processors: Sequence[LogitsProcessor]
    log_probs: bool
    attention: bool
    threads: int = 1
    precision: str = PRECISIONS[0]


class SearchTowers(Protocol):
    """What translates batches.

    Attributes:
        checkpoint: the checkpoint in use (TensorFlow's prefix); of an ensemble its members', joined by " + ".
        source_vocabulary, target_vocabulary: the run's.
    """

    checkpoint: str
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary

    @property
    def predictor(self) -> Any:
        """The plain search as tensorpack's `OfflinePredictor`."""

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch, by the inputs' names."""

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """The same, with some settings of the search changed."""
