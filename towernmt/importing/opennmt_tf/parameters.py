"""OpenNMT-tf's variables as ours."""

from __future__ import annotations

import numpy as np

from towernmt.importing.attention import AttentionMaps
from towernmt.importing.parameters import Parameters
from towernmt.importing.pieces import PieceTable
from towernmt.models.transformer.settings import TransformerSettings

SOURCE, TARGET = "examples_inputter/features_inputter/embedding", "examples_inputter/labels_inputter/embedding"
KERNEL, BIAS = "decoder/output_layer/kernel", "decoder/output_layer/bias"


def our_weights(parameters: Parameters, s: TransformerSettings, source: PieceTable, target: PieceTable
                ) -> dict[str, np.ndarray]:
    """The values of all variables, by name.

    Raises:
        CheckpointError: a parameter is missing, or left over.
    """
    made = _tables(parameters, s, source, target)
    for stack, layers in (("encoder", s.encoder_layers), ("decoder", s.decoder_layers)):
        for number in range(layers):
            made |= _layer(parameters, s, stack, number)
        if s.preprocess:
            made |= _norm(parameters, s, f"{stack}/final_norm", f"{stack}/layer_norm")
    parameters.check_all_taken()
    return {f"transformer/{name}": value for name, value in made.items()}


def _tables(parameters: Parameters, s: TransformerSettings, source: PieceTable, target: PieceTable
            ) -> dict[str, np.ndarray]:
    depth, rows = s.hidden_size, int((target.rows.max()) + 1)
    bias = parameters.take(BIAS, rows) if BIAS in parameters else np.zeros(rows, np.float32)
    made = {"softmax_bias": target.bias(bias)}
    if s.tie_embeddings == "all":
        return made | {"embedding": source.table(parameters.take(SOURCE, rows, depth))}
    theirs = parameters.take(SOURCE, parameters.shape(SOURCE)[0], depth)
    own = parameters.take(TARGET, rows, depth) if TARGET in parameters else theirs
    made |= {"source_embedding": source.table(theirs), "target_embedding": target.table(own)}
    if s.tie_embeddings == "none":
        made["softmax_embedding"] = target.table(parameters.take(KERNEL, depth, rows).T)
    return made


def _layer(parameters: Parameters, s: TransformerSettings, stack: str, number: int) -> dict[str, np.ndarray]:
    ours, theirs = f"{stack}/layer_{number}", f"{stack}/layers/{number}"
    place = f"{theirs}/self_attention"
    made = _attention(parameters, s, place).self_attention(f"{ours}/self_attention")
    made |= _sublayer_norm(parameters, s, f"{ours}/self_attention", place)
    if s.positions == "relative":
        rows = (2 * s.max_distance + 1, s.hidden_size // s.heads)
        made |= {f"{ours}/self_attention/relative_{name}": parameters.take(
            f"{place}/layer/relative_position_{name}", *rows) for name in ("keys", "values")}
    if stack == "decoder":
        made |= _attention(parameters, s, f"{theirs}/attention/0").cross_attention(f"{ours}/source_attention")
        made |= _sublayer_norm(parameters, s, f"{ours}/source_attention", f"{theirs}/attention/0")
    for name, shape in (("inner", (s.hidden_size, s.filter_size)), ("outer", (s.filter_size, s.hidden_size))):
        made[f"{ours}/feed_forward/{name}/kernel"] = parameters.take(f"{theirs}/ffn/layer/{name}/kernel", *shape)
        made[f"{ours}/feed_forward/{name}/bias"] = parameters.take(f"{theirs}/ffn/layer/{name}/bias", shape[1])
    return made | _sublayer_norm(parameters, s, f"{ours}/feed_forward", f"{theirs}/ffn")


def _attention(parameters: Parameters, s: TransformerSettings, theirs: str) -> AttentionMaps:
    depth, parts = s.hidden_size, ("queries", "keys", "values", "output")
    kernels = [parameters.take(f"{theirs}/layer/linear_{part}/kernel", depth, depth) for part in parts]
    biases = {part: parameters.take(f"{theirs}/layer/linear_{part}/bias", depth)
              if f"{theirs}/layer/linear_{part}/bias" in parameters else np.zeros(depth, np.float32) for part in parts}
    return AttentionMaps(kernels[0], kernels[1], kernels[2], kernels[3], biases["queries"], biases["values"],
                         biases["output"])


def _sublayer_norm(parameters: Parameters, s: TransformerSettings, ours: str, theirs: str) -> dict[str, np.ndarray]:
    if s.preprocess:
        return _norm(parameters, s, f"{ours}_pre_norm", f"{theirs}/input_layer_norm")
    return _norm(parameters, s, f"{ours}_post_norm", f"{theirs}/output_layer_norm")


def _norm(parameters: Parameters, s: TransformerSettings, ours: str, theirs: str) -> dict[str, np.ndarray]:
    return {f"{ours}/scale": parameters.take(f"{theirs}/gamma", s.hidden_size),
            f"{ours}/offset": parameters.take(f"{theirs}/beta", s.hidden_size)}
