"""Each recipe: its settings exist, its graph can be built, and its commands have the options that they use."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towernmt.cli.main import make_parser
from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides, flatten, load_yaml
from towernmt.dataflow.text.pair_filters import REASON_CODES, PairFilter
from towernmt.run.run_settings import Settings, default_settings

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
PAGE = ROOT / "docs" / "guide" / "recipes.md"


@pytest.fixture(params=RECIPES, ids=lambda path: path.stem)
def recipe(request: pytest.FixtureRequest) -> Path:
    return request.param


def settings_of(recipe: Path) -> Settings:
    return apply_overrides(default_settings("transformer"), load_yaml(recipe), str(recipe))


def commands(text: str) -> list[list[str]]:
    """Return the commands of towernmt in comments, split like in a shell."""
    lines = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#   ")]
    found = [part for line in lines for part in re.split(r"\s(?:&&|\||>)\s", line) if part.startswith("towernmt ")]
    return [shlex.split(command)[1:] for command in found]


def test_there_are_recipes() -> None:
    assert len(RECIPES) == 5


def test_its_settings_are_known_and_say_something(recipe: Path) -> None:
    settings, content = settings_of(recipe), load_yaml(recipe)
    flat = flatten(settings)
    assert all(flat[key] == value for key, value in content.items())
    assert settings.train.steps and settings.validation.steps and "model.hidden_size" in content
    with pytest.raises(SettingsError):      # so a misspelled key would be refused
        apply_overrides(default_settings("transformer"), {f"{next(iter(content))}x": 1}, str(recipe))


def test_its_commands_are_understood(recipe: Path) -> None:
    asked = commands(recipe.read_text(encoding="utf-8"))
    assert "train" in [command[0] for command in asked]
    for command in asked:
        parser, of_commands = make_parser([command[0]])
        found = parser.parse_args(command)
        of_commands[command[0]].refuse_unknown(command[1:])
        if command[0] == "train":
            assert found.config == f"recipes/{recipe.name}"
            run = found.logdir
    steps = settings_of(recipe).train.steps
    for command in asked:
        assert not any("step-" in part and not part.endswith(f"step-{steps}") for part in command)
        assert command[0] not in ("average", "evaluate", "translate") or run in command


def test_its_graph_is_built_with_gradients(recipe: Path) -> None:
    from towernmt.core.tf_compat import tf, tf1
    from towernmt.run.directory import model_from_settings

    settings = settings_of(recipe)
    small: Any = dataclasses.replace(settings.model, hidden_size=8 * settings.model.heads, filter_size=16,
                                     encoder_layers=1, decoder_layers=1, source_vocab_size=20, target_vocab_size=20)
    model = model_from_settings(dataclasses.replace(settings, model=small))
    with tf.Graph().as_default():
        from tensorpack.tfutils.tower import TrainTowerContext

        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
        with TrainTowerContext(""):
            cost = model.build_graph(*inputs)
        assert cost.shape.rank == 0
        assert all(gradient is not None for gradient in tf1.gradients(cost, tf1.trainable_variables()))


def test_the_manual_tells_of_each_and_whether_it_was_run(recipe: Path) -> None:
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if f"| `{recipe.name}`" in line)
    assert "run here" in row


def test_documents_are_prepared_with_short_sentences_behind_long_ones() -> None:
    prepare = next(command for command in commands((ROOT / "recipes" / "previous-sentence.yaml").read_text())
                   if command[0] == "prepare")
    asked = make_parser(["prepare"])[0].parse_args(prepare)
    kept = PairFilter(asked.max_length, asked.max_length_ratio).reasons(
        np.array([30, 400, 400, 401]), np.array([2, 1, 400, 401]))
    assert kept.tolist() == [-1, -1, -1, REASON_CODES["long source"]]


@pytest.mark.skipif(shutil.which("awk") is None, reason="there is no awk")
def test_the_previous_sentence_comes_before_a_mark_and_documents_are_apart() -> None:
    def ran(text: str) -> str:
        program = ["awk", "-f", str(ROOT / "recipes" / "previous-sentence.awk")]
        return subprocess.run(program, input=text, capture_output=True, text=True, check=True).stdout

    assert ran("a b\tx\nc\ty\n\n\nd\tz\ne  f\tw\n") == (
        "<before> a b\tx\na b <before> c\ty\n<before> d\tz\nd <before> e  f\tw\n")
    assert ran("a\nb & c\\n\n \nd\n") == "<before> a\na <before> b & c\\n\n<before> d\n"
