"""Panels, running means, styles, results and differences, compared with values written out here."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.plots.panels import COLORS, Curve, Panel, panels, running_means, style_of, thinned, usual_window
from towernmt.plots.recorded_runs import Difference, RecordedRun, comparability, differences, without_differences
from towernmt.plots.run_comparison import final_figures, run_outcome


def run_of(rows, settings=None, name="r") -> RecordedRun:
    return RecordedRun(name, Path(name), rows, settings or {}, [])


def test_panels_are_those_of_which_a_run_has_something_one_for_each_validation_set() -> None:
    first = run_of([{"nll": 3.0, "validation_bleu": 1.0, "validation_bleu/talks": 2.0, "global_step": 1}])
    second = run_of([{"loss": 3.0, "validation_chrf": 1.0, "global_step": 1}])
    all_panels = panels([first, second])
    assert [panel.title for panel in all_panels] == [
        "training loss, nats a target token", "BLEU of validation", "BLEU of validation on talks", "chrF of validation"]
    assert [all_panels[0].of(run, "updates") for run in (first, second)] == [Curve([1], [3.0]), Curve([1], [3.0])]
    assert all_panels[1].of(second, "updates") == Curve([], []) and all_panels[1].of(first, "minutes") == Curve([], [])
    assert panels([run_of([])]) == []


def test_the_best_point_is_the_last_of_equal_ones_in_the_metrics_direction() -> None:
    curve = Curve([1, 2, 3, 4], [2.0, 1.0, 2.0, 1.0])
    assert [Panel("", "", (), mode).best_index(curve) for mode in ("max", "min", "")] == [2, 3, None]
    assert Panel("", "", (), "max").best_index(Curve([], [])) is None


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(1, 15))
def test_running_means_are_those_of_numpy(values: list[float], window: int) -> None:
    means = running_means(values, window)
    half = window // 2
    inner = np.convolve(values, np.ones(2 * half + 1) / (2 * half + 1), mode="valid") if len(values) > 2 * half else []
    assert len(means) == len(values)
    assert means[half:len(values) - half if half else None][:len(inner)] == pytest.approx(list(inner), abs=1e-6)
    assert (means[0], means[-1]) == (values[0], values[-1])


@given(st.lists(st.floats(-1e3, 1e3), max_size=60), st.integers(1, 20))
def test_a_thinned_curve_has_few_points_and_the_same_sum(values: list[float], most: int) -> None:
    points = thinned(values, most)
    size = -(-len(values) // most)
    assert len(points) <= most and (points == values if len(values) <= most else True)
    weights = [min(size, len(values) - i * size) for i in range(len(points))]
    total = sum(point * weight for point, weight in zip(points, weights, strict=True))
    assert total == pytest.approx(sum(values), abs=1e-6)


def test_the_usual_window_grows_with_the_run_and_is_odd() -> None:
    lengths = {10: 1, 100: 3, 200: 5, 4000: 101}
    windows = {n: usual_window([run_of([{"learning_rate": 1.0, "global_step": i} for i in range(n)])]) for n in lengths}
    assert windows == lengths and usual_window([run_of([])]) == 1


def lab(color: str, seen_by: np.ndarray) -> np.ndarray:
    """Return CIE Lab (D65) of an sRGB colour, after applying a matrix to its linear values."""
    srgb = np.array([int(color[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(
        seen_by @ linear, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira and Fernandes 2009, severity 1: protanopia, deuteranopia.
SIGHTS = {"usual": np.eye(3),
          "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                              [-0.003882, -0.048116, 1.051998]]),
          "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]])}


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_that_are_hard_to_tell_apart_have_different_lines(sight: str) -> None:
    perceived = [lab(color, SIGHTS[sight]) for color in COLORS]
    for index in range(16):
        for previous in range(index):
            a, b = style_of(index), style_of(previous)
            apart = float(np.linalg.norm(perceived[a.color] - perceived[b.color]))
            assert apart > 12 or a.dash != b.dash, (index, previous, apart)


def test_forty_runs_have_forty_styles_and_neighbours_differ_in_both() -> None:
    styles = [style_of(number) for number in range(40)]
    assert len(set(styles)) == 40
    assert all(a.color != b.color and a.dash != b.dash for a, b in zip(styles, styles[1:], strict=False))


def test_the_outcome_is_by_the_runs_own_metric(rows) -> None:
    by_loss = run_outcome(run_of(rows, {"validation.metric": "loss", "validation.metric_set": ""}))
    assert (by_loss.label, by_loss.best, by_loss.best_step, by_loss.best_text) == ("nll", -1.0, 600, "nll -1.0000")
    by_bleu = run_outcome(run_of(rows))
    assert (by_bleu.best, by_bleu.best_step, by_bleu.last, by_bleu.updates) == (20.0, 600, 20.0, 600)
    assert (by_bleu.target_tokens, by_bleu.minutes, by_bleu.speed) == (600_000.0, 11, pytest.approx(1000))
    of_set = run_outcome(run_of([{"validation_bleu": 1.0, "validation_bleu/b": 3.0, "global_step": 2}],
                            {"validation.metric": "bleu", "validation.metric_set": "b"}))
    assert of_set.best_text == "BLEU on b 3.00"
    of_mean = run_outcome(run_of([{"validation_bleu": 1.0, "averaged_validation_bleu": 1.5, "global_step": 2}]))
    assert (of_mean.best, of_mean.averaged, by_bleu.averaged) == (1.0, 1.5, None)
    none = run_outcome(run_of([]))
    assert none.best is none.minutes is none.speed is None and none.best_text == ""


def test_final_figures_leave_out_what_nobody_has_and_name_metrics_that_differ(rows) -> None:
    alike = {figure.head: figure.cells for figure in final_figures([run_of(rows), run_of([])])}
    assert alike["best BLEU"] == ["20.00", "–"] and alike["tokens"] == ["600k", "–"]
    mixed = {figure.head: figure.cells for figure in final_figures([
        run_of(rows), run_of(rows, {"validation.metric": "loss"})])}
    assert mixed["best score"] == ["BLEU 20.00", "nll -1.0000"]
    assert [figure.head for figure in final_figures([run_of([])])] == ["updates"]


def test_differences_are_those_of_the_settings_with_what_is_not_recorded_marked() -> None:
    settings = {"model.size": 1, "data.lengths": [1, 2], "made_from.data_path": "/a", "made_with.numpy": "2"}
    other_settings = {"model.size": 1.0, "data.lengths": [1, 3], "made_from.data_path": "/b", "train.gpu": True,
                      "made_with.numpy": "3"}
    all_differences = differences([run_of([], settings), run_of([], other_settings), run_of([])])
    assert all_differences == [
        Difference("data.lengths", ["1, 2", "1, 3", "–"]), Difference("made_with.numpy", ["2", "3", "–"]),
        Difference("train.gpu", ["–", "true", "–"])]
    assert [difference.is_setting for difference in all_differences] == [True, False, True]


def test_runs_are_called_the_same_only_where_all_record_their_settings() -> None:
    recorded, unrecorded = run_of([], {"model.size": 1}), run_of([])
    assert "are the same" in without_differences([recorded, recorded])
    assert without_differences([recorded, unrecorded]) == without_differences([unrecorded, unrecorded]) == (
        "Not all runs record their settings.")


@pytest.mark.parametrize(("change", "words"), [
    ({}, []), ({"made_from.validation": "w"}, ["validation sets differ in text, name or number"]),
    ({"validation.sentences": 5}, ["validation.sentences differ"]), ({"search.beam_size": 9}, ["searches"]),
    ({"made_from.vocabulary": "q"}, ["vocabularies"])])
def test_scores_that_cannot_be_compared_are_reported(change, words) -> None:
    settings = {"made_from.validation": "v", "made_from.data": "d", "made_from.vocabulary": "p", "search.beam_size": 4,
                "validation.sentences": 0}
    notes = comparability([run_of([], settings), run_of([], {**settings, "made_from.data": "e", **change}), run_of([])])
    assert len(notes) == len(words) and all(word in text for word, text in zip(words, notes, strict=True))


def test_a_setting_that_another_version_does_not_record_is_no_difference() -> None:
    old, new = {"made_from.data": "d", "search.beam_size": 4}, {
        "made_from.data": "d", "search.beam_size": 4, "search.new": 1, "made_from.vocabulary": "v"}
    assert comparability([run_of([], old), run_of([], new)]) == []
    newest = {**new, "search.new": 2, "made_from.vocabulary": "w"}
    assert len(comparability([run_of([], old), run_of([], new), run_of([], newest)])) == 2


def test_runs_that_do_not_record_their_validation_text_go_by_their_data() -> None:
    old, new = {"made_from.data": "d"}, {"made_from.data": "d", "made_from.validation": "v"}
    assert comparability([run_of([], old), run_of([], new)]) == []
    assert "Their data differ" in comparability([run_of([], {"made_from.data": "e"}), run_of([], new)])[0]


def test_the_pages_colours_are_those_of_the_pictures() -> None:
    base = files("towernmt.evaluate").joinpath("assets/page.css").read_text().partition("@media")[0]
    light = dict(re.findall(r"(--c\d): (#[0-9a-f]{6})", base))
    of_page = re.findall(r"\.s(\d) \{ stroke: var\((--c\d)\)",
                         files("towernmt.plots").joinpath("assets/curves.css").read_text())
    assert [light[name] for _, name in sorted(of_page)] == list(COLORS)


def test_the_size_of_a_run_is_that_of_its_weights(tmp_path: Path) -> None:
    from towernmt.checkpoint.checkpoint_files import checkpoint_path, write_checkpoint
    from towernmt.core.tf_compat import tf, tf1
    from towernmt.plots.recorded_runs import parameters

    assert parameters(tmp_path) is None
    with tf.Graph().as_default(), tf1.Session() as session:
        for name, shape in (("a", [3, 5]), ("b", [7]), ("a/Adam", [3, 5]), ("global_step", [])):
            tf1.get_variable(name, shape)
        session.run(tf1.global_variables_initializer())
        state = {"step": 4, "position": None, "callbacks": {}, "weights": ["a", "b"]}
        (tmp_path / "checkpoints").mkdir()
        write_checkpoint(tf1.train.Saver(), session, checkpoint_path(tmp_path / "checkpoints", 4).parent, 4, state)
    (tmp_path / "settings.yaml").write_text("architecture: transformer\n")
    assert parameters(tmp_path) == 22
