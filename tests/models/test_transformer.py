"""The Transformer against a forward pass in NumPy written from the paper, and against itself step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import shift_right
from towernmt.models.layers.randomness import set_seed
from towernmt.models.transformer.model import PRESETS, Transformer, TransformerSettings

SIZES = {"hidden_size": 16, "filter_size": 24, "heads": 4, "encoder_layers": 2, "decoder_layers": 2,
         "source_vocab_size": 19, "target_vocab_size": 19}
STYLES = {
    "pre-norm": {},
    "post-norm": {"preprocess": "", "postprocess": "drn"},
    "learned positions": {"positions": "learned", "max_positions": 12},
    "tied target": {"tie_embeddings": "target", "source_vocab_size": 23},
    "untied": {"tie_embeddings": "none", "source_vocab_size": 23},
}
SOURCE = np.array([[5, 9, 7, 2, 0, 0], [4, 4, 11, 6, 17, 2]], np.int32)
SOURCE_LENGTH = np.array([4, 6], np.int32)
TARGET = np.array([[8, 6, 2, 0, 0], [10, 3, 12, 18, 2]], np.int32)
TARGET_LENGTH = np.array([3, 5], np.int32)


def make(style: str) -> Transformer:
    return Transformer(TransformerSettings(**{**SIZES, **STYLES[style]}))


def scrambled_variables(session) -> dict[str, np.ndarray]:
    """Give every variable random values, so that biases and scales count, and return them by name."""
    random = np.random.default_rng(3)
    values = {}
    for variable in tf1.trainable_variables():
        values[variable.op.name] = random.normal(0, 0.3, variable.shape).astype(np.float32)
        variable.load(values[variable.op.name], session)
    return values


class Reference:
    """The forward pass of Vaswani et al. (2017), sentence by sentence, without padding."""

    def __init__(self, s: TransformerSettings, values: dict[str, np.ndarray]) -> None:
        self.s, self.v = s, values
        self.first_heads: list[np.ndarray] = []     # of source attention, layer by layer

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
        if self.s.tie_embeddings == "all":
            return "transformer/embedding"
        if self.s.tie_embeddings == "target" and role != "source":
            return "transformer/target_embedding"
        return f"transformer/{role}_embedding"

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
        scores = np.exp(query[:, :size] @ key[:, :size].T / math.sqrt(size))
        self.first_heads.append(scores / scores.sum(-1, keepdims=True))
        return self.heads(query, key, value, False) @ self.v[f"{scope}/output/kernel"]

    def heads(self, query, key, value, causal: bool) -> np.ndarray:
        size = self.s.hidden_size // self.s.heads
        out = np.zeros_like(query)
        for h in range(self.s.heads):
            part = slice(h * size, (h + 1) * size)
            for t in range(len(query)):
                seen = t + 1 if causal else len(key)
                scores = key[:seen, part] @ query[t, part] / math.sqrt(size)
                weights = np.exp(scores - scores.max())
                out[t, part] = weights / weights.sum() @ value[:seen, part]
        return out


@pytest.mark.parametrize("style", STYLES)
def test_logits_equal_a_forward_pass_written_from_the_paper(graph, style):
    model = make(style)
    with PredictTowerContext(""):
        logits = model.decode(model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH)),
                              shift_right(tf.constant(TARGET)))
    with tf1.Session() as session:
        values = scrambled_variables(session)
        got = session.run(logits)
    reference = Reference(model.settings, values)
    for row in range(2):
        target_in = np.concatenate([[1], TARGET[row, :TARGET_LENGTH[row] - 1]])
        expected = reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], target_in)
        np.testing.assert_allclose(got[row, :TARGET_LENGTH[row]], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", [1, 2])
def test_the_attention_that_is_guided_is_that_of_the_first_head_of_its_layer(graph, layer):
    model = Transformer(TransformerSettings(**SIZES, guided_alignment_layer=layer))
    with PredictTowerContext(""):
        _, attention = model.decode_with_attention(model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH)),
                                                   shift_right(tf.constant(TARGET)))
    with tf1.Session() as session:
        values = {**scrambled_variables(session), "transformer/softmax_bias": np.zeros(19)}
        got = session.run(attention)
    for row in range(2):
        reference = Reference(model.settings, values)
        reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], np.array([1, *TARGET[row, :TARGET_LENGTH[row] - 1]]))
        np.testing.assert_allclose(got[row, :TARGET_LENGTH[row], :SOURCE_LENGTH[row]],
                                   reference.first_heads[layer - 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("beam", [1, 3])
def test_stepwise_decoding_with_its_cache_gives_the_teacher_forced_logits(graph, style, beam):
    model = make(style)
    length = TARGET.shape[1]
    with PredictTowerContext(""):
        memory = model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH))
        target_in = shift_right(tf.constant(TARGET))
        forced = model.decode(memory, target_in)
        steps = []
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            state = model.start_state(memory, beam)
            for t in range(length):
                logits, state = model.decode_step(tf.repeat(target_in[:, t], beam), state)
                steps.append(logits)
    with tf1.Session() as session:
        scrambled_variables(session)
        expected, got, step = session.run([forced, steps, state.step])
    assert step == length
    for t in range(length):
        np.testing.assert_allclose(got[t], np.repeat(expected[:, t], beam, 0), rtol=1e-4, atol=1e-5)


def test_more_padding_changes_neither_loss_nor_gradients(graph):
    model = make("pre-norm")
    wide = [np.pad(SOURCE, [[0, 0], [0, 3]]), SOURCE_LENGTH, np.pad(TARGET, [[0, 0], [0, 2]]), TARGET_LENGTH]
    results = []
    for index, (s, sl, t, tl) in enumerate([(SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH), wide]):
        with tf1.variable_scope("", reuse=index > 0), PredictTowerContext(f"t{index}"):
            cost = model.build_graph(*map(tf.constant, (s, sl, t, tl)), tf.constant(8.0))
            results.append([cost, *map(tf.convert_to_tensor, tf1.gradients(cost, tf1.trainable_variables()))])
    with tf1.Session() as session:
        scrambled_variables(session)
        narrow, padded = session.run(results)
    for a, b in zip(narrow, padded, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_variables_have_the_same_names_in_every_tower(graph):
    model = make("pre-norm")
    inputs = [tf.constant(a) for a in (SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH, np.float32(8))]
    with TrainTowerContext("tower0", index=0, total=2):
        model.build_graph(*inputs)
    names = {v.op.name for v in tf1.global_variables()}
    with tf1.variable_scope("", reuse=True):
        with TrainTowerContext("tower1", index=1, total=2):
            model.build_graph(*inputs)
        with PredictTowerContext("predict"):
            model.build_graph(*inputs)
    assert {v.op.name for v in tf1.global_variables()} == names
    assert "transformer/encoder/layer_0/self_attention/qkv/kernel" in names
    assert not any("tower" in name for name in names)


def dropout_losses(seed: int, clocks: list[int], tower: int = 0) -> list[float]:
    with tf.Graph().as_default():
        set_seed(seed)
        model = Transformer(TransformerSettings(**SIZES, residual_dropout=0.3, attention_dropout=0.2,
                                                activation_dropout=0.2))
        with TrainTowerContext("", index=tower, total=tower + 1):
            cost = model.build_graph(
                *[tf.constant(a) for a in (SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH, np.float32(8))])
        clock = next(v for v in tf1.global_variables() if v.op.name == "random_clock")
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            losses = []
            for time in clocks:
                clock.load(time, session)
                losses.append(float(session.run(cost)))
            return losses


def test_dropout_is_a_function_of_seed_and_clock_alone():
    first, second, again = dropout_losses(1, [0, 1, 0])
    assert first == again
    assert first != second
    assert dropout_losses(1, [0]) == [first]
    assert dropout_losses(2, [0]) != [first]


def test_the_clock_advances_once_a_training_batch(graph):
    model = make("pre-norm")
    with TrainTowerContext(""):
        model.build_graph(*[tf.constant(a) for a in (SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH, np.float32(8))])
    (advance,) = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    clock = next(v for v in tf1.global_variables() if v.op.name == "random_clock")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(advance)
        session.run(advance)
        assert session.run(clock) == 2


@pytest.mark.parametrize("preset, million", [("base", 44.2), ("big", 176.4)])
def test_presets_have_the_sizes_of_the_paper(preset, million):
    """Table 3 of Vaswani et al. counts 65 and 213 million with a joint vocabulary of about 37,000 (19 and 38 M)."""
    with tf.Graph().as_default():
        settings = TransformerSettings(**PRESETS[preset], source_vocab_size=8, target_vocab_size=8)
        model = Transformer(settings)
        with PredictTowerContext(""):
            model.build_graph(*[tf1.placeholder(s.dtype, s.shape) for s in model.inputs()])
        size = sum(int(np.prod(v.shape)) for v in tf1.trainable_variables())
    assert size / 1e6 == pytest.approx(million, abs=0.2)


@pytest.mark.parametrize("wrong, message", [
    ({"heads": 3}, "model.heads=3"),
    ({"source_vocab_size": 0}, "source_vocab_size"),
    ({"source_vocab_size": 23}, "--shared-vocab"),
    ({"postprocess": "drr"}, "model.postprocess"),
    ({"preprocess": "x"}, "model.preprocess"),
])
def test_settings_that_cannot_work_are_refused_with_their_name(wrong, message):
    with pytest.raises(SettingsError, match=message):
        Transformer(TransformerSettings(**{**SIZES, **wrong}))
