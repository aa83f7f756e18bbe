"""From a Transformer's weights to CTranslate2's specification of a model.

CTranslate2 has no scale of hidden units (LHUC), no scaled residual (DeepNorm) and no map of concatenated factors. All
of these are linear, and are folded into kernels:

- LHUC multiplies the columns of the kernel, and the bias, that a sublayer ends with.
- DeepNorm normalises `f(x) + alpha * x`, which is the same as `f(x) / alpha + x`, but for the epsilon.
- A map of concatenated embeddings is the sum of mapped tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from ctranslate2 import specs

from towernmt.export.ctranslate2.expressible import pre_norm
from towernmt.models.choices import ACTIVATIONS
from towernmt.models.layers.gains import layer_gains
from towernmt.models.transformer.settings import TransformerSettings

POSITIONS = 1024
"""Rows of a table of positions: so many tokens a sentence has at most, EOS counted. A learned table may have more."""
_ACTIVATIONS = {"relu": "RELU", "swish": "SWISH", "gelu_sigmoid": "GELUSigmoid", "gelu_tanh": "GELUTanh",
                "glu": "Sigmoid", "swiglu": "SWISH", "geglu": "GELU"}


def transformer_spec(settings: TransformerSettings, weights: Mapping[str, np.ndarray]) -> specs.TransformerSpec:
    """The specification, its weights in float32.

    Args:
        settings: of a model that CTranslate2 can express.
        weights: the value of every variable, by name.
    """
    values = {name.removeprefix("transformer/"): value.astype(np.float32) for name, value in weights.items()}
    return _Builder(settings, values).spec()


def position_rows(settings: TransformerSettings) -> int | None:
    """How many tokens a sentence can have; None for any number."""
    if settings.positions in ("relative", "rotary"):
        return None
    return max(POSITIONS, settings.max_positions) if settings.positions == "learned" else POSITIONS


class _Builder:
    def __init__(self, settings: TransformerSettings, weights: dict[str, np.ndarray]) -> None:
        self._settings, self._weights = settings, weights

    def spec(self) -> specs.TransformerSpec:
        s = self._settings
        common: dict[str, Any] = {
            "num_heads": s.heads, "pre_norm": pre_norm(s), "rms_norm": s.norm == "rms",
            "activation": specs.Activation[_ACTIVATIONS[s.feed_forward]], "ffn_glu": s.feed_forward not in ACTIVATIONS,
            "relative_position": s.positions == "relative"}
        if s.positions == "rotary":
            common |= {"rotary_dim": 0, "rotary_interleave": False}
        encoder = specs.TransformerEncoderSpec(
            s.encoder_layers, num_source_embeddings=1 + len(s.source_factor_vocab_sizes),
            embeddings_merge=specs.EmbeddingsMerge.ADD, **common)
        shown = s.guided_alignment_layer or max(1, s.decoder_layers - 1)
        decoder = specs.TransformerDecoderSpec(
            s.decoder_layers, alignment_layer=shown - 1,
            alignment_heads=1 if s.guided_alignment_weight else s.heads, **common)
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
        decoder.projection.bias = self._weights["softmax_bias"]
        if s.positions in ("sinusoidal", "learned"):
            for name, stack in (("encoder", encoder), ("decoder", decoder)):
                stack.position_encodings.encodings = self._positions(name)

    def _table(self, role: str) -> np.ndarray:
        tie = self._settings.tie_embeddings
        shared = {"all": "embedding",
                  "target": "source_embedding" if role == "source" else "target_embedding"}
        return self._weights[shared.get(tie, f"{role}_embedding")]

    def _source_tables(self) -> list[np.ndarray]:
        """Those of the words and of each factor, `[vocabulary, depth]`, whose sum is the embedding."""
        s = self._settings
        tables = [self._table("source"), *(self._weights[f"source_factor_{number}_embedding"]
                                           for number in range(1, 1 + len(s.source_factor_vocab_sizes)))]
        if len(tables) == 1 or s.source_factors == "sum":
            return tables
        ends = np.cumsum([table.shape[1] for table in tables])
        parts = np.split(self._weights["source_factors/kernel"], ends[:-1])
        return [table @ part for table, part in zip(tables, parts, strict=True)]

    def _positions(self, stack: str) -> np.ndarray:
        """Float32 `[rows, depth]`. Behind its end CTranslate2 fails, and a learned table goes on with its last row."""
        depth, rows = self._settings.hidden_size, position_rows(self._settings) or 0
        if self._settings.positions == "learned":
            table = self._weights[f"{stack}/positions"]
            return np.concatenate([table, np.repeat(table[-1:], rows - len(table), 0)])
        rates = np.exp(-np.log(10000.0) * np.arange(depth // 2) / max(1, depth // 2 - 1)).astype(np.float32)
        positions = np.arange(rows, dtype=np.float32) + self._settings.first_position
        angles = positions[:, None] * rates
        return np.concatenate([np.sin(angles), np.cos(angles)], 1)

    def _layer(self, layer: Any, stack: str, number: int) -> None:
        s, scope = self._settings, f"{stack}/layer_{number}"
        residual = layer_gains(s.initialization, stack, number, s.encoder_layers, s.decoder_layers).residual
        own, place = layer.self_attention, f"{scope}/self_attention"
        own.linear[0].weight = self._kernel(f"{place}/qkv")
        if s.attention_biases:
            query = self._weights[f"{place}/query_bias"]
            own.linear[0].bias = np.concatenate([query, np.zeros(2 * len(query), np.float32)])
        if s.positions == "relative":
            own.relative_position_keys = self._weights[f"{place}/relative_keys"]
            own.relative_position_values = self._weights[f"{place}/relative_values"]
        self._end(own.linear[1], f"{place}/output", place, residual)
        self._norm(own.layer_norm, self._norm_of(place))
        if stack == "decoder":
            source, place = layer.attention, f"{scope}/source_attention"
            source.linear[0].weight = self._kernel(f"{place}/query")
            if s.attention_biases:
                source.linear[0].bias = self._weights[f"{place}/query/bias"]
            source.linear[1].weight = self._kernel(f"{place}/kv")
            self._end(source.linear[2], f"{place}/output", place, residual)
            self._norm(source.layer_norm, self._norm_of(place))
        self._feed_forward(layer.ffn, f"{scope}/feed_forward", residual)

    def _feed_forward(self, ffn: Any, place: str, residual: float) -> None:
        inner, bias = self._kernel(f"{place}/inner"), self._weights[f"{place}/inner/bias"]
        if self._settings.feed_forward in ACTIVATIONS:
            ffn.linear_0.weight, ffn.linear_0.bias = inner, bias
        else:
            (gate, value), (gate_bias, value_bias) = np.split(inner, 2), np.split(bias, 2)
            ffn.linear_0.weight, ffn.linear_0.bias = gate, gate_bias
            ffn.linear_0_noact.weight, ffn.linear_0_noact.bias = value, value_bias
        self._end(ffn.linear_1, f"{place}/outer", place, residual)
        self._norm(ffn.layer_norm, self._norm_of(place))

    def _end(self, linear: Any, name: str, sublayer: str, residual: float) -> None:
        """The map that a sublayer ends with, with its LHUC, over the scale of the residual."""
        kernel = self._kernel(name)                                             # [depth, input depth]
        scale = np.full(len(kernel), 1.0 / residual, np.float32)                # [depth]
        if self._settings.lhuc:
            scale *= 2.0 / (1.0 + np.exp(-self._weights[f"{sublayer}/lhuc"]))
        linear.weight = kernel * scale[:, None]
        bias = self._weights.get(f"{name}/bias")
        if bias is not None:
            linear.bias = bias * scale

    def _kernel(self, name: str) -> np.ndarray:
        """`[output depth, input depth]`, as CTranslate2 has it."""
        return np.ascontiguousarray(self._weights[f"{name}/kernel"].T)

    def _norm_of(self, sublayer: str) -> str:
        return f"{sublayer}_{'pre' if pre_norm(self._settings) else 'post'}_norm"

    def _norm(self, spec: Any, name: str) -> None:
        spec.gamma = self._weights[f"{name}/scale"]
        if self._settings.norm == "layer":
            spec.beta = self._weights[f"{name}/offset"]
