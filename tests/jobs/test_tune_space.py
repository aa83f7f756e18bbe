"""The space of a search: the content of a file, errors with their line, and the drawn points."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.jobs.tune_space import Dimension, draw_points, read_space
from towernmt.run import default_settings


def space_of(tmp_path: Path, text: str) -> list[Dimension]:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    return read_space(file, default_settings())


def test_a_space_is_read_by_dotted_keys_and_in_groups(tmp_path: Path) -> None:
    assert space_of(tmp_path, """
optimizer.learning_rate: {loguniform: [1e-4, 0.01]}
model:
  encoder_layers: {integer: [1, 6]}
  feed_forward: [relu, swiglu]
schedule.warmup_steps:
  choice: [100, 1000]
""") == [Dimension("optimizer.learning_rate", "loguniform", (1e-4, 0.01)),
         Dimension("model.encoder_layers", "integer", (1, 6)),
         Dimension("model.feed_forward", "choice", ("relu", "swiglu")),
         Dimension("schedule.warmup_steps", "choice", (100, 1000))]


@pytest.mark.parametrize(("line", "message"), [
    ("optimizer.learning_rat: [1, 2]", "Did you mean 'optimizer.learning_rate'?"),
    ("model.encoder_layers: {uniform: [0.5, 6]}", "is not a whole number"),
    ("model.encoder_layers: {integer: [0.5, 6]}", "integer takes whole numbers"),
    ("model.residual_dropout: {uniform: [0.1, 1.5]}", "residual_dropout=1.5 must be"),
    ("model.feed_forward: [relu, rulu]", "is not one of"),
    ("optimizer.learning_rate: {loguniform: [0, 1]}", "above 0"),
    ("optimizer.learning_rate: {uniform: [2, 1]}", "below the highest"),
    ("optimizer.learning_rate: {uniform: [a, 1]}", "two numbers"),
    ("optimizer.learning_rate: {normal: [0, 1]}", "there is no setting 'optimizer.learning_rate.normal'"),
    ("optimizer.learning_rate: 0.1", "expected a list of choices"),
    ("optimizer.learning_rate: {uniform: [0, 1], choice: [1]}", "expected a list of choices"),
    ("train.steps: [10, 20]", "must be the same for all trials"),
    ("validation.sentences: [10, 20]", "must be the same for all trials"),
])
def test_a_mistake_is_named_with_its_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        space_of(tmp_path, f"# a comment\nmodel.residual_dropout: [0.1]\n{line}\n" if "residual" not in line
                 else f"# a comment\n\n{line}\n")
    assert f"{tmp_path / 'space.yaml'}:3: " in str(error.value) and message in str(error.value)


def test_a_pipe_is_refused_instead_of_being_taken_for_an_empty_space(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "space.yaml")
    with pytest.raises(DataError, match="space.yaml: a pipe or a device can be read only once"):
        read_space(tmp_path / "space.yaml", default_settings())


def test_an_empty_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="the space is empty"):
        space_of(tmp_path, "# nothing\n")


SPACE = [Dimension("rate", "loguniform", (1e-4, 1e-2)), Dimension("dropout", "uniform", (0.0, 0.3)),
         Dimension("layers", "integer", (1, 3)), Dimension("kind", "choice", ("a", "b"))]


def test_points_come_from_the_seed_alone() -> None:
    points = draw_points(SPACE, 30, seed=5)
    assert points == draw_points(SPACE, 30, seed=5) and points[:7] == draw_points(SPACE, 7, seed=5)
    assert points != draw_points(SPACE, 30, seed=6)
    assert [p["rate"] for p in points] == [p["rate"] for p in draw_points(SPACE[:1], 30, seed=5)]


def test_points_fill_the_space_and_stay_in_it() -> None:
    points = draw_points(SPACE, 400, seed=1)
    assert len(points) == 400
    assert all(1e-4 <= p["rate"] <= 1e-2 and 0 <= p["dropout"] <= 0.3 for p in points)
    assert {(p["layers"], p["kind"]) for p in points} == {(n, k) for n in (1, 2, 3) for k in "ab"}
    small = sum(p["rate"] < 1e-3 for p in points)       # half of the logarithms
    assert 160 < small < 240


def test_a_small_space_has_each_of_its_points_once() -> None:
    points = draw_points(SPACE[2:], 50, seed=1)
    assert len(points) == 6 and all(points.count(point) == 1 for point in points)
