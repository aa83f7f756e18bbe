"""Sizes, options and presets of the Transformer, and whether they fit each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.settings import setting
from towernmt.models.choices import FEED_FORWARDS
from towernmt.models.common_settings import CommonSettings, check_common
from towernmt.models.layers.gains import INITIALIZATIONS

POSITIONS = ("sinusoidal", "learned", "relative", "rotary")
DECODER_CELLS = ("attention", "ssru")


@dataclass(frozen=True)
class TransformerSettings(CommonSettings):
    """Sizes and regularisation of a Transformer; the defaults are the preset `tiny`."""

    hidden_size: int = setting(256, "depth of embeddings and hidden layers", at_least=1, at_most=65536)
    filter_size: int = setting(1024, "depth inside the feed-forward layers", at_least=1, at_most=1_000_000)
    heads: int = setting(4, "attention heads; divides hidden_size", at_least=1, at_most=65536)
    encoder_layers: int = setting(3, "layers of the encoder", at_least=1, at_most=1000)
    decoder_layers: int = setting(3, "layers of the decoder", at_least=1, at_most=1000)
    residual_dropout: float = setting(
        0.1, "dropout on the output of each sublayer ('d' in the sequences)", at_least=0, below=1)
    attention_dropout: float = setting(0.0, "dropout on the attention weights", at_least=0, below=1)
    activation_dropout: float = setting(0.0, "dropout inside the feed-forward layers", at_least=0, below=1)
    embedding_dropout: float = setting(0.1, "dropout on embeddings plus positions", at_least=0, below=1)
    preprocess: str = setting("n", "before each sublayer: n(ormalise), d(ropout), in this order; '' for none")
    postprocess: str = setting("dr", "after each sublayer: d(ropout), r(esidual), n(ormalise); 'drn' is post-norm")
    norm: str = setting("layer", "what 'n' is: layer normalisation, or RMSNorm", choices=("layer", "rms"))
    norm_epsilon: float = setting(1e-6, "added to the variance that 'n' divides by", above=0, below=1)
    positions: str = setting(
        "sinusoidal", "position signal: added to the embeddings (sinusoidal, learned), or in self-attention (relative, "
                      "rotary)", choices=POSITIONS)
    max_positions: int = setting(
        1024, "rows of the learned position table; later positions use its last row", at_least=1, at_most=1_000_000)
    max_distance: int = setting(
        16, "the largest distance between two words that a relative position tells apart",
        at_least=1, at_most=1_000_000)
    first_position: int = setting(
        0, "the number of the first word in sinusoidal positions; 1 in OpenNMT-tf", at_least=0, at_most=1)
    attention_biases: bool = setting(
        False, "attention has a bias on its queries and on its output, as in models of other systems")
    source_end: bool = setting(
        True, "the encoder reads the source with EOS behind it; some models of other systems have none")
    feed_forward: str = setting(
        "relu", "inside the feed-forward layers: relu, swish, gelu_sigmoid (x * sigmoid(1.702 x), Marian's gelu), "
                "gelu_tanh, or a gate; at two thirds of filter_size a gated layer has as many parameters as one with "
                "relu", choices=FEED_FORWARDS)
    decoder_cell: str = setting(
        "attention", "what a target word sees of those before it: self-attention, or an SSRU, which decodes faster",
        choices=DECODER_CELLS)
    initialization: str = setting(
        "glorot", "for deep stacks: depth_scaled divides the first kernels of layer l by sqrt(l); deepnorm is for "
                  "postprocess=drn", choices=INITIALIZATIONS)
    guided_alignment_layer: int = setting(
        0, "the decoder layer, from 1, whose first head of cross-attention learns the alignments of the data; 0 for "
           "the last but one", at_least=0)


PRESETS: dict[str, dict[str, Any]] = {
    "mini": {"hidden_size": 192, "filter_size": 768, "heads": 4, "encoder_layers": 4, "decoder_layers": 2},
    "tiny": {},
    "small": {"hidden_size": 256, "filter_size": 1024, "heads": 4, "encoder_layers": 6, "decoder_layers": 6},
    "base": {"hidden_size": 512, "filter_size": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"hidden_size": 1024, "filter_size": 4096, "heads": 16, "encoder_layers": 6, "decoder_layers": 6,
            "residual_dropout": 0.3, "embedding_dropout": 0.3},
    "modern": {"filter_size": 688, "positions": "rotary", "norm": "rms", "feed_forward": "swiglu"},
    "student": {"hidden_size": 256, "filter_size": 1536, "heads": 8, "encoder_layers": 6, "decoder_layers": 2,
                "decoder_cell": "ssru", "preprocess": "", "postprocess": "drn", "start": "zero"},
    "deep_shallow": {"hidden_size": 512, "filter_size": 2048, "heads": 8, "encoder_layers": 12, "decoder_layers": 1},
    "tiny-fast": {"encoder_layers": 6, "decoder_layers": 1, "decoder_cell": "ssru"},
    "base-fast": {"hidden_size": 512, "filter_size": 2048, "heads": 8, "encoder_layers": 12, "decoder_layers": 1,
                  "decoder_cell": "ssru"},
    "deep": {"hidden_size": 512, "filter_size": 2048, "heads": 8, "encoder_layers": 18, "decoder_layers": 18,
             "preprocess": "", "postprocess": "drn", "initialization": "deepnorm"},
}
"""`base` and `big` are the sizes of Vaswani et al. (2017, table 3); `mini`, `tiny` and `small` suit laptops, `mini`
trainings of minutes. `modern` has the size of `tiny`. `student` is the tiny student of Bogoychev et al. (2020), to be
trained on a teacher's translations; Marian and the engine of browsers run it (`towernmt export --format marian`).
`deep_shallow` is "12-1" of Kasai et al. (2021), and `tiny-fast` and `base-fast` are deep and shallow like it, in the
widths of `tiny` and `base`, with an SSRU; `deep` has 18 layers a stack, as the smallest of Wang et al. (2022)."""


def check_settings(s: TransformerSettings) -> None:
    """Check that sizes and options fit each other.

    Raises:
        SettingsError: the first that does not.
    """
    check_common(s)
    if s.hidden_size % s.heads or s.hidden_size % 2:
        raise SettingsError(f"model.hidden_size={s.hidden_size} must be even and a multiple of "
                            f"model.heads={s.heads}.")
    for key, value, letters in (("preprocess", s.preprocess, "nd"), ("postprocess", s.postprocess, "ndr")):
        if len(set(value)) != len(value) or set(value) - set(letters):
            raise SettingsError(f"model.{key}={value!r}: each of the letters {', '.join(letters)} at most once.")
    if s.positions == "rotary" and s.hidden_size // s.heads % 2:
        raise SettingsError(f"model.positions=rotary turns pairs of dimensions: model.hidden_size={s.hidden_size} "
                            f"divided by model.heads={s.heads} must be even.")
    if s.first_position and s.positions != "sinusoidal":
        raise SettingsError(f"model.first_position={s.first_position} is for sinusoidal positions: set it to 0 with "
                            f"model.positions={s.positions}.")
    if s.guided_alignment_layer > s.decoder_layers:
        raise SettingsError(f"model.guided_alignment_layer={s.guided_alignment_layer} must be one of the "
                            f"model.decoder_layers={s.decoder_layers}, counted from 1, or 0 for the last but one.")
    residual, norm = s.postprocess.find("r"), s.postprocess.find("n")
    if s.initialization == "deepnorm" and ("n" in s.preprocess or not 0 <= residual < norm):
        raise SettingsError("model.initialization=deepnorm normalises the sum with the residual: set "
                            "model.preprocess='' and model.postprocess=drn.")
