"""BLEU validation in a real trainer, with a model that learns to copy: scores, loss, resumes and signals."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromList, RepeatedData
from tensorpack.input_source import FeedInput
from tensorpack.tfutils.sesscreate import NewSessionCreator
from tensorpack.train import SimpleTrainer

from towernmt.callbacks.bleu_validator import BleuValidator
from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules import piecewise
from towernmt.callbacks.stop_on_signal import StopOnSignal
from towernmt.callbacks.stopping import EarlyStopping
from towernmt.callbacks.validation_towers import ValidationTowers, teacher_forced_batches
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.preparation.alignment_model import Entries
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.dataflow.vocabulary.base import EOS, PAD, Vocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers.projections import Projection
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.search.search_settings import SearchSettings

V = 12


class Numbers(Vocabulary):
    """A vocabulary of numbers from 4, each of which is its own id."""

    size = V

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        words = []
        for id in ids:
            if id == EOS:
                break
            words.append(str(int(id)))
        return " ".join(words)

    def id_to_piece(self, id: int) -> str:
        return str(id)

    def piece_to_id(self, piece: str) -> int:
        return int(piece)

    def files(self) -> Mapping[str, bytes]:
        return {}


class Copier(NMTModel):
    """A model with logits 10 w for the source token at the same position, 1 for EOS, 0 else; it copies if 10 w > 1."""

    source_vocab_size = target_vocab_size = V

    def optimizer(self) -> Any:
        rate = tf1.get_variable("learning_rate", initializer=0.0, trainable=False)
        return tf1.train.GradientDescentOptimizer(rate)

    def _logits(self, token: Any) -> Any:
        w = tf1.get_variable("copier/w", [], initializer=tf1.zeros_initializer())
        return 10 * w * tf.one_hot(token, V) + tf.one_hot(EOS, V)

    def encode(self, source: Any, source_length: Any) -> Any:
        return source

    def decode_hidden(self, memory: Any, target_in: Any) -> Any:
        return self._logits(memory[:, :tf.shape(target_in)[1]])  # [batch, target length, V]

    def output_projection(self) -> Projection:
        return Projection(tf.eye(V), tf.zeros([V]))

    def start_state(self, memory: Any, beam: int) -> DecoderState:
        return DecoderState(memory, tf.repeat(memory, beam, axis=0), tf.constant(0))

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:
        position = tf.minimum(state.step, tf.shape(state.cache)[1] - 1)
        return self._logits(tf.gather(state.cache, position, axis=1)), state._replace(step=state.step + 1)


LINES = ["4 5 6 7 8", "9 10 11 4", "5 5 6 6 7 7", "8 4 9 10 11 11 4"]
PAIR = [np.array([[4, 5, EOS]], np.int32), np.array([3], np.int32)]


class W(Callback):
    """Records the copier's parameter after each step."""

    def __init__(self):
        self.values = {}

    def _setup_graph(self):
        self._w = next(v for v in tf1.trainable_variables() if v.op.name == "copier/w").value()

    def _trigger_step(self):
        self.values[self.global_step] = float(self.trainer.sess.run(self._w))


def validator(every: int = 2, **kwargs: Any) -> BleuValidator:
    return BleuValidator(Copier(), LINES, LINES, Numbers(), Numbers(), every_steps=every, batch_tokens=16,
                         **{"search": SearchSettings(beam_size=2), **kwargs})


@pytest.fixture
def fit(recorder, start_at):
    def run(callbacks, steps, start=0, epochs=1):
        model = Copier()
        data = RepeatedData(DataFromList([[*PAIR, *PAIR, np.float32(3)]], shuffle=False), -1)
        with tf.Graph().as_default():
            trainer = SimpleTrainer()
            trainer.setup_graph(model.get_input_signature(), FeedInput(data), model.build_graph,
                                model.get_optimizer)
            trainer.setup_callbacks(list(callbacks), [recorder])
            trainer.initialize(NewSessionCreator(config=tf1.ConfigProto(intra_op_parallelism_threads=1)),
                               start_at(start))
            trainer.main_loop(steps, 1, epochs)
        return trainer
    return run


def reference_loss(w: float, lines: Sequence[str] = LINES) -> float:
    """The mean negative log-likelihood of the tokens of LINES, in plain Python."""
    total = tokens = 0.0
    for line in lines:
        words = len(line.split())
        total += words * (math.log(math.exp(10 * w) + math.e + V - 2) - 10 * w)
        total += math.log(math.exp(10 * w + 1) + V - 1) - (10 * w + 1)
        tokens += words + 1
    return total / tokens


def test_scores_are_those_of_the_parameters_being_trained(fit, recorder, caplog):
    weights, check = W(), validator()
    with caplog.at_level(logging.INFO):
        fit([LearningRateSchedule(piecewise([2], [1e-4, 1.0])), weights, check], steps=5)
    # empty translations at first, copies once w is large; the last step is validated at the end of training
    assert recorder.of("validation_bleu") == [(2, 0.0), (4, pytest.approx(100.0)), (5, pytest.approx(100.0))]
    assert recorder.of("validation_chrf")[1] == (4, pytest.approx(100.0))
    for step, loss in recorder.of("validation_loss"):
        # A loss of 0 is exact only up to float32's epsilon.
        assert loss == pytest.approx(reference_loss(weights.values[step]), rel=1e-5, abs=2 ** -23)
        assert (step, pytest.approx(math.exp(loss))) in recorder.of("validation_perplexity")
    assert (check.best_score, check.best_step) == (pytest.approx(100.0), 5)    # of equal ones the later
    assert "tok:13a" in caplog.text and "Validation at step 4: BLEU 100.00" in caplog.text
    assert re.search("source +(.+)\n.*\n.*translation \\1", caplog.text)


@pytest.mark.parametrize(("options", "copies"), [
    ({"selection": "sampling", "epsilon": 0.01}, True), ({"no_repeat_ngram": 1}, False),
    pytest.param({"beam_size": 4, "beam_groups": 2}, True, marks=pytest.mark.thorough)])
def test_a_validation_uses_its_search_settings(fit, recorder, options, copies):
    fit([LearningRateSchedule(piecewise([1], [0.1, 1.0])), validator(2, search=SearchSettings(**options))], steps=4)
    _, (_, last) = recorder.of("validation_bleu")
    assert (last > 99.9) == copies


def test_a_validation_obeys_a_shortlist_and_refuses_one_of_other_vocabularies(fit, recorder, tmp_path):
    words = np.arange(4, V)
    wrong_entries = Entries(words, np.roll(words, 1), np.full(len(words), 0.9), np.zeros(V))   # with other words only
    Lexicon.of(wrong_entries, Numbers(), Numbers(), keep=1).save(tmp_path / "table")
    settings = SearchSettings(beam_size=2, shortlist=str(tmp_path / "table"), shortlist_frequent=0)
    fit([LearningRateSchedule(piecewise([1], [0.1, 1.0])), validator(2, search=settings)], steps=4)
    assert recorder.of("validation_bleu")[-1][1] < 50       # without a shortlist 100, see above
    towers = ValidationTowers(Copier(), settings, Numbers(), WordVocabulary(list("abcdefghijkl")), 16, lambda: None)
    with pytest.raises(SettingsError, match="table was made with other vocabularies"):
        towers.build(None, loss=False)


def test_a_validation_that_needs_the_attention_of_a_model_without_is_refused(fit):
    with pytest.raises(SettingsError, match="Copier gives no attention .* coverage_penalty"):
        fit([validator(search=SearchSettings(coverage_penalty=0.2))], steps=1)


def test_a_validation_that_needs_the_loss_of_a_tower_without_its_name_is_refused(fit, monkeypatch):
    monkeypatch.setattr(Copier, "build_graph", lambda self, source, *_: tf.reduce_mean(self._logits(source)))
    with pytest.raises(SettingsError, match="build_graph of Copier creates no tensor named 'nll'"):
        fit([validator()], steps=1)


def test_a_last_step_that_was_validated_is_not_validated_again(fit, recorder):
    fit([validator(loss=False)], steps=4, epochs=2)
    assert [step for step, _ in recorder.of("validation_bleu")] == [2, 4, 6, 8]
    assert not recorder.of("validation_loss")


def test_the_best_is_remembered_over_a_resume_and_nothing_is_validated_twice(fit, recorder):
    first, second = validator(loss=False), validator(loss=False)
    fit([LearningRateSchedule(piecewise([9], [1.0, 1.0])), first], steps=4)
    second.restore_state(first.state())
    fit([second], steps=3, start=4)  # the copier starts with random values here, so the best checkpoint stays
    assert [step for step, _ in recorder.of("validation_bleu")] == [2, 4, 6, 7]
    assert (second.best_score, second.best_step) == (first.best_score, first.best_step)


def test_a_resumed_run_makes_the_validation_that_is_missing_before_its_first_step(fit, recorder):
    resumed = validator(loss=False)
    resumed.restore_state({"best_score": 100.0, "best_step": 2, "last_step": 2,
                           "metric": "validation_bleu"})
    stop = EarlyStopping(patience=1)
    stop.restore_state({"best": 100.0, "best_step": 2, "failures": 0, "metric": "validation_bleu"})
    trainer = fit([resumed, stop], steps=10, start=4)
    assert recorder.of("validation_bleu") == [(4, 0.0)]
    assert trainer.loop.global_step == 4


def test_a_run_that_must_improve_on_its_first_parameters_is_validated_before_its_first_update(fit, recorder):
    first = validator(loss=False, at_start=True)
    assert first.state()["last_step"] < 0
    fit([first], steps=3)
    assert recorder.of("validation_bleu")[0] == (0, 0.0)
    assert [step for step, _ in recorder.of("validation_bleu")] == [0, 2, 3]
    second = validator(loss=False, at_start=True)
    second.restore_state(first.state())
    fit([second], steps=3, start=3)
    assert [step for step, _ in recorder.of("validation_bleu")] == [0, 2, 3, 4, 6]


def test_patience_counts_from_the_first_parameters(fit, recorder):
    trainer = fit([LearningRateSchedule(piecewise([99], [0.0, 0.0])), validator(1, loss=False, at_start=True),
                   EarlyStopping(patience=2)], steps=10)
    assert trainer.loop.global_step == 2 and len(recorder.of("validation_bleu")) == 3


def test_the_mean_over_all_sets_decides(fit, recorder):
    talks = ValidationSet("talks", ["4 5 6 7", "8"], [["9 9 9 9", "9"]])
    check = validator(more_sets=[talks], metric="bleu", metric_set="mean", name="news")
    assert check.metric == "validation_bleu/mean" and check.scalars[-1] == "validation_perplexity/mean"
    fit([LearningRateSchedule(piecewise([2, 4], [1e-4, 0.03, -0.03])), check], steps=4)
    for metric in ("bleu", "chrf", "loss", "perplexity"):
        rows = [recorder.of(f"validation_{metric}{name}") for name in ("", "/talks", "/mean")]
        for (step, first), (_, second), (mean_step, mean) in zip(*rows, strict=True):
            assert mean_step == step and mean == pytest.approx((first + second) / 2)
    assert (check.best_score, check.best_step) == (recorder.of("validation_bleu/mean")[1][1], 4)


def test_a_validator_that_decides_nothing_reports_its_sets_by_name(fit, recorder, caplog):
    check = validator(name="general", decides=False, loss=False)
    assert check.metric is None and check.scalars == ["validation_bleu/general", "validation_chrf/general"]
    with caplog.at_level(logging.INFO):
        fit([LearningRateSchedule(piecewise([2], [1e-4, 0.03])), check], steps=4)
    assert [step for step, _ in recorder.of("validation_bleu/general")] == [2, 4]
    assert check.best_score is None and not recorder.of("validation_bleu")
    assert "Validation of general at step 4: BLEU" in caplog.text and "best" not in caplog.text


def test_a_set_named_mean_is_that_set():
    mean = ValidationSet("mean", ["4"], [["4"]])
    check = validator(more_sets=[mean], metric_set="mean")
    assert check.metric == "validation_bleu/mean" and len(check.scalars) == 8
    assert validator(metric_set="mean", name="mean").metric == "validation_bleu"


def test_a_signal_ends_a_validation_without_a_score(fit, recorder, caplog):
    class Kill(Callback):
        def _trigger_step(self):
            os.kill(os.getpid(), signal.SIGTERM)

    with caplog.at_level(logging.INFO):
        trainer = fit([Kill(), validator(1), StopOnSignal()], steps=10)
    assert trainer.loop.global_step == 1
    assert recorder.of("validation_bleu") == []
    assert "done by the resumed run" in caplog.text


def test_several_sets_and_references_are_scored_by_name_and_the_metric_uses_the_requested_set(
        fit, recorder, caplog):
    talks = ValidationSet("talks", ["4 5 6 7", "8"], [["4 5 6 7", "8"], ["9 9 9 9", "9"]])
    check = validator(more_references=[["11 11"] * 4], more_sets=[talks], metric="loss", metric_set="talks",
                      name="news")
    assert check.scalars[2:5] == ["validation_loss", "validation_perplexity", "validation_bleu/talks"]
    weights = W()
    with caplog.at_level(logging.INFO):
        fit([LearningRateSchedule(piecewise([2, 4], [1e-4, 0.03, -0.03])), weights, check], steps=6)
    assert recorder.of("validation_bleu")[1] == recorder.of("validation_bleu/talks")[1] == (4, pytest.approx(100.0))
    for step, loss in recorder.of("validation_loss/talks"):
        expected = reference_loss(weights.values[step], talks.source)
        assert loss == pytest.approx(expected, rel=1e-5, abs=2 ** -23)
    losses = dict(recorder.of("validation_loss/talks"))
    assert check.metric == "validation_loss/talks"
    assert (check.best_score, check.best_step) == (min(losses.values()), 4)
    assert f"best nll {losses[4]:.4f} at step 4" in caplog.text
    assert "Validation of talks at step 4: BLEU 100.00" in caplog.text and "nrefs:2" in caplog.text
    assert "Validation of news at step 4: BLEU 100.00" in caplog.text


def test_a_validation_is_made_when_its_minutes_are_over(fit, recorder, monkeypatch):
    seconds = [0.0]

    class Clock(Callback):
        def _trigger_step(self):
            seconds[0] += 25.0

    check = validator(every=5, every_minutes=1.0, loss=False)
    monkeypatch.setattr(check._period, "_clock", lambda: seconds[0])
    fit([Clock(), check], steps=8)
    assert [step for step, _ in recorder.of("validation_bleu")] == [3, 5, 8]     # 75 s; by steps; 75 s


def test_an_interval_in_minutes_includes_the_time_before_a_resume(fit, recorder, monkeypatch):
    """The validation that a signal has ended is due, and is made before the first step."""
    first, seconds = validator(every=0, every_minutes=1.0, loss=False), [0.0]
    for check in (first, second := validator(every=0, every_minutes=1.0, loss=False)):
        monkeypatch.setattr(check._period, "_clock", lambda: seconds[0])
    first._period.restart()
    seconds[0] = 61.0
    second.restore_state(first.state())
    fit([second], steps=2, start=3)
    assert [step for step, _ in recorder.of("validation_bleu")] == [3, 5]
    assert second.state()["seconds"] == 0.0


def test_the_best_by_another_metric_is_forgotten():
    memory = {"best_score": 30.0, "best_step": 2, "last_step": 4, "metric": "validation_bleu"}
    bleu, loss = validator(), validator(metric="loss")
    bleu.restore_state(memory)
    loss.restore_state(memory)
    assert (bleu.best_score, bleu.best_step, bleu.state()["last_step"]) == (30.0, 2, 4)
    assert (loss.best_score, loss.best_step, loss.state()["last_step"]) == (None, 0, 4)


def test_the_best_of_other_sentences_is_forgotten():
    def with_talks(count, metric_set):
        return validator(more_sets=[ValidationSet("talks", LINES[:count], [LINES[:count]])], metric_set=metric_set)

    memory = {**with_talks(2, "mean").state(), "best_score": 30.0, "best_step": 2, "last_step": 4}
    same, other = with_talks(2, "mean"), with_talks(3, "mean")
    same.restore_state(memory)
    other.restore_state(memory)
    assert (same.best_score, same.best_step) == (30.0, 2)
    assert (other.best_score, other.best_step, other.state()["last_step"]) == (None, 0, 4)
    names = ("validation_bleu", "validation_bleu/talks", "validation_bleu/mean", "custom", "validation_bleu/other")
    assert [other.had_other_text(memory, name) for name in names] == [False, True, True, False, False]
    assert not any(same.had_other_text(memory, name) for name in names)
    assert not other.had_other_text({"last_step": 4}, "validation_bleu/talks")      # of an older version


def test_metrics_that_cannot_be_had_are_refused():
    with pytest.raises(SettingsError, match="metric=rouge is not one of bleu, chrf, loss, perplexity"):
        validator(metric="rouge")
    with pytest.raises(SettingsError, match="metric=loss needs the loss"):
        validator(metric="loss", loss=False)
    with pytest.raises(SettingsError, match="metric_set=news: no validation set has this name"):
        validator(metric_set="news")
    assert validator(metric_set="news", name="news").metric == "validation_bleu"
    assert validator(loss=False).scalars == ["validation_bleu", "validation_chrf"]
    twice = [ValidationSet("a", ["4"], [["4"]])] * 2
    with pytest.raises(SettingsError, match="Two validation sets are named 'a'"):
        validator(more_sets=twice)
    with pytest.raises(SettingsError, match="validation.minutes=-1"):
        validator(every_minutes=-1.0)


def test_training_that_ends_by_an_error_is_not_validated(fit, recorder):
    class Fail(Callback):
        def _trigger_step(self):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fit([Fail(), validator(100)], steps=10)
    assert recorder.of("validation_bleu") == []


def test_validation_sets_that_cannot_work_are_refused():
    with pytest.raises(DataError, match="2 source lines, but 1 reference lines"):
        BleuValidator(Copier(), ["4", "5"], ["4"], Numbers(), Numbers())
    with pytest.raises(DataError, match="empty"):
        BleuValidator(Copier(), [], [], Numbers(), Numbers())


@given(lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30),
       budget=st.integers(1, 60))
def test_teacher_forced_batches_hold_every_pair_once_within_the_budget(lengths, budget):
    pairs = [([4 + i % 8] * s, [4 + i // 8] * t) for i, (s, t) in enumerate(lengths)]
    text = [[" ".join(map(str, side)) for side in column] for column in zip(*pairs, strict=True)]
    batched_pairs = []
    for source, source_length, target, target_length, tokens in teacher_forced_batches(
            text[0], text[1], Numbers(), Numbers(), budget):
        assert tokens == target_length.sum()
        assert len(source) == 1 or len(source) * max(source.shape[1], target.shape[1]) <= budget
        for ids, length, out, out_length in zip(source, source_length, target, target_length, strict=True):
            assert (ids[length:] == PAD).all() and ids[length - 1] == EOS
            assert (out[out_length:] == PAD).all() and out[out_length - 1] == EOS
            batched_pairs.append((ids[:length - 1].tolist(), out[:out_length - 1].tolist()))
    assert sorted(batched_pairs) == sorted(pairs)
