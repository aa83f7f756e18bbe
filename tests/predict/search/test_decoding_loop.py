"""The loop with a custom strategy, named inputs, and collected attention, compared with teacher forcing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

from tests.predict.search.toy_model import BOS, EOS, PAD, ToyModel
from tests.variables import assign_random
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel, shift_right
from towernmt.models.model_settings import RNNSearchSettings, TransformerSettings
from towernmt.models.rnnsearch import RNNSearch
from towernmt.models.transformer import Transformer
from towernmt.predict.search.decoding_interfaces import Candidates, Decoded, LogitsProcessor, StepChoice, Strategy
from towernmt.predict.search.decoding_loop import Decoding, LengthLimit, decode
from towernmt.predict.search.decoding_tower import (
    bind_inputs,
    build_predictor,
    build_search_predictor,
    decoding_for,
    decoding_signature,
)
from towernmt.predict.search.sampling_tower import SamplingSettings, sampling_for
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.step_context import History, StepContext

SIZE = 13
SOURCE = np.array([[5, 9, 7, EOS, PAD], [4, 4, 11, 6, EOS], [8, EOS, PAD, PAD, PAD]], np.int32)
SOURCE_LENGTH = np.array([4, 5, 2], np.int32)
TARGET = np.array([[8, 6, EOS, PAD], [10, 3, 12, EOS], [4, 4, 5, 6]], np.int32)


class ForcedState(NamedTuple):
    log_prob: Any
    done: Any


class ForcedDecoding(Strategy):
    """Follows the input `target`, int32 `[batch, length]`; the score is its log-probability."""

    width = 1

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([None, None], tf.int32, "target")]

    def start(self, empty: History, inputs: Mapping[str, Any]) -> ForcedState:
        batch = tf.shape(empty.tokens)[0]
        return ForcedState(tf.zeros([batch]), tf.zeros([batch], tf.bool))

    def choose(self, candidates: Candidates, context: StepContext, state: ForcedState) -> StepChoice:
        target = context.inputs["target"]
        token = tf.where(state.done, PAD, target[:, context.step])
        log_prob = state.log_prob + tf.where(state.done, 0.0, candidates.log_prob(token))
        done = state.done | tf.equal(token, EOS) | (context.step + 1 >= tf.shape(target)[1])
        return StepChoice(None, token[:, None], ForcedState(log_prob, done))

    def is_done(self, state: ForcedState) -> Any:
        return state.done

    def result(self, state: ForcedState, live: History) -> Decoded:
        live = live.without_attention_of_padding()
        return Decoded(live.tokens, state.log_prob[:, None], live.attention)


FORCED = Decoding(ForcedDecoding(), [], LengthLimit(100.0, 0))


def rnnsearch() -> NMTModel:
    return RNNSearch(RNNSearchSettings(source_vocab_size=SIZE, target_vocab_size=SIZE, embedding_size=6,
                                       encoder_size=4, decoder_size=8, attention_size=5, read_out_size=6, dropout=0.0))


def transformer() -> NMTModel:
    return Transformer(TransformerSettings(source_vocab_size=SIZE, target_vocab_size=SIZE, hidden_size=8,
                                           filter_size=8, heads=2, encoder_layers=1, decoder_layers=2))


class Decoder:
    """A model with random weights, decoded and teacher-forced in one session."""

    def __init__(self, model: NMTModel, decoding: Decoding) -> None:
        self.model = model
        self.inputs = {spec.name: tf1.placeholder(spec.dtype, spec.shape)
                       for spec in decoding_signature(model, decoding)}
        with PredictTowerContext(""):
            self.result = decode(model, self.inputs, decoding)
        self._forced = self._teacher_forcing()
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())
        assign_random(self.session, np.random.default_rng(3), 0.8)

    def __call__(self, **arrays: Any) -> Decoded:
        return self.session.run(self.result, {self.inputs[name]: array for name, array in arrays.items()})

    def _teacher_forcing(self) -> Any:
        with PredictTowerContext(""), tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            tokens = tf1.placeholder(tf.int32, [None, None])
            memory = self.model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH))
            hidden, attention = self.model.decode_with_attention(memory, shift_right(tokens))
            log_prob = tf.nn.log_softmax(self.model.output_projection().logits(hidden))
            return tokens, [tf.gather(log_prob, tokens, batch_dims=2), attention]

    def forced(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log-probabilities of tokens `[batch, length]` by teacher forcing, and attention; 0 for PAD."""
        given, results = self._forced
        log_prob, attention = self.session.run(results, {given: tokens})
        written = tokens != PAD
        return log_prob * written, attention * written[:, :, None]


@pytest.mark.parametrize("make", [pytest.param(rnnsearch, marks=pytest.mark.thorough), transformer])
def test_a_strategy_of_ones_own_decodes_what_its_input_says_with_the_scores_and_attention_of_teacher_forcing(
        graph: Any, make: Any) -> None:
    decoder = Decoder(make(), Decoding(FORCED.strategy, [], FORCED.limit, attention=True))
    found = decoder(source=SOURCE, source_length=SOURCE_LENGTH, target=TARGET)
    log_prob, attention = decoder.forced(TARGET)
    assert np.array_equal(found.tokens[:, 0], TARGET)
    np.testing.assert_allclose(found.scores[:, 0], log_prob.sum(1), rtol=1e-4)
    np.testing.assert_allclose(found.attention[:, 0], attention, atol=1e-5)


@pytest.mark.parametrize("settings", [
    SearchSettings(beam_size=1, length_penalty=0.0), SearchSettings(beam_size=4, n_best=3, length_penalty=0.0),
    pytest.param(SearchSettings(beam_size=4, beam_groups=2, n_best=4, length_penalty=0.0), marks=pytest.mark.thorough),
    pytest.param(SearchSettings(selection="sampling", n_best=3, top_p=0.9), marks=pytest.mark.thorough),
    pytest.param(SamplingSettings(samples=3), marks=pytest.mark.slow)])
def test_every_strategy_collects_the_attention_and_log_probabilities_of_teacher_forcing_for_what_it_finds(
        graph: Any, settings: Any) -> None:
    plain = sampling_for(settings) if isinstance(settings, SamplingSettings) else decoding_for(settings)
    decoder = Decoder(rnnsearch(), Decoding(plain.strategy, plain.processors, LengthLimit(1.0, 3), attention=True,
                                            log_probs=True))
    found = decoder(source=SOURCE, source_length=SOURCE_LENGTH, **({"draw": 1} if "draw" in decoder.inputs else {}))
    assert found.attention[1].std() > 0.02      # not uniform
    for place in range(found.tokens.shape[1]):
        log_prob, attention = decoder.forced(found.tokens[:, place])
        np.testing.assert_allclose(found.attention[:, place], attention, atol=1e-5)
        np.testing.assert_allclose(found.log_probs[:, place], log_prob, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.scores[:, place], log_prob.sum(1), rtol=1e-4)


def test_coverage_is_of_the_attention_that_teacher_forcing_has(graph: Any) -> None:
    settings = SearchSettings(beam_size=3, n_best=2, length_penalty=0.0, coverage_penalty=0.5)
    decoder = Decoder(rnnsearch(), decoding_for(settings))
    found = decoder(source=SOURCE, source_length=SOURCE_LENGTH)
    for place in range(2):
        log_prob, attention = decoder.forced(found.tokens[:, place])
        looked = np.clip(attention.sum(1), 1e-6, 1.0)
        looked[np.arange(SOURCE.shape[1]) >= SOURCE_LENGTH[:, None]] = 1.0
        np.testing.assert_allclose(found.scores[:, place], log_prob.sum(1) + 0.5 * np.log(looked).sum(1), rtol=1e-4)


@pytest.mark.parametrize("decoding", [
    Decoding(FORCED.strategy, [], FORCED.limit, attention=True),
    decoding_for(SearchSettings(coverage_penalty=0.1)), decoding_for(SearchSettings(coverage_penalty=0.1, beam_size=1)),
    decoding_for(SearchSettings(coverage_penalty=0.1, beam_size=4, beam_groups=2))])
def test_attention_of_a_model_that_gives_none_is_refused(graph: Any, decoding: Decoding) -> None:
    with pytest.raises(SettingsError, match=r"ToyModel gives no attention with decode_step: .* coverage_penalty"):
        decode(ToyModel(vocabulary=6, seed=0), {}, decoding)


class DomainModel(ToyModel):
    """A model whose encoder reads an additional input."""

    def encoder_inputs(self) -> list[Any]:
        return [*super().encoder_inputs(), tf.TensorSpec([None], tf.int32, "domain")]

    def encode(self, source: Any, source_length: Any, domain: Any = None) -> Any:
        return {"sum": super().encode(source, source_length)["sum"] + 31 * domain}


def test_an_input_that_the_model_declares_reaches_its_encoder(graph: Any) -> None:
    model, settings = DomainModel(vocabulary=8, seed=2), SearchSettings(beam_size=2)
    model.encode(tf.constant([[EOS]]), tf.constant([1]), tf.constant([0]))
    model.decode_step(tf.constant([BOS]), model.start_state({"sum": tf.constant([1])}, 1))
    plain, reading = (build_search_predictor(one, settings) for one in (ToyModel(vocabulary=8, seed=2), model))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for predictor in (plain, reading):
            predictor.set_session(session)
        lengths = np.array([3, 3])
        expected = plain(np.array([[3, 4, EOS], [3, 7, EOS]]), lengths)
        found = reading(np.array([[3, 4, EOS], [3, 4, EOS]]), lengths, domain=np.array([0, 3]))
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
        with pytest.raises(SettingsError, match="inputs source, source_length, domain, .* passed: value 1, value 2"):
            reading(np.array([[3, 4, EOS]]), lengths[:1])


def test_a_predictor_of_any_decoding_takes_the_inputs_of_its_strategy_behind_those_of_the_model(graph: Any) -> None:
    model = ToyModel(vocabulary=8, seed=2)
    model.encode(tf.constant([[EOS]]), tf.constant([1]))
    model.decode_step(tf.constant([BOS]), model.start_state({"sum": tf.constant([1])}, 1))
    predictor = build_predictor(model, FORCED)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        predictor.set_session(session)
        tokens, scores = predictor(np.array([[3, EOS]]), np.array([2]), np.array([[4, 5, EOS]]))
    assert tokens.tolist() == [[[4, 5, EOS]]]
    expected = sum(model.log_prob([3, EOS], [4, 5, EOS][:i])[token] for i, token in enumerate([4, 5, EOS]))
    np.testing.assert_allclose(scores, [[expected]], rtol=1e-5)


def test_inputs_are_given_once_each_in_order_or_by_name() -> None:
    assert bind_inputs(["a", "b", "c"], [1], {"c": 3, "b": 2}) == [1, 2, 3]
    for in_order, named in (([1, 2], {}), ([1, 2, 3, 4], {}), ([1, 2, 3], {"c": 3}), ([1, 2], {"c": 3, "d": 4})):
        with pytest.raises(SettingsError, match="inputs a, b, c, each to be passed once"):
            bind_inputs(["a", "b", "c"], in_order, named)


class Reads(LogitsProcessor):
    def __init__(self, *specs: Any) -> None:
        self.specs = specs

    def inputs(self) -> Any:
        return self.specs

    def __call__(self, logits: Any, context: StepContext) -> Any:
        return logits


def test_two_that_declare_the_same_input_share_it_and_two_different_ones_of_a_name_are_refused() -> None:
    model, spec = ToyModel(vocabulary=6, seed=0), tf.TensorSpec([None], tf.int32, "topic")
    shared = decoding_for(SearchSettings(), [Reads(spec), Reads(tf.TensorSpec([], tf.int64, "draw")), Reads(spec)])
    assert [one.name for one in decoding_signature(model, shared)] == ["source", "source_length", "topic", "draw"]
    for other, match in ((tf.TensorSpec([None], tf.float32, "topic"), "'topic' .* twice and differently"),
                         (tf.TensorSpec([None], tf.int32), "has no name")):
        with pytest.raises(SettingsError, match=match):
            decoding_signature(model, decoding_for(SearchSettings(), [Reads(spec), Reads(other)]))
