"""examples/back_translation_trainer.py, on tiny models and text that has no translation."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from towernmt.predict.translator import Translator
from towernmt.run.run_settings import default_settings

pytestmark = pytest.mark.thorough


@pytest.fixture
def arguments(paths, tiny, tmp_path):
    return [f"--data={paths.data}", f"--mono-source={paths.text}/source", f"--mono-target={paths.text}/target",
            f"--logdir={tmp_path / 'both'}", "--start=6", "--set", *tiny]


def test_both_directions_are_trained_and_written_as_runs(arguments, example, weights, scalars, tmp_path):
    program = example("back_translation_trainer")
    assert program.main([*arguments, "train.steps=10"]) == 0
    assert program.main([*arguments, "train.steps=20", "--towers=2"]) == 0
    both = weights(tmp_path / "both")
    assert both["global_step"] == 20
    for direction in ("forward", "backward"):
        alone = weights(tmp_path / "both" / direction)
        names = {name.removeprefix(f"{direction}/") for name in both
                 if name.startswith(f"{direction}/") and "Adam" not in name}
        assert set(alone) == names
        assert all(np.array_equal(alone[name], both[f"{direction}/{name}"]) for name in names)
        assert len(Translator(tmp_path / "both" / direction, engine="graph").translate(["ba da fo"])) == 1
    losses = scalars(tmp_path / "both", "loss")
    assert len(losses) == 20 and np.mean(losses[-3:]) < np.mean(losses[:3])


def test_each_model_learns_from_what_the_other_draws(paths, example):
    program = example("back_translation_trainer")
    calls: list = []

    class Input:
        def take(self, session):
            return (np.array([[5, 6, 2]]), np.array([3]), np.array([[8, 2]]), np.array([2]), np.float32(2))

        def feed(self, *arrays):
            return arrays

    class Session:
        def run(self, op, fed):
            calls.append(fed)

    trainer = program.BackTranslationTrainer({"forward": [[9]], "backward": [[4, 7]]}, start=0, towers=1)
    trainer._input, trainer.hooked_sess, trainer.train_op = Input(), Session(), None
    trainer.samplers = {"forward": lambda source, length, draw: (np.array([[[11, 12, 2]]]), None),
                        "backward": lambda source, length, draw: (np.array([[[10, 2, 0]]]), None)}
    trainer.run_step()
    fed = [array.tolist() for array in calls[0]]
    assert fed[:5] == [[[5, 6, 2], [10, 2, 0]], [3, 2], [[8, 2], [9, 2]], [2, 2], 4.0]
    assert fed[5:] == [[[8, 2, 0], [11, 12, 2]], [2, 3], [[5, 6, 2], [4, 7, 2]], [3, 3], 6.0]


def test_text_without_a_usable_sentence_is_refused(arguments, example, tmp_path, capfd):
    (tmp_path / "empty").write_text("\n\n")
    wrong = [a for a in arguments if not a.startswith("--mono-target")]
    assert example("back_translation_trainer").main([f"--mono-target={tmp_path}/empty", *wrong]) == 1
    assert "no sentence of 1 to 100 tokens" in capfd.readouterr().err


def test_text_with_factors_is_refused(arguments, factored, example, capfd):
    assert example("back_translation_trainer").main([f"--data={factored}", *arguments[1:]]) == 1
    assert "has source factors, but sampled translations have none" in capfd.readouterr().err


def test_both_models_have_the_loss_and_the_softmax_of_their_architecture(example, tmp_path):
    (tmp_path / "doubled.py").write_text("from towernmt.models import Transformer\n\n\nclass Doubled(Transformer):\n"
                                         "    def loss(self, logits, batch):\n"
                                         "        return 2.0 * super().loss(logits, batch)\n")
    settings = default_settings(f"{tmp_path}/doubled.py:Doubled")
    model = dataclasses.replace(settings.model, source_vocab_size=9, target_vocab_size=9, label_smoothing=0.3,
                                softmax_sample=0.2)
    both = example("back_translation_trainer").BothDirections(dataclasses.replace(settings, model=model))
    batch = SimpleNamespace(is_training=True, cross_entropy=lambda smoothing: smoothing)
    for direction in both.directions.values():
        assert direction.loss(None, batch) == pytest.approx(0.6)
        assert direction.overrides_loss and direction.softmax_sample == 0.2


def test_both_models_regularise_as_the_settings_say_and_alignments_are_refused(arguments, example, capfd):
    program = example("back_translation_trainer")
    settings = default_settings("transformer")
    model = dataclasses.replace(settings.model, source_vocab_size=9, target_vocab_size=9, word_dropout=0.2,
                                r_drop_alpha=3.0)
    both = program.BothDirections(dataclasses.replace(settings, model=model))
    assert [(direction.word_dropout, direction.dropout_divergence)
            for direction in both.directions.values()] == [(0.2, 3.0)] * 2
    assert program.main([*arguments, "train.steps=1", "model.guided_alignment_weight=0.1"]) == 1
    assert "model.guided_alignment_weight=0.1 has no effect on BothDirections" in (
        capfd.readouterr().err)
