"""The Transformer (Vaswani et al. 2017), pre- or post-norm, as a tower function.

What can be set, and where it is from: `transformer_settings`, and the modules of the parts (`positions`,
`feed_forward`, `ssru`, `initialization`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.configured import ConfiguredModel
from towernmt.models.interface import DecoderState
from towernmt.models.kernels.precision import to_float32
from towernmt.models.layers.attention import Attended, Attention, AttentionInputs, causal_bias, padding_bias
from towernmt.models.layers.dropout import dropout
from towernmt.models.layers.embeddings import embed_source, embed_target, embedding_table, shared_table
from towernmt.models.layers.feed_forward import feed_forward
from towernmt.models.layers.gains import Gains, layer_gains
from towernmt.models.layers.gradient_checkpointing import checkpointed
from towernmt.models.layers.multi_head import CrossAttention, SelfAttention
from towernmt.models.layers.normalization import layer_norm, rms_norm
from towernmt.models.layers.positions import PairPositions, RelativePositions, RotaryPositions, sinusoids
from towernmt.models.layers.projections import Projection
from towernmt.models.layers.step_blocks import empty_blocks, place_of_step
from towernmt.models.transformer.settings import PRESETS, TransformerSettings, check_settings
from towernmt.models.transformer.ssru import SSRU

__all__ = ["PRESETS", "Transformer", "TransformerMemory", "TransformerSettings"]


class TransformerMemory(NamedTuple):
    """What the decoder sees of the source.

    Attributes:
        prepared: for each decoder layer, what each of its attentions made of the source (see `Attention.prepare`).
        bias: float32 `[batch, 1, 1, source length]`.
    """

    prepared: list[list[Any]]
    bias: Tensor


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

    def encoder_attention(self, layer: int) -> Attention:
        """By what a word of the source sees the others in an encoder layer, counted from 0."""
        s = self.settings
        return SelfAttention(s.hidden_size, s.heads, s.attention_dropout, self.pair_positions(),
                             self.gains("encoder", layer), biases=s.attention_biases)

    def decoder_attention(self, layer: int) -> list[Attention]:
        """By what a target position sees those before it, and the source, in a decoder layer, counted from 0.

        Each is a sublayer, in this order; the feed-forward layer follows.
        """
        s, gains = self.settings, self.gains("decoder", layer)
        before: Attention = SSRU(s.hidden_size, gains)
        if s.decoder_cell == "attention":
            before = SelfAttention(s.hidden_size, s.heads, s.attention_dropout, self.pair_positions(), gains,
                                   biases=s.attention_biases)
        shown = 1 if s.guided_alignment_weight else s.heads
        return [before, CrossAttention(s.heads, s.attention_dropout, gains, shown_heads=shown,
                                       biases=s.attention_biases)]

    def encode(self, source: Tensor, source_length: Tensor) -> TransformerMemory:
        s = self.settings
        # EOS is the last token: where it is not to be read, it is padding. (Of a source of EOS alone it is left.)
        length = source_length if s.source_end else tf.maximum(source_length - 1, 1)
        bias = padding_bias(length, tf.shape(source)[1])
        with tf1.variable_scope("transformer"):
            x = embed_source(self._table("source"), source, s)
            with tf1.variable_scope("encoder"):
                x = self._embed(x, tf.range(tf.shape(source)[1]))               # [batch, source length, depth]
                for layer in range(s.encoder_layers):
                    with tf1.variable_scope(f"layer_{layer}"):
                        x = checkpointed(partial(self._encoder_layer, bias=bias, layer=layer), x)
                x = self._final_norm(x)
            with tf1.variable_scope("decoder"):
                return TransformerMemory([self._prepared(x, layer) for layer in range(s.decoder_layers)], bias)

    def _prepared(self, source: Tensor, layer: int) -> list[Any]:
        prepared = []
        for attention in self.decoder_attention(layer):
            with tf1.variable_scope(f"layer_{layer}/{attention.name}"):
                prepared.append(attention.prepare(source))
        return prepared

    def decode_hidden(self, memory: TransformerMemory, target_in: Tensor) -> Tensor:
        return self._teacher_forced(memory, target_in, None)[0]

    def decode_with_attention(self, memory: TransformerMemory, target_in: Tensor) -> tuple[Tensor, Tensor]:
        """With the cross-attention in `guided_alignment_layer` (Garg et al. 2019).

        With guided alignment that of the first head, which is guided; else the mean over all heads.
        """
        hidden, (attention,) = self._teacher_forced(memory, target_in, self._shown_layer)
        return hidden, attention

    @property
    def _shown_layer(self) -> int:
        """The decoder layer, from 0, whose attention is given."""
        return (self.settings.guided_alignment_layer or max(1, self.settings.decoder_layers - 1)) - 1

    def _teacher_forced(self, memory: TransformerMemory, target_in: Tensor, shown: int | None
                        ) -> tuple[Tensor, list[Tensor]]:
        """The last hidden layer, and the attention to the source in the layer `shown`, if any."""
        length = tf.shape(target_in)[1]
        bias, weights = causal_bias(length), []

        def attend(y: Tensor, attention: Attention, layer: int, place: int) -> Tensor:
            inputs = AttentionInputs(bias, memory.prepared[layer][place], memory.bias)
            attended = attention.whole(y, inputs, layer == shown)
            if attended.weights is not None:
                weights.append(attended.weights)
            return attended.output

        with tf1.variable_scope("transformer"):
            x = embed_target(self._table("target"), target_in, self.settings)
            with tf1.variable_scope("decoder"):
                x = self._embed(x, tf.range(length))                            # [batch, target length, depth]
                return self._decoder_layers(x, attend), weights

    def start_state(self, memory: TransformerMemory, beam: int) -> DecoderState:
        batch = tf.shape(memory.bias)[0]
        cache: list[list[Any]] = []
        kept: list[list[Any]] = []
        for layer in range(self.settings.decoder_layers):
            attentions = self.decoder_attention(layer)
            cache.append([attention.empty_cache(batch * beam) for attention in attentions])
            kept.append([() if tf.nest.flatten(own) else attention.empty_places(batch, beam)
                         for attention, own in zip(attentions, cache[-1], strict=True)])
        blocks = empty_blocks(kept, batch, beam) if tf.nest.flatten(kept) else ()
        return DecoderState(memory, cache, tf.constant(0), blocks)

    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        memory: TransformerMemory = state.memory
        steps = _Steps(memory, state)
        shown, weights = self._shown_layer if attention else None, []

        def attend(y: Tensor, attention: Attention, layer: int, place: int) -> Tensor:
            attended = steps.take(y, attention, layer, place, layer == shown)
            if attended.weights is not None:
                weights.append(attended.weights)
            return attended.output

        with tf1.variable_scope("transformer"):
            x = embed_target(self._table("target"), token[:, None], self.settings)
            with tf1.variable_scope("decoder"):
                x = self._embed(x, state.step[None])[:, 0]                      # [rows, depth]
                x = self._decoder_layers(x, attend)
        return self.output_projection().logits(x), steps.after(), *weights

    def _decoder_layers(self, x: Tensor, attend: _Attend) -> Tensor:
        """The stack of the decoder, with its final normalisation, over `x` `[..., depth]`.

        Args:
            attend: applies an attention of a layer, in one of its forms.
        """
        for layer in range(self.settings.decoder_layers):
            with tf1.variable_scope(f"layer_{layer}"):
                x = checkpointed(partial(self._decoder_layer, attend=attend, layer=layer), x)
        return self._final_norm(x)

    def _encoder_layer(self, x: Tensor, bias: Tensor, layer: int) -> Tensor:
        """A layer over `x` `[batch, source length, depth]`, without attention where `bias` says so."""
        gains, attention = self.gains("encoder", layer), self.encoder_attention(layer)
        x = self._attention(x, attention, gains, lambda y: attention.whole(y, AttentionInputs(bias)).output)
        return self._feed_forward(x, gains)

    def _decoder_layer(self, x: Tensor, attend: _Attend, layer: int) -> Tensor:
        """A layer over `x` `[..., depth]`; see `_decoder_layers`."""
        gains = self.gains("decoder", layer)
        for place, attention in enumerate(self.decoder_attention(layer)):
            x = self._attention(x, attention, gains, partial(attend, attention=attention, layer=layer, place=place))
        return self._feed_forward(x, gains)

    def output_projection(self) -> Projection:
        with tf1.variable_scope("transformer"):
            bias = tf1.get_variable("softmax_bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
            return Projection(self._table("softmax"), bias)

    def _table(self, role: str) -> Tensor:
        """The embedding of `role` (source, target, softmax) float32 `[vocabulary, depth]`, shared as set."""
        size = self.source_vocab_size if role == "source" else self.target_vocab_size
        return shared_table(role, self.settings.tie_embeddings, size, self.settings.hidden_size)

    def _embed(self, x: Tensor, positions: Tensor) -> Tensor:
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
            signal = sinusoids(positions + s.first_position if s.first_position else positions, s.hidden_size)
        return dropout(x + signal[None], s.embedding_dropout, "embedding")

    def pair_positions(self) -> PairPositions | None:
        """What self-attention knows of positions; None if they are added to the embeddings."""
        if self.settings.positions == "relative":
            return RelativePositions(self.settings.max_distance)
        return RotaryPositions() if self.settings.positions == "rotary" else None

    def gains(self, stack: str, layer: int) -> Gains:
        """How the first kernels of a layer are scaled.

        Args:
            stack: "encoder" or "decoder".
            layer: counted from 0.
        """
        s = self.settings
        return layer_gains(s.initialization, stack, layer, s.encoder_layers, s.decoder_layers)

    def _attention(self, x: Tensor, attention: Attention, gains: Gains, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """The sublayer of an attention, which `attend` applies, over `x` `[..., depth]`."""
        def in_scope(y: Tensor) -> Tensor:
            with tf1.variable_scope(attention.name):
                return attend(y)

        return self._sublayer(x, attention.name, gains, in_scope)

    def _sublayer(self, x: Tensor, name: str, gains: Gains, layer: Callable[[Tensor], Tensor]) -> Tensor:
        s = self.settings
        y = self.adapted(layer(self._process(x, None, s.preprocess, f"{name}_pre", gains)), name)
        return self._process(y, x, s.postprocess, f"{name}_post", gains)

    def _process(self, x: Tensor, residual: Tensor, sequence: str, name: str, gains: Gains) -> Tensor:
        for place, operation in enumerate(sequence):
            if operation == "n":
                x = self._norm(x, f"{name}_norm")
            elif operation == "d":
                x = dropout(x, self.settings.residual_dropout, f"{name}_{place}")
            else:
                x = to_float32(x) + (residual if gains.residual == 1.0 else residual * gains.residual)
        return x

    def _feed_forward(self, x: Tensor, gains: Gains) -> Tensor:
        s = self.settings
        return self._sublayer(x, "feed_forward", gains, partial(
            feed_forward, filter_size=s.filter_size, dropout_rate=s.activation_dropout, kind=s.feed_forward,
            gains=gains))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        norm = rms_norm if self.settings.norm == "rms" else layer_norm
        return norm(x, name, self.settings.norm_epsilon)

    def _final_norm(self, x: Tensor) -> Tensor:
        """A pre-norm stack adds up unnormalised sublayers: normalise their sum once."""
        return self._norm(x, "final_norm") if "n" in self.settings.preprocess else x


class _Steps:
    """A step of all attentions of the decoder, and the state that it leaves."""

    def __init__(self, memory: TransformerMemory, state: DecoderState) -> None:
        self._memory, self._before = memory, state
        self._cache: list[list[Any]] = [[] for _ in state.cache]
        self._kept: list[list[Any]] = [[] for _ in state.cache]
        self._place, self._blocks = None, state.blocks
        if state.blocks:
            self._place, self._blocks = place_of_step(state.blocks, state.step)

    def take(self, x: Tensor, attention: Attention, layer: int, number: int, with_weights: bool) -> Attended:
        """The attention with this number in a layer, for `x` `[rows, depth]`."""
        inputs = AttentionInputs(None, self._memory.prepared[layer][number], self._memory.bias, self._place)
        cache = self._before.cache[layer][number]
        kept = self._blocks.kept[layer][number] if self._blocks else ()
        keeps = bool(tf.nest.flatten(kept))
        attended, after = attention.step(x, kept if keeps else cache, inputs, with_weights)
        self._cache[layer].append(cache if keeps else after)
        self._kept[layer].append(after if keeps else kept)
        return attended

    def after(self) -> DecoderState:
        """The state after all attentions."""
        blocks = self._blocks._replace(kept=self._kept) if self._blocks else ()
        return DecoderState(self._memory, self._cache, self._before.step + 1, blocks)


_Attend = Callable[..., Tensor]
"""From `[..., depth]`, an `attention`, the number of its `layer` and its `place` in it to `[..., depth]`."""
