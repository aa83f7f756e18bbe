"""ConvS2S against a forward pass in NumPy written from the paper, and against itself step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import towernmt_overfitting as overfitting
import towernmt_tiny_models as tiny
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.convs2s.model import PRESETS, Convolution, ConvS2S, ConvS2SSettings, convolutions
from towernmt.models.interface import shift_right
from towernmt.models.kernels.precision import set_precision

SIZES = {"embedding_size": 12, "encoder": "2x16/3,1x20/5", "decoder": "1x16/3,1x10/2,1x10/1", "output_size": 12,
         "source_vocab_size": 19, "target_vocab_size": 19}
STYLES = {
    "tied": {},
    "tied target": {"tie_embeddings": "target", "source_vocab_size": 23},
    "untied": {"tie_embeddings": "none", "source_vocab_size": 23, "output_size": 9},
    "few positions": {"max_positions": 3},
    "adapted": {"lhuc": True},
}
SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH = tiny.SOURCE, tiny.SOURCE_LENGTH, tiny.TARGET, tiny.TARGET_LENGTH
INPUTS = [SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH, np.float32(8)]


def make(style: str = "tied", **others) -> ConvS2S:
    return ConvS2S(ConvS2SSettings(**{**SIZES, **STYLES[style], **others}))


def scrambled_variables(session) -> dict[str, np.ndarray]:
    """Give every variable random values, so that biases count, and return them by name."""
    random = np.random.default_rng(3)
    values = {}
    for variable in tf1.trainable_variables():
        values[variable.op.name] = random.normal(0, 0.3, variable.shape).astype(np.float32)
        variable.load(values[variable.op.name], session)
    return values


class Reference:
    """The forward pass of Gehring et al. (2017), sentence by sentence, without padding, convolutions word by word."""

    def __init__(self, s: ConvS2SSettings, values: dict[str, np.ndarray]) -> None:
        self.s, self.v = s, values
        self.attention: list[np.ndarray] = []       # for each layer and target word

    def logits(self, source: np.ndarray, target_in: np.ndarray) -> np.ndarray:
        z, e = self.encode(source)
        g = self.embed(target_in, "target", "decoder")
        h = self.affine(g, "decoder/input")
        for i, (depth, width) in enumerate([(16, 3), (10, 2), (10, 1)]):
            scope = f"decoder/layer_{i}"
            y = self.adapted(self.glu(self.convolution(h, scope, width - 1, 0)), scope)
            d = (self.affine(y, f"{scope}/attention/query") + g) * math.sqrt(0.5)
            context = np.zeros_like(g)
            for t in range(len(y)):
                a = np.exp(z @ d[t])
                a /= a.sum()
                self.attention.append(a)
                context[t] = sum(a[j] * (z[j] + e[j]) * math.sqrt(0.5) for j in range(len(z)))
            m = len(z)
            c = self.affine(context * m * math.sqrt(1 / m), f"{scope}/attention/output")
            h = ((y + c) * math.sqrt(0.5) + self.residual(h, depth, scope)) * math.sqrt(0.5)
        return self.affine(h, "decoder/output") @ self.table("softmax").T + self.v["convs2s/softmax_bias"]

    def encode(self, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        e = self.embed(source, "source", "encoder")
        h = self.affine(e, "encoder/input")
        for i, (depth, width) in enumerate([(16, 3), (16, 3), (20, 5)]):
            scope = f"encoder/layer_{i}"
            y = self.adapted(self.glu(self.convolution(h, scope, width // 2, width // 2)), scope)
            h = (y + self.residual(h, depth, scope)) * math.sqrt(0.5)
        return self.affine(h, "encoder/output"), e

    def table(self, role: str) -> np.ndarray:
        if self.s.tie_embeddings == "all":
            return self.v["convs2s/embedding"]
        if self.s.tie_embeddings == "target" and role != "source":
            return self.v["convs2s/target_embedding"]
        return self.v[f"convs2s/{role}_embedding"]

    def embed(self, ids: np.ndarray, role: str, stack: str) -> np.ndarray:
        positions = [min(i, self.s.max_positions - 1) for i in range(len(ids))]
        return self.table(role)[ids] + self.v[f"convs2s/{stack}/positions"][positions]

    def affine(self, x: np.ndarray, scope: str) -> np.ndarray:
        return x @ self.v[f"convs2s/{scope}/kernel"] + self.v[f"convs2s/{scope}/bias"]

    def residual(self, x: np.ndarray, depth: int, scope: str) -> np.ndarray:
        return x if x.shape[1] == depth else self.affine(x, f"{scope}/residual")

    def convolution(self, x: np.ndarray, scope: str, left: int, right: int) -> np.ndarray:
        kernel, bias = (self.v[f"convs2s/{scope}/convolution/{name}"] for name in ("kernel", "bias"))
        out = np.tile(bias, (len(x), 1))
        for t in range(len(x)):
            for k in range(left + right + 1):
                if 0 <= t + k - left < len(x):
                    out[t] += x[t + k - left] @ kernel[k]
        return out

    def adapted(self, x: np.ndarray, scope: str) -> np.ndarray:
        return x * 2 / (1 + np.exp(-self.v[f"convs2s/{scope}/convolution/lhuc"])) if self.s.lhuc else x

    @staticmethod
    def glu(x: np.ndarray) -> np.ndarray:
        a, b = np.split(x, 2, 1)
        return a / (1 + np.exp(-b))


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


def test_the_attention_that_is_guided_is_that_of_the_last_layer(graph):
    model = make()
    attention = tiny.guided_attention(model)
    with tf1.Session() as session:
        values = scrambled_variables(session)
        got = session.run(attention)
    for row in range(2):
        words = TARGET_LENGTH[row]
        reference = Reference(model.settings, values)
        reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], np.array([1, *TARGET[row, :words - 1]]))
        np.testing.assert_allclose(got[row, :words, :SOURCE_LENGTH[row]], reference.attention[-words:], rtol=1e-4,
                                   atol=1e-5)


@pytest.mark.parametrize("style, beam", [("tied", 1), ("untied", 3), ("few positions", 2), ("adapted", 2)])
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


def test_gradients_agree_with_finite_differences(graph):
    """Along random directions, in every variable, by central differences of the loss."""
    model = make("untied", scale_encoder_gradients=False, label_smoothing=0.1)
    with PredictTowerContext(""):
        cost = model.build_graph(*map(tf.constant, INPUTS))
    variables = tf1.trainable_variables()
    gradients = list(map(tf.convert_to_tensor, tf1.gradients(cost, variables)))
    random = np.random.default_rng(4)
    with tf1.Session() as session:
        values = scrambled_variables(session)
        found = dict(zip(values, session.run(gradients), strict=True))
        for variable in variables:
            name = variable.op.name
            direction = np.sign(found[name]) + random.normal(0, 0.3, found[name].shape)
            step = 3e-3 / max(1.0, np.sqrt((direction ** 2).sum()))
            losses = []
            for sign in (1, -1):
                variable.load(values[name] + np.float32(sign * step) * direction.astype(np.float32), session)
                losses.append(float(session.run(cost)))
            variable.load(values[name], session)
            expected = (losses[0] - losses[1]) / (2 * step)
            assert expected == pytest.approx(float((found[name] * direction).sum()), rel=0.02, abs=2e-3), name


def test_gradients_into_the_encoder_are_divided_by_the_number_of_attentions():
    found = []
    for scaled in (True, False):
        with tf.Graph().as_default():
            with PredictTowerContext(""):
                cost = make(scale_encoder_gradients=scaled).build_graph(*map(tf.constant, INPUTS))
            gradients = tf1.gradients(cost, tf1.trainable_variables())
            with tf1.Session() as session:
                values = scrambled_variables(session)
                found.append(dict(zip(values, session.run(list(map(tf.convert_to_tensor, gradients))), strict=True)))
    scaled, whole = found
    for name in whole:
        if name.startswith("convs2s/encoder/") and not name.endswith("positions"):
            np.testing.assert_allclose(scaled[name] * 3, whole[name], rtol=1e-4, atol=1e-7, err_msg=name)
        if name.startswith("convs2s/decoder/"):
            np.testing.assert_allclose(scaled[name], whole[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_more_padding_changes_neither_loss_nor_gradients(graph):
    model = make()
    wide = [np.pad(SOURCE, [[0, 0], [0, 3]]), SOURCE_LENGTH, np.pad(TARGET, [[0, 0], [0, 2]]), TARGET_LENGTH,
            np.float32(8)]
    results = []
    for index, inputs in enumerate([INPUTS, wide]):
        with tf1.variable_scope("", reuse=index > 0), PredictTowerContext(f"t{index}"):
            cost = model.build_graph(*map(tf.constant, inputs))
            results.append([cost, *map(tf.convert_to_tensor, tf1.gradients(cost, tf1.trainable_variables()))])
    with tf1.Session() as session:
        scrambled_variables(session)
        narrow, padded = session.run(results)
    for a, b in zip(narrow, padded, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_tower_without_a_row_has_no_loss_and_no_gradient(graph):
    empty = [np.zeros([0, 4], np.int32), np.zeros([0], np.int32), np.zeros([0, 3], np.int32), np.zeros([0], np.int32),
             np.float32(8)]
    inputs = [tf1.placeholder(a.dtype, [None] * a.ndim) for a in empty]
    with TrainTowerContext(""):
        cost = make().build_graph(*inputs)
    gradients = list(map(tf.convert_to_tensor, tf1.gradients(cost, tf1.trainable_variables())))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        values = session.run([cost, *gradients], dict(zip(inputs, empty, strict=True)))
    assert all(not value.any() for value in values)


def test_variables_have_the_same_names_in_every_tower(graph):
    model = make()
    inputs = list(map(tf.constant, INPUTS))
    with TrainTowerContext("tower0", index=0, total=2):
        model.build_graph(*inputs)
    names = {v.op.name for v in tf1.global_variables()}
    with tf1.variable_scope("", reuse=True):
        with TrainTowerContext("tower1", index=1, total=2):
            model.build_graph(*inputs)
        with PredictTowerContext("predict"):
            model.build_graph(*inputs)
    assert {v.op.name for v in tf1.global_variables()} == names
    assert "convs2s/decoder/layer_0/attention/query/kernel" in names
    assert not any("tower" in name for name in names)


def test_bfloat16_stays_close_to_float32_and_keeps_parameters_in_it():
    losses = {}
    for precision in ("float32", "bfloat16"):
        with tf.Graph().as_default() as graph:
            set_precision(precision)
            with TrainTowerContext(""):
                cost = make().build_graph(*map(tf.constant, INPUTS))
                gradients = tf1.gradients(cost, tf1.trainable_variables())
            products = {op.get_attr("T") for op in graph.get_operations()
                        if op.type in ("MatMul", "BatchMatMulV2", "Conv2D") and op.inputs[0].shape[0] != 1}
            assert products == {tf.as_dtype(precision)}
            assert {g.dtype for g in gradients} == {tf.float32} and cost.dtype == tf.float32
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                losses[precision] = session.run(cost)
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.01)
    assert losses["bfloat16"] != losses["float32"]


def test_initial_values_have_the_deviations_of_the_paper(graph):
    model = ConvS2S(ConvS2SSettings(dropout=0.2, source_vocab_size=2000, target_vocab_size=2000))
    with PredictTowerContext(""):
        model.build_graph(*map(tf.constant, INPUTS))
    expected = {"convs2s/embedding": 0.1, "convs2s/encoder/positions": 0.1,
                "convs2s/encoder/layer_1/convolution/kernel": math.sqrt(4 * 0.8 / (3 * 256)),
                "convs2s/decoder/layer_1/attention/query/kernel": math.sqrt(0.8 / 256)}
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for variable in tf1.trainable_variables():
            if variable.op.name in expected:
                assert session.run(variable).std() == pytest.approx(expected.pop(variable.op.name), rel=0.02)
    assert not expected


@pytest.mark.parametrize("preset, million", [("tiny", 8.36), ("fconv_iwslt", 3.94), ("fconv_wmt_en_ro", 75.6),
                                             ("fconv_wmt_en_de", 127.5)])
def test_presets_have_their_sizes(graph, preset, million):
    """`tiny` with a joint vocabulary of 8,000; the others without their tables of words."""
    words = 8000 if preset == "tiny" else 8
    model = ConvS2S(ConvS2SSettings(**{**PRESETS[preset], "source_vocab_size": words, "target_vocab_size": words}))
    with PredictTowerContext(""):
        model.build_graph(*[tf1.placeholder(s.dtype, s.shape) for s in model.inputs()])
    size = sum(int(np.prod(v.shape)) for v in tf1.trainable_variables())
    assert size / 1e6 == pytest.approx(million, abs=0.1)


def test_convolutions_are_described_by_layers_depth_and_width():
    assert convolutions("2x512/3, 1x1024/1", "encoder") == [Convolution(512, 3)] * 2 + [Convolution(1024, 1)]


@pytest.mark.parametrize("wrong, message", [
    ({"encoder": "99999999x8/3"}, "with numbers from 1 to 1000, 65536, 1000"),
    ({"encoder": "1x00/3"}, "'1x00/3' is not"),
    ({"encoder": "512"}, "model.encoder=512: '512' is not LAYERSxDEPTH/WIDTH"),
    ({"decoder": "2x0/3"}, "model.decoder"),
    ({"encoder": "2x16/4"}, "odd width"),
    ({"source_vocab_size": 0}, "source_vocab_size"),
    ({"source_vocab_size": 23}, "--shared-vocab"),
    ({"output_size": 9}, "model.output_size=9"),
])
def test_settings_that_cannot_work_are_refused_with_their_name(wrong, message):
    with pytest.raises(SettingsError, match=message):
        ConvS2S(ConvS2SSettings(**{**SIZES, **wrong}))


def bleu_after_overfitting(pairs, steps: int, sentences: int, **sizes) -> float:
    return overfitting.bleu_after_overfitting(
        ConvS2S, lambda words: ConvS2SSettings(**{"source_vocab_size": words, "target_vocab_size": words,
                                                  "dropout": 0.0, "label_smoothing": 0.0, **sizes}),
        pairs, steps, sentences, learning_rate=2e-3, lower_rate=5e-4)


def test_a_few_pairs_are_learnt_by_heart_and_found_by_beam_search():
    assert bleu_after_overfitting(overfitting.made_up_pairs(20, 4, 8, 90), 150, 20, embedding_size=48, output_size=48,
                                  encoder="2x48/3", decoder="2x48/3") > 95


@pytest.mark.slow
def test_a_hundred_real_pairs_are_learnt_by_heart():
    pairs = overfitting.a_hundred_real_pairs()
    assert bleu_after_overfitting(pairs, 400, 50, encoder="3x256/3", decoder="3x256/3") > 95
