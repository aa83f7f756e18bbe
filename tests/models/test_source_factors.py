"""Source factors in all four models, compared with models without factors whose tables contain the joint embeddings."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

import tests.models.tiny_models as tiny
from tests.variables import assign
from towernmt.check import check_tower
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import shift_right
from towernmt.models.layers.randomness import drop_words, start_clock
from towernmt.predict.search.decoding_tower import build_search_predictor
from towernmt.predict.search.search_settings import SearchSettings

pytestmark = pytest.mark.thorough

SOURCE = tiny.FACTORED_SOURCE
INPUTS = [SOURCE, *tiny.INPUTS[1:]]
KINDS = ("sum", "concat")
MOSTLY_SLOW = ["transformer", *(pytest.param(name, marks=pytest.mark.slow) for name in (
    "rnnsearch", "seq2seq", "convs2s"))]


def make(name: str, kind: str, **more):
    return tiny.make(name, source_factors=kind, tie_embeddings="target", **tiny.FACTORS, **more)


def logits_of(model, source, values=None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return teacher-forced logits, and the values of the variables, which are specified or random."""
    with tf.Graph().as_default(), tf1.Session() as session:
        with PredictTowerContext(""):
            memory = model.encode(tf.constant(source), tf.constant(tiny.SOURCE_LENGTH))
            logits = model.decode(memory, shift_right(tf.constant(tiny.TARGET)))
        if values is None:
            values = tiny.scramble(session)
        else:
            assign(session, {variable.op.name: values[variable.op.name] for variable in tf1.trainable_variables()})
        return session.run(logits), values


@pytest.mark.parametrize(("name", "kind"), [
    *(("transformer", kind) for kind in KINDS),
    *(pytest.param(name, kind, marks=[pytest.mark.slow] * (kind == "concat"))       # `test_every_model.py` concatenates
      for name in ("seq2seq", "rnnsearch", "convs2s") for kind in KINDS)])
def test_a_model_with_factors_is_one_without_whose_words_are_words_with_their_factors(name, kind):
    model = make(name, kind)
    got, values = logits_of(model, SOURCE)
    scope = model.architecture
    tables = [values[f"{scope}/{table}_embedding"] for table in ("source", "source_factor_1", "source_factor_2")]
    streams, joint = np.unique(SOURCE.reshape(-1, 3), axis=0, return_inverse=True)
    rows = [table[streams[:, i]] for i, table in enumerate(tables)]
    if kind == "sum":
        table = rows[0] + rows[1] + rows[2]
    else:
        assert [row.shape[1] for row in rows] == [rows[0].shape[1], 3, 3]
        table = np.concatenate(rows, 1) @ values[f"{scope}/source_factors/kernel"]
    plain = tiny.make(name, tie_embeddings="target", source_vocab_size=len(streams))
    expected, _ = logits_of(plain, joint.reshape(SOURCE.shape[:2]).astype(np.int32),
                            {**values, f"{scope}/source_embedding": table})
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_a_model_with_everything_on_obeys_the_rules_of_tower_functions(name):
    more = {} if name != "transformer" else {
        "decoder_layers": 1, "positions": "relative", "decoder_cell": "ssru", "norm": "rms"}
    model = make(name, "concat", lhuc=True, word_dropout=0.1, r_drop_alpha=1.0, guided_alignment_weight=0.1, **more)
    assert [str(breach) for breach in check_tower(model)] == []
    shapes = {spec.name: spec.shape.as_list() for spec in model.inputs()}
    assert shapes["source"] == [None, None, 3] and shapes["alignment"] == [None, None, None]


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_search_takes_words_with_factors(graph, name):
    model = make(name, "sum")
    with TrainTowerContext(""):
        model.build_graph(*map(tf.constant, INPUTS))
    predictor = build_search_predictor(model, SearchSettings(beam_size=2))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tiny.scramble(session)
        predictor.set_session(session)
        tokens, scores = predictor(SOURCE, tiny.SOURCE_LENGTH)
        other_tokens, other_scores = predictor(np.where(np.arange(3) > 0, 3, SOURCE), tiny.SOURCE_LENGTH)
    assert len(tokens) == len(other_tokens) == 2
    assert not np.allclose(scores, other_scores)


def test_word_dropout_leaves_factors_as_they_are(graph):
    ids = np.random.default_rng(0).integers(4, 50, [50, 40, 3]).astype(np.int32)
    with TrainTowerContext(""):
        start_clock(tf.constant(0.0))
        read = drop_words(tf.constant(ids), 0.3, "words")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        got = session.run(read)
    np.testing.assert_array_equal(got[:, :, 1:], ids[:, :, 1:])
    changed = got[:, :, 0] != ids[:, :, 0]
    assert changed.mean() == pytest.approx(0.3, abs=0.03) and set(got[changed][:, 0]) == {3}


@pytest.mark.parametrize("name", tiny.names_with(pytest.mark.slow, "transformer"))
def test_without_dropout_two_passes_over_words_with_factors_cost_the_same_as_one(name):
    losses = []
    for more in ({}, {"r_drop_alpha": 5.0}):
        with tf.Graph().as_default(), tf1.Session() as session:
            fetches = tiny.loss_and_gradients(make(name, "sum", quiet=True, **more), INPUTS)
            session.run(tf1.global_variables_initializer())
            losses.append(session.run(fetches))
    for once, twice in zip(*losses, strict=True):
        np.testing.assert_allclose(once, twice, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrong, message", [
    ({"source_factor_vocab_sizes": [7, 3]}, "source_factor_vocab_sizes"),
    ({"source_factor_size": 0}, "model.source_factor_size=0"),
    ({"word_dropout": 1.0}, "model.word_dropout=1.0"),
    ({"word_dropout": -0.1}, "model.word_dropout=-0.1"),
    ({"r_drop_alpha": -5.0}, "model.r_drop_alpha=-5.0"),
    ({"guided_alignment_weight": float("nan")}, "model.guided_alignment_weight=nan"),
])
@pytest.mark.parametrize("name", ["transformer", "seq2seq", "rnnsearch", "convs2s"])
def test_settings_of_all_models_that_cannot_work_are_refused_by_name(name, wrong, message):
    with pytest.raises(SettingsError, match=message):
        tiny.make(name, **wrong)
