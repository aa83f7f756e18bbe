"""Properties of every architecture as a tower function and as a stepwise decoder."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

import tests.models.overfitting as overfitting
import tests.models.styles as styles
import tests.models.tiny_models as tiny
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models import ARCHITECTURES, architecture
from towernmt.models.interface import NMTModel, limited_to, shift_right
from towernmt.models.kernels import set_precision
from towernmt.models.layers.randomness import set_seed


def marks_of(name: str, number: int) -> list[pytest.MarkDecorator]:
    if number:
        return [pytest.mark.slow]
    return [pytest.mark.thorough] if name != "transformer" else []


STYLES = [pytest.param(name, style, marks=marks_of(name, number))
          for name, named in styles.STYLES.items() for number, style in enumerate(named)]
"""The first of the Transformer runs by default; of the others `test_a_step_gives_the_logits...` does.

That test ties the target embeddings. `test_transformer_options` decodes with post-norm, and `test_rnnsearch` by LSTMs.
"""
DROPOUT = {"transformer": {"residual_dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.2,
                           "decoder_layers": 1},
           "convs2s": {"dropout": 0.3}}
RECURRENT_DROPOUT = {"dropout": 0.3, "embedding_dropout": 0.2}


@pytest.mark.parametrize("name, style", STYLES)
def test_stepwise_decoding_with_its_cache_gives_the_teacher_forced_logits(graph, name, style):
    """With one and three hypotheses per sentence; recurrent models by their loop and by fused kernels."""
    fetches, cases = [], ((1, "loop", 3), (3, "fused", tiny.TARGET.shape[1]))
    for beam, kernels, steps in cases:
        model = styles.make(name, style, **({"kernels": kernels} if name in ("seq2seq", "rnnsearch") else {}))
        with tf1.variable_scope("", reuse=True) if fetches else nullcontext():
            forced, logits, state = tiny.forced_and_stepwise(model, tiny.SOURCE, beam, f"beam_{beam}", steps)
        fetches.append([forced, logits, state.memory, state.cache, state.step])
    with tf1.Session() as session:
        tiny.scramble(session)
        results = session.run(fetches)
    for (beam, _, steps), (expected, got, memory, cache, step) in zip(cases, results, strict=True):
        assert step == len(got) == steps
        for t, logits in enumerate(got):
            np.testing.assert_allclose(logits, np.repeat(expected[:, t], beam, 0), rtol=1e-4, atol=1e-5)
        assert {len(tensor) for tensor in tf.nest.flatten(memory) if tensor.shape[:1] != (1,)} == {2}
        assert {len(tensor) for tensor in tf.nest.flatten(cache)} <= {2 * beam}     # empty if the model has blocks


@pytest.mark.parametrize("name, more", [
    *[pytest.param(name, {}, marks=[] if name == "transformer" else [
        pytest.mark.slow if name in tiny.RELATED else pytest.mark.thorough]) for name in tiny.MODELS],
    pytest.param("transformer", {"decoder_cell": "ssru", "guided_alignment_weight": 0.1, "decoder_layers": 3},
                 marks=pytest.mark.slow),       # `test_transformer_options` decodes with SSRU
])
def test_a_step_gives_the_logits_and_the_attention_of_teacher_forcing_over_words_with_factors(graph, name, more):
    beam, model = 2, tiny.make(name, tie_embeddings="target", source_factors="concat", **tiny.FACTORS, **more)
    assert model.gives_step_attention
    with PredictTowerContext(""):
        memory = model.encode(tf.constant(tiny.FACTORED_SOURCE), tf.constant(tiny.SOURCE_LENGTH))
        target_in = shift_right(tf.constant(tiny.TARGET))
        hidden, forced = model.decode_with_attention(memory, target_in)
        forced_logits, steps = model.output_projection().logits(hidden), []
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            state = model.start_state(memory, beam)
            for t in range(tiny.TARGET.shape[1]):
                logits, state, attention = model.decode_step(tf.repeat(target_in[:, t], beam), state, attention=True)
                steps.append((attention, logits))
    with tf1.Session() as session:
        tiny.scramble(session)
        expected, expected_logits, got = session.run([forced, forced_logits, steps])
    for t, (attention, logits) in enumerate(got):
        np.testing.assert_allclose(attention, np.repeat(expected[:, t], beam, 0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(logits, np.repeat(expected_logits[:, t], beam, 0), rtol=1e-4, atol=1e-5)


def test_a_custom_model_whose_steps_lack_attention_declares_it():
    class Own(NMTModel):
        encode = decode_hidden = output_projection = start_state = optimizer = None

        def decode_with_attention(self, memory, target_in):
            return None, None

        def decode_step(self, token, state):
            return None, state

    assert Own().gives_attention and not Own().gives_step_attention
    assert not tiny.make("seq2seq", attention="none").gives_step_attention


@pytest.mark.thorough
@pytest.mark.parametrize("name, options", [
    pytest.param("transformer", {"preprocess": "", "postprocess": "drn", "positions": "learned",
                                 "tie_embeddings": "none"}, marks=pytest.mark.slow),
    ("transformer", {"positions": "relative", "max_distance": 2, "norm": "rms", "feed_forward": "geglu"}),
    pytest.param("transformer", {"positions": "rotary", "feed_forward": "glu", "tie_embeddings": "target"},
                 marks=pytest.mark.slow),
    pytest.param("rnnsearch, lstm", {"attention": "dot", "layer_norm": True}, marks=pytest.mark.slow),
    ("seq2seq, fed", {"layer_norm": False}),
    pytest.param("convs2s", {"tie_embeddings": "none", "output_size": 5}, marks=pytest.mark.slow),
])
def test_gradients_of_a_style_agree_with_finite_differences_and_ignore_padding(graph, name, options):
    """Tests of factors, LHUC and guided alignment are in `test_guided_alignment`. No function here has a kink."""
    options = {**options, **({"kernels": "loop"} if name.startswith(("seq2seq", "rnnsearch")) else {})}
    model = tiny.make(name, quiet=True, **options)
    cost, *gradients = tiny.loss_and_gradients(model, tiny.INPUTS, "narrow")
    wide = [tiny.wider(tiny.SOURCE), tiny.SOURCE_LENGTH, tiny.wider(tiny.TARGET, 2), *tiny.INPUTS[3:]]
    padded = tiny.loss_and_gradients(model, wide, "wide", reuse=True)
    variables = tf1.trainable_variables()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tiny.scramble(session)
        values, narrow, padded_values = session.run([variables, [cost, *gradients], padded])
        for a, b in zip(narrow, padded_values, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        for variable, expected, got in tiny.slopes_by_differences(session, cost, variables, values, narrow[1:]):
            assert got == pytest.approx(expected, rel=0.02, abs=5e-4), variable


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "transformer" else [
    pytest.mark.thorough if name in ("rnnsearch", "convs2s") else pytest.mark.slow]) for name in tiny.MODELS])
def test_towers_share_variables_and_a_clock_and_a_share_without_rows_counts_nothing(graph, name):
    model = tiny.make(name)
    with TrainTowerContext("tower0", index=0, total=2):
        model.build_graph(*map(tf.constant, tiny.INPUTS))
    names = {v.op.name for v in tf1.global_variables()}
    with tf1.variable_scope("", reuse=True):
        with TrainTowerContext("tower1", index=1, total=2):
            cost = model.build_graph(*[tf.constant(array[:0]) for array in tiny.INPUTS[:4]], tf.constant(8.0))
            gradients = [tf.convert_to_tensor(g) for g in tf1.gradients(cost, tf1.trainable_variables())]
        with PredictTowerContext("predict"):
            model.build_graph(*map(tf.constant, tiny.INPUTS))
    assert {v.op.name for v in tf1.global_variables()} == names
    assert not any("tower" in name for name in names)
    (advance,) = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    clock = next(v for v in tf1.global_variables() if v.op.name == "random_clock")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert not any(np.any(value) for value in session.run([cost, *gradients]))
        session.run(advance)
        session.run(advance)
        assert session.run(clock) == 2


CELLS = ("encoder/layer_0/forward", "encoder/layer_0/backward", "decoder/layer_0")
NAMES = {
    "transformer": [
        "embedding", "softmax_bias",
        *[f"{stack}/{kind}" for stack in ("encoder", "decoder") for kind in ("final_norm/scale", "final_norm/offset")],
        *[f"{stack}/layer_0/{part}" for stack, layers in (
            ("encoder", ["self_attention"]), ("decoder", ["self_attention", "source_attention"]))
          for layer in [*layers, "feed_forward"] for part in (
              f"{layer}_pre_norm/scale", f"{layer}_pre_norm/offset",
              *({"self_attention": ["self_attention/qkv/kernel", "self_attention/output/kernel"],
                 "source_attention": [f"source_attention/{x}/kernel" for x in ("query", "kv", "output")],
                 "feed_forward": [f"feed_forward/{x}/{y}" for x in ("inner", "outer") for y in ("kernel", "bias")],
                 }[layer]))]],
    "seq2seq": [
        "embedding", "softmax_bias", "decoder/attention/memory/kernel", "decoder/attentional/kernel",
        *[f"{side}/layer_{layer}/gates/{kind}" for side in ("encoder", "decoder") for layer in (0, 1)
          for kind in ("kernel", "bias")]],
    "rnnsearch": [
        "source_embedding", "target_embedding", "softmax_bias",
        *[f"{cell}/{part}/{kind}" for cell in CELLS for part in ("gates", "candidate") for kind in ("kernel", "bias")],
        "decoder/start_0/kernel", "decoder/start_0/bias", "decoder/read_out/kernel", "decoder/read_out/bias",
        "decoder/attention/memory/kernel", "decoder/attention/query/kernel", "decoder/attention/score",
        "decoder/attention/coverage", "decoder/attention/fertility/kernel"],
    "convs2s": [
        "embedding", "softmax_bias", "encoder/positions", "decoder/positions",
        *[f"{part}/{kind}" for part in (
            *[f"{stack}/{x}" for stack in ("encoder", "decoder") for x in ("input", "output", "layer_0/convolution")],
            "decoder/layer_0/attention/query", "decoder/layer_0/attention/output") for kind in ("kernel", "bias")]],
}
"""Without the architecture's own scope."""


@pytest.mark.parametrize("name, more", [
    ("transformer", {"encoder_layers": 1, "decoder_layers": 1}), ("seq2seq", {"input_feeding": True}),
    pytest.param("seq2seq", {}, marks=pytest.mark.slow),
    ("rnnsearch", {"coverage": "linguistic", "tie_embeddings": "target"}),
    ("convs2s", {"encoder": "1x16/3", "decoder": "1x16/3"})])
def test_variables_have_names_that_a_checkpoint_can_keep(graph, name, more):
    model = styles.make(name, **more)
    with PredictTowerContext(""):
        model.build_graph(*map(tf.constant, tiny.INPUTS))
    assert sorted(v.op.name for v in tf1.global_variables()) == sorted(f"{name}/{part}" for part in NAMES[name])


def dropout_losses(name: str, seed: int, clocks: list[int]) -> list[float]:
    with tf.Graph().as_default():
        set_seed(seed)
        model = tiny.make(name, **DROPOUT.get(name, RECURRENT_DROPOUT))
        with TrainTowerContext(""):
            cost = model.build_graph(*map(tf.constant, tiny.INPUTS))
        clock = next(v for v in tf1.global_variables() if v.op.name == "random_clock")
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            losses = []
            for time in clocks:
                clock.load(time, session)
                losses.append(float(session.run(cost)))
            return losses


@pytest.mark.thorough
@pytest.mark.parametrize("name", [
    "transformer", "seq2seq, fed", pytest.param("rnnsearch", marks=pytest.mark.slow), "convs2s"])
def test_dropout_is_a_function_of_seed_and_clock_alone(name):
    first, second, again = dropout_losses(name, 1, [0, 1, 0])
    assert first == again
    assert first != second
    assert dropout_losses(name, 1, [0]) == [first]
    assert dropout_losses(name, 2, [0]) != [first]


@pytest.mark.parametrize("name, more", [
    pytest.param("transformer", {"positions": "relative", "decoder_cell": "ssru", "norm": "rms"},
                 marks=pytest.mark.thorough),
    pytest.param("convs2s", {}, marks=pytest.mark.thorough),
    *(pytest.param(name, {}, marks=pytest.mark.slow) for name in ("seq2seq, fed", "rnnsearch"))])
def test_bfloat16_is_close_to_float32_and_parameters_and_gradients_are_float32(name, more):
    losses = {}
    for precision in ("float32", "bfloat16"):
        with tf.Graph().as_default():
            set_precision(precision)
            with TrainTowerContext(""):
                cost = tiny.make(name, quiet=True, **more).build_graph(*map(tf.constant, tiny.INPUTS))
                gradients = tf1.gradients(cost, tf1.trainable_variables())
            assert {tensor.dtype.base_dtype for tensor in [*gradients, *tf1.trainable_variables()]} == {tf.float32}
            assert cost.dtype == tf.float32
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                losses[precision] = session.run(cost)
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bfloat16"] != losses["float32"]


@pytest.mark.thorough
@pytest.mark.parametrize("name, preset, million, words", [
    ("transformer", "base", 44.2, 8), ("seq2seq", "sutskever", 64.0, 8), ("rnnsearch", "bahdanau", 80.4, 30000),
    ("convs2s", "fconv_iwslt", 3.94, 8), ("convs2s", "fconv_wmt_en_ro", 75.6, 8),
    *(pytest.param(*preset, marks=pytest.mark.slow) for preset in (
        ("transformer", "tiny", 5.53, 8), ("transformer", "modern", 5.54, 8), ("transformer", "student", 8.68, 8),
        ("transformer", "big", 176.4, 8), ("seq2seq", "tiny", 8.23, 8000), ("seq2seq", "luong", 71.0, 8),
        ("rnnsearch", "tiny", 7.37, 8000), ("convs2s", "tiny", 8.36, 8000),
        ("convs2s", "fconv_wmt_en_de", 127.5, 8)))])
def test_presets_have_the_sizes_of_the_papers_and_of_the_manual(graph, name, preset, million, words):
    """Most sizes exclude the embedding tables.

    Vaswani et al. (2017, table 3) count 65 and 213 million with a joint vocabulary of about 37,000 (19 and 38 million),
    Sutskever et al. (2014) 64 million in the cells. `bahdanau` has the paper's 30,000 words on each side.
    """
    kind = architecture(name)
    model = kind.model(kind.settings(**{**kind.presets[preset], "source_vocab_size": words,
                                        "target_vocab_size": words}))
    with PredictTowerContext(""):
        model.build_graph(*[tf1.placeholder(s.dtype, s.shape) for s in model.inputs()])
    size = sum(int(np.prod(v.shape)) for v in tf1.trainable_variables())
    assert size / 1e6 == pytest.approx(million, abs=0.01 if million < 30 else 0.2)


@pytest.mark.parametrize("name, wrong, message", [
    *[(name, wrong, message) for name in ARCHITECTURES for wrong, message in (
        ({"source_vocab_size": 0}, "source_vocab_size"), ({"source_vocab_size": 23}, "--shared-vocab"))],
    ("transformer", {"heads": 3}, "model.heads=3"),
    ("transformer", {"postprocess": "drr"}, "model.postprocess"),
    ("transformer", {"preprocess": "x"}, "model.preprocess"),
    ("transformer", {"positions": "rotary", "hidden_size": 12}, "model.heads=4"),
    ("transformer", {"positions": "relative", "max_distance": 0}, "model.max_distance=0"),
    ("transformer", {"initialization": "deepnorm"}, "model.postprocess=drn"),
    ("transformer", {"initialization": "deepnorm", "preprocess": "", "postprocess": "dr"}, "model.postprocess=drn"),
    ("seq2seq", {"layers": 0}, "model.layers=0"),
    ("seq2seq", {"attention": "none", "input_feeding": True}, "model.input_feeding"),
    ("rnnsearch", {"read_out_size": 7}, "model.read_out_size=7"),
    ("rnnsearch", {"attention": "dot", "encoder_size": 5}, "model.encoder_size=5"),
    ("rnnsearch", {"attention": "general", "coverage": "linguistic"}, "model.coverage=linguistic"),
    ("rnnsearch", {"decoder_layers": 0}, "model.decoder_layers=0"),
    ("convs2s", {"encoder": "99999999x8/3"}, "with numbers from 1 to 1000, 65536, 1000"),
    ("convs2s", {"encoder": "1x00/3"}, "'1x00/3' is not"),
    ("convs2s", {"encoder": "512"}, "model.encoder=512: '512' is not LAYERSxDEPTH/WIDTH"),
    ("convs2s", {"decoder": "2x0/3"}, "model.decoder"),
    ("convs2s", {"encoder": "2x16/4"}, "odd width"),
    ("convs2s", {"output_size": 9}, "model.output_size=9"),
])
def test_settings_that_cannot_work_are_refused_with_their_name(name, wrong, message):
    with pytest.raises(SettingsError, match=message):
        styles.make(name, **wrong)


def bleu_after_overfitting(name: str, pairs, steps: int, sentences: int, rates: tuple[float, float | None],
                           **sizes) -> float:
    kind = architecture(name)
    tiny_one = tiny.make(name, quiet=True).settings
    no_dropout = {key: getattr(tiny_one, key) for key in tiny.NO_DROPOUT[name]}
    return overfitting.bleu_after_overfitting(
        kind.model, lambda words: kind.settings(**{
            "source_vocab_size": words, "target_vocab_size": words, "label_smoothing": 0.0, **no_dropout, **sizes}),
        pairs, steps, sentences, *rates)


@pytest.mark.parametrize("name, count, steps, rates, sizes", [
    ("transformer", 10, 150, (1e-3, 3e-4), {
        "hidden_size": 64, "filter_size": 128, "encoder_layers": 1, "decoder_layers": 1}),
    pytest.param("rnnsearch", 10, 200, (3e-3, None), {
        "embedding_size": 32, "read_out_size": 32, "encoder_size": 32, "decoder_size": 64, "attention_size": 32},
        marks=pytest.mark.thorough),
    pytest.param("seq2seq", 10, 200, (3e-3, None), {
        "embedding_size": 32, "hidden_size": 64, "layers": 1, "input_feeding": True}, marks=pytest.mark.slow),
    pytest.param("convs2s", 20, 150, (2e-3, 5e-4), {
        "embedding_size": 48, "output_size": 48, "encoder": "2x48/3", "decoder": "2x48/3"}, marks=pytest.mark.thorough),
])
def test_a_few_pairs_are_learnt_by_heart_and_found_by_beam_search(name, count, steps, rates, sizes):
    shortest, longest, pieces = (3, 5, 80) if count == 10 else (4, 8, 90)
    pairs = overfitting.made_up_pairs(count, shortest, longest, pieces)
    assert bleu_after_overfitting(name, pairs, steps, count, rates, **sizes) > 95


@pytest.mark.slow
@pytest.mark.parametrize("name, rates, sizes", [
    ("transformer", (1e-3, 3e-4), {}), ("rnnsearch", (3e-3, None), {}), ("seq2seq", (3e-3, None), {}),
    ("seq2seq", (3e-3, None), {"input_feeding": True}),
    ("convs2s", (2e-3, 5e-4), {"encoder": "3x256/3", "decoder": "3x256/3"})])
def test_a_hundred_real_pairs_are_learnt_by_heart(name, rates, sizes):
    """The sizes are those of the preset `tiny`, except for ConvS2S."""
    assert bleu_after_overfitting(name, overfitting.a_hundred_real_pairs(), 400, 50, rates, **sizes) > 95


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name in tiny.RELATED)) for name in tiny.MODELS])
def test_a_step_limited_to_some_tokens_multiplies_only_their_rows_of_the_projection(graph, name):
    model, tokens = tiny.make(name), [2, 9, 5, 5]
    with PredictTowerContext(""):
        memory = model.encode(tf.constant(tiny.SOURCE), tf.constant(tiny.SOURCE_LENGTH))
        logits, _ = model.decode_step(tf.constant([3, 4]), model.start_state(memory, 1))
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            limited = limited_to(model, tf.constant(tokens))
            limited_logits, state = limited.decode_step(tf.constant([3, 4]), limited.start_state(memory, 1))
            next_logits, _ = limited.decode_step(tf.constant([5, 6]), state)
    gathered = [op for op in graph.get_operations() if op.type.startswith("Gather") and tokens == _ids(op)]
    assert len(gathered) == 2           # kernel and bias, once for all steps
    with tf1.Session() as session:
        tiny.scramble(session)
        expected, limited_values, next_values = session.run([logits, limited_logits, next_logits])
    np.testing.assert_allclose(limited_values, expected[:, tokens], rtol=1e-5, atol=1e-6)
    assert next_values.shape == limited_values.shape


def _ids(gather):
    return list(tf.get_static_value(gather.inputs[1]).flat) if gather.inputs[1].op.type == "Const" else []
