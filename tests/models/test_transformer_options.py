"""Each option of the Transformer, compared with a forward pass in NumPy written from its paper, and with its steps."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from tests.models import test_transformer as plain
from tests.models import tiny_models as tiny
from tests.models.numpy_layers import sigmoid
from towernmt.core.graph_state import GraphSettings, graph_state
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import shift_right
from towernmt.models.layers.attention import AttentionInputs
from towernmt.models.layers.embeddings import RelativePositions, RotaryPositions
from towernmt.models.layers.feed_forward import layer_norm, rms_norm
from towernmt.models.layers.multi_head import SelfAttention, merge_heads, split_heads
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer, weighted_sums
from towernmt.predict.search.decoding_tower import beam_search
from towernmt.predict.search.search_settings import SearchSettings

SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH = (
    plain.SOURCE, plain.SOURCE_LENGTH, plain.TARGET, plain.TARGET_LENGTH)

SIZES = {"hidden_size": 16, "filter_size": 12, "heads": 4, "encoder_layers": 1, "decoder_layers": 1,
         "source_vocab_size": 19, "target_vocab_size": 19}
STYLES = {
    "relative positions and the other GELU": {"positions": "relative", "max_distance": 2, "feed_forward": "gelu_tanh"},
    "rotary positions, biases and SwiGLU": {"positions": "rotary", "feed_forward": "swiglu", "attention_biases": True},
    "RMSNorm and GLU": {"norm": "rms", "feed_forward": "glu"},
    "SSRU": {"decoder_cell": "ssru", "decoder_layers": 2},
    "DeepNorm and GEGLU": {"preprocess": "", "postprocess": "drn", "initialization": "deepnorm",
                           "feed_forward": "geglu", "encoder_layers": 2},
    "LHUC and GELU": {"lhuc": True, "feed_forward": "gelu_sigmoid"},
    "biases and swish": {"attention_biases": True, "feed_forward": "swish", "first_position": 1, "source_end": False,
                         "norm_epsilon": 0.1},
}
CACHES = ("relative positions and the other GELU", "rotary positions, biases and SwiGLU", "SSRU", "biases and swish")
"""The styles whose stepwise decoding has a special cache."""


GATES = {"glu": sigmoid, "swiglu": lambda x: x * sigmoid(x),
         "geglu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2}
ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "swish": GATES["swiglu"],
               "gelu_sigmoid": lambda x: x * sigmoid(1.702 * x),
               "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))}


class Reference(plain.Reference):
    """The plain forward pass, with the options as defined in their papers."""

    def logits(self, source, target_in):
        return super().logits(source if self.s.source_end else source[:-1], target_in)

    def embed(self, ids, role, stack):
        if self.s.positions in ("relative", "rotary"):
            return self.v[self.table(role)][ids] * math.sqrt(self.s.hidden_size)
        first = self.s.first_position       # the position of a word is the number of words before it plus `first`
        return super().embed(np.concatenate([ids[:1]] * first + [ids]), role, stack)[first:]

    def bias(self, name):
        return self.v[name] if self.s.attention_biases else 0.0

    def norm(self, x, scope):
        if self.s.norm == "rms":
            return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 1e-6) * self.v[f"{scope}/scale"]
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + self.s.norm_epsilon)
        return y * self.v[f"{scope}/scale"] + self.v[f"{scope}/offset"]

    def sublayer(self, x, scope, name, layer):
        if self.s.decoder_cell == "ssru" and name == "self_attention" and "decoder" in scope:
            name, layer = "ssru", lambda y: self.ssru(y, f"{scope}/ssru")
        y = layer(self.norm(x, f"{scope}/{name}_pre_norm") if self.s.preprocess == "n" else x)
        if self.s.lhuc:
            y = y * 2 * sigmoid(self.v[f"{scope}/{name}/lhuc"])
        y = self.alpha(scope) * x + y
        return self.norm(y, f"{scope}/{name}_post_norm") if "n" in self.s.postprocess else y

    def alpha(self, scope: str) -> float:
        n, m = self.s.encoder_layers, self.s.decoder_layers
        if self.s.initialization != "deepnorm":
            return 1.0
        return 0.81 * (n ** 4 * m) ** (1 / 16) if "encoder" in scope else (3 * m) ** (1 / 4)

    def ssru(self, x, scope):
        new, forget = np.split(x @ self.v[f"{scope}/projection/kernel"], 2, -1)
        cell, out = np.zeros(x.shape[1]), []
        for t in range(len(x)):
            f = sigmoid(forget[t] + self.v[f"{scope}/forget_bias"])
            cell = f * cell + (1 - f) * new[t]
            out.append(np.maximum(cell, 0))
        return np.array(out)

    def feed_forward(self, x, scope):
        if self.s.feed_forward in ACTIVATIONS:
            inner = ACTIVATIONS[self.s.feed_forward](self.affine(x, f"{scope}/feed_forward/inner"))
            return self.affine(inner, f"{scope}/feed_forward/outer")
        gate, value = np.split(self.affine(x, f"{scope}/feed_forward/inner"), 2, -1)
        return self.affine(GATES[self.s.feed_forward](gate) * value, f"{scope}/feed_forward/outer")

    def packed_attention(self, x, scope, causal):
        query, key, value = np.split(x @ self.v[f"{scope}/qkv/kernel"], 3, -1)
        query = query + self.bias(f"{scope}/query_bias")
        if self.s.positions not in ("relative", "rotary"):
            return self.out(self.heads(query, key, value, causal), scope)
        size = self.s.hidden_size // self.s.heads
        out = np.zeros_like(query)
        for part in (slice(h * size, (h + 1) * size) for h in range(self.s.heads)):
            for t in range(len(x)):
                visible = t + 1 if causal else len(x)
                scores = [self.score(query[t, part], key[j, part], t, j, scope) for j in range(visible)]
                weights = np.exp(scores - np.max(scores)) / np.exp(scores - np.max(scores)).sum()
                out[t, part] = sum(w * self.value(value[j, part], t, j, scope) for j, w in enumerate(weights))
        return self.out(out, scope)

    def cross_attention(self, x, memory, scope):
        key, value = np.split(memory @ self.v[f"{scope}/kv/kernel"], 2, -1)
        query = x @ self.v[f"{scope}/query/kernel"] + self.bias(f"{scope}/query/bias")
        return self.out(self.heads(query, key, value, False), scope)

    def out(self, context, scope):
        return context @ self.v[f"{scope}/output/kernel"] + self.bias(f"{scope}/output/bias")

    def score(self, query, key, t, j, scope):
        if self.s.positions == "rotary":
            return turned(query, t) @ turned(key, j) / math.sqrt(len(query))
        return query @ (key + self.v[f"{scope}/relative_keys"][self.row(t, j)]) / math.sqrt(len(query))

    def value(self, value, t, j, scope):
        if self.s.positions == "rotary":
            return value
        return value + self.v[f"{scope}/relative_values"][self.row(t, j)]

    def row(self, t: int, j: int) -> int:
        return max(-self.s.max_distance, min(self.s.max_distance, j - t)) + self.s.max_distance


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """Return the complex numbers x[i] + 1j * x[i + half], each rotated by its angle."""
    half = len(x) // 2
    angles = position * 10000.0 ** (-2 * np.arange(half) / len(x))
    numbers = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
    return np.concatenate([numbers.real, numbers.imag])


@pytest.fixture(scope="module", params=STYLES)
def results(request):
    """Return the results of a model of each style: teacher-forced, step by step, and with more padding."""
    model = Transformer(TransformerSettings(**{**SIZES, **STYLES[request.param]}))
    inputs = [SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH]
    wide = [np.pad(SOURCE, [[0, 0], [0, 3]]), SOURCE_LENGTH, np.pad(TARGET, [[0, 0], [0, 2]]), TARGET_LENGTH]
    fetches = {}
    with tf.Graph().as_default(), tf1.Session() as session:
        for index, (name, arrays) in enumerate([("narrow", inputs), ("wide", wide)]):
            with tf1.variable_scope("", reuse=index > 0), PredictTowerContext(name):
                cost = model.build_graph(*map(tf.constant, arrays), tf.constant(8.0))
                gradients = tf1.gradients(cost, tf1.trainable_variables())
                assert None not in gradients
                fetches[name] = [cost, *map(tf.convert_to_tensor, gradients)]
        with tf1.variable_scope("", reuse=True), PredictTowerContext("search"):
            memory = model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH))
            target_in = shift_right(tf.constant(TARGET))
            fetches["forced"], fetches["steps"] = model.decode(memory, target_in), []
            state = model.start_state(memory, 2)
            for t in range(TARGET.shape[1]):
                logits, state = model.decode_step(tf.repeat(target_in[:, t], 2), state)
                fetches["steps"].append(logits)
        values = tiny.scramble(session, 0.3)
        return {"settings": model.settings, "values": values, **session.run(fetches)}


@pytest.mark.thorough
def test_logits_with_an_option_equal_a_forward_pass_written_from_its_paper(results):
    reference = Reference(results["settings"], results["values"])
    for row in range(2):
        target_in = np.concatenate([[1], TARGET[row, :TARGET_LENGTH[row] - 1]])
        expected = reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], target_in)
        np.testing.assert_allclose(results["forced"][row, :TARGET_LENGTH[row]], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_stepwise_decoding_with_an_option_gives_the_teacher_forced_logits(results):
    for t, logits in enumerate(results["steps"]):
        np.testing.assert_allclose(logits, np.repeat(results["forced"][:, t], 2, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("style", [pytest.param(
    style, marks=[] if style in ("SSRU", "biases and swish") else pytest.mark.thorough) for style in CACHES])
def test_the_score_of_a_search_is_the_log_probability_of_its_translation(graph, style):
    model = Transformer(TransformerSettings(**{**SIZES, **STYLES[style]}))
    with PredictTowerContext(""):
        search = beam_search(model, tf.constant(SOURCE), tf.constant(SOURCE_LENGTH),
                             SearchSettings(beam_size=2, length_penalty=0.0))
    with tf1.Session() as session:
        reference = Reference(model.settings, tiny.scramble(session, 0.3))
        result = session.run(search)
    for row in range(2):
        tokens = result.tokens[row, 0]
        tokens = tokens[tokens != 0]
        logits = reference.logits(SOURCE[row, :SOURCE_LENGTH[row]], np.concatenate([[1], tokens[:-1]]))
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        assert result.scores[row, 0] == pytest.approx(log_p[np.arange(len(tokens)), tokens].sum(), rel=1e-3)


@pytest.mark.thorough
def test_padding_with_an_option_changes_neither_loss_nor_gradients(results):
    for narrow, wide in zip(results["narrow"], results["wide"], strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=1e-5)


class Turned(Transformer):
    """A Transformer whose self-attention has rotary positions, whatever `model.positions` is."""

    def pair_positions(self):
        return RotaryPositions()


def test_a_model_with_custom_positions_in_self_attention_adds_none_to_the_embeddings(graph):
    logits = []
    models = Turned(TransformerSettings(**SIZES)), Transformer(TransformerSettings(**SIZES, positions="rotary"))
    for index, model in enumerate(models):
        with tf1.variable_scope("", reuse=index > 0), PredictTowerContext(f"model{index}"):
            memory = model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH))
            logits.append(model.decode(memory, shift_right(tf.constant(TARGET))))
    with tf1.Session() as session:
        tiny.scramble(session, 0.3)
        custom, rotary = session.run(logits)
    np.testing.assert_allclose(custom, rotary, rtol=1e-6)


class CustomTerms(NamedTuple):
    """A bias for the distance, which differs between heads, and a vector for each position."""

    bias: tf.Tensor         # [heads, queries, length]
    vectors: tf.Tensor      # [length, head depth]

    def logits(self, query):
        return self.bias

    def context(self, weights):
        return tf.tensordot(weights, self.vectors, 1)


class CustomPositions:
    def turn(self, x, first):
        return x

    def between(self, length, depth, step):
        keys = tf.range(length)
        queries = keys[-1:] if step else keys
        distance = tf.cast(queries[:, None] - keys, tf.float32)
        return CustomTerms(tf.constant([[[-1.0]], [[0.5]], [[0.1]], [[2.0]]]) * distance,
                           tf.sin(tf.cast(keys, tf.float32))[:, None] * tf.ones([depth]))


class Custom(Transformer):
    def pair_positions(self):
        return CustomPositions()


def test_custom_terms_of_positions_count_in_sentences_and_in_steps(graph):
    model = Custom(TransformerSettings(**SIZES))
    attention = SelfAttention(16, 4, positions=CustomPositions())
    x = np.random.default_rng(1).normal(size=[2, 3, 16]).astype(np.float32)
    with tf1.variable_scope("alone"):
        attended = attention.attend_sequence(tf.constant(x), AttentionInputs()).output
    outputs = [*tiny.forced_and_stepwise(model, SOURCE, beam=3)[:2], attended]
    with tf1.Session() as session:
        values = tiny.scramble(session, 0.3)
        forced, steps, got = session.run(outputs)
    for t, logits in enumerate(steps):
        np.testing.assert_allclose(logits, np.repeat(forced[:, t], 3, 0), rtol=1e-4, atol=1e-4)
    distance = np.arange(3)[:, None] - np.arange(3)
    projected, heads = x @ values["alone/qkv/kernel"], []
    for head, slope in enumerate((-1.0, 0.5, 0.1, 2.0)):
        query, key, value = (part[..., 4 * head:4 * head + 4] for part in np.split(projected, 3, -1))
        logits = query @ key.transpose(0, 2, 1) / 2 + slope * distance
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        heads.append(weights @ (value + np.sin(np.arange(3))[:, None]))
    np.testing.assert_allclose(got, np.concatenate(heads, -1) @ values["alone/output/kernel"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_every_pair_of_words_gets_the_vector_of_its_distance(graph, length):
    random = np.random.default_rng(length)
    query = random.normal(size=[2, 3, length, 4]).astype(np.float32)
    weights = random.normal(size=[2, 3, length, length]).astype(np.float32)
    distances = RelativePositions(2).between(tf.constant(length), 4, step=False)
    outputs = [distances.logits(tf.constant(query)), distances.context(tf.constant(weights))]
    with tf1.Session() as session:
        values = tiny.scramble(session, 0.3)
        logits, context = session.run(outputs)
    rows = np.clip(np.arange(length)[None, :] - np.arange(length)[:, None], -2, 2) + 2      # [query, key]
    np.testing.assert_allclose(logits, np.einsum("bhid,ijd->bhij", query, values["relative_keys"][rows]), rtol=1e-4,
                               atol=1e-5)
    np.testing.assert_allclose(context, np.einsum("bhij,ijd->bhid", weights, values["relative_values"][rows]),
                               rtol=1e-4, atol=1e-5)


def test_rotary_products_depend_on_the_distance_alone(graph):
    random = np.random.default_rng(0)
    query, key = (tf.constant(random.normal(size=[1, 1, 1, 8]), tf.float32) for _ in range(2))
    rotary = RotaryPositions()
    products = [tf.reduce_sum(rotary.turn(query, first + 7) * rotary.turn(key, first)) for first in (0, 5, 300)]
    with tf1.Session() as session:
        near, later, far = session.run(products)
    assert near == pytest.approx(later, abs=1e-4) and near == pytest.approx(far, abs=1e-3)


def finite_differences(function, x: np.ndarray) -> np.ndarray:
    """Return the gradient of a scalar function of a float64 array by central differences."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        ends = []
        for shift in (1e-6, -1e-6):
            moved = x.copy()
            moved[index] += shift
            ends.append(function(moved))
        gradient[index] = (ends[0] - ends[1]) / 2e-6
    return gradient


def test_gradients_of_sums_over_time_agree_with_finite_differences(graph):
    random = np.random.default_rng(4)
    forget = random.uniform(0.1, 0.9, [5, 2, 3])
    new, weight = random.normal(size=[2, 5, 2, 3])

    def loss(forget, new):
        cell, total = np.zeros([2, 3]), 0.0
        for t in range(5):
            cell = forget[t] * cell + new[t]
            total += (weight[t] * cell).sum()
        return total

    inputs = [tf.constant(forget, tf.float32), tf.constant(new, tf.float32)]
    cost = tf.reduce_sum(weighted_sums(*inputs) * tf.constant(weight, tf.float32))
    with tf1.Session() as session:
        value, (d_forget, d_new) = session.run([cost, tf1.gradients(cost, inputs)])
    assert value == pytest.approx(loss(forget, new), rel=1e-5)
    np.testing.assert_allclose(d_forget, finite_differences(lambda x: loss(x, new), forget), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_new, finite_differences(lambda x: loss(forget, x), new), rtol=1e-4, atol=1e-5)


def test_gradients_of_rms_normalisation_agree_with_finite_differences(graph):
    random = np.random.default_rng(5)
    values, weight = random.normal(size=[3, 5]), random.normal(size=[3, 5])
    x = tf.constant(values, tf.float32)
    (dx,) = tf1.gradients(rms_norm(x, "norm") * tf.constant(weight, tf.float32), x)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        got = session.run(dx)
    expected = finite_differences(
        lambda v: (weight * v / np.sqrt((v ** 2).mean(-1, keepdims=True) + 1e-6)).sum(), values)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def first_kernels(**options) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), tf1.Session() as session:
        model = Transformer(TransformerSettings(**{**SIZES, "encoder_layers": 4, "decoder_layers": 2, **options}))
        with PredictTowerContext(""):
            model.decode(model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH)), tf.constant(TARGET))
        kernels = [v for v in tf1.trainable_variables() if v.op.name.endswith("kernel")]
        session.run([v.initializer for v in kernels])
        return dict(zip([v.op.name.removeprefix("transformer/") for v in kernels], session.run(kernels), strict=True))


@pytest.mark.thorough
def test_deep_stacks_begin_with_the_kernels_of_their_papers():
    glorot = first_kernels()
    by_depth = first_kernels(initialization="depth_scaled")
    for name, kernel in by_depth.items():
        layer = int(name.split("/")[1].removeprefix("layer_"))
        np.testing.assert_allclose(kernel, glorot[name] / math.sqrt(layer + 1), rtol=1e-6)
    for name, kernel in first_kernels(initialization="zero_outputs").items():
        expected = np.zeros_like(kernel) if name.split("/")[-2] in ("output", "outer") else glorot[name]
        np.testing.assert_array_equal(kernel, expected)
    deepnorm = first_kernels(initialization="deepnorm", preprocess="", postprocess="drn")
    for name, kernel in deepnorm.items():
        beta = 0.87 * (4 ** 4 * 2) ** (-1 / 16) if "encoder" in name else (12 * 2) ** (-1 / 4)
        gains = {"qkv": [1, 1, beta], "query": [1], "kv": [1, beta]}.get(name.split("/")[-2], [beta])
        expected = glorot[name] * np.repeat(gains, kernel.shape[1] // len(gains))
        np.testing.assert_allclose(kernel, expected, rtol=1e-6)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rows", [3, 0])
def test_layers_are_normalised_on_a_gpu_by_cudnn_as_by_the_formula(graph, rows, fused):
    """The CPU executes the graph of a GPU."""
    graph_state().settings = GraphSettings(fused_norm=fused)
    random = np.random.default_rng(1)
    value, weights = (random.normal(5.0, 3.0, [rows, 2, 8]) for _ in range(2))
    with TrainTowerContext(""), tf1.device("/gpu:0"):
        x = tf1.placeholder(tf.float32, [None, 2, 8])
        y = layer_norm(x, "norm", 0.1)
        scale, offset = tf1.trainable_variables()
        gradients = tf.gradients(y, [x, scale, offset], tf.constant(weights, tf.float32))
    assert any(operation.type == "FusedBatchNormV3" for operation in graph.get_operations()) is fused
    with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
        scales, offsets = random.normal(size=(2, 8))
        scale.load(scales, session)
        offset.load(offsets, session)
        values = session.run([y, *gradients], {x: value})
    deviation = np.sqrt(value.var(-1, keepdims=True) + 0.1)
    normal = (value - value.mean(-1, keepdims=True)) / deviation
    d = weights * scales
    of_x = (d - d.mean(-1, keepdims=True) - normal * (d * normal).mean(-1, keepdims=True)) / deviation
    references = [normal * scales + offsets, of_x, (weights * normal).sum((0, 1)), weights.sum((0, 1))]
    for actual, expected in zip(values, references, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("size", [16, 12])     # 12 values of 16 bits are not a multiple of 16 bytes
@pytest.mark.parametrize("device", ["/gpu:0", "/cpu:0"])
def test_heads_are_moved_bit_for_bit(graph, dtype, size, device):
    """The CPU executes the graph of a GPU."""
    value = np.random.default_rng(1).normal(size=[2, 5, 3, 4, size]).astype(dtype.as_numpy_dtype)
    value.flat[:3] = [np.nan, -0.0, np.inf]
    with tf1.device(device):
        x = tf1.placeholder(dtype, [None, None, 3 * 4 * size])
        heads = split_heads(x, 4, parts=3)
        merged = merge_heads(heads[1])
        weights = [tf1.placeholder(dtype, [None, 4, None, size]) for _ in heads]
        (of_split,), (of_merge,) = tf.gradients(heads, x, weights), tf.gradients(merged, heads[1], merged)
    reinterpreted = device == "/gpu:0" and (dtype == tf.float32 or size == 16)
    assert any(op.type == "Bitcast" for op in graph.get_operations()) is reinterpreted
    assert heads[0].shape.as_list()[1::2] == [4, size] and merged.shape.as_list()[2] == 4 * size
    by_head = value.transpose(2, 0, 3, 1, 4)
    with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
        split_values, merged_value, back_of_split, back_of_merge = session.run([heads, merged, of_split, of_merge], {
            x: value.reshape(2, 5, -1), **dict(zip(weights, by_head, strict=True))})
    assert [array.tobytes() for array in split_values] == [array.tobytes() for array in by_head]
    assert merged_value.tobytes() == value[:, :, 1].tobytes() and back_of_merge.tobytes() == by_head[1].tobytes()
    assert back_of_split.tobytes() == value.tobytes()
