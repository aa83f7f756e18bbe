"""THUMT's variables as ours."""

from __future__ import annotations

import math

import numpy as np

from towernmt.importing.attention import AttentionMaps
from towernmt.importing.parameters import Parameters
from towernmt.importing.pieces import PieceTable
from towernmt.models.transformer.settings import TransformerSettings

SHARED, SOURCE, TARGET, SOFTMAX, BIAS = "weights", "source_embedding", "target_embedding", "softmax", "bias"
RELATIVE = "decoder/layer_0/self_attention/multihead_attention/rpr_k"


def tie_of(parameters: Parameters, scaled: bool) -> str:
    """Our `tie_embeddings`: the source's table is never another's, as a bias is added to it.

    Args:
        scaled: whether embeddings are multiplied with the root of the depth. If not, ours are divided by it, and the
            softmax has a table of its own.
    """
    return "target" if scaled and SOFTMAX not in parameters else "none"


def our_weights(parameters: Parameters, s: TransformerSettings, scaled: bool, source: PieceTable, target: PieceTable
                ) -> dict[str, np.ndarray]:
    """The values of all variables, by name.

    Raises:
        CheckpointError: a parameter is missing, or left over.
    """
    made = _tables(parameters, s, source, target, scaled)
    for stack, layers in (("encoder", s.encoder_layers), ("decoder", s.decoder_layers)):
        for number in range(layers):
            made |= _layer(parameters, s, stack, number)
        if s.preprocess:
            made |= _norm(parameters, s, f"{stack}/final_norm", f"{stack}/layer_norm")
    parameters.check_all_taken()
    return {f"transformer/{name}": value for name, value in made.items()}


def _tables(parameters: Parameters, s: TransformerSettings, source: PieceTable, target: PieceTable, scaled: bool
            ) -> dict[str, np.ndarray]:
    """Embeddings, which ours multiply with the root of the depth; then THUMT adds a bias to those of the source."""
    depth, root = s.hidden_size, math.sqrt(s.hidden_size)
    theirs, own = (SHARED, SHARED) if SHARED in parameters else (SOURCE, TARGET)
    rows = parameters.shape(own)[0]
    read = parameters.take(theirs, parameters.shape(theirs)[0], depth)
    written = parameters.take(own, rows, depth)
    bias = parameters.take(BIAS, depth)
    scale = 1.0 if scaled else 1.0 / root
    made = {"softmax_bias": target.bias(np.zeros(rows, np.float32)),
            "source_embedding": source.table(read * np.float32(scale) + bias / np.float32(root)),
            "target_embedding": target.table(written * np.float32(scale))}
    if s.tie_embeddings == "none":
        kernel = parameters.take(SOFTMAX, rows, depth) if SOFTMAX in parameters else written
        made["softmax_embedding"] = target.table(kernel)
    return made


def _layer(parameters: Parameters, s: TransformerSettings, stack: str, number: int) -> dict[str, np.ndarray]:
    ours = theirs = f"{stack}/layer_{number}"
    place = f"{theirs}/self_attention"
    made = _self_attention(parameters, s, f"{place}/multihead_attention").self_attention(f"{ours}/self_attention")
    made |= _norms(parameters, s, f"{ours}/self_attention", place)
    if s.positions == "relative":       # THUMT's distance is that of the query from the key, ours that of the key
        rows = (2 * s.max_distance + 1, s.hidden_size // s.heads)
        made |= {f"{ours}/self_attention/relative_{name}": parameters.take(
            f"{place}/multihead_attention/rpr_{name[0]}", *rows)[::-1] for name in ("keys", "values")}
    if stack == "decoder":
        place = f"{theirs}/encdec_attention"
        made |= _cross_attention(parameters, s, f"{place}/multihead_attention").cross_attention(
            f"{ours}/source_attention")
        made |= _norms(parameters, s, f"{ours}/source_attention", place)
    place = f"{theirs}/feed_forward"
    for name, layer, shape in (("inner", "input", (s.hidden_size, s.filter_size)),
                               ("outer", "output", (s.filter_size, s.hidden_size))):
        kernel, bias = _linear(parameters, f"{place}/ffn_layer/{layer}_layer/linear", *shape)
        made |= {f"{ours}/feed_forward/{name}/kernel": kernel, f"{ours}/feed_forward/{name}/bias": bias}
    return made | _norms(parameters, s, f"{ours}/feed_forward", place)


def _self_attention(parameters: Parameters, s: TransformerSettings, place: str) -> AttentionMaps:
    kernel, bias = _linear(parameters, f"{place}/qkv_transform", s.hidden_size, 3 * s.hidden_size)
    query, key, value = np.split(kernel, 3, 1)
    query_bias, _, value_bias = np.split(bias, 3)
    return AttentionMaps(query, key, value, *_output(parameters, s, place, query_bias, value_bias))


def _cross_attention(parameters: Parameters, s: TransformerSettings, place: str) -> AttentionMaps:
    query, query_bias = _linear(parameters, f"{place}/q_transform", s.hidden_size, s.hidden_size)
    kernel, bias = _linear(parameters, f"{place}/kv_transform", s.hidden_size, 2 * s.hidden_size)
    key, value = np.split(kernel, 2, 1)
    return AttentionMaps(query, key, value, *_output(parameters, s, place, query_bias, np.split(bias, 2)[1]))


def _output(parameters: Parameters, s: TransformerSettings, place: str, query_bias: np.ndarray,
            value_bias: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    kernel, bias = _linear(parameters, f"{place}/output_transform", s.hidden_size, s.hidden_size)
    return kernel, query_bias, value_bias, bias


def _linear(parameters: Parameters, place: str, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    return parameters.take(f"{place}/matrix", inputs, outputs), parameters.take(f"{place}/bias", outputs)


def _norms(parameters: Parameters, s: TransformerSettings, ours: str, theirs: str) -> dict[str, np.ndarray]:
    """Those of a sublayer. The second in a scope has a number."""
    made = _norm(parameters, s, f"{ours}_pre_norm", f"{theirs}/layer_norm") if s.preprocess else {}
    if "n" in s.postprocess:
        made |= _norm(parameters, s, f"{ours}_post_norm", f"{theirs}/layer_norm{'_1' if s.preprocess else ''}")
    return made


def _norm(parameters: Parameters, s: TransformerSettings, ours: str, theirs: str) -> dict[str, np.ndarray]:
    return {f"{ours}/{name}": parameters.take(f"{theirs}/{name}", s.hidden_size) for name in ("scale", "offset")}
