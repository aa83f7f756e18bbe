"""Compare log-probabilities of exported models by CTranslate2 with those of the TensorFlow graph (random weights)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

from tests.variables import assign_random
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.vocabulary.base import BOS, SPECIAL_PIECES
from towernmt.interop.ctranslate2_model_support import unsupported_by_ctranslate2
from towernmt.interop.export import CONSIDERED_SETTINGS
from towernmt.interop.marian_export import unsupported_by_marian
from towernmt.models.interface import token_log_probabilities
from towernmt.models.model_settings import TRANSFORMER_PRESETS, TransformerSettings
from towernmt.models.transformer import Transformer

SIZE, FACTORS = 20, [6, 7]
PLAIN = TransformerSettings(hidden_size=16, filter_size=24, heads=2, encoder_layers=2, decoder_layers=1,
                            source_vocab_size=SIZE, target_vocab_size=SIZE)
POST: dict[str, Any] = {"preprocess": "", "postprocess": "drn"}
CASES: dict[str, dict[str, Any]] = {
    "pre-norm, sinusoids, one table": {},
    "deepnorm, learned positions, LHUC, two tables": {
        **POST, "initialization": "deepnorm", "positions": "learned", "max_positions": 5, "lhuc": True,
        "tie_embeddings": "target", "encoder_layers": 3, "decoder_layers": 2},
    "RMSNorm, rotary, swiglu, three tables": {
        "norm": "rms", "positions": "rotary", "feed_forward": "swiglu", "tie_embeddings": "none"},
    "post-norm, biases, GELU, positions from 1, no EOS": {
        **POST, "attention_biases": True, "feed_forward": "gelu_sigmoid", "first_position": 1, "source_end": False,
        "norm_epsilon": 0.001},
    "relative, geglu, concatenated factors": {
        "positions": "relative", "max_distance": 2, "feed_forward": "geglu", "source_factors": "concat",
        "source_factor_size": 5, "source_factor_vocab_sizes": FACTORS},
}
MORE: dict[str, dict[str, Any]] = {
    "post-norm, glu, added factors": {**POST, "feed_forward": "glu", "source_factor_vocab_sizes": FACTORS},
    "post-norm, RMSNorm, relative": {**POST, "norm": "rms", "positions": "relative"},
    "guided alignment, other depth": {"guided_alignment_weight": 0.1, "guided_alignment_layer": 2, "decoder_layers": 3},
    "other vocabularies": {"source_vocab_size": 9, "tie_embeddings": "none", "initialization": "depth_scaled"},
    "biases, LHUC, swish": {"attention_biases": True, "lhuc": True, "feed_forward": "swish"},
    "biases, the other GELU": {"attention_biases": True, "feed_forward": "gelu_tanh", "start": "zero"},
    "other dropout": {"preprocess": "nd", "postprocess": "r", "positions": "learned", "start": "zero"},
}
TARGETS = [[5, 6, 7, 19], [], [4, 4, 4, 3, 18, 17, 16, 15], [8]]


def sources(settings: TransformerSettings) -> list[list[Any]]:
    rng = np.random.default_rng(2)
    sizes = [settings.source_vocab_size, *settings.source_factor_vocab_sizes]
    tokens = [[tuple(rng.integers(4, size) for size in sizes) for _ in range(length)] for length in (3, 1, 7, 12)]
    return tokens if len(sizes) > 1 else [[token[0] for token in sentence] for sentence in tokens]


def of_graph(settings: TransformerSettings, streams: int, attention: bool = False
             ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the log-probabilities of the target tokens, EOS included, or their attention; and the weights."""
    model = Transformer(settings)
    arrays = [*pad_sentences(sources(settings), streams), *pad_sentences(TARGETS)]
    with tf1.Graph().as_default(), PredictTowerContext(""):
        inputs = [tf1.constant(array) for array in arrays]
        memory = model.encode(*inputs[:2])
        found = token_log_probabilities(model, memory, *inputs[2:])
        if attention:
            shifted = tf1.pad(inputs[2][:, :-1], [[0, 0], [1, 0]], constant_values=BOS)
            with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
                found = model.decode_with_attention(memory, shifted)[1]
        with tf1.Session() as session:
            weights = assign_random(session, np.random.default_rng(1), 0.4, tf1.global_variables())
            log_probs = session.run(found)
    return [row[:len(target) + 1] for row, target in zip(log_probs, TARGETS, strict=True)], weights


def exported(settings: TransformerSettings, weights: dict[str, np.ndarray], path: Path
             ) -> tuple[Any, list[list[str]], list[list[str]]]:
    """Return the model in CTranslate2, and the tokens of the sources and the targets."""
    from towernmt.interop.ctranslate2_spec import transformer_spec

    spec = transformer_spec(settings, weights.__getitem__)
    sizes = [settings.source_vocab_size, *settings.source_factor_vocab_sizes]
    pieces = [[*SPECIAL_PIECES, *(f"w{i}" for i in range(4, size))] for size in (*sizes, SIZE)]
    for side in pieces[:-1]:
        spec.register_source_vocabulary(side)
    spec.register_target_vocabulary(pieces[-1])
    spec.validate()
    spec.optimize()
    spec.save(str(path))
    translator = ctranslate2.Translator(str(path))
    texts = [["￨".join(f"w{id}" for id in np.atleast_1d(token)) for token in sentence]
             for sentence in sources(settings)]
    return translator, texts, [[pieces[-1][id] for id in target] for target in TARGETS]


@pytest.mark.parametrize("changed", [
    *(pytest.param(case, id=name) for name, case in CASES.items()),
    *(pytest.param(case, id=name, marks=pytest.mark.thorough) for name, case in MORE.items())])
def test_the_log_probabilities_are_those_of_the_models_graph(changed: dict[str, Any], tmp_path: Path) -> None:
    settings = dataclasses.replace(PLAIN, **changed)
    assert not unsupported_by_ctranslate2(settings)
    expected, weights = of_graph(settings, 1 + len(settings.source_factor_vocab_sizes))
    translator, texts, targets = exported(settings, weights, tmp_path)
    for result, other in zip(translator.score_batch(texts, targets), expected, strict=True):
        np.testing.assert_allclose(result.log_probs, other, atol=1e-5)


@pytest.mark.parametrize("changed", [
    {"decoder_layers": 3, "guided_alignment_weight": 0.1, "guided_alignment_layer": 2}, {"decoder_layers": 3},
    {"decoder_layers": 3, "guided_alignment_heads": 1}, {"source_end": False}],
    ids=["first head of the guided layer", "mean of all heads", "first head", "source without EOS"])
def test_the_attention_is_that_of_the_models_graph(changed: dict[str, Any], tmp_path: Path) -> None:
    settings = dataclasses.replace(PLAIN, **changed)
    expected, weights = of_graph(settings, 1, attention=True)
    translator, texts, targets = exported(settings, weights, tmp_path)
    for text, target, other in zip(texts, targets, expected, strict=True):
        result, = translator.translate_batch([text], [target], beam_size=1, max_decoding_length=len(target) + 1,
                                             return_attention=True, return_end_token=True)
        np.testing.assert_allclose(result.attention[0], other[:, :len(text)], atol=1e-5)


@pytest.mark.parametrize(("changed", "setting"), [
    ({"decoder_cell": "ssru"}, "model.decoder_cell=ssru"),
    ({"preprocess": ""}, "model.preprocess='' with model.postprocess='dr'"),
    ({"postprocess": "drn"}, "model.postprocess='drn'"),
    ({"postprocess": "d"}, "model.postprocess='d'"),
    *(({name: "another"}, f"model.{name}=another: CTranslate2 supports only")
      for name in ("positions", "norm", "start", "feed_forward", "source_factors", "tie_embeddings"))])
def test_a_setting_that_ctranslate2_does_not_have_is_refused_by_its_name(changed: dict[str, Any], setting: str) -> None:
    assert setting in unsupported_by_ctranslate2(dataclasses.replace(PLAIN, **changed))


@dataclasses.dataclass(frozen=True)
class MoreSettings(TransformerSettings):
    """Settings of a Transformer with one that no export considers."""

    gate: bool = False


@pytest.mark.parametrize(("problem", "base"), [
    (unsupported_by_ctranslate2, PLAIN),
    (functools.partial(unsupported_by_marian, precision="float32"), TransformerSettings(
        **TRANSFORMER_PRESETS["student"]))], ids=["ctranslate2", "marian"])
def test_a_setting_that_an_export_would_ignore_must_have_its_default(
        problem: Callable[[TransformerSettings], str], base: TransformerSettings) -> None:
    assert not problem(MoreSettings(**vars(base)))
    assert "model.gate=True: " in problem(MoreSettings(**vars(base), gate=True))


def test_the_settings_that_the_exports_consider_exist() -> None:
    assert CONSIDERED_SETTINGS <= {field.name for field in dataclasses.fields(TransformerSettings)}
