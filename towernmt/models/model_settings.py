"""The settings and presets of the architectures. Imports no TensorFlow.

Initial values of deep stacks (how much smaller than Glorot's the kernels of a layer are, and how its residual is
scaled):

- `glorot`: Glorot & Bengio (2010) in every layer.
- `depth_scaled`: layer l (from 1) of a stack begins with kernels divided by sqrt(l), which keeps the variance of the
  residual stream, and with it the gradients of deep post-norm stacks (DS-Init; Zhang, Titov & Sennrich 2019).
- `deepnorm`: post-norm whose residual is multiplied by alpha, with kernels of values, outputs and feed-forwards
  multiplied by beta (Wang et al. 2022, "DeepNet", the formulas for an encoder with a decoder).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.settings import check_ranges, setting

TIES = ("all", "target", "none")
"""Sets of embedding tables that are shared; see `embeddings`."""
FACTORS = ("sum", "concat")
"""Combinations of the embeddings of a source word and of its factors; see `embeddings`."""
STARTS = ("bos", "zero")
"""Inputs of a decoder before the first word."""
ACTIVATIONS = ("relu", "swish", "gelu_sigmoid", "gelu_tanh")
"""Activations of feed-forward layers without a gate."""
FEED_FORWARDS = (*ACTIVATIONS, "glu", "swiglu", "geglu")
"""Activations of feed-forward layers: without a gate, or those of `feed_forward.GATES`."""
CELLS = ("gru", "lstm")
KERNELS = ("auto", "fused", "loop")
"""`auto` means the loop with a hand-written gradient in training towers, and the fused kernels in other towers.
(Training steps of the presets `tiny`, float32, 1,024 tokens, two towers on two cores: with fused kernels 0.70 of the
loop's speed for Seq2Seq's LSTMs, 0.87 for RNNSearch's GRUs.)"""
SCORES = ("additive", "dot", "general")
"""Score functions of attention in recurrent models."""
COVERAGES = ("none", "linguistic")
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class CommonSettings:
    """Loss, regularisation, adaptation and embeddings."""

    label_smoothing: float = setting(
        0.1, "probability spread over the vocabulary in the training loss", at_least=0, below=1)
    softmax_sample: float = setting(
        0.0, "fraction of the vocabulary in the softmax of a training batch, drawn at random in addition to the tokens "
             "of the batch; 0 for the complete vocabulary", at_least=0, below=1)
    word_dropout: float = setting(
        0.0, "share of the source and target words that become the unknown word", at_least=0, below=1)
    r_drop_alpha: float = setting(
        0.0, "R-Drop: weight of the divergence between two passes with different dropout (twice the time); 0 for one "
             "pass", at_least=0)
    guided_alignment_weight: float = setting(
        0.0, "weight of the loss by which one attention head learns the alignments of the data; 0 for none", at_least=0)
    lhuc: bool = setting(False, "a learned scale for each unit of each layer's output, to adapt to a new domain")
    tie_embeddings: str = setting(
        "all", "which tables are shared: all (source, target, softmax), target (target and softmax), or none",
        choices=TIES)
    start: str = setting(
        "bos", "input of the decoder before the first word: the learned embedding of BOS, or zeros, as in Marian",
        choices=STARTS)
    source_factors: str = setting(
        "sum", "how the embeddings of a source word and of its factors are combined: added, or concatenated and mapped",
        choices=FACTORS)
    source_factor_size: int = setting(
        16, "depth of each factor's embedding, if they are concatenated", at_least=1, at_most=65536)
    source_factor_vocab_sizes: list[int] = setting([], "set from the data", at_least=4)
    source_vocab_size: int = setting(0, "set from the data", at_least=0)
    target_vocab_size: int = setting(0, "set from the data", at_least=0)


def check_common(s: Any) -> None:
    """Check the `CommonSettings` of a model.

    Raises:
        SettingsError: a value is not valid; the message names the first one.
    """
    check_ranges(s, "model.")
    if s.softmax_sample and s.r_drop_alpha:
        raise SettingsError(f"model.softmax_sample={s.softmax_sample} does not work with model.r_drop_alpha, which "
                            "compares complete distributions: set one of them to 0.")
    check_vocabulary_sizes(s.source_vocab_size, s.target_vocab_size, s.tie_embeddings)


def check_vocabulary_sizes(source: int, target: int, tie: str) -> None:
    """Check the sizes of both vocabularies.

    Raises:
        SettingsError: they are not set, or differ although both sides share a table.
    """
    if source < 5 or target < 5:
        raise SettingsError("model.source_vocab_size and model.target_vocab_size are not set: take them from the "
                            "vocabularies (4 special tokens and at least one word).")
    if tie == "all" and source != target:
        raise SettingsError("model.tie_embeddings=all needs one shared vocabulary: prepare the data with "
                            "--shared-vocab, or set model.tie_embeddings=target.")


INITIALIZATIONS = ("glorot", "zero_outputs", "depth_scaled", "deepnorm")


class Gains(NamedTuple):
    """Factors of a layer's initial kernels and of its residual connection.

    Attributes:
        logits: factor of the initial kernels of queries and keys.
        values: factor of the initial kernels of values and of the first kernels of feed-forward layers.
        outputs: factor of the initial kernels of the outputs of attention and of feed-forward layers.
        residual: factor of the residual connection.
    """

    logits: float = 1.0
    values: float = 1.0
    outputs: float = 1.0
    residual: float = 1.0


PLAIN = Gains()
"""The gains of Glorot's initialisation."""


def layer_gains(initialization: str, stack: str, layer: int, encoder_layers: int, decoder_layers: int) -> Gains:
    """Return the gains of a layer.

    Args:
        initialization: one of `INITIALIZATIONS`.
        stack: "encoder" or "decoder".
        layer: number of the layer in the stack, from 0.
        encoder_layers: number of layers of the encoder.
        decoder_layers: number of layers of the decoder.
    """
    if initialization == "depth_scaled":
        gain = (layer + 1) ** -0.5
        return Gains(gain, gain, gain)
    if initialization == "zero_outputs":
        return Gains(outputs=0.0)
    if initialization == "deepnorm":
        if stack == "encoder":
            size = (encoder_layers ** 4 * decoder_layers) ** (1 / 16)
            gain, residual = 0.87 / size, 0.81 * size
        else:
            gain, residual = (12 * decoder_layers) ** -0.25, (3 * decoder_layers) ** 0.25
        return Gains(values=gain, outputs=gain, residual=residual)
    return PLAIN


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
    preprocess: str = setting("n", "before each sublayer: letters of n(ormalise) and d(ropout) in their order; '' for "
                                   "none")
    postprocess: str = setting("dr", "after each sublayer: d(ropout), r(esidual), n(ormalise); 'drn' is post-norm")
    norm: str = setting("layer", "what 'n' is: layer normalisation, or RMSNorm", choices=("layer", "rms"))
    norm_epsilon: float = setting(1e-6, "added to the variance that 'n' divides by", above=0, below=1)
    positions: str = setting(
        "sinusoidal", "positions: added to the embeddings (sinusoidal, learned), or used in self-attention (relative, "
                      "rotary)", choices=POSITIONS)
    max_positions: int = setting(
        1024, "rows of the learned position table; later positions use its last row", at_least=1, at_most=1_000_000)
    max_distance: int = setting(
        16, "largest distance between two words with its own relative position",
        at_least=1, at_most=1_000_000)
    first_position: int = setting(
        0, "number of the first word in sinusoidal positions; 1 in OpenNMT-tf", at_least=0, at_most=1)
    attention_biases: bool = setting(
        False, "attention has a bias on its queries and on its output, as in models of other systems")
    source_end: bool = setting(
        True, "the encoder reads EOS at the end of the source; some models of other systems do not")
    feed_forward: str = setting(
        "relu", "inside the feed-forward layers: relu, swish, gelu_sigmoid (x * sigmoid(1.702 x), Marian's gelu), "
                "gelu_tanh, or a gate; a gated layer with two thirds of filter_size has as many parameters as one "
                "with relu", choices=FEED_FORWARDS)
    decoder_cell: str = setting(
        "attention", "how a target word sees the earlier target words: by self-attention, or by an SSRU, which decodes "
                     "faster", choices=DECODER_CELLS)
    initialization: str = setting(
        "glorot", "with zero_outputs, each attention and feed-forward layer at first adds nothing to its input; for "
                  "deep stacks: depth_scaled divides the initial kernels of layer l by sqrt(l); deepnorm is for "
                  "postprocess=drn",
        choices=INITIALIZATIONS)
    guided_alignment_layer: int = setting(
        0, "decoder layer, from 1, whose first head of cross-attention learns the alignments of the data; 0 for the "
           "last but one", at_least=0)
    guided_alignment_heads: int = setting(
        0, "number of first heads of that layer whose mean attention aligns words; 0 for one if "
           "guided_alignment_weight is above 0, and for all otherwise", at_least=0)

    @property
    def aligning_layer(self) -> int:
        """Index, from 0, of the decoder layer whose cross-attention aligns words."""
        return (self.guided_alignment_layer or max(1, self.decoder_layers - 1)) - 1

    @property
    def aligning_heads(self) -> int:
        """Number of first heads of `aligning_layer` whose mean attention aligns words."""
        return self.guided_alignment_heads or (1 if self.guided_alignment_weight else self.heads)


def with_guided_heads(model: Any) -> Any:
    """Return the settings of a trained model, by which its guided heads align words without guided alignment, too.

    A new training of the model may have no word alignments, and then `guided_alignment_weight` is 0.

    Args:
        model: settings of a model of any architecture.
    """
    if not isinstance(model, TransformerSettings) or not model.guided_alignment_weight:
        return model
    return replace(model, guided_alignment_heads=model.aligning_heads)


TRANSFORMER_PRESETS: dict[str, dict[str, Any]] = {
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
    """Check the settings of a Transformer, also in combination.

    Raises:
        SettingsError: a setting is not valid.
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
    if s.guided_alignment_heads > s.heads:
        raise SettingsError(f"model.guided_alignment_heads={s.guided_alignment_heads} must be at most "
                            f"model.heads={s.heads}.")
    residual, norm = s.postprocess.find("r"), s.postprocess.find("n")
    if s.initialization == "deepnorm" and ("n" in s.preprocess or not 0 <= residual < norm):
        raise SettingsError("model.initialization=deepnorm normalises the sum with the residual: set "
                            "model.preprocess='' and model.postprocess=drn.")


@dataclass(frozen=True)
class ConvS2SSettings(CommonSettings):
    """Sizes and regularisation of a ConvS2S; the defaults are the preset `tiny`."""

    embedding_size: int = setting(
        256, "depth of the embeddings of words and positions, and of the attention", at_least=1, at_most=65536)
    encoder: str = setting("6x256/3", "convolutions of the encoder, LAYERSxDEPTH/WIDTH, separated by commas; with "
                                      "odd widths")
    decoder: str = setting("6x256/3", "convolutions of the decoder, as for the encoder, but of any width")
    output_size: int = setting(256, "depth of the last hidden layer, before the softmax", at_least=1, at_most=65536)
    dropout: float = setting(
        0.1, "dropout on embeddings, on the input of each convolution and before the softmax", at_least=0, below=1)
    max_positions: int = setting(
        1024, "rows of each table of position embeddings; later positions use its last row",
        at_least=1, at_most=1_000_000)
    scale_encoder_gradients: bool = setting(
        True, "divide the gradients into the encoder by the number of attentions of the decoder")

    @property
    def hidden_size(self) -> int:
        """Width of the model, by which automatic learning rates and the schedule `noam` depend on its size."""
        return self.embedding_size


_EN_DE = "9x512/3,4x1024/3,2x2048/1"
_UNTIED = {"tie_embeddings": "none", "label_smoothing": 0.0}
CONVS2S_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "fconv_iwslt": {"encoder": "4x256/3", "decoder": "3x256/3", "dropout": 0.2, **_UNTIED},
    "fconv_wmt_en_ro": {"embedding_size": 512, "encoder": "20x512/3", "decoder": "20x512/3", "output_size": 512,
                        **_UNTIED},
    "fconv_wmt_en_de": {"embedding_size": 768, "encoder": _EN_DE, "decoder": _EN_DE, "output_size": 512, **_UNTIED},
}
"""`fconv_wmt_*` are the sizes that the authors published for WMT 2016 English-Romanian and WMT 2014 English-German,
`fconv_iwslt` those for IWSLT 2014; `tiny` suits laptops."""


@dataclass(frozen=True)
class RNNSearchSettings(CommonSettings):
    """Sizes and regularisation of an RNNSearch; the defaults are the preset `tiny`."""

    embedding_size: int = setting(256, "depth of the embeddings", at_least=1, at_most=65536)
    encoder_size: int = setting(384, "units of each direction of the encoder", at_least=1, at_most=65536)
    decoder_size: int = setting(512, "units of the decoder", at_least=1, at_most=65536)
    attention_size: int = setting(384, "depth inside additive attention", at_least=1, at_most=65536)
    read_out_size: int = setting(
        256, "depth of the last hidden layer; equals embedding_size if the softmax shares the embeddings",
        at_least=1, at_most=65536)
    encoder_layers: int = setting(1, "bidirectional layers of the encoder", at_least=1, at_most=1000)
    decoder_layers: int = setting(1, "layers of the decoder; the first one attends", at_least=1, at_most=1000)
    cell: str = setting("gru", "recurrent cell", choices=CELLS)
    attention: str = setting("additive", "score of attention; dot needs decoder_size = 2 * encoder_size",
                             choices=SCORES)
    coverage: str = setting("none", "coverage as an input of additive attention (Tu et al. 2016)", choices=COVERAGES)
    read_out: str = setting("maxout", "layer that maps state, embedding and context to the last hidden layer",
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
        """Width of the model, by which automatic learning rates and the schedule `noam` depend on its size."""
        return self.decoder_size


RNNSEARCH_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "bahdanau": {"embedding_size": 620, "encoder_size": 1000, "decoder_size": 1000, "attention_size": 1000,
                 "read_out_size": 500, "tie_embeddings": "none", "label_smoothing": 0.0, "embedding_dropout": 0.0,
                 "dropout": 0.0},
}
"""`bahdanau` has the sizes of Bahdanau et al. (2015, appendix A.2.3); `tiny` suits laptops."""


@dataclass(frozen=True)
class Seq2SeqSettings(CommonSettings):
    """Sizes and regularisation of a Seq2Seq; the defaults are the preset `tiny`."""

    embedding_size: int = setting(
        256, "depth of the embeddings and of the last hidden layer", at_least=1, at_most=65536)
    hidden_size: int = setting(448, "units of each layer", at_least=1, at_most=65536)
    layers: int = setting(
        2, "layers of the encoder and of the decoder, which starts from the last state of the encoder",
        at_least=1, at_most=1000)
    cell: str = setting("lstm", "recurrent cell", choices=CELLS)
    reverse_source: bool = setting(True, "read the source backwards, so that its first words are read last")
    attention: str = setting("general", "score of attention (Luong et al. 2015); none for Sutskever et al. (2014)",
                             choices=("none", "dot", "general"))
    input_feeding: bool = setting(False, "the first layer of the decoder also reads the last hidden layer of the "
                                         "previous step")
    layer_norm: bool = setting(False, "layer normalisation within the cells (Ba et al. 2016)")
    embedding_dropout: float = setting(
        0.1, "dropout on the embeddings, the same at all steps of a sentence", at_least=0, below=1)
    dropout: float = setting(
        0.1, "dropout between layers, the same at all steps of a sentence, and before the softmax", at_least=0, below=1)
    kernels: str = setting("auto", "fused recurrent kernels of TensorFlow, or loops; auto: whichever is faster",
                           choices=KERNELS)


_PAPERS: dict[str, Any] = {"embedding_size": 1000, "hidden_size": 1000, "layers": 4, "tie_embeddings": "none",
                           "label_smoothing": 0.0}

SEQ2SEQ_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "sutskever": {**_PAPERS, "attention": "none", "embedding_dropout": 0.0, "dropout": 0.0},
    "luong": {**_PAPERS, "attention": "general", "input_feeding": True, "embedding_dropout": 0.2, "dropout": 0.2},
}
"""The sizes of Sutskever et al. (2014, section 3.4) and Luong et al. (2015, section 4.1); `tiny` suits laptops."""
