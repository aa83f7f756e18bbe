"""Marian's parameters as our variables: what `export.marian.parameters` writes, read the other way."""

from __future__ import annotations

import numpy as np

from towernmt.importing.attention import AttentionMaps
from towernmt.importing.parameters import Parameters
from towernmt.importing.pieces import PieceTable
from towernmt.models.transformer.settings import TransformerSettings

LOGITS = "decoder_ff_logit_out"


def tie_of(parameters: Parameters) -> str:
    """Which tables are one: `model.tie_embeddings`. (One with a softmax of its own becomes two.)"""
    own = any(f"{LOGITS}_{name}" in parameters for name in ("Wt", "W"))
    return "none" if own else "all" if "Wemb" in parameters else "target"


def table_names(parameters: Parameters) -> tuple[str, str]:
    """The names of the embeddings of source and target."""
    return ("Wemb", "Wemb") if "Wemb" in parameters else ("encoder_Wemb", "decoder_Wemb")


def our_weights(parameters: Parameters, s: TransformerSettings, source: PieceTable, target: PieceTable
                ) -> dict[str, np.ndarray]:
    """The values of all variables, by name.

    Args:
        s: the settings of the model, with `tie_embeddings`.
        source, target: the pieces; of tables in one, the same.
    Raises:
        CheckpointError: a parameter is missing, or left over.
    """
    made = _tables(parameters, s, source, target)
    for number in range(s.encoder_layers):
        ours, theirs = f"encoder/layer_{number}", f"encoder_l{number + 1}"
        made |= _attention(parameters, s.hidden_size, f"{theirs}_self").self_attention(f"{ours}/self_attention")
        made |= _norm(parameters, s, f"{ours}/self_attention", f"{theirs}_self_Wo")
        made |= _feed_forward(parameters, s, f"{ours}/feed_forward", f"{theirs}_ffn")
    for number in range(s.decoder_layers):
        ours, theirs = f"decoder/layer_{number}", f"decoder_l{number + 1}"
        if s.decoder_cell == "ssru":
            made |= _ssru(parameters, s, f"{ours}/ssru", f"{theirs}_rnn")
        else:
            made |= _attention(parameters, s.hidden_size, f"{theirs}_self").self_attention(f"{ours}/self_attention")
            made |= _norm(parameters, s, f"{ours}/self_attention", f"{theirs}_self_Wo")
        made |= _attention(parameters, s.hidden_size, f"{theirs}_context").cross_attention(f"{ours}/source_attention")
        made |= _norm(parameters, s, f"{ours}/source_attention", f"{theirs}_context_Wo")
        made |= _feed_forward(parameters, s, f"{ours}/feed_forward", f"{theirs}_ffn")
    parameters.check_all_taken()
    return {f"transformer/{name}": value for name, value in made.items()}


def _tables(parameters: Parameters, s: TransformerSettings, source: PieceTable, target: PieceTable
            ) -> dict[str, np.ndarray]:
    names, depth = table_names(parameters), s.hidden_size
    theirs = [parameters.take(name, parameters.shape(name)[0], depth) for name in names]
    rows = len(theirs[1])
    bias = parameters.take(f"{LOGITS}_b", rows) if f"{LOGITS}_b" in parameters else np.zeros(rows, np.float32)
    made = {"softmax_bias": target.bias(bias)}
    if s.tie_embeddings == "all":
        return made | {"embedding": target.table(theirs[1])}
    made |= {"source_embedding": source.table(theirs[0]), "target_embedding": target.table(theirs[1])}
    if s.tie_embeddings == "none":
        softmax = (parameters.take(f"{LOGITS}_Wt", rows, depth) if f"{LOGITS}_Wt" in parameters
                   else parameters.take(f"{LOGITS}_W", depth, rows).T)
        made["softmax_embedding"] = target.table(softmax)
    return made


def _attention(parameters: Parameters, depth: int, theirs: str) -> AttentionMaps:
    kernels = {letter: parameters.take(f"{theirs}_W{letter}", depth, depth) for letter in "qkvo"}
    biases = {letter: parameters.take(f"{theirs}_b{letter}", depth) for letter in "qvo"}
    parameters.drop(f"{theirs}_bk")     # the softmax does not see it
    return AttentionMaps(kernels["q"], kernels["k"], kernels["v"], kernels["o"], biases["q"], biases["v"], biases["o"])


def _ssru(parameters: Parameters, s: TransformerSettings, ours: str, theirs: str) -> dict[str, np.ndarray]:
    value, gate = (parameters.take(f"{theirs}_{name}", s.hidden_size, s.hidden_size) for name in ("W", "Wf"))
    return {f"{ours}/projection/kernel": np.concatenate([value, gate], 1),
            f"{ours}/forget_bias": parameters.take(f"{theirs}_bf", s.hidden_size),
            **_norm(parameters, s, ours, f"{theirs}_ffn")}


def _feed_forward(parameters: Parameters, s: TransformerSettings, ours: str, theirs: str) -> dict[str, np.ndarray]:
    inner, outer = (s.hidden_size, s.filter_size), (s.filter_size, s.hidden_size)
    made = {}
    for letter, name, shape in (("1", "inner", inner), ("2", "outer", outer)):
        made[f"{ours}/{name}/kernel"] = parameters.take(f"{theirs}_W{letter}", *shape)
        made[f"{ours}/{name}/bias"] = parameters.take(f"{theirs}_b{letter}", shape[1])
    return made | _norm(parameters, s, ours, f"{theirs}_ffn")


def _norm(parameters: Parameters, s: TransformerSettings, ours: str, theirs: str) -> dict[str, np.ndarray]:
    return {f"{ours}_post_norm/scale": parameters.take(f"{theirs}_ln_scale", s.hidden_size),
            f"{ours}_post_norm/offset": parameters.take(f"{theirs}_ln_bias", s.hidden_size)}
