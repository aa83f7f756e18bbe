"""The Transformer (Vaswani et al. 2017), pre- or post-norm, as a tower function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from towernmt.errors import SettingsError
from towernmt.models.attention import (
    causal_bias,
    memory_keys_values,
    padding_bias,
    self_attention,
    self_attention_step,
    source_attention,
)
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers import embedding_table, layer_norm, linear, sinusoids
from towernmt.models.loss import Projection
from towernmt.models.precision import compute_dtype, relu, to_float32
from towernmt.models.randomness import dropout
from towernmt.settings import setting
from towernmt.tf_compat import tf, tf1
from towernmt.train.optimizer import OptimizerSettings, make_optimizer


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
    preprocess: str = setting("n", "before each sublayer: n(ormalise), d(ropout), in this order; '' for none")
    postprocess: str = setting("dr", "after each sublayer: d(ropout), r(esidual), n(ormalise); 'drn' is post-norm")
    positions: str = setting("sinusoidal", "position signal", choices=("sinusoidal", "learned"))
    max_positions: int = setting(1024, "rows of the learned position table; later positions use its last row")
    tie_embeddings: str = setting(
        "all", "which tables are one: all (source, target, softmax), target (target and softmax), or none",
        choices=("all", "target", "none"))
    source_vocab_size: int = setting(0, "set from the data")
    target_vocab_size: int = setting(0, "set from the data")


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "small": {"hidden_size": 256, "filter_size": 1024, "heads": 4, "encoder_layers": 6, "decoder_layers": 6},
    "base": {"hidden_size": 512, "filter_size": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"hidden_size": 1024, "filter_size": 4096, "heads": 16, "encoder_layers": 6, "decoder_layers": 6,
            "residual_dropout": 0.3, "embedding_dropout": 0.3},
}
"""`base` and `big` are the sizes of Vaswani et al. (2017, table 3); `tiny` and `small` suit laptops."""


class TransformerMemory(NamedTuple):
    """What the decoder sees of the source.

    Attributes:
        keys_values: for each decoder layer two `[batch, heads, source length, head depth]`.
        bias: float32 `[batch, 1, 1, source length]`.
    """

    keys_values: list[tuple[Any, Any]]
    bias: Any


@dataclass
class Transformer(NMTModel):
    """A Transformer with sinusoidal or learned positions and tied embeddings.

    Args:
        settings: sizes, with both vocabulary sizes set.
        optimizer_settings: which optimizer `optimizer()` makes.
        clip_norm: clip gradients to this global norm; 0 for no clipping.
    Raises:
        SettingsError: sizes that do not fit each other.
    """

    architecture: ClassVar[str] = "transformer"
    settings: TransformerSettings
    optimizer_settings: OptimizerSettings = field(default_factory=OptimizerSettings)
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        _check(self.settings)
        self.source_vocab_size = self.settings.source_vocab_size
        self.target_vocab_size = self.settings.target_vocab_size

    def optimizer(self) -> Any:
        return make_optimizer(self.optimizer_settings, self.clip_norm)

    @property
    def label_smoothing(self) -> float:
        return self.settings.label_smoothing

    def encode(self, source: Any, source_length: Any) -> TransformerMemory:
        s = self.settings
        bias = padding_bias(source_length, tf.shape(source)[1])
        with tf1.variable_scope("transformer"):
            table = self._table("source")
            with tf1.variable_scope("encoder"):
                x = self._embed(table, source, tf.range(tf.shape(source)[1]))   # [batch, source length, depth]
                for layer in range(s.encoder_layers):
                    with tf1.variable_scope(f"layer_{layer}"):
                        x = self._sublayer(x, "self_attention", lambda y: self_attention(
                            y, bias, s.heads, s.attention_dropout, "self_attention"))
                        x = self._sublayer(x, "feed_forward", self._feed_forward)
                x = self._final_norm(x)
            with tf1.variable_scope("decoder"):
                keys_values = []
                for layer in range(s.decoder_layers):
                    with tf1.variable_scope(f"layer_{layer}"):
                        keys_values.append(memory_keys_values(x, s.heads, "source_attention"))
        return TransformerMemory(keys_values, bias)

    def decode_hidden(self, memory: TransformerMemory, target_in: Any) -> Any:
        s = self.settings
        length = tf.shape(target_in)[1]
        bias = causal_bias(length)
        with tf1.variable_scope("transformer"):
            table = self._table("target")
            with tf1.variable_scope("decoder"):
                x = self._embed(table, target_in, tf.range(length))             # [batch, target length, depth]
                for layer in range(s.decoder_layers):
                    with tf1.variable_scope(f"layer_{layer}"):
                        x = self._sublayer(x, "self_attention", lambda y: self_attention(
                            y, bias, s.heads, s.attention_dropout, "self_attention"))
                        x = self._sublayer(x, "source_attention", partial(
                            source_attention, keys_values=memory.keys_values[layer], bias=memory.bias,
                            heads=s.heads, dropout_rate=s.attention_dropout, name="source_attention"))
                        x = self._sublayer(x, "feed_forward", self._feed_forward)
                return self._final_norm(x)

    def start_state(self, memory: TransformerMemory, beam: int) -> DecoderState:
        rows = tf.shape(memory.bias)[0] * beam
        empty = tf.zeros([rows, 0, 2 * self.settings.hidden_size], compute_dtype())
        return DecoderState(memory, [empty] * self.settings.decoder_layers, tf.constant(0))

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:
        s = self.settings
        memory, cache = state.memory, []
        batch = tf.shape(memory.bias)[0]

        def source_step(y: Any, layer: int) -> Any:
            by_sentence = tf.reshape(y, [batch, -1, s.hidden_size])             # [batch, beam, depth]
            context = source_attention(by_sentence, memory.keys_values[layer], memory.bias, s.heads, 0.0,
                                       "source_attention")
            return tf.reshape(context, [-1, s.hidden_size])

        def self_step(y: Any, layer: int) -> Any:
            y, grown = self_attention_step(y, state.cache[layer], s.heads, "self_attention")
            cache.append(grown)
            return y

        with tf1.variable_scope("transformer"):
            table = self._table("target")
            with tf1.variable_scope("decoder"):
                x = self._embed(table, token[:, None], state.step[None])[:, 0]  # [rows, depth]
                for layer in range(s.decoder_layers):
                    with tf1.variable_scope(f"layer_{layer}"):
                        x = self._sublayer(x, "self_attention", partial(self_step, layer=layer))
                        x = self._sublayer(x, "source_attention", partial(source_step, layer=layer))
                        x = self._sublayer(x, "feed_forward", self._feed_forward)
                x = self._final_norm(x)
        return self.output_projection().logits(x), DecoderState(memory, cache, state.step + 1)

    def output_projection(self) -> Projection:
        with tf1.variable_scope("transformer"):
            bias = tf1.get_variable("softmax_bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
            return Projection(self._table("softmax"), bias)

    def _table(self, role: str) -> Any:
        """The embedding of `role` (source, target, softmax) float32 `[vocabulary, depth]`, shared as set."""
        tie = self.settings.tie_embeddings
        name = {"all": "embedding", "target": "source_embedding" if role == "source" else "target_embedding",
                "none": f"{role}_embedding"}[tie]
        size = self.source_vocab_size if role == "source" else self.target_vocab_size
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            return embedding_table(size, self.settings.hidden_size, name)

    def _embed(self, table: Any, ids: Any, positions: Any) -> Any:
        """Scaled embeddings plus positions: float32 `[batch, length, depth]` of ids int32 `[batch, length]`."""
        s = self.settings
        x = tf.gather(table, ids) * s.hidden_size ** 0.5
        if s.positions == "learned":
            signal = tf.gather(embedding_table(s.max_positions, s.hidden_size, "positions"),
                               tf.minimum(positions, s.max_positions - 1))
        else:
            signal = sinusoids(positions, s.hidden_size)
        return dropout(x + signal[None], s.embedding_dropout, "embedding")

    def _sublayer(self, x: Any, name: str, layer: Callable[[Any], Any]) -> Any:
        s = self.settings
        y = self._process(x, None, s.preprocess, f"{name}_pre")
        return self._process(layer(y), x, s.postprocess, f"{name}_post")

    def _process(self, x: Any, residual: Any, sequence: str, name: str) -> Any:
        for place, operation in enumerate(sequence):
            if operation == "n":
                x = layer_norm(x, f"{name}_norm")
            elif operation == "d":
                x = dropout(x, self.settings.residual_dropout, f"{name}_{place}")
            else:
                x = to_float32(x) + residual
        return x

    def _feed_forward(self, x: Any) -> Any:
        s = self.settings
        with tf1.variable_scope("feed_forward"):
            hidden = linear(x, s.filter_size, "inner", activation=relu)
            return linear(dropout(hidden, s.activation_dropout, "inner"), s.hidden_size, "outer")

    def _final_norm(self, x: Any) -> Any:
        """A pre-norm stack adds up unnormalised sublayers: normalise their sum once."""
        return layer_norm(x, "final_norm") if "n" in self.settings.preprocess else x


def _check(s: TransformerSettings) -> None:
    if s.source_vocab_size < 5 or s.target_vocab_size < 5:
        raise SettingsError("model.source_vocab_size and model.target_vocab_size are not set: take them from the "
                            "vocabularies (4 special tokens and at least one word).")
    if s.hidden_size % s.heads or s.hidden_size % 2:
        raise SettingsError(f"model.hidden_size={s.hidden_size} must be even and a multiple of "
                            f"model.heads={s.heads}.")
    if s.tie_embeddings == "all" and s.source_vocab_size != s.target_vocab_size:
        raise SettingsError("model.tie_embeddings=all needs one shared vocabulary: prepare the data with "
                            "--shared-vocab, or set model.tie_embeddings=target.")
    for key, value, letters in (("preprocess", s.preprocess, "nd"), ("postprocess", s.postprocess, "ndr")):
        if len(set(value)) != len(value) or set(value) - set(letters):
            raise SettingsError(f"model.{key}={value!r}: each of the letters {', '.join(letters)} at most once.")

