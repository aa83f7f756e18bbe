"""Sizes, options and presets of RNNSearch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.core.settings import setting
from towernmt.models.choices import CELLS, COVERAGES, KERNELS, SCORES
from towernmt.models.common_settings import CommonSettings


@dataclass(frozen=True)
class RNNSearchSettings(CommonSettings):
    """Sizes and regularisation of an RNNSearch; the defaults are the preset `tiny`."""

    embedding_size: int = setting(256, "depth of the embeddings", at_least=1, at_most=65536)
    encoder_size: int = setting(384, "units of each direction of the encoder", at_least=1, at_most=65536)
    decoder_size: int = setting(512, "units of the decoder", at_least=1, at_most=65536)
    attention_size: int = setting(384, "depth inside additive attention", at_least=1, at_most=65536)
    read_out_size: int = setting(
        256, "depth of the last hidden layer; the embeddings' where they are the softmax's", at_least=1, at_most=65536)
    encoder_layers: int = setting(1, "bidirectional layers of the encoder", at_least=1, at_most=1000)
    decoder_layers: int = setting(1, "layers of the decoder; the first one attends", at_least=1, at_most=1000)
    cell: str = setting("gru", "recurrent cell", choices=CELLS)
    attention: str = setting("additive", "score of attention; dot needs decoder_size = 2 * encoder_size",
                             choices=SCORES)
    coverage: str = setting("none", "tell additive attention where it has been (Tu et al. 2016)", choices=COVERAGES)
    read_out: str = setting("maxout", "from state, embedding and context to the last hidden layer",
                            choices=("maxout", "tanh", "linear"))
    layer_norm: bool = setting(False, "layer normalisation within the cells (Ba et al. 2016)")
    embedding_dropout: float = setting(
        0.1, "dropout on the embeddings, the same at all steps of a sentence", at_least=0, below=1)
    dropout: float = setting(
        0.1, "dropout between layers, the same at all steps of a sentence, and on the read-out", at_least=0, below=1)
    kernels: str = setting("auto", "fused recurrent kernels of TensorFlow, or loops; auto: whichever is faster",
                           choices=KERNELS)

    @property
    def hidden_size(self) -> int:
        """What the Transformer's schedule of the learning rate asks a model for."""
        return self.decoder_size


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "bahdanau": {"embedding_size": 620, "encoder_size": 1000, "decoder_size": 1000, "attention_size": 1000,
                 "read_out_size": 500, "tie_embeddings": "none", "label_smoothing": 0.0, "embedding_dropout": 0.0,
                 "dropout": 0.0},
}
"""`bahdanau` has the sizes of Bahdanau et al. (2015, appendix A.2.3); `tiny` suits laptops."""
