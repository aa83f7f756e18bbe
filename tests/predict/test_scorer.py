"""The scorer, `towernmt score` and `towernmt evaluate`, compared with the logits and the search of a tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

from tests.predict.word_data import SIZE, WordData
from tests.variables import assign_random
from towernmt.checkpoint.checkpoint_files import write_checkpoint
from towernmt.cli.main import main
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.vocabulary.base import BOS, EOS
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.predict.scorer import Scorer
from towernmt.predict.translator import Translator
from towernmt.run.directory import RunDirectory
from towernmt.run.run_settings import settings_of_model

PAIRS = [("w1 w2 w3", "w4 w5"), ("w1", ""), ("w3 w3 w3 w3 w3 w3", "w9 w8 w7 w6 w5 w4 w3"), ("", "w1"),
         ("w1 w2 w3", "w4 w5"), ("w7 unseen", "w8 unseen w9")]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(TransformerSettings(
        hidden_size=16, filter_size=32, heads=2, encoder_layers=1, decoder_layers=1, source_vocab_size=SIZE,
        target_vocab_size=SIZE))


def write_run(path: Path, model: Transformer, scale: float) -> Path:
    run = RunDirectory(path)
    run.begin(settings_of_model(model), WordData())  # type: ignore[arg-type]
    with tf1.Graph().as_default():
        with PredictTowerContext(""):
            model.build_graph(*[tf1.placeholder(s.dtype, s.shape) for s in model.inputs()])
        with tf1.Session() as session:
            assign_random(session, np.random.default_rng(1), scale, tf1.global_variables())
            write_checkpoint(tf1.train.Saver(), session, run.checkpoints, 1,
                             {"step": 1, "position": None, "callbacks": {}})
    return path


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory, model: Transformer) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), model, 0.5)


@pytest.fixture(scope="module")
def expected_tokens(run_directory: Path, model: Transformer) -> list[np.ndarray]:
    """Return log-probabilities of the target's tokens from the model's logits, pair by pair, in float64."""
    checkpoint = str(run_directory / "checkpoints/step-1/model")
    vocabulary = WordData().source_vocabulary
    scores = []
    with tf1.Graph().as_default(), PredictTowerContext(""):
        source, length, target_in = (tf1.placeholder("int32", shape) for shape in ([None, None], [None], [None, None]))
        logits = model.decode(model.encode(source, length), target_in)
        with tf1.Session() as session:
            tf1.train.Saver().restore(session, checkpoint)
            for one, other in PAIRS:
                ids, out = [*vocabulary.encode(one), EOS], [*vocabulary.encode(other), EOS]
                found = session.run(logits, {source: [ids], length: [len(ids)], target_in: [[BOS, *out[:-1]]]})[0]
                found = found.astype(np.float64)
                normalised = found - np.log(np.exp(found).sum(1, keepdims=True))
                scores.append(normalised[np.arange(len(out)), out])
    return scores


@pytest.fixture(scope="module")
def scorer(run_directory: Path) -> Scorer:
    return Scorer(run_directory, device="cpu", batch_tokens=20)


@pytest.mark.parametrize("batch_tokens", [1, 20, pytest.param(4096, marks=pytest.mark.slow)])
def test_scores_are_the_models_log_probabilities_in_order_whatever_the_batches(
        run_directory: Path, scorer: Scorer, expected_tokens: list[np.ndarray], batch_tokens: int) -> None:
    if batch_tokens != 20:
        scorer = Scorer(run_directory, device="cpu", batch_tokens=batch_tokens)
    found = scorer.score(PAIRS)
    np.testing.assert_allclose([s.log_prob for s in found], [tokens.sum() for tokens in expected_tokens], atol=1e-4)
    assert [s.tokens for s in found] == [3, 1, 8, 2, 3, 4]
    assert found[0].mean == found[0].log_prob / 3
    assert scorer.score([]) == []


def test_each_tokens_log_probability_is_told_when_asked_for(scorer: Scorer,
                                                            expected_tokens: list[np.ndarray]) -> None:
    for found, expected in zip(scorer.score(PAIRS, per_token=True), expected_tokens, strict=True):
        np.testing.assert_allclose(found.log_probs, expected, atol=1e-4)
        assert found.log_prob == pytest.approx(sum(found.log_probs), abs=1e-4)
        assert found.perplexity == pytest.approx(np.exp(-expected.mean()), rel=1e-3)
    one = scorer.score(("w7 unseen", "w8 unseen w9"), per_token=True)
    assert one.pieces == ("w8", "<unk>", "w9", "</s>") and one.tokens == 4
    assert one.bits_per_character == pytest.approx(-one.log_prob / np.log(2) / 13)      # 12, and the end
    assert scorer.score(PAIRS[1]).characters == 1 and scorer.score(PAIRS[0]).pieces is None


@pytest.mark.thorough
def test_tokens_are_as_probable_as_the_search_found_them_and_the_page_shows_what_it_looked_at(
        run_directory: Path, scorer: Scorer, tmp_path: Path) -> None:
    translator = Translator(run_directory, beam_size=1, device="cpu", log_probs=True, attention=True,
                            max_length_factor=0.0, max_length_constant=6, engine="graph")
    sources = ["w1 w2 w3", "", "w7 w3"]
    best = [hypotheses[0] for hypotheses in translator.translate_nbest(sources)]
    known = [(source, found) for source, found in zip(sources, best, strict=True)
             if found.details is not None and "<unk>" not in found.text]
    assert known
    for source, found in known:
        again = scorer.score((source, found.text), per_token=True)
        np.testing.assert_allclose(again.log_probs[:len(found.details.ids)], found.details.log_probs, atol=1e-4)
    for name, lines in (("source", sources), ("reference", ["w1", "w2", "w3"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    assert main(["evaluate", f"--model={run_directory}", f"--source={tmp_path}/source", "--beam=1", "--max-length=0,6",
                 f"--reference={tmp_path}/reference", f"--html={tmp_path}/page.html", "--bootstrap-samples=2"]) == 0
    data = re.search(r'application/json">(.*)</script>', (tmp_path / "page.html").read_text())
    assert data is not None
    for sentence, found in zip(json.loads(data[1])["sentences"], best, strict=True):
        assert "".join(sentence["hypotheses"][0]) == found.text
        shown, = sentence["attention"]
        assert (shown is None) == (found.details is None)
        if shown is not None and found.details is not None:
            weights = np.array([int(digit, 36) / 35 for digit in shown["weights"]])
            np.testing.assert_allclose(weights, found.details.attention.ravel(), atol=0.5 / 35 + 1e-4)


def test_scores_in_bfloat16_are_near_those_in_float32(run_directory: Path, scorer: Scorer) -> None:
    exact = np.array([score.log_prob for score in scorer.score(PAIRS)])
    narrow = np.array([score.log_prob for score in Scorer(run_directory, precision="bfloat16").score(PAIRS)])
    assert (narrow != exact).all()
    np.testing.assert_allclose(narrow, exact, rtol=0.05)
    with pytest.raises(SettingsError, match="precision=int8: choose one of float32, bfloat16, float16"):
        Scorer(run_directory, precision="int8")


def test_one_pair_has_one_score_and_what_is_no_pair_is_refused(scorer: Scorer) -> None:
    assert scorer.score(PAIRS[0]) == scorer.score([PAIRS[0]])[0]
    for wrong in ("w1 w2", ["w1 w2", "w3"], [("w1", "w2", "w3")]):
        with pytest.raises(SettingsError, match="pair"):
            scorer.score(wrong)  # type: ignore[call-overload]


def test_the_command_writes_a_score_a_line(run_directory: Path, tmp_path: Path, expected_tokens: list[np.ndarray],
                                           capfd: pytest.CaptureFixture[str]) -> None:
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    files = [f"--source={tmp_path}/source", f"--target={tmp_path}/target", f"--output={tmp_path}/scores"]
    expected = [tokens.sum() for tokens in expected_tokens]
    assert main(["score", f"--model={run_directory}", *files]) == 0
    np.testing.assert_allclose(np.loadtxt(tmp_path / "scores"), expected, atol=1e-4)
    said = re.search(r"6 pairs, 21 target tokens, ([\d.]+) bits per character, perplexity ([\d.]+)\n",
                     capfd.readouterr().err)
    characters = sum(len(target) + 1 for _, target in PAIRS)
    assert said is not None and float(said[1]) == pytest.approx(-sum(expected) / np.log(2) / characters, rel=1e-3)
    assert float(said[2]) == pytest.approx(np.exp(-sum(expected) / 21), rel=1e-3)
    assert main(["score", f"--model={run_directory}", "--mean", *files]) == 0
    np.testing.assert_allclose(np.loadtxt(tmp_path / "scores"), np.array(expected) / [3, 1, 8, 2, 3, 4], atol=1e-4)


def test_the_command_writes_tokens_and_objects(run_directory: Path, tmp_path: Path, expected_tokens: list[np.ndarray],
                                               capfd: pytest.CaptureFixture[str]) -> None:
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    command = ["score", f"--model={run_directory}", f"--source={tmp_path}/source", f"--target={tmp_path}/target"]
    assert main([*command, "--tokens"]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[:4]] == [["0", "w4"], ["0", "w5"], ["0", "</s>"], ["1", "</s>"]]
    np.testing.assert_allclose([float(row[2]) for row in rows], np.concatenate(expected_tokens), atol=1e-4)
    assert main([*command, "--tokens", "--json"]) == 0
    objects = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [one["pieces"] for one in objects[:2]] == [["w4", "w5", "</s>"], ["</s>"]]
    np.testing.assert_allclose(objects[2]["log_probs"], expected_tokens[2], atol=1e-4)
    assert objects[2]["perplexity"] == pytest.approx(np.exp(-expected_tokens[2].mean()), rel=1e-3)
    assert list(objects[0]) == ["log_prob", "tokens", "mean", "perplexity", "bits_per_character", "pieces", "log_probs"]
    assert main([*command, "--json", "--mean"]) == 1
    assert "leave out --tokens and --json" in capfd.readouterr().err


def test_files_of_unequal_length_are_refused_by_name(run_directory: Path, tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source").write_text("w1\nw2\n")
    (tmp_path / "target").write_text("w1\n")
    assert main(["score", f"--model={run_directory}", f"--source={tmp_path}/source",
                 f"--target={tmp_path}/target"]) == 1
    assert "target has 1 lines, and" in capsys.readouterr().err


def test_a_model_that_diverged_and_a_wrong_number_are_refused(tmp_path: Path, model: Transformer,
                                                              run_directory: Path) -> None:
    with pytest.raises(DivergenceError, match="not a number"):
        Scorer(write_run(tmp_path / "run", model, float("nan"))).score(PAIRS)
    with pytest.raises(SettingsError, match="batch_tokens=0"):
        Scorer(run_directory, batch_tokens=0)


def test_the_settings_of_a_missing_run_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no run here"):
        Scorer(tmp_path)
