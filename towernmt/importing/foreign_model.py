"""A model of another system in our terms: settings, weights by our names, vocabularies, and what came with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.models.transformer.settings import TransformerSettings
from towernmt.predict.decoding.settings import SearchSettings

NEVER = -1000.0
"""The logit of pieces that the model does not know. No probability is left of them in float32; and the loss of a model
that is trained on, which label smoothing spreads over all pieces, stays in bounds."""


@dataclass(frozen=True)
class ImportRequest:
    """What is to be imported.

    Attributes:
        path: the file or folder that was named.
        vocabularies: the files of source and target; None to find them beside the model.
        pieces: the SentencePiece models, or the BPE codes, that divide source and target; None to find them.
        heads: attention heads, for systems that do not write them down; None for those that are usual.
    """

    path: Path
    vocabularies: tuple[Path, Path] | None = None
    pieces: tuple[Path, Path] | None = None
    heads: int | None = None


@dataclass(frozen=True)
class ForeignModel:
    """A model that was read.

    Attributes:
        origin: which system and file it comes from, in words.
        settings: with the sizes of the vocabularies.
        weights: by our names of the variables, float32.
        source, target: the vocabularies.
        search: as the other system searched, as far as it tells.
        kept: files that are copied into the run as they are: what its authors say of it, and its licence.
        notes: what is not the same, one sentence each.
    """

    origin: str
    settings: TransformerSettings
    weights: Mapping[str, np.ndarray]
    source: Vocabulary
    target: Vocabulary
    search: SearchSettings = field(default_factory=SearchSettings)
    kept: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
