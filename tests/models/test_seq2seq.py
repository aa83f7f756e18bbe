"""Seq2Seq, compared with a forward pass in NumPy written from the papers, and with its stepwise decoding."""

from __future__ import annotations

import numpy as np
import pytest

import tests.models.styles as styles
import tests.models.tiny_models as tiny
from tests.models.numpy_layers import embedding_name, sigmoid, standardized
from towernmt.core.tf_compat import tf1
from towernmt.models.model_settings import Seq2SeqSettings

SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH = tiny.SOURCE, tiny.SOURCE_LENGTH, tiny.TARGET, tiny.TARGET_LENGTH


class Reference:
    """Sutskever et al. (2014) and Luong et al. (2015), sentence by sentence and word by word, without padding."""

    def __init__(self, s: Seq2SeqSettings, values: dict[str, np.ndarray]) -> None:
        self.s, self.v = s, {name.removeprefix("seq2seq/"): value for name, value in values.items()}
        self.attention: list[np.ndarray] = []       # for each target word

    def logits(self, source: np.ndarray, target_in: np.ndarray) -> np.ndarray:
        s, v = self.s, self.v
        states = [(np.zeros(s.hidden_size), np.zeros(s.hidden_size))] * s.layers
        annotations, logits = [], []
        for token in source[::-1] if s.reverse_source else source:
            states, top = self.stack("encoder", self.embedding("source", token), [], states)
            annotations.append(top)
        hidden = np.zeros(s.embedding_size)
        for token in target_in:
            states, top = self.stack("decoder", self.embedding("target", token), [hidden] if s.input_feeding else [],
                                     states)
            hidden = self.last_hidden(top, annotations)
            logits.append(v[self.table("softmax")] @ hidden + v["softmax_bias"])
        return np.array(logits)

    def embedding(self, side: str, token: int) -> np.ndarray:
        return self.v[self.table(side)][token] * np.sqrt(self.s.embedding_size)

    def table(self, role: str) -> str:
        return embedding_name(self.s.tie_embeddings, role)

    def stack(self, side, x, fed, states):
        after = []
        for layer, (c, h) in enumerate(states):
            # With input feeding, only the embedding is normalised by itself.
            normalised_together = layer == 0 or side == "encoder" or not self.s.input_feeding
            cell_input, vectors = (x, fed) if normalised_together else (x[:0], [x])
            after.append(self.cell(f"{side}/layer_{layer}", cell_input, vectors, c, h))
            x, fed = after[-1][1], []
            if self.s.lhuc:
                x = x * 2 * sigmoid(self.v[f"{side}/layer_{layer}/lhuc"])
        return after, x

    def cell(self, scope, x, vectors, c, h):
        """Return the next (c, h); a GRU ignores c."""
        if self.s.cell == "gru":
            r, u = np.split(sigmoid(self.map(f"{scope}/gates", x, [*vectors, h])), 2)
            return c, u * h + (1 - u) * np.tanh(self.map(f"{scope}/candidate", x, [*vectors, r * h]))
        i, f, g, o = np.split(self.map(f"{scope}/gates", x, [*vectors, h]), 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        squashed_cell = c
        if self.s.layer_norm:
            squashed_cell = standardized(c) * self.v[f"{scope}/cell_norm/scale"] + self.v[f"{scope}/cell_norm/offset"]
        return c, sigmoid(o) * np.tanh(squashed_cell)

    def map(self, scope, x, vectors):
        kernel = self.v[f"{scope}/kernel"]
        ahead, back = x @ kernel[:len(x)], np.concatenate(vectors) @ kernel[len(x):]
        if self.s.layer_norm:
            back = standardized(back) * self.v[f"{scope}/state_scale"]
            if len(x):
                ahead = standardized(ahead) * self.v[f"{scope}/input_scale"]
        return ahead + back + self.v[f"{scope}/bias"]

    def last_hidden(self, h, annotations):
        if self.s.attention == "none":
            same = self.s.hidden_size == self.s.embedding_size
            return h if same else h @ self.v["decoder/hidden/kernel"] + self.v["decoder/hidden/bias"]
        keys = annotations
        if self.s.attention == "general":
            keys = [word @ self.v["decoder/attention/memory/kernel"] / np.sqrt(len(h)) for word in annotations]
        weights = np.exp(np.array([h @ key for key in keys]))
        self.attention.append(weights / weights.sum())
        context = sum(weight * word for weight, word in zip(self.attention[-1], annotations, strict=True))
        return np.tanh(np.concatenate([context, h]) @ self.v["decoder/attentional/kernel"])


@pytest.mark.parametrize("style", [
    pytest.param(style, marks=[pytest.mark.slow] * (style in ("dot, gru, forwards", "untied", "adapted")))
    for style in styles.STYLES["seq2seq"]])
def test_logits_equal_a_forward_pass_written_from_the_papers(graph, style):
    tiny.assert_logits(styles.make("seq2seq", style), Reference, 0.5)


@pytest.mark.parametrize("style", ["luong", "luong, fed", "dot, gru, forwards"])
def test_the_attention_that_is_guided_stands_in_the_order_of_the_source(graph, style):
    model = styles.make("seq2seq", style)
    attention = tiny.guided_attention(model)
    with tf1.Session() as session:
        values = tiny.scramble(session, 0.5)
        got = session.run(attention)
    for row in range(2):
        reference = Reference(model.settings, values)
        reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], np.array([1, *TARGET[row, :TARGET_LENGTH[row] - 1]]))
        expected = np.array(reference.attention)[:, ::-1 if model.settings.reverse_source else 1]
        np.testing.assert_allclose(got[row, :TARGET_LENGTH[row], :SOURCE_LENGTH[row]], expected, rtol=1e-4, atol=1e-5)
