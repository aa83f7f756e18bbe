"""Ensembles of checkpoints on disk: translations, names of members, and refused combinations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

from tests.predict.word_data import WORDS, WordData
from tests.variables import assign, assign_random
from towernmt.checkpoint.checkpoint_files import write_checkpoint
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.tf_compat import tf1
from towernmt.models.model_settings import RNNSearchSettings, TransformerSettings
from towernmt.models.rnnsearch import RNNSearch
from towernmt.models.transformer import Transformer
from towernmt.optim.optimizer import AVERAGE_SUFFIX
from towernmt.predict.ensemble import open_trained
from towernmt.predict.scorer import Scorer
from towernmt.predict.search.search_settings import EnsembleSettings
from towernmt.predict.translator import Translator
from towernmt.run.directory import RunDirectory
from towernmt.run.run_settings import settings_of_model

pytestmark = pytest.mark.thorough

LINES = ["w1 w2 w3", "", "w4", "w1 w2 unseen w5 w6 w7", "w9 w9"]


def transformer(**settings: Any) -> Transformer:
    return Transformer(TransformerSettings(**{
        "hidden_size": 16, "filter_size": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1,
        "source_vocab_size": 20, "target_vocab_size": 20, **settings}))


def write_run(path: Path, model: Any, data: WordData, steps: int = 1) -> Path:
    """Write a run with checkpoints of random weights; each weight has a moving average of twice its value."""
    run = RunDirectory(path)
    run.begin(settings_of_model(model), data)  # type: ignore[arg-type]
    with tf1.Graph().as_default(), tf1.Session() as session:
        with PredictTowerContext(""):
            model.build_graph(*[tf1.placeholder(s.dtype, s.shape) for s in model.inputs()])
        weights = tf1.global_variables()
        for weight in weights:
            tf1.get_variable(weight.op.name + AVERAGE_SUFFIX, weight.shape)
        for step in range(1, steps + 1):
            rng = np.random.default_rng([step, *path.name.encode()])
            values = assign_random(session, rng, 0.4, weights)
            assign(session, {name + AVERAGE_SUFFIX: 2 * value for name, value in values.items()})
            write_checkpoint(tf1.train.Saver(), session, run.checkpoints, step,
                             {"step": step, "position": None, "callbacks": {}})
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Transformer with two checkpoints (`a`), an RNNSearch (`b`), and one with other target words (`other`)."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "a", transformer(), WordData(), steps=2)
    write_run(root / "b", RNNSearch(RNNSearchSettings(
        embedding_size=8, encoder_size=8, decoder_size=12, attention_size=8, read_out_size=8, source_vocab_size=20,
        target_vocab_size=20)), WordData())
    write_run(root / "other", transformer(), WordData([*WORDS[1:], "x"]))
    return root


def nbest(run: Any, **options: Any) -> list[list[tuple[str, float]]]:
    translator = Translator(run, beam_size=4, n_best=2, max_length_factor=1, device="cpu", **options)
    return [[(hypothesis.text, hypothesis.score) for hypothesis in line] for line in translator.translate_nbest(LINES)]


def assert_same(found: list[list[tuple[str, float]]], expected: list[list[tuple[str, float]]]) -> None:
    assert [[text for text, _ in line] for line in found] == [[text for text, _ in line] for line in expected]
    np.testing.assert_allclose([score for line in found for _, score in line],
                               [score for line in expected for _, score in line], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def alone(runs: Path) -> list[list[tuple[str, float]]]:
    """Return the translations by the last checkpoint of `a`."""
    return nbest(runs / "a")


def test_a_run_with_itself_translates_as_it_does_alone(runs: Path, alone: Any) -> None:
    assert_same(nbest([runs / "a", runs / "a"]), alone)


def test_members_of_different_architectures_give_something_of_both(runs: Path, alone: Any) -> None:
    both, other = [runs / "a", runs / "b"], nbest(runs / "b")
    assert nbest(both) not in (alone, other)
    assert_same(nbest(both, ensemble=EnsembleSettings(weights=(1, 1e9))), other)
    assert_same(nbest([runs / "a"] * 2, averaged=False, ensemble=EnsembleSettings("log-probabilities")),
                nbest(runs / "a", averaged=False))


@pytest.mark.parametrize(("mean", "weights"), [
    ("probabilities", (2.0, 1.0)), pytest.param("log-probabilities", (), marks=pytest.mark.slow)])
def test_given_translations_are_as_probable_as_the_search_found_them(
        runs: Path, mean: str, weights: tuple[float, ...]) -> None:
    both, ensemble = [runs / "a", runs / "b"], EnsembleSettings(mean, weights)
    translator = Translator(both, beam_size=3, n_best=3, max_length_factor=1, device="cpu", ensemble=ensemble,
                            log_probs=True)
    # A line of up to three words may be translated with a full stop, which changes its probability.
    lines = ["w1 w2 w3 w4", "w1 w2 unseen w5 w6 w7", "w9 w9 w9 w9"]
    hypotheses = [(line, found) for line, translation in zip(lines, translator.translate_nbest(lines), strict=True)
                  for found in translation if "<unk>" not in found.text]
    assert len(hypotheses) > 3
    scores = Scorer(both, device="cpu", ensemble=ensemble).score(
        [(line, found.text) for line, found in hypotheses], per_token=True)
    for (_, found), score in zip(hypotheses, scores, strict=True):      # a cut translation has no EOS
        assert found.details is not None and found.details.log_probs is not None and score.log_probs is not None
        np.testing.assert_allclose(score.log_probs[:len(found.details.ids)], found.details.log_probs, atol=1e-4)


def test_several_checkpoints_of_one_run_are_an_ensemble(runs: Path, alone: Any) -> None:
    weights = EnsembleSettings(weights=(1, 1e9))
    assert_same(nbest(runs / "a", checkpoint=["step-1", "step-2"], ensemble=weights), alone)
    with open_trained([runs / "a", runs / "b"], ["step-1", "last"]) as both:
        assert both.checkpoint.split(" + ") == [str(runs / "a/checkpoints/step-1/model"),
                                                str(runs / "b/checkpoints/step-1/model")]


def test_members_that_do_not_go_together_are_refused_by_name(runs: Path) -> None:
    with pytest.raises(SettingsError, match=r"target vocabulary of .*other \(20 pieces, word\) is not that of .*/a "):
        open_trained([runs / "a", runs / "other"])
    with pytest.raises(SettingsError, match="2 runs, 3 checkpoints and 1 models do not match"):
        open_trained([runs / "a", runs / "b"], ["best", "last", "last"])
    with pytest.raises(SettingsError, match="2 members and the 1 weights 3"):
        open_trained([runs / "a", runs / "b"], ensemble=EnsembleSettings(weights=(3,)))
    with pytest.raises(CheckpointError, match="step-7"):
        open_trained([runs / "a"], ["step-1", "step-7"])
    with open_trained([runs / "a", runs / "b"]) as both, pytest.raises(SettingsError, match="no single set of weights"):
        both.weights()
