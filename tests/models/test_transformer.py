"""The Transformer, compared with a forward pass in NumPy written from the paper, and with its stepwise decoding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

import tests.models.styles as styles
import tests.models.tiny_models as tiny
from tests.models.numpy_layers import embedding_name
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import shift_right
from towernmt.models.model_settings import TransformerSettings

SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH = tiny.SOURCE, tiny.SOURCE_LENGTH, tiny.TARGET, tiny.TARGET_LENGTH


class Reference:
    """The forward pass of Vaswani et al. (2017), sentence by sentence, without padding."""

    def __init__(self, s: TransformerSettings, values: dict[str, np.ndarray]) -> None:
        self.s, self.v = s, values
        self.looks: list[list[np.ndarray]] = []     # of source attention, layer by layer, head by head

    def logits(self, source: np.ndarray, target_in: np.ndarray) -> np.ndarray:
        s = self.s
        x = self.embed(source, "source", "encoder")
        for i in range(s.encoder_layers):
            scope = f"transformer/encoder/layer_{i}"
            x = self.sublayer(x, scope, "self_attention", lambda y, scope=scope: self.packed_attention(
                y, f"{scope}/self_attention", False))
            x = self.sublayer(x, scope, "feed_forward", lambda y, scope=scope: self.feed_forward(y, scope))
        memory = self.final(x, "encoder")
        x = self.embed(target_in, "target", "decoder")
        for i in range(s.decoder_layers):
            scope = f"transformer/decoder/layer_{i}"
            x = self.sublayer(x, scope, "self_attention", lambda y, scope=scope: self.packed_attention(
                y, f"{scope}/self_attention", True))
            x = self.sublayer(x, scope, "source_attention", lambda y, scope=scope: self.cross_attention(
                y, memory, f"{scope}/source_attention"))
            x = self.sublayer(x, scope, "feed_forward", lambda y, scope=scope: self.feed_forward(y, scope))
        x = self.final(x, "decoder")
        return x @ self.v[self.table("softmax")].T + self.v["transformer/softmax_bias"]

    def table(self, role: str) -> str:
        return f"transformer/{embedding_name(self.s.tie_embeddings, role)}"

    def embed(self, ids: np.ndarray, role: str, stack: str) -> np.ndarray:
        d = self.s.hidden_size
        x = self.v[self.table(role)][ids] * math.sqrt(d)
        if self.s.positions == "learned":
            return x + self.v[f"transformer/{stack}/positions"][:len(ids)]
        for position in range(len(ids)):
            for i in range(d // 2):
                angle = position / 10000 ** (i / (d // 2 - 1))
                x[position, i] += math.sin(angle)
                x[position, d // 2 + i] += math.cos(angle)
        return x

    def norm(self, x: np.ndarray, scope: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-6)
        return y * self.v[f"{scope}/scale"] + self.v[f"{scope}/offset"]

    def sublayer(self, x, scope, name, layer):
        y = self.norm(x, f"{scope}/{name}_pre_norm") if self.s.preprocess == "n" else x
        y = x + layer(y)
        return self.norm(y, f"{scope}/{name}_post_norm") if "n" in self.s.postprocess else y

    def final(self, x: np.ndarray, stack: str) -> np.ndarray:
        return self.norm(x, f"transformer/{stack}/final_norm") if self.s.preprocess == "n" else x

    def affine(self, x: np.ndarray, scope: str) -> np.ndarray:
        return x @ self.v[f"{scope}/kernel"] + self.v[f"{scope}/bias"]

    def feed_forward(self, x: np.ndarray, scope: str) -> np.ndarray:
        return self.affine(np.maximum(self.affine(x, f"{scope}/feed_forward/inner"), 0), f"{scope}/feed_forward/outer")

    def packed_attention(self, x: np.ndarray, scope: str, causal: bool) -> np.ndarray:
        query, key, value = np.split(x @ self.v[f"{scope}/qkv/kernel"], 3, -1)
        return self.heads(query, key, value, causal) @ self.v[f"{scope}/output/kernel"]

    def cross_attention(self, x: np.ndarray, memory: np.ndarray, scope: str) -> np.ndarray:
        key, value = np.split(memory @ self.v[f"{scope}/kv/kernel"], 2, -1)
        query = x @ self.v[f"{scope}/query/kernel"]
        size = self.s.hidden_size // self.s.heads
        scores = [np.exp(query[:, h:h + size] @ key[:, h:h + size].T / math.sqrt(size))
                  for h in range(0, self.s.hidden_size, size)]
        self.looks.append([score / score.sum(-1, keepdims=True) for score in scores])
        return self.heads(query, key, value, False) @ self.v[f"{scope}/output/kernel"]

    def heads(self, query, key, value, causal: bool) -> np.ndarray:
        size = self.s.hidden_size // self.s.heads
        out = np.zeros_like(query)
        for h in range(self.s.heads):
            part = slice(h * size, (h + 1) * size)
            for t in range(len(query)):
                visible = t + 1 if causal else len(key)
                scores = key[:visible, part] @ query[t, part] / math.sqrt(size)
                weights = np.exp(scores - scores.max())
                out[t, part] = weights / weights.sum() @ value[:visible, part]
        return out


@pytest.mark.parametrize("style", styles.STYLES["transformer"])
def test_logits_equal_a_forward_pass_written_from_the_paper(graph, style):
    tiny.assert_logits(styles.make("transformer", style), Reference, 0.3)


@pytest.mark.parametrize("layer, weight, heads, averaged_heads", [
    (1, 0.0, 0, 4), (2, 0.1, 0, 1), (1, 0.0, 1, 1), (2, 0.1, 2, 2),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (2, 0.0, 0, 4), (1, 0.1, 0, 1), (2, 0.0, 1, 1), (1, 0.1, 2, 2)))])
def test_the_attention_is_that_of_the_guided_head_or_else_the_mean_over_the_heads_of_its_layer(
        graph, layer, weight, heads, averaged_heads):
    model = styles.make("transformer", guided_alignment_layer=layer, guided_alignment_weight=weight,
                        guided_alignment_heads=heads)
    with PredictTowerContext(""):
        _, attention = model.decode_with_attention(model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH)),
                                                   shift_right(tf.constant(TARGET)))
    with tf1.Session() as session:
        values = {**tiny.scramble(session, 0.3), "transformer/softmax_bias": np.zeros(19)}
        got = session.run(attention)
    for row in range(2):
        reference = Reference(model.settings, values)
        reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], np.array([1, *TARGET[row, :TARGET_LENGTH[row] - 1]]))
        looks = reference.looks[layer - 1]
        np.testing.assert_allclose(got[row, :TARGET_LENGTH[row], :SOURCE_LENGTH[row]],
                                   np.mean(looks[:averaged_heads], axis=0), rtol=1e-4, atol=1e-5)
