"""examples/domain_adaptation.py: both ways, on a tiny model and a new domain."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.cli.main import main
from towernmt.predict.translator import Translator

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def domain(paths, tmp_path_factory):
    """Write text with the same words, in which the target is in reverse order."""
    directory = tmp_path_factory.mktemp("domain")
    (directory / "source").write_text((paths.text / "source").read_text())
    reverse = [" ".join(line.split()[::-1]) + "\n" for line in (paths.text / "target").read_text().splitlines()]
    (directory / "target").write_text("".join(reverse))
    return directory


def test_lhuc_trains_its_scales_and_leaves_everything_else_alone(paths, domain, example, weights, scalars, tmp_path):
    arguments = ["lhuc", f"--model={paths.run}", f"--data={domain}/{{source,target}}", f"--logdir={tmp_path}"]
    assert example("domain_adaptation").main([*arguments, "--set", "train.steps=15", "validation.steps=0",
                                              "optimizer.learning_rate=0.1"]) == 0
    before, after = weights(paths.run), weights(tmp_path)
    scales = {name for name in after if name.endswith("/lhuc")}
    assert len(scales) == 5 and all(after[name].shape == (32,) and after[name].any() for name in scales)
    assert {name for name in after if name.endswith("/Adam")} == {f"{name}/Adam" for name in scales}
    frozen_names = {name for name in after if "Adam" not in name and name.startswith("transformer/")} - scales
    assert frozen_names and all(np.array_equal(before[name], after[name]) for name in frozen_names)
    losses = scalars(tmp_path, "loss")
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1
    assert len(Translator(tmp_path, engine="graph").translate(["ba da fo"])) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name, sizes, scales", [
    ("seq2seq", ["embedding_size=16", "hidden_size=24", "input_feeding=true"], 4),
    ("rnnsearch", ["embedding_size=16", "encoder_size=12", "decoder_size=24", "read_out_size=16"], 2),
    ("convs2s", ["embedding_size=16", "output_size=16", "encoder=1x16/3", "decoder=2x16/3"], 3),
])
def test_lhuc_adapts_the_other_models_too(paths, example, weights, tmp_path, name, sizes, scales):
    arguments = ["train", "--defaults=fixed", f"--model={name}", f"--data={paths.data}",
                 f"--logdir={tmp_path / 'general'}", "--set",
                 *[f"model.{size}" for size in sizes], "train.steps=2", "validation.steps=0"]
    assert main(arguments) == 0
    arguments = ["lhuc", f"--model={tmp_path / 'general'}", f"--data={paths.data}", f"--logdir={tmp_path / 'new'}"]
    assert example("domain_adaptation").main([*arguments, "--set", "train.steps=3", "validation.steps=0"]) == 0
    before, after = weights(tmp_path / "general"), weights(tmp_path / "new")
    changed = [key for key in after if key.startswith(f"{name}/") and not key.endswith(("/Adam", "/Adam_1"))
               and not (key in before and np.array_equal(before[key], after[key]))]
    assert len(changed) == scales and all(key.endswith("/lhuc") and after[key].any() for key in changed)


def test_mixed_fine_tuning_trains_everything_on_both_domains(paths, domain, example, weights, scalars, tmp_path):
    arguments = ["mixed", f"--model={paths.run}", f"--data={domain}/{{source,target}}",
                 f"--general={paths.text}/{{source,target}}", "--share=0.7", f"--logdir={tmp_path}"]
    assert example("domain_adaptation").main([*arguments, "--set", "train.steps=12", "validation.steps=0",
                                              "optimizer.learning_rate=0.003"]) == 0
    before, after = weights(paths.run), weights(tmp_path)
    name = "transformer/encoder/layer_0/feed_forward/inner/kernel"
    assert set(before) == set(after) and not np.array_equal(before[name], after[name])
    losses = scalars(tmp_path, "loss")
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert "weight: 0.7" in (tmp_path / "corpora.yaml").read_text()


@pytest.mark.parametrize("wrong, sentence", [
    (["--share=1"], "--share 1.0: expected"), (["--valid-source=x"], "Pass both --valid-source"),
    (["--set", "model.hidden_size=64"], "shape"), (["--set", "train.only=no_such"], "matches no trainable variable")])
def test_what_cannot_work_is_refused_in_a_sentence(paths, domain, example, tmp_path, capfd, wrong, sentence):
    arguments = ["mixed", f"--model={paths.run}", f"--data={domain}/{{source,target}}",
                 f"--general={paths.text}/{{source,target}}", f"--logdir={tmp_path}"]
    assert example("domain_adaptation").main([*arguments, *wrong]) == 1
    assert sentence in capfd.readouterr().err
