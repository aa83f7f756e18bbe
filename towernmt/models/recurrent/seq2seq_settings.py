"""Sizes, options and presets of Seq2Seq."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.core.settings import setting
from towernmt.models.choices import CELLS, KERNELS
from towernmt.models.common_settings import CommonSettings


@dataclass(frozen=True)
class Seq2SeqSettings(CommonSettings):
    """Sizes and regularisation of a Seq2Seq; the defaults are the preset `tiny`."""

    embedding_size: int = setting(
        256, "depth of the embeddings and of the last hidden layer", at_least=1, at_most=65536)
    hidden_size: int = setting(448, "units of each layer", at_least=1, at_most=65536)
    layers: int = setting(
        2, "layers of the encoder, and of the decoder, which starts from the encoder's last state",
        at_least=1, at_most=1000)
    cell: str = setting("lstm", "recurrent cell", choices=CELLS)
    reverse_source: bool = setting(True, "read the source backwards, so that its beginning is fresh")
    attention: str = setting("general", "score of attention (Luong et al. 2015); none for Sutskever et al. (2014)",
                             choices=("none", "dot", "general"))
    input_feeding: bool = setting(False, "the decoder's first layer also reads the step before's last hidden layer")
    layer_norm: bool = setting(False, "layer normalisation within the cells (Ba et al. 2016)")
    embedding_dropout: float = setting(
        0.1, "dropout on the embeddings, the same at all steps of a sentence", at_least=0, below=1)
    dropout: float = setting(
        0.1, "dropout between layers, the same at all steps of a sentence, and before the softmax", at_least=0, below=1)
    kernels: str = setting("auto", "fused recurrent kernels of TensorFlow, or loops; auto: whichever is faster",
                           choices=KERNELS)


_PAPERS: dict[str, Any] = {"embedding_size": 1000, "hidden_size": 1000, "layers": 4, "tie_embeddings": "none",
                           "label_smoothing": 0.0}

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "sutskever": {**_PAPERS, "attention": "none", "embedding_dropout": 0.0, "dropout": 0.0},
    "luong": {**_PAPERS, "attention": "general", "input_feeding": True, "embedding_dropout": 0.2, "dropout": 0.2},
}
"""The sizes of Sutskever et al. (2014, section 3.4) and Luong et al. (2015, section 4.1); `tiny` suits laptops."""
