"""The Transformer (Vaswani et al. 2017), pre- or post-norm, as a tower function.

What can be set, and where it is from: `transformer_settings`, and the modules of the parts (`positions`,
`feed_forward`, `ssru`, `initialization`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.configured import ConfiguredModel
from towernmt.models.interface import DecoderState
from towernmt.models.kernels.precision import compute_dtype, to_float32
from towernmt.models.layers.attention import (
    causal_bias,
    memory_keys_values,
    padding_bias,
    self_attention,
    self_attention_step,
    source_attention,
    source_attention_with_weights,
)
from towernmt.models.layers.dropout import dropout
from towernmt.models.layers.embeddings import embed_source, embedding_table, look_up, shared_table
from towernmt.models.layers.feed_forward import feed_forward
from towernmt.models.layers.gains import Gains, layer_gains
from towernmt.models.layers.gradient_checkpointing import checkpointed
from towernmt.models.layers.normalization import layer_norm, rms_norm
from towernmt.models.layers.positions import PairPositions, RelativePositions, RotaryPositions, sinusoids
from towernmt.models.layers.projections import Projection
from towernmt.models.transformer.settings import PRESETS, TransformerSettings, check_settings
from towernmt.models.transformer.ssru import ssru, ssru_step

__all__ = ["PRESETS", "Transformer", "TransformerMemory", "TransformerSettings"]


class TransformerMemory(NamedTuple):
    """What the decoder sees of the source.

    Attributes:
        keys_values: for each decoder layer two `[batch, heads, source length, head depth]`.
        bias: float32 `[batch, 1, 1, source length]`.
    """

    keys_values: list[tuple[Any, Any]]
    bias: Any


@dataclass
class Transformer(ConfiguredModel):
    """A Transformer.

    Args:
        settings: sizes, with both vocabulary sizes set.
        optimizer_settings: as of `ConfiguredModel`.
        clip_norm: as of `ConfiguredModel`.
    Raises:
        SettingsError: sizes that do not fit each other.
    """

    architecture = "transformer"
    settings: TransformerSettings

    def __post_init__(self) -> None:
        check_settings(self.settings)
        super().__post_init__()

    def encode(self, source: Any, source_length: Any) -> TransformerMemory:
        s = self.settings
        bias = padding_bias(source_length, tf.shape(source)[1])
        with tf1.variable_scope("transformer"):
            x = embed_source(self._table("source"), source, s)
            with tf1.variable_scope("encoder"):
                x = self._embed(x, tf.range(tf.shape(source)[1]))               # [batch, source length, depth]
                for layer in range(s.encoder_layers):
                    with tf1.variable_scope(f"layer_{layer}"):
                        x = checkpointed(partial(self._encoder_layer, bias=bias, layer=layer), x)
                x = self._final_norm(x)
            with tf1.variable_scope("decoder"):
                keys_values = []
                for layer in range(s.decoder_layers):
                    with tf1.variable_scope(f"layer_{layer}"):
                        keys_values.append(memory_keys_values(
                            x, s.heads, "source_attention", self._gains("decoder", layer)))
        return TransformerMemory(keys_values, bias)

    def decode_hidden(self, memory: TransformerMemory, target_in: Any) -> Any:
        return self._teacher_forced(memory, target_in, None)[0]

    def decode_with_attention(self, memory: TransformerMemory, target_in: Any) -> tuple[Any, Any]:
        """With the first head of the source attention in `guided_alignment_layer` (Garg et al. 2019)."""
        hidden, (attention,) = self._teacher_forced(memory, target_in, self._shown_layer)
        return hidden, attention

    @property
    def _shown_layer(self) -> int:
        """The decoder layer, from 0, whose attention is given."""
        return (self.settings.guided_alignment_layer or max(1, self.settings.decoder_layers - 1)) - 1

    def _teacher_forced(self, memory: TransformerMemory, target_in: Any, shown: int | None) -> tuple[Any, list[Any]]:
        """The last hidden layer, and the attention to the source in the layer `shown`, if any."""
        s = self.settings
        length = tf.shape(target_in)[1]
        bias = causal_bias(length) if s.decoder_cell == "attention" else None
        attention = []

        def before(y: Any, layer: int, gains: Gains) -> Any:
            if s.decoder_cell == "ssru":
                return ssru(y, "ssru", gains)
            return self_attention(y, bias, s.heads, s.attention_dropout, "self_attention",
                                  self._pair_positions(), gains)

        def source(y: Any, layer: int, gains: Gains) -> Any:
            arguments = (y, memory.keys_values[layer], memory.bias, s.heads, s.attention_dropout, "source_attention",
                         gains)
            if layer != shown:
                return source_attention(*arguments)
            y, weights = source_attention_with_weights(*arguments)
            attention.append(weights)
            return y

        with tf1.variable_scope("transformer"):
            x = look_up(self._table("target"), target_in)
            with tf1.variable_scope("decoder"):
                x = self._embed(x, tf.range(length))                            # [batch, target length, depth]
                return self._decoder_layers(x, before, source), attention

    def start_state(self, memory: TransformerMemory, beam: int) -> DecoderState:
        s = self.settings
        rows = tf.shape(memory.bias)[0] * beam
        if s.decoder_cell == "ssru":
            nothing = tf.zeros([rows, s.hidden_size])
        else:
            nothing = tf.zeros([rows, 0, 2 * s.hidden_size], compute_dtype())
        return DecoderState(memory, [nothing] * s.decoder_layers, tf.constant(0))

    def decode_step(self, token: Any, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        s = self.settings
        memory, cache, shown = state.memory, [], []
        batch = tf.shape(memory.bias)[0]

        def before(y: Any, layer: int, gains: Gains) -> Any:
            if s.decoder_cell == "ssru":
                y, new = ssru_step(y, state.cache[layer], "ssru", gains)
            else:
                y, new = self_attention_step(y, state.cache[layer], s.heads, "self_attention",
                                             self._pair_positions(), gains)
            cache.append(new)
            return y

        def source(y: Any, layer: int, gains: Gains) -> Any:
            by_sentence = tf.reshape(y, [batch, -1, s.hidden_size])             # [batch, beam, depth]
            arguments = (by_sentence, memory.keys_values[layer], memory.bias, s.heads, 0.0, "source_attention", gains)
            if attention and layer == self._shown_layer:
                context, weights = source_attention_with_weights(*arguments)
                shown.append(tf.reshape(weights, [-1, tf.shape(memory.bias)[3]]))   # [rows, source length]
            else:
                context = source_attention(*arguments)
            return tf.reshape(context, [-1, s.hidden_size])

        with tf1.variable_scope("transformer"):
            x = look_up(self._table("target"), token[:, None])
            with tf1.variable_scope("decoder"):
                x = self._embed(x, state.step[None])[:, 0]                      # [rows, depth]
                x = self._decoder_layers(x, before, source)
        return self.output_projection().logits(x), DecoderState(memory, cache, state.step + 1), *shown

    def _decoder_layers(self, x: Any, before: _DecoderSublayer, source: _DecoderSublayer) -> Any:
        """The stack of the decoder, with its final normalisation, over `x` `[..., depth]`.

        Args:
            before: what `[..., depth]` sees of the target before it.
            source: what it sees of the source.
        """
        s = self.settings
        for layer in range(s.decoder_layers):
            with tf1.variable_scope(f"layer_{layer}"):
                x = checkpointed(partial(self._decoder_layer, before=before, source=source, layer=layer), x)
        return self._final_norm(x)

    def _encoder_layer(self, x: Any, bias: Any, layer: int) -> Any:
        """A layer over `x` `[batch, source length, depth]`, without attention where `bias` says so."""
        s, gains = self.settings, self._gains("encoder", layer)
        x = self._sublayer(x, "self_attention", gains, partial(
            self_attention, bias=bias, heads=s.heads, dropout_rate=s.attention_dropout, name="self_attention",
            positions=self._pair_positions(), gains=gains))
        return self._feed_forward(x, gains)

    def _decoder_layer(self, x: Any, before: _DecoderSublayer, source: _DecoderSublayer, layer: int) -> Any:
        """A layer over `x` `[..., depth]`; see `_decoder_layers`."""
        gains = self._gains("decoder", layer)
        name = "self_attention" if self.settings.decoder_cell == "attention" else self.settings.decoder_cell
        x = self._sublayer(x, name, gains, partial(before, layer=layer, gains=gains))
        x = self._sublayer(x, "source_attention", gains, partial(source, layer=layer, gains=gains))
        return self._feed_forward(x, gains)

    def output_projection(self) -> Projection:
        with tf1.variable_scope("transformer"):
            bias = tf1.get_variable("softmax_bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
            return Projection(self._table("softmax"), bias)

    def _table(self, role: str) -> Any:
        """The embedding of `role` (source, target, softmax) float32 `[vocabulary, depth]`, shared as set."""
        size = self.source_vocab_size if role == "source" else self.target_vocab_size
        return shared_table(role, self.settings.tie_embeddings, size, self.settings.hidden_size)

    def _embed(self, x: Any, positions: Any) -> Any:
        """Scaled embeddings, plus positions unless self-attention has them.

        Args:
            x: embeddings float32 `[batch, length, depth]`.
            positions: int32 `[length]`.
        Returns:
            float32 `[batch, length, depth]`.
        """
        s = self.settings
        x *= s.hidden_size ** 0.5
        if s.positions in ("relative", "rotary"):
            return dropout(x, s.embedding_dropout, "embedding")
        if s.positions == "learned":
            signal = tf.gather(embedding_table(s.max_positions, s.hidden_size, "positions"),
                               tf.minimum(positions, s.max_positions - 1))
        else:
            signal = sinusoids(positions, s.hidden_size)
        return dropout(x + signal[None], s.embedding_dropout, "embedding")

    def _pair_positions(self) -> PairPositions | None:
        """What self-attention knows of positions."""
        if self.settings.positions == "relative":
            return RelativePositions(self.settings.max_distance)
        return RotaryPositions() if self.settings.positions == "rotary" else None

    def _gains(self, stack: str, layer: int) -> Gains:
        s = self.settings
        return layer_gains(s.initialization, stack, layer, s.encoder_layers, s.decoder_layers)

    def _sublayer(self, x: Any, name: str, gains: Gains, layer: Callable[[Any], Any]) -> Any:
        s = self.settings
        y = self.adapted(layer(self._process(x, None, s.preprocess, f"{name}_pre", gains)), name)
        return self._process(y, x, s.postprocess, f"{name}_post", gains)

    def _process(self, x: Any, residual: Any, sequence: str, name: str, gains: Gains) -> Any:
        for place, operation in enumerate(sequence):
            if operation == "n":
                x = self._norm(x, f"{name}_norm")
            elif operation == "d":
                x = dropout(x, self.settings.residual_dropout, f"{name}_{place}")
            else:
                x = to_float32(x) + (residual if gains.residual == 1.0 else residual * gains.residual)
        return x

    def _feed_forward(self, x: Any, gains: Gains) -> Any:
        s = self.settings
        return self._sublayer(x, "feed_forward", gains, partial(
            feed_forward, filter_size=s.filter_size, dropout_rate=s.activation_dropout, kind=s.feed_forward,
            gains=gains))

    def _norm(self, x: Any, name: str) -> Any:
        return rms_norm(x, name) if self.settings.norm == "rms" else layer_norm(x, name)

    def _final_norm(self, x: Any) -> Any:
        """A pre-norm stack adds up unnormalised sublayers: normalise their sum once."""
        return self._norm(x, "final_norm") if "n" in self.settings.preprocess else x


_DecoderSublayer = Callable[..., Any]
"""From `[..., depth]`, `layer` and `gains` to `[..., depth]`."""
