"""Sizes, options and presets of ConvS2S."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.core.settings import setting
from towernmt.models.common_settings import CommonSettings


@dataclass(frozen=True)
class ConvS2SSettings(CommonSettings):
    """Sizes and regularisation of a ConvS2S; the defaults are the preset `tiny`."""

    embedding_size: int = setting(
        256, "depth of the embeddings of words and positions, and of the attention", at_least=1, at_most=65536)
    encoder: str = setting("6x256/3", "the encoder's convolutions, LAYERSxDEPTH/WIDTH, more of them after commas; "
                                      "an odd kernel width")
    decoder: str = setting("6x256/3", "the decoder's convolutions, as those of the encoder, of any width")
    output_size: int = setting(256, "depth of the last hidden layer, before the softmax", at_least=1, at_most=65536)
    dropout: float = setting(
        0.1, "dropout on embeddings, on the input of each convolution and before the softmax", at_least=0, below=1)
    max_positions: int = setting(
        1024, "rows of each table of position embeddings; later positions use its last row",
        at_least=1, at_most=1_000_000)
    scale_encoder_gradients: bool = setting(
        True, "divide the gradients into the encoder by the decoder's number of attentions")

    @property
    def hidden_size(self) -> int:
        """What the Transformer's schedule of the learning rate asks a model for."""
        return self.embedding_size


_EN_DE = "9x512/3,4x1024/3,2x2048/1"
_UNTIED = {"tie_embeddings": "none", "label_smoothing": 0.0}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "fconv_iwslt": {"encoder": "4x256/3", "decoder": "3x256/3", "dropout": 0.2, **_UNTIED},
    "fconv_wmt_en_ro": {"embedding_size": 512, "encoder": "20x512/3", "decoder": "20x512/3", "output_size": 512,
                        **_UNTIED},
    "fconv_wmt_en_de": {"embedding_size": 768, "encoder": _EN_DE, "decoder": _EN_DE, "output_size": 512, **_UNTIED},
}
"""`fconv_wmt_*` are the sizes that the authors published for WMT 2016 English-Romanian and WMT 2014 English-German,
`fconv_iwslt` those for IWSLT 2014; `tiny` suits laptops."""
