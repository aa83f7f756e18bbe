"""RNNSearch, compared with a forward pass in NumPy written from the papers, and with its stepwise decoding."""

from __future__ import annotations

import numpy as np
import pytest

import tests.models.styles as styles
import tests.models.tiny_models as tiny
from tests.models.numpy_layers import embedding_name, sigmoid, standardized
from towernmt.core.tf_compat import tf1
from towernmt.models.model_settings import RNNSearchSettings

SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH = tiny.SOURCE, tiny.SOURCE_LENGTH, tiny.TARGET, tiny.TARGET_LENGTH


class Reference:
    """Bahdanau et al. (2015, appendix A), sentence by sentence and word by word, without padding."""

    def __init__(self, s: RNNSearchSettings, values: dict[str, np.ndarray]) -> None:
        self.s, self.v = s, {name.removeprefix("rnnsearch/"): value for name, value in values.items()}
        self.attention: list[np.ndarray] = []       # for each target word

    def logits(self, source: np.ndarray, target_in: np.ndarray) -> np.ndarray:
        s, v = self.s, self.v
        words = list(v[self.table("source")][source])
        for layer in range(s.encoder_layers):
            ahead = self.read(f"encoder/layer_{layer}/forward", words)
            back = self.read(f"encoder/layer_{layer}/backward", words[::-1])[::-1]
            words = [self.adapted(np.concatenate(both), f"encoder/layer_{layer}")
                     for both in zip(ahead, back, strict=True)]
        states = [self.start(layer, back[0]) for layer in range(s.decoder_layers)]
        coverage = np.zeros(len(words))
        logits = []
        for token in target_in:
            embedding = v[self.table("target")][token]
            scores = np.array([self.score(states[0][1], word, attention_sum) for word, attention_sum in
                               zip(words, coverage, strict=True)])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            self.attention.append(weights)
            if s.coverage != "none":
                fertility = [2 * sigmoid(word @ v["decoder/attention/fertility/kernel"])[0] for word in words]
                coverage = coverage + weights / fertility
            context = sum(weight * word for weight, word in zip(weights, words, strict=True))
            states[0] = self.cell("decoder/layer_0", embedding, [context], states[0])
            top = self.adapted(states[0][1], "decoder/layer_0")
            for layer in range(1, s.decoder_layers):
                states[layer] = self.cell(f"decoder/layer_{layer}", top, [], states[layer])
                top = self.adapted(states[layer][1], f"decoder/layer_{layer}")
            hidden = self.read_out(np.concatenate([top, embedding, context]))
            logits.append(v[self.table("softmax")] @ hidden + v["softmax_bias"])
        return np.array(logits)

    def adapted(self, x, scope):
        return x * 2 * sigmoid(self.v[f"{scope}/lhuc"]) if self.s.lhuc else x

    def table(self, role: str) -> str:
        return embedding_name(self.s.tie_embeddings, role)

    def read(self, scope: str, words: list[np.ndarray]) -> list[np.ndarray]:
        state, outputs = (np.zeros(self.s.encoder_size), np.zeros(self.s.encoder_size)), []
        for word in words:
            state = self.cell(scope, word, [], state)
            outputs.append(state[1])
        return outputs

    def start(self, layer: int, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        both = first @ self.v[f"decoder/start_{layer}/kernel"] + self.v[f"decoder/start_{layer}/bias"]
        return both[:self.s.decoder_size], np.tanh(both[-self.s.decoder_size:])

    def cell(self, scope, x, extra, state):
        """Return the next (c, h); a GRU ignores c."""
        c, h = state
        if self.s.cell == "gru":
            r, u = np.split(sigmoid(self.map(f"{scope}/gates", x, [*extra, h])), 2)
            return c, u * h + (1 - u) * np.tanh(self.map(f"{scope}/candidate", x, [*extra, r * h]))
        i, f, g, o = np.split(self.map(f"{scope}/gates", x, [*extra, h]), 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        shown = c
        if self.s.layer_norm:
            shown = standardized(c) * self.v[f"{scope}/cell_norm/scale"] + self.v[f"{scope}/cell_norm/offset"]
        return c, sigmoid(o) * np.tanh(shown)

    def map(self, scope, x, vectors):
        kernel = self.v[f"{scope}/kernel"]
        ahead, back = x @ kernel[:len(x)], np.concatenate(vectors) @ kernel[len(x):]
        if self.s.layer_norm:
            ahead = standardized(ahead) * self.v[f"{scope}/input_scale"]
            back = standardized(back) * self.v[f"{scope}/state_scale"]
        return ahead + back + self.v[f"{scope}/bias"]

    def score(self, query, word, attention_sum) -> float:
        if self.s.attention == "dot":
            return query @ word
        key = word @ self.v["decoder/attention/memory/kernel"]
        if self.s.attention == "general":
            return query @ key / np.sqrt(len(query))
        inner = query @ self.v["decoder/attention/query/kernel"] + key
        if self.s.coverage != "none":
            inner = inner + attention_sum * self.v["decoder/attention/coverage"]
        return self.v["decoder/attention/score"] @ np.tanh(inner)

    def read_out(self, x):
        hidden = x @ self.v["decoder/read_out/kernel"] + self.v["decoder/read_out/bias"]
        if self.s.read_out == "maxout":
            return hidden.reshape(2, -1).max(0)
        return np.tanh(hidden) if self.s.read_out == "tanh" else hidden


@pytest.mark.parametrize("style", [
    pytest.param(style, marks=[pytest.mark.thorough] if style == "adapted" else [
        pytest.mark.slow] * (style in ("lstm", "deep")))      # others are deep LSTMs
    for style in styles.STYLES["rnnsearch"]])
def test_logits_equal_a_forward_pass_written_from_the_paper(graph, style):
    tiny.assert_logits(styles.make("rnnsearch", style), Reference, 0.5)


@pytest.mark.parametrize("style", ["coverage", "lstm, layer norm"])
def test_the_attention_that_is_guided_is_that_of_the_search(graph, style):
    model = styles.make("rnnsearch", style)
    attention = tiny.guided_attention(model)
    with tf1.Session() as session:
        values = tiny.scramble(session, 0.5)
        got = session.run(attention)
    for row in range(2):
        reference = Reference(model.settings, values)
        reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], np.array([1, *TARGET[row, :TARGET_LENGTH[row] - 1]]))
        np.testing.assert_allclose(got[row, :TARGET_LENGTH[row], :SOURCE_LENGTH[row]], reference.attention, rtol=1e-4,
                                   atol=1e-5)


def test_a_schedule_that_goes_by_the_models_width_takes_the_decoders():
    assert RNNSearchSettings(decoder_size=1000).hidden_size == 1000
