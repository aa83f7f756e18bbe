"""From a Transformer's weights to Marian's parameters, by Marian's names.

Marian has no scale of hidden units (LHUC) and no scaled residual (DeepNorm). Both are folded into the kernel and the
bias that a sublayer ends with: `norm(f(x) + alpha * x)` is `norm(f(x) / alpha + x)`, but for the epsilon, and a
positive scale goes through the SSRU's relu into its values. Attention has biases, which are zeros where ours has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from towernmt.export.marian.vocabulary import MarianVocabulary
from towernmt.models.layers.gains import layer_gains
from towernmt.models.transformer.settings import TransformerSettings

NEVER = -1e9
"""The bias of pieces that no text has."""


def marian_parameters(settings: TransformerSettings, weights: Mapping[str, np.ndarray], source: MarianVocabulary,
                      target: MarianVocabulary) -> dict[str, np.ndarray]:
    """The parameters, float32, each with two dimensions, as Marian has them.

    Args:
        settings: of a model that Marian can express.
        weights: the value of every variable, by name.
        source, target: what the rows of the tables become.
    """
    values = {name.removeprefix("transformer/"): value.astype(np.float32) for name, value in weights.items()}
    return _Builder(settings, values).parameters(source, target)


class _Builder:
    def __init__(self, settings: TransformerSettings, weights: dict[str, np.ndarray]) -> None:
        self._settings, self._weights = settings, weights
        self._made: dict[str, np.ndarray] = {}

    def parameters(self, source: MarianVocabulary, target: MarianVocabulary) -> dict[str, np.ndarray]:
        s = self._settings
        self._tables(source, target)
        for number in range(s.encoder_layers):
            self._self_attention("encoder", number)
            self._feed_forward("encoder", number)
        for number in range(s.decoder_layers):
            if s.decoder_cell == "ssru":
                self._ssru(number)
            else:
                self._self_attention("decoder", number)
            self._cross_attention(number)
            self._feed_forward("decoder", number)
        return {name: np.ascontiguousarray(np.atleast_2d(value), np.float32) for name, value in self._made.items()}

    def _tables(self, source: MarianVocabulary, target: MarianVocabulary) -> None:
        made, weights, tie = self._made, self._weights, self._settings.tie_embeddings
        if tie == "all":
            made["Wemb"] = target.rows(weights["embedding"])
        else:
            made["encoder_Wemb"] = source.rows(weights["source_embedding"])
            made["decoder_Wemb"] = target.rows(weights["target_embedding"])
        if tie == "none":
            made["decoder_ff_logit_out_Wt"] = target.rows(weights["softmax_embedding"])
        made["decoder_ff_logit_out_b"] = target.rows(weights["softmax_bias"], NEVER)

    def _self_attention(self, stack: str, number: int) -> None:
        ours, theirs = f"{stack}/layer_{number}/self_attention", f"{stack}_l{number + 1}_self"
        for letter, kernel in zip("qkv", np.split(self._weights[f"{ours}/qkv/kernel"], 3, 1), strict=True):
            self._attention_map(theirs, letter, kernel, f"{ours}/query_bias" if letter == "q" else "")
        self._end_of_attention(ours, theirs, stack, number)

    def _cross_attention(self, number: int) -> None:
        ours, theirs = f"decoder/layer_{number}/source_attention", f"decoder_l{number + 1}_context"
        kernels = [self._weights[f"{ours}/query/kernel"], *np.split(self._weights[f"{ours}/kv/kernel"], 2, 1)]
        for letter, kernel in zip("qkv", kernels, strict=True):
            self._attention_map(theirs, letter, kernel, f"{ours}/query/bias" if letter == "q" else "")
        self._end_of_attention(ours, theirs, "decoder", number)

    def _end_of_attention(self, ours: str, theirs: str, stack: str, number: int) -> None:
        kernel, scale = self._weights[f"{ours}/output/kernel"], self._scale(ours, stack, number)
        self._attention_map(theirs, "o", kernel * scale, f"{ours}/output/bias", scale)
        self._norm(ours, f"{theirs}_Wo")

    def _attention_map(self, theirs: str, letter: str, kernel: np.ndarray, bias: str = "",
                       scale: np.ndarray | float = 1.0) -> None:
        """A kernel, and the bias of that name times `scale`: zeros where the model has none."""
        self._made[f"{theirs}_W{letter}"] = kernel
        self._made[f"{theirs}_b{letter}"] = self._weights.get(bias, np.zeros(kernel.shape[1], np.float32)) * scale

    def _ssru(self, number: int) -> None:
        ours, theirs = f"decoder/layer_{number}/ssru", f"decoder_l{number + 1}_rnn"
        value, gate = np.split(self._weights[f"{ours}/projection/kernel"], 2, 1)
        self._made[f"{theirs}_W"] = value * self._scale(ours, "decoder", number)
        self._made[f"{theirs}_Wf"] = gate
        self._made[f"{theirs}_bf"] = self._weights[f"{ours}/forget_bias"]
        self._norm(ours, f"{theirs}_ffn")

    def _feed_forward(self, stack: str, number: int) -> None:
        ours, theirs = f"{stack}/layer_{number}/feed_forward", f"{stack}_l{number + 1}_ffn"
        scale = self._scale(ours, stack, number)
        for letter, name, by in (("1", "inner", 1.0), ("2", "outer", scale)):
            self._made[f"{theirs}_W{letter}"] = self._weights[f"{ours}/{name}/kernel"] * by
            self._made[f"{theirs}_b{letter}"] = self._weights[f"{ours}/{name}/bias"] * by
        self._norm(ours, f"{theirs}_ffn")

    def _norm(self, ours: str, theirs: str) -> None:
        self._made[f"{theirs}_ln_scale"] = self._weights[f"{ours}_post_norm/scale"]
        self._made[f"{theirs}_ln_bias"] = self._weights[f"{ours}_post_norm/offset"]

    def _scale(self, sublayer: str, stack: str, number: int) -> np.ndarray:
        """What the output of a sublayer is multiplied with: its LHUC over the scale of the residual, `[1 or depth]`."""
        s = self._settings
        residual = layer_gains(s.initialization, stack, number, s.encoder_layers, s.decoder_layers).residual
        scale = np.full(1, 1.0 / residual, np.float32)
        return scale * 2.0 / (1.0 + np.exp(-self._weights[f"{sublayer}/lhuc"])) if s.lhuc else scale
