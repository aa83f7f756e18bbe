"""Convert the weights of a Transformer to CTranslate2's model specification. Imports CTranslate2."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from ctranslate2 import specs

from towernmt.interop.ctranslate2_model_support import ACTIVATION_NAMES, pre_norm
from towernmt.models.model_settings import ACTIVATIONS, TransformerSettings, layer_gains

POSITION_ROWS = 1024
"""Rows of the position table, which limit the tokens of a sentence, EOS included. A learned table may have more."""


def transformer_spec(settings: TransformerSettings, weight: Callable[[str], np.ndarray]) -> specs.TransformerSpec:
    """Return the specification of a model, with weights in float32.

    Args:
        settings: settings of a model that CTranslate2 can express.
        weight: returns the value of the variable of a name.
    """
    return _SpecBuilder(settings, weight).spec()


def position_rows(settings: TransformerSettings) -> int | None:
    """Return the maximum number of tokens in a sentence, EOS included; None if unlimited."""
    if settings.positions in ("relative", "rotary"):
        return None
    return max(POSITION_ROWS, settings.max_positions) if settings.positions == "learned" else POSITION_ROWS


class _SpecBuilder:
    def __init__(self, settings: TransformerSettings, weight: Callable[[str], np.ndarray]) -> None:
        self._settings = settings
        # A shared table has several uses.
        self._weight = cache(lambda name: weight(f"transformer/{name}").astype(np.float32))

    def spec(self) -> specs.TransformerSpec:
        s = self._settings
        common: dict[str, Any] = {
            "num_heads": s.heads, "pre_norm": pre_norm(s), "rms_norm": s.norm == "rms",
            "activation": specs.Activation[ACTIVATION_NAMES[s.feed_forward]],
            "ffn_glu": s.feed_forward not in ACTIVATIONS,
            "relative_position": s.positions == "relative"}
        if s.positions == "rotary":
            common |= {"rotary_dim": 0, "rotary_interleave": False}
        encoder = specs.TransformerEncoderSpec(
            s.encoder_layers, num_source_embeddings=1 + len(s.source_factor_vocab_sizes),
            embeddings_merge=specs.EmbeddingsMerge.ADD, **common)
        decoder = specs.TransformerDecoderSpec(
            s.decoder_layers, alignment_layer=s.aligning_layer, alignment_heads=s.aligning_heads, **common)
        decoder.start_from_zero_embedding = s.start == "zero"
        self._embeddings(encoder, decoder)
        for stack, name in ((encoder, "encoder"), (decoder, "decoder")):
            for number, layer in enumerate(stack.layer):
                self._layer(layer, name, number)
            if pre_norm(s):
                self._norm(stack.layer_norm, f"{name}/final_norm")
        spec = specs.TransformerSpec(encoder, decoder)
        spec.config.layer_norm_epsilon = s.norm_epsilon
        spec.config.add_source_eos = s.source_end
        return spec

    def _embeddings(self, encoder: Any, decoder: Any) -> None:
        s = self._settings
        for spec, table in zip(encoder.embeddings, self._source_tables(), strict=True):
            spec.weight = table
        decoder.embeddings.weight = self._table("target")
        decoder.projection.weight = self._table("softmax")
        decoder.projection.bias = self._weight("softmax_bias")
        if s.positions in ("sinusoidal", "learned"):
            for name, stack in (("encoder", encoder), ("decoder", decoder)):
                stack.position_encodings.encodings = self._positions(name)

    def _table(self, role: str) -> np.ndarray:
        tie = self._settings.tie_embeddings
        shared = {"all": "embedding",
                  "target": "source_embedding" if role == "source" else "target_embedding"}
        return self._weight(shared.get(tie, f"{role}_embedding"))

    def _source_tables(self) -> list[np.ndarray]:
        """Return the tables of words and of each factor, `[vocabulary, depth]`; their sum is the embedding."""
        s = self._settings
        tables = [self._table("source"), *(self._weight(f"source_factor_{number}_embedding")
                                           for number in range(1, 1 + len(s.source_factor_vocab_sizes)))]
        if len(tables) == 1 or s.source_factors == "sum":
            return tables
        ends = np.cumsum([table.shape[1] for table in tables])
        parts = np.split(self._weight("source_factors/kernel"), ends[:-1])
        return [table @ part for table, part in zip(tables, parts, strict=True)]

    def _positions(self, stack: str) -> np.ndarray:
        """Return the position table, float32 `[rows, depth]`.

        A learned table is extended by its last row, since CTranslate2 fails at positions after the end of the table.
        """
        depth, rows = self._settings.hidden_size, position_rows(self._settings) or 0
        if self._settings.positions == "learned":
            table = self._weight(f"{stack}/positions")
            return np.concatenate([table, np.repeat(table[-1:], rows - len(table), 0)])
        rates = np.exp(-np.log(10000.0) * np.arange(depth // 2) / max(1, depth // 2 - 1)).astype(np.float32)
        positions = np.arange(rows, dtype=np.float32) + self._settings.first_position
        angles = positions[:, None] * rates
        return np.concatenate([np.sin(angles), np.cos(angles)], 1)

    def _layer(self, layer: Any, stack: str, number: int) -> None:
        s, layer_scope = self._settings, f"{stack}/layer_{number}"
        residual = layer_gains(s.initialization, stack, number, s.encoder_layers, s.decoder_layers).residual
        self_attention, scope = layer.self_attention, f"{layer_scope}/self_attention"
        self_attention.linear[0].weight = self._kernel(f"{scope}/qkv")
        if s.attention_biases:
            query = self._weight(f"{scope}/query_bias")
            self_attention.linear[0].bias = np.concatenate([query, np.zeros(2 * len(query), np.float32)])
        if s.positions == "relative":
            self_attention.relative_position_keys = self._weight(f"{scope}/relative_keys")
            self_attention.relative_position_values = self._weight(f"{scope}/relative_values")
        self._end(self_attention.linear[1], f"{scope}/output", scope, residual, s.attention_biases)
        self._norm(self_attention.layer_norm, self._norm_of(scope))
        if stack == "decoder":
            source, scope = layer.attention, f"{layer_scope}/source_attention"
            source.linear[0].weight = self._kernel(f"{scope}/query")
            if s.attention_biases:
                source.linear[0].bias = self._weight(f"{scope}/query/bias")
            source.linear[1].weight = self._kernel(f"{scope}/kv")
            self._end(source.linear[2], f"{scope}/output", scope, residual, s.attention_biases)
            self._norm(source.layer_norm, self._norm_of(scope))
        self._feed_forward(layer.ffn, f"{layer_scope}/feed_forward", residual)

    def _feed_forward(self, ffn: Any, scope: str, residual: float) -> None:
        inner, bias = self._kernel(f"{scope}/inner"), self._weight(f"{scope}/inner/bias")
        if self._settings.feed_forward in ACTIVATIONS:
            ffn.linear_0.weight, ffn.linear_0.bias = inner, bias
        else:
            (gate, value), (gate_bias, value_bias) = np.split(inner, 2), np.split(bias, 2)
            ffn.linear_0.weight, ffn.linear_0.bias = gate, gate_bias
            ffn.linear_0_noact.weight, ffn.linear_0_noact.bias = value, value_bias
        self._end(ffn.linear_1, f"{scope}/outer", scope, residual, True)
        self._norm(ffn.layer_norm, self._norm_of(scope))

    def _end(self, linear: Any, name: str, sublayer: str, residual: float, has_bias: bool) -> None:
        """Set the last linear layer of a sublayer, scaled by its LHUC and divided by the scale of the residual."""
        kernel = self._kernel(name)                                             # [depth, input depth]
        scale = np.full(len(kernel), 1.0 / residual, np.float32)                # [depth]
        if self._settings.lhuc:
            scale *= 2.0 / (1.0 + np.exp(-self._weight(f"{sublayer}/lhuc")))
        linear.weight = kernel * scale[:, None]
        if has_bias:
            linear.bias = self._weight(f"{name}/bias") * scale

    def _kernel(self, name: str) -> np.ndarray:
        """Return a kernel as CTranslate2 stores it: `[output depth, input depth]`."""
        return np.ascontiguousarray(self._weight(f"{name}/kernel").T)

    def _norm_of(self, sublayer: str) -> str:
        return f"{sublayer}_{'pre' if pre_norm(self._settings) else 'post'}_norm"

    def _norm(self, spec: Any, name: str) -> None:
        spec.gamma = self._weight(f"{name}/scale")
        if self._settings.norm == "layer":
            spec.beta = self._weight(f"{name}/offset")
