"""examples/minimum_risk_trainer.py, run on a tiny model; its loss against the formula."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from towernmt.cli.main import main
from towernmt.core.tf_compat import tf1
from towernmt.predict.translator import Translator
from towernmt.run.directory import RunDirectory

pytestmark = pytest.mark.thorough


def test_training_continues_from_the_run_and_lowers_the_risk(paths, example, scalars, weights, tmp_path):
    risk = example("minimum_risk_trainer")
    arguments = [f"--model={paths.run}", f"--data={paths.data}", f"--logdir={tmp_path}", "--samples=6", "--metric=chrf",
                 "--set", "optimizer.learning_rate=0.001", "validation.steps=0", "checkpoint.steps=0"]
    assert risk.main([*arguments, "train.steps=24", "--towers=2"]) == 0
    before, after = weights(paths.run), weights(tmp_path)
    assert after["global_step"] == 24
    assert set(before) == set(after)
    losses = scalars(tmp_path, "loss")
    assert len(losses) == 24 and all(0.0 <= loss <= 1.0 for loss in losses)
    assert np.mean(losses[-6:]) < np.mean(losses[:6])
    assert len(Translator(tmp_path, engine="graph").translate(["ba da fo"])) == 1
    assert RunDirectory(tmp_path).settings().init.checkpoint == str(paths.run)


@pytest.mark.slow
def test_words_with_factors_are_drawn_for_and_learned_from_in_cycles(factored, tiny, example, scalars, tmp_path):
    run = tmp_path / "run"
    assert main(["train", "--defaults=fixed", f"--data={factored}", f"--logdir={run}", "--set", *tiny,
                 "train.steps=1"]) == 0
    assert example("minimum_risk_trainer").main([
        f"--model={run}", f"--data={factored}", f"--logdir={tmp_path / 'risk'}", "--samples=2", "--set",
        "train.steps=1", "validation.steps=0", "train.update_cycle=2", "data.batch_tokens=64"]) == 0
    (loss,) = scalars(tmp_path / "risk", "loss")
    assert 0.0 <= loss <= 1.0


def test_the_cost_is_the_expected_risk_of_the_candidates(paths, example):
    risk = example("minimum_risk_trainer")
    model = risk.make_model(RunDirectory(paths.run).settings(), alpha=0.7)
    candidates, lengths = risk.pad_candidates([[(7, 8, 2), (9, 2)], [(5, 6, 7, 2), (2,), (8, 9)]])
    assert candidates.shape == (2, 3, 4) and lengths.tolist() == [[3, 2, 0], [4, 1, 2]]
    risks = risk.pad_risks([[0.2, 0.9], [0.0, 1.0, 0.5]])
    source, length = np.array([[5, 6, 2], [7, 2, 0]], np.int32), np.array([3, 2], np.int32)
    with tf1.Graph().as_default():
        specs = model.inputs()
        inputs = [tf1.placeholder(spec.dtype, spec.shape) for spec in specs]
        with TrainTowerContext(""):
            cost = model.build_graph(*inputs)
            with tf1.variable_scope("", reuse=True):
                target_in = tf1.placeholder("int32", [None, None])
                logits = model.decode(model.encode(source, length), target_in)
        gradient = [g for g in tf1.gradients(cost, tf1.trainable_variables()) if g is not None]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            loss, *gradients = session.run([cost, *gradient], dict(zip(inputs, (
                source, length, candidates, lengths, risks, 2.0), strict=True)))
            expected = 0.0
            for row in range(2):
                log_probs = []
                for ids, size in zip(candidates[row], lengths[row], strict=True):
                    if size:
                        forced = session.run(logits, {target_in: [[1, *ids[:size - 1]]] * 2})[row]
                        normalised = forced - np.log(np.exp(forced).sum(1, keepdims=True))
                        log_probs.append(normalised[np.arange(size), ids[:size]].sum())
                q = np.exp(0.7 * np.array(log_probs))
                expected += (q / q.sum() * risks[row][:len(q)]).sum() / 2
    assert loss == pytest.approx(expected, rel=1e-4)
    assert all(np.isfinite(np.asarray(getattr(g, "values", g))).all() for g in gradients)


def test_sentence_scores_are_between_nothing_and_equal(example):
    risk = example("minimum_risk_trainer")
    for metric in ("bleu", "chrf"):
        score = risk.sentence_score(metric)
        assert score("a b c d", "a b c d") == pytest.approx(1.0)
        assert score("", "a b c d") == 0.0 < score("a b x d", "a b c d") < 1.0


def test_the_run_itself_is_refused_as_the_new_one(paths, example, capfd):
    arguments = [f"--model={paths.run}", f"--data={paths.data}", f"--logdir={paths.run}"]
    assert example("minimum_risk_trainer").main(arguments) == 1
    assert "is the run of --model" in capfd.readouterr().err
