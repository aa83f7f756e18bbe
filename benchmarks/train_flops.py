"""How many floating-point operations the products of a training step are, from a model's settings.

Counted are matrix products and convolutions, two operations for each multiplication with its addition, over real
tokens: padding is work that nobody asked for. A training step counts three times the forward pass: each product has
one gradient for each of its two factors. What a program computes beyond that (recomputation, padding, columns added
for a bias) is not counted, so that a ratio to the machine's rate is the share of it that the model's arithmetic gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from towernmt.models.convs2s.model import convolutions

LENGTH = 24.0
"""Tokens of a sentence of the usual workload, EOS counted: how many positions attention looks at."""


class Costs(NamedTuple):
    """Operations of the forward pass for a token of source and of target, and for a sentence."""

    source: float
    target: float
    sentence: float = 0.0


def train_flops(architecture: str, settings: Any, source: float, target: float, length: float = LENGTH) -> float:
    """Operations of the products of forward and backward pass: three times `forward_flops`."""
    return 3.0 * forward_flops(architecture, settings, source, target, length)


def forward_flops(architecture: str, settings: Any, source: float, target: float, length: float = LENGTH) -> float:
    """Operations of the products of one forward pass with its logits.

    Args:
        architecture: one of `towernmt.models.ARCHITECTURES`.
        settings: its settings. Of the Transformer, with plain attention and feed-forward layers.
        source: source tokens, EOS and no padding counted.
        target: target tokens, likewise.
        length: mean tokens of a sentence, of both sides, for attention.
    """
    costs = _COSTS[architecture](settings, length)
    return source * costs.source + target * costs.target + source / length * costs.sentence


def transformer_costs(s: Any, length: float) -> Costs:
    """Projections (4 or, towards the source, 2 + 2), scores and sums of attention, and feed-forward layers."""
    d, f = s.hidden_size, s.filter_size
    encoder = s.encoder_layers * (8 * d * d + 4 * d * f + 4 * length * d)
    keys_values = s.decoder_layers * 4 * d * d
    decoder = s.decoder_layers * (12 * d * d + 4 * d * f + 8 * length * d)
    return Costs(encoder + keys_values, decoder + 2 * d * s.target_vocab_size)


def seq2seq_costs(s: Any, length: float) -> Costs:
    """The cells of both stacks, attention of the top layer, and the layer before the softmax."""
    e, h = s.embedding_size, s.hidden_size
    upper = (s.layers - 1) * _cell(s.cell, h, h)
    encoder = _cell(s.cell, e, h) + upper
    decoder = _cell(s.cell, 2 * e if s.input_feeding else e, h) + upper
    if s.attention == "none":
        hidden = 0.0 if h == e else 2 * h * e
        return Costs(encoder, decoder + hidden + 2 * e * s.target_vocab_size)
    keys = 2 * h * h if s.attention == "general" else 0.0
    attention = 4 * length * h + 4 * h * e
    return Costs(encoder + keys, decoder + attention + 2 * e * s.target_vocab_size)


def rnnsearch_costs(s: Any, length: float) -> Costs:
    """Both directions of the encoder, the decoder's layers (the first reads the context), attention, read-out."""
    e, enc, dec, inner = s.embedding_size, s.encoder_size, s.decoder_size, s.attention_size
    encoder = 2 * (_cell(s.cell, e, enc) + (s.encoder_layers - 1) * _cell(s.cell, 2 * enc, enc))
    decoder = _cell(s.cell, e + 2 * enc, dec) + (s.decoder_layers - 1) * _cell(s.cell, dec, dec)
    if s.attention == "additive":
        keys, scores = 2 * 2 * enc * inner, 2 * dec * inner + 2 * length * inner
    else:
        keys, scores = (2 * 2 * enc * dec if s.attention == "general" else 0.0), 2 * length * dec
    fertility = 2 * 2 * enc if s.coverage != "none" else 0.0
    read_out = 2 * (dec + e + 2 * enc) * s.read_out_size * (2 if s.read_out == "maxout" else 1)
    start = s.decoder_layers * 2 * enc * dec * (1 if s.cell == "gru" else 2)
    return Costs(encoder + keys + fertility,
                 decoder + scores + 2 * length * 2 * enc + read_out + 2 * s.read_out_size * s.target_vocab_size, start)


def convs2s_costs(s: Any, length: float) -> Costs:
    """Convolutions to twice their depth, the maps before, behind and beside them, and an attention a decoder layer."""
    e = s.embedding_size
    encoder, source = _convolutions(s.encoder, e)
    decoder, target = _convolutions(s.decoder, e)
    attention = sum(4 * layer.depth * e + 4 * length * e for layer in convolutions(s.decoder, "decoder"))
    return Costs(encoder + 2 * source * e,
                 decoder + attention + 2 * target * s.output_size + 2 * s.output_size * s.target_vocab_size)


def _convolutions(text: str, depth: int) -> tuple[float, int]:
    """Operations a token of a stack, with the map of its input; and the depth of its output."""
    layers = convolutions(text, "stack")
    total = 2.0 * depth * layers[0].depth
    depth = layers[0].depth
    for layer in layers:
        total += 2 * layer.width * depth * 2 * layer.depth
        total += 0 if depth == layer.depth else 2 * depth * layer.depth
        depth = layer.depth
    return total, depth


def _cell(kind: str, inputs: int, depth: int) -> float:
    """Operations of one step of a cell: its maps from input and state."""
    return 2.0 * (inputs + depth) * depth * {"gru": 3, "lstm": 4}[kind]


_COSTS: dict[str, Callable[[Any, float], Costs]] = {
    "transformer": transformer_costs, "seq2seq": seq2seq_costs, "rnnsearch": rnnsearch_costs, "convs2s": convs2s_costs}
