"""Sizes, options and presets of the Transformer, and whether they fit each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.errors import SettingsError
from towernmt.models.embeddings import TIES, check_vocabularies
from towernmt.models.feed_forward import FEED_FORWARDS
from towernmt.models.initialization import INITIALIZATIONS
from towernmt.settings import setting

POSITIONS = ("sinusoidal", "learned", "relative", "rotary")
DECODER_CELLS = ("attention", "ssru")


@dataclass(frozen=True)
class TransformerSettings:
    """Sizes and regularisation of a Transformer; the defaults are the preset `tiny`."""

    hidden_size: int = setting(256, "depth of embeddings and hidden layers")
    filter_size: int = setting(1024, "depth inside the feed-forward layers")
    heads: int = setting(4, "attention heads; divides hidden_size")
    encoder_layers: int = setting(3, "layers of the encoder")
    decoder_layers: int = setting(3, "layers of the decoder")
    label_smoothing: float = setting(0.1, "probability spread over the vocabulary in the training loss")
    residual_dropout: float = setting(0.1, "dropout on the output of each sublayer ('d' in the sequences)")
    attention_dropout: float = setting(0.0, "dropout on the attention weights")
    activation_dropout: float = setting(0.0, "dropout inside the feed-forward layers")
    embedding_dropout: float = setting(0.1, "dropout on embeddings plus positions")
    word_dropout: float = setting(0.0, "share of the words read, of source and target, that become unknown")
    dropout_divergence: float = setting(
        0.0, "R-Drop: weight of the divergence between two passes with different dropout, which take twice the time; "
             "0 for one pass")
    preprocess: str = setting("n", "before each sublayer: n(ormalise), d(ropout), in this order; '' for none")
    postprocess: str = setting("dr", "after each sublayer: d(ropout), r(esidual), n(ormalise); 'drn' is post-norm")
    norm: str = setting("layer", "what 'n' is: layer normalisation, or RMSNorm", choices=("layer", "rms"))
    positions: str = setting(
        "sinusoidal", "position signal: added to the embeddings (sinusoidal, learned), or in self-attention (relative, "
                      "rotary)", choices=POSITIONS)
    max_positions: int = setting(1024, "rows of the learned position table; later positions use its last row")
    max_distance: int = setting(16, "the largest distance between two words that a relative position tells apart")
    feed_forward: str = setting(
        "relu", "inside the feed-forward layers: relu, or a gate; at two thirds of filter_size a gated layer has as "
                "many parameters as one with relu", choices=FEED_FORWARDS)
    decoder_cell: str = setting(
        "attention", "what a target word sees of those before it: self-attention, or an SSRU, which decodes faster",
        choices=DECODER_CELLS)
    initialization: str = setting(
        "glorot", "for deep stacks: depth_scaled divides the first kernels of layer l by sqrt(l); deepnorm is for "
                  "postprocess=drn", choices=INITIALIZATIONS)
    lhuc: bool = setting(False, "a learned scale for each unit of each sublayer's output, to adapt to a new domain")
    tie_embeddings: str = setting(
        "all", "which tables are one: all (source, target, softmax), target (target and softmax), or none",
        choices=TIES)
    source_vocab_size: int = setting(0, "set from the data")
    target_vocab_size: int = setting(0, "set from the data")


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "small": {"hidden_size": 256, "filter_size": 1024, "heads": 4, "encoder_layers": 6, "decoder_layers": 6},
    "base": {"hidden_size": 512, "filter_size": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"hidden_size": 1024, "filter_size": 4096, "heads": 16, "encoder_layers": 6, "decoder_layers": 6,
            "residual_dropout": 0.3, "embedding_dropout": 0.3},
    "modern": {"filter_size": 688, "positions": "rotary", "norm": "rms", "feed_forward": "swiglu"},
    "student": {"hidden_size": 256, "filter_size": 1536, "heads": 8, "encoder_layers": 6, "decoder_layers": 2,
                "decoder_cell": "ssru"},
    "deep_shallow": {"hidden_size": 512, "filter_size": 2048, "heads": 8, "encoder_layers": 12, "decoder_layers": 1},
    "deep": {"hidden_size": 512, "filter_size": 2048, "heads": 8, "encoder_layers": 18, "decoder_layers": 18,
             "preprocess": "", "postprocess": "drn", "initialization": "deepnorm"},
}
"""`base` and `big` are the sizes of Vaswani et al. (2017, table 3); `tiny` and `small` suit laptops. `modern` has the
size of `tiny`. `student` is the tiny student of Bogoychev et al. (2020), to be trained on a teacher's translations;
`deep_shallow` is "12-1" of Kasai et al. (2021); `deep` has 18 layers a stack, as the smallest of Wang et al. (2022)."""


def check_settings(s: TransformerSettings) -> None:
    """Check that sizes and options fit each other.

    Raises:
        SettingsError: the first that does not.
    """
    check_vocabularies(s.source_vocab_size, s.target_vocab_size, s.tie_embeddings)
    if s.hidden_size % s.heads or s.hidden_size % 2:
        raise SettingsError(f"model.hidden_size={s.hidden_size} must be even and a multiple of "
                            f"model.heads={s.heads}.")
    for key, value, letters in (("preprocess", s.preprocess, "nd"), ("postprocess", s.postprocess, "ndr")):
        if len(set(value)) != len(value) or set(value) - set(letters):
            raise SettingsError(f"model.{key}={value!r}: each of the letters {', '.join(letters)} at most once.")
    if s.positions == "rotary" and s.hidden_size // s.heads % 2:
        raise SettingsError(f"model.positions=rotary turns pairs of dimensions: model.hidden_size={s.hidden_size} "
                            f"divided by model.heads={s.heads} must be even.")
    if s.positions == "relative" and s.max_distance < 1:
        raise SettingsError(f"model.max_distance={s.max_distance} must be at least 1.")
    residual, norm = s.postprocess.find("r"), s.postprocess.find("n")
    if s.initialization == "deepnorm" and ("n" in s.preprocess or not 0 <= residual < norm):
        raise SettingsError("model.initialization=deepnorm normalises the sum with the residual: set "
                            "model.preprocess='' and model.postprocess=drn.")
