"""RNNSearch against a forward pass in NumPy written from the papers, and against itself step by step."""

from __future__ import annotations

import numpy as np
import pytest
import towernmt_tiny_models as tiny
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import shift_right
from towernmt.models.recurrent.rnnsearch import PRESETS, RNNSearch, RNNSearchSettings

SIZES = {"embedding_size": 6, "encoder_size": 4, "decoder_size": 8, "attention_size": 5, "read_out_size": 6,
         "source_vocab_size": 19, "target_vocab_size": 19}
STYLES = {
    "paper": {},
    "lstm": {"cell": "lstm"},
    "dot": {"attention": "dot", "read_out": "tanh"},
    "general, untied": {"attention": "general", "read_out": "linear", "tie_embeddings": "none",
                        "source_vocab_size": 23, "read_out_size": 7},
    "coverage": {"coverage": "linguistic", "tie_embeddings": "target"},
    "deep": {"encoder_layers": 2, "decoder_layers": 2},
    "deep lstm": {"encoder_layers": 2, "decoder_layers": 2, "cell": "lstm"},
    "layer norm": {"layer_norm": True},
    "lstm, layer norm": {"layer_norm": True, "cell": "lstm", "decoder_layers": 2},
    "adapted": {"lhuc": True, "encoder_layers": 2, "decoder_layers": 2},
}
SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH = tiny.SOURCE, tiny.SOURCE_LENGTH, tiny.TARGET, tiny.TARGET_LENGTH


def make(style: str, **more) -> RNNSearch:
    return RNNSearch(RNNSearchSettings(**{**SIZES, **STYLES[style], **more}))


def scrambled_variables(session) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    values = {}
    for variable in tf1.trainable_variables():
        values[variable.op.name] = random.normal(0, 0.5, variable.shape).astype(np.float32)
        variable.load(values[variable.op.name], session)
    return values


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


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
            scores = np.array([self.score(states[0][1], word, seen) for word, seen in
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
        if self.s.tie_embeddings == "all":
            return "embedding"
        return "target_embedding" if self.s.tie_embeddings == "target" and role != "source" else f"{role}_embedding"

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
        """The next (c, h); a GRU has no use for c."""
        c, h = state
        if self.s.cell == "gru":
            r, u = np.split(sigmoid(self.map(f"{scope}/gates", x, [*extra, h])), 2)
            return c, u * h + (1 - u) * np.tanh(self.map(f"{scope}/candidate", x, [*extra, r * h]))
        i, f, g, o = np.split(self.map(f"{scope}/gates", x, [*extra, h]), 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        shown = c
        if self.s.layer_norm:
            shown = self.norm(c) * self.v[f"{scope}/cell_norm/scale"] + self.v[f"{scope}/cell_norm/offset"]
        return c, sigmoid(o) * np.tanh(shown)

    def map(self, scope, x, others):
        kernel = self.v[f"{scope}/kernel"]
        ahead, back = x @ kernel[:len(x)], np.concatenate(others) @ kernel[len(x):]
        if self.s.layer_norm:
            ahead = self.norm(ahead) * self.v[f"{scope}/input_scale"]
            back = self.norm(back) * self.v[f"{scope}/state_scale"]
        return ahead + back + self.v[f"{scope}/bias"]

    def norm(self, x):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-6)

    def score(self, query, word, seen) -> float:
        if self.s.attention == "dot":
            return query @ word
        key = word @ self.v["decoder/attention/memory/kernel"]
        if self.s.attention == "general":
            return query @ key / np.sqrt(len(query))
        inner = query @ self.v["decoder/attention/query/kernel"] + key
        if self.s.coverage != "none":
            inner = inner + seen * self.v["decoder/attention/coverage"]
        return self.v["decoder/attention/score"] @ np.tanh(inner)

    def read_out(self, x):
        hidden = x @ self.v["decoder/read_out/kernel"] + self.v["decoder/read_out/bias"]
        if self.s.read_out == "maxout":
            return hidden.reshape(2, -1).max(0)
        return np.tanh(hidden) if self.s.read_out == "tanh" else hidden


@pytest.mark.parametrize("style", STYLES)
def test_logits_equal_a_forward_pass_written_from_the_paper(graph, style):
    model = make(style)
    with PredictTowerContext(""):
        logits = model.decode(model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH)),
                              shift_right(tf.constant(TARGET)))
    with tf1.Session() as session:
        values = scrambled_variables(session)
        got = session.run(logits)
    for row in range(2):
        target_in = np.concatenate([[1], TARGET[row, :TARGET_LENGTH[row] - 1]])
        expected = Reference(model.settings, values).logits(SOURCE[row, :SOURCE_LENGTH[row]], target_in)
        np.testing.assert_allclose(got[row, :TARGET_LENGTH[row]], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("style", ["coverage", "lstm, layer norm"])
def test_the_attention_that_is_guided_is_that_of_the_search(graph, style):
    model = make(style)
    attention = tiny.guided_attention(model)
    with tf1.Session() as session:
        values = scrambled_variables(session)
        got = session.run(attention)
    for row in range(2):
        reference = Reference(model.settings, values)
        reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], np.array([1, *TARGET[row, :TARGET_LENGTH[row] - 1]]))
        np.testing.assert_allclose(got[row, :TARGET_LENGTH[row], :SOURCE_LENGTH[row]], reference.attention, rtol=1e-4,
                                   atol=1e-5)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("beam, kernels", [(1, "loop"), (3, "fused")])
def test_stepwise_decoding_with_its_cache_gives_the_teacher_forced_logits(graph, style, beam, kernels):
    model = make(style, kernels=kernels)
    forced, steps, state = tiny.forced_and_stepwise(model, SOURCE, beam)
    with tf1.Session() as session:
        scrambled_variables(session)
        expected, got, memory, cache = session.run([forced, steps, state.memory, state.cache])
    for t in range(TARGET.shape[1]):
        np.testing.assert_allclose(got[t], np.repeat(expected[:, t], beam, 0), rtol=1e-4, atol=1e-5)
    assert {len(tensor) for tensor in tf.nest.flatten(memory)} == {2}
    assert {len(tensor) for tensor in tf.nest.flatten(cache)} == {2 * beam}


def test_variables_have_names_that_a_checkpoint_can_keep(graph):
    model = make("coverage")
    with PredictTowerContext(""):
        model.build_graph(*[tf1.placeholder(s.dtype, s.shape) for s in model.inputs()])
    cells = ["encoder/layer_0/forward", "encoder/layer_0/backward", "decoder/layer_0"]
    assert {v.op.name.removeprefix("rnnsearch/") for v in tf1.global_variables()} == {
        "source_embedding", "target_embedding", "softmax_bias",
        *[f"{cell}/{part}/{kind}" for cell in cells for part in ("gates", "candidate") for kind in ("kernel", "bias")],
        "decoder/start_0/kernel", "decoder/start_0/bias", "decoder/read_out/kernel", "decoder/read_out/bias",
        "decoder/attention/memory/kernel", "decoder/attention/query/kernel", "decoder/attention/score",
        "decoder/attention/coverage", "decoder/attention/fertility/kernel"}


@pytest.mark.parametrize("preset, million, words", [("tiny", 7.37, 8000), ("bahdanau", 80.4, 30000)])
def test_presets_have_their_sizes(graph, preset, million, words):
    """`tiny` with a joint vocabulary of 8,000, `bahdanau` with the paper's 30,000 on each side."""
    model = RNNSearch(RNNSearchSettings(**PRESETS[preset], source_vocab_size=words, target_vocab_size=words))
    with PredictTowerContext(""):
        model.build_graph(*[tf1.placeholder(s.dtype, s.shape) for s in model.inputs()])
    size = sum(int(np.prod(v.shape)) for v in tf1.trainable_variables())
    assert size / 1e6 == pytest.approx(million, abs=0.1)


@pytest.mark.parametrize("wrong, message", [
    ({"source_vocab_size": 0}, "source_vocab_size"),
    ({"source_vocab_size": 23}, "--shared-vocab"),
    ({"read_out_size": 7}, "model.read_out_size=7"),
    ({"attention": "dot", "encoder_size": 5}, "model.encoder_size=5"),
    ({"attention": "general", "coverage": "linguistic"}, "model.coverage=linguistic"),
    ({"decoder_layers": 0}, "model.decoder_layers=0"),
])
def test_settings_that_cannot_work_are_refused_with_their_name(wrong, message):
    with pytest.raises(SettingsError, match=message):
        RNNSearch(RNNSearchSettings(**{**SIZES, **wrong}))


def test_a_schedule_that_goes_by_the_models_width_takes_the_decoders():
    assert RNNSearchSettings(decoder_size=1000).hidden_size == 1000
