"""ConvS2S, compared with a forward pass in NumPy written from the paper, and with its stepwise decoding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

import tests.models.styles as styles
import tests.models.tiny_models as tiny
from tests.models.numpy_layers import embedding_name
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.convs2s import Convolution, ConvS2S, convolutions
from towernmt.models.model_settings import ConvS2SSettings

SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH = tiny.SOURCE, tiny.SOURCE_LENGTH, tiny.TARGET, tiny.TARGET_LENGTH
INPUTS = [SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH, np.float32(8)]


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
        return self.v[f"convs2s/{embedding_name(self.s.tie_embeddings, role)}"]

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


@pytest.mark.parametrize("style", [
    pytest.param(style, marks=[pytest.mark.slow] * (style == "tied target")) for style in styles.STYLES["convs2s"]])
def test_logits_equal_a_forward_pass_written_from_the_paper(graph, style):
    tiny.assert_logits(styles.make("convs2s", style), Reference, 0.3)


def test_the_attention_that_is_guided_is_that_of_the_last_layer(graph):
    model = styles.make("convs2s")
    attention = tiny.guided_attention(model)
    with tf1.Session() as session:
        values = tiny.scramble(session, 0.3)
        got = session.run(attention)
    for row in range(2):
        words = TARGET_LENGTH[row]
        reference = Reference(model.settings, values)
        reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], np.array([1, *TARGET[row, :words - 1]]))
        np.testing.assert_allclose(got[row, :words, :SOURCE_LENGTH[row]], reference.attention[-words:], rtol=1e-4,
                                   atol=1e-5)


@pytest.mark.thorough
def test_gradients_into_the_encoder_are_divided_by_the_number_of_attentions():
    results = []
    for scaled in (True, False):
        with tf.Graph().as_default():
            with PredictTowerContext(""):
                cost = styles.make("convs2s", scale_encoder_gradients=scaled).build_graph(*map(tf.constant, INPUTS))
            gradients = tf1.gradients(cost, tf1.trainable_variables())
            with tf1.Session() as session:
                values = tiny.scramble(session, 0.3)
                gradient_values = session.run(list(map(tf.convert_to_tensor, gradients)))
                results.append(dict(zip(values, gradient_values, strict=True)))
    scaled, unscaled = results
    for name in unscaled:
        if name.startswith("convs2s/encoder/") and not name.endswith("positions"):
            np.testing.assert_allclose(scaled[name] * 3, unscaled[name], rtol=1e-4, atol=1e-7, err_msg=name)
        if name.startswith("convs2s/decoder/"):
            np.testing.assert_allclose(scaled[name], unscaled[name], rtol=1e-5, atol=1e-7, err_msg=name)


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


def test_convolutions_are_described_by_layers_depth_and_width():
    assert convolutions("2x512/3, 1x1024/1", "encoder") == [Convolution(512, 3)] * 2 + [Convolution(1024, 1)]
