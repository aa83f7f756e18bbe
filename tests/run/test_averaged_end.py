"""The mean of the last checkpoints at the end of a training: kept only if its validation score is better."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.variables import checkpoint_values
from towernmt.callbacks.validation_metrics import ValidationOutcome
from towernmt.checkpoint.averaging import average_checkpoints, last_checkpoints
from towernmt.checkpoint.checkpoint_files import read_state, write_values
from towernmt.checkpoint.records import AverageRecord, BestEntry, KeptAverage, read_average_record
from towernmt.cli.main import main
from towernmt.core.errors import CheckpointError, DivergenceError, SettingsError
from towernmt.core.settings import apply_overrides
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.evaluate.metrics import Scores
from towernmt.interop.model_card_facts import validation_scores
from towernmt.plots.recorded_runs import read_run
from towernmt.plots.run_comparison import run_outcome
from towernmt.run import averaged_end, launch
from towernmt.run.assemble import Components
from towernmt.run.averaged_end import average_if_due, check_average, set_later_average_aside
from towernmt.run.directory import RunDirectory

SETTINGS = ["model.hidden_size=16", "model.filter_size=16", "model.heads=2", "model.encoder_layers=1",
            "model.decoder_layers=1", "data.batch_tokens=100", "checkpoint.steps=2", "validation.steps=4",
            "checkpoint.keep=3", "search.beam_size=2", "schedule.warmup_steps=1", "optimizer.ema_decay=0.9",
            "optimizer.learning_rate=0.05", "validation.metric=loss", "validation.sentences=4"]
LOSS = "validation_loss"


@pytest.fixture(scope="module")
def place(tmp_path_factory, prepare_pairs) -> Path:
    """Prepare data, and train a run of eight updates with checkpoints 4, 6 and 8 and a moving average."""
    place = tmp_path_factory.mktemp("averaged")
    prepare_pairs(place)
    assert train(place / "run", place, "train.steps=8", *SETTINGS) == 0
    return place


@pytest.fixture
def logdir(place, tmp_path) -> Path:
    """Return a copy of the run."""
    return Path(shutil.copytree(place / "run", tmp_path / "run"))


def train(logdir: Path, place: Path, *settings: str) -> int:
    return main(["train", "--defaults=fixed", "--data", str(place / "data"), "--logdir", str(logdir), "--set",
                 *settings])


def average(logdir: Path, place: Path, last: int = 2) -> None:
    """Average the checkpoints like `towernmt train` at the end of a training."""
    run = RunDirectory(logdir)
    settings = apply_overrides(run.settings(), {"checkpoint.average": last})
    average_if_due(settings, PreparedData(place / "data"), run, Components(), None)


def put_apart(logdir: Path, *noises: float) -> dict[str, np.ndarray]:
    """Set the last two checkpoints to the best weights plus multiples of one noise; return the weights without it."""
    good = checkpoint_values(logdir / "checkpoints" / "step-8")
    weights = read_state(logdir / "checkpoints" / "step-8").weights
    chance = np.random.default_rng(3)
    noise = {name: chance.normal(size=good[name].shape).astype(np.float32) for name in sorted(good)
             if name.removesuffix("/ExponentialMovingAverage") in weights}
    for step, amount in zip((6, 8), noises, strict=True):
        worse = {name: value + amount * noise[name] if name in noise else value for name, value in good.items()}
        state = json.loads((logdir / f"checkpoints/step-{step}/state.json").read_text())
        write_values(worse, logdir / "checkpoints", step, state)
    return good


def recorded(logdir: Path, name: str) -> float:
    """Return a figure of the last update that recorded it."""
    rows = map(json.loads, (logdir / "log/stats.jsonl").read_text().splitlines())
    return [row[name] for row in rows if name in row][-1]


@pytest.mark.thorough
def test_a_better_mean_is_kept_and_taken_by_all_that_name_no_checkpoint(logdir, place, caplog, monkeypatch):
    monkeypatch.setattr(averaged_end, "MIN_SENTENCES", 4)        # those of the validation during the run
    good_loss = recorded(logdir, LOSS)
    good = put_apart(logdir, 1.0, -1.0)
    shutil.rmtree(logdir / "best/step-8", ignore_errors=True)
    shutil.copytree(logdir / "checkpoints/step-8", logdir / "best/step-8")
    (logdir / "best/record.json").write_text(json.dumps([{"step": 8, "score": 99.0, "metric": LOSS}]))
    assert train(logdir, place, "checkpoint.average=2") == 0        # of a run that was finished without a mean
    assert "Averaging the last 2 checkpoints: validation nll " in caplog.text and caplog.text.count(": kept.") == 1
    caplog.clear()
    assert ": kept." in (logdir / "log/log.log").read_text()
    run = RunDirectory(logdir)
    assert run.checkpoint() == str(logdir / "averaged/step-8/model")
    assert run.checkpoint("best") == str(logdir / "best/step-8/model")
    assert run.checkpoint("last") == run.checkpoint("step-8") == str(logdir / "checkpoints/step-8/model")
    for name, value in checkpoint_values(logdir / "averaged/step-8").items():
        np.testing.assert_allclose(value, good[name], atol=1e-6)
    kept = read_average_record(run.averaged).kept
    assert (kept.step, kept.mean_of, kept.metric, kept.mode) == (8, [6, 8], LOSS, "min")
    # The mean equals the old checkpoint 8, so its scores are those of the training (moving average, 4 sentences).
    assert kept.score == pytest.approx(good_loss, rel=1e-5)
    assert kept.scores["validation_bleu"] == pytest.approx(recorded(logdir, "validation_bleu"))
    assert recorded(logdir, "averaged_validation_loss") == kept.score
    assert run_outcome(read_run(logdir, "run")).averaged == kept.score
    assert {(one["metric"], one["score"]) for one in validation_scores(
            run, logdir / "averaged/step-8", read_state(logdir / "averaged/step-8"))} == {
        ("BLEU", round(kept.scores["validation_bleu"], 4)), ("chrF2", round(kept.scores["validation_chrf"], 4))}
    assert sorted(path.name for path in logdir.iterdir() if "averaged" in path.name) == ["averaged"]
    before = (logdir / "averaged/record.json").stat().st_mtime_ns
    assert train(logdir, place, "checkpoint.average=2") == 0        # it has finished by now
    assert "Averaging" not in caplog.text
    assert (logdir / "averaged/record.json").stat().st_mtime_ns == before


@pytest.mark.thorough
def test_a_worse_mean_is_not_kept(logdir, place, scored, caplog):
    scored["2"] = 2.5
    average(logdir, place)
    assert ": not kept." in caplog.text
    assert [path.name for path in (logdir / "averaged").iterdir()] == ["record.json"]
    assert read_average_record(logdir / "averaged") == AverageRecord(8, 2, None)
    assert not (logdir / "averaged.new").exists()
    assert RunDirectory(logdir).checkpoint() == RunDirectory(logdir).checkpoint("best")


@pytest.mark.thorough
def test_the_last_checkpoint_is_taken_where_a_worse_one_was_the_best(logdir, place, scored, caplog):
    scored.update({"step-6": 2.5, "step-8": 0.9})
    shutil.rmtree(logdir / "best")
    shutil.copytree(logdir / "checkpoints/step-6", logdir / "best/step-6")
    (logdir / "best/record.json").write_text(json.dumps([{"step": 6, "score": 0.1, "metric": LOSS}]))   # by chance
    average(logdir, place)
    assert ": the last one is taken." in caplog.text
    run = RunDirectory(logdir)
    assert run.checkpoint() == str(logdir / "averaged/step-8/model")
    assert read_average_record(run.averaged).kept.mean_of == [8]
    last = checkpoint_values(logdir / "checkpoints/step-8")
    for name, value in checkpoint_values(logdir / "averaged/step-8").items():
        np.testing.assert_array_equal(value, last[name])


def test_the_scores_of_the_mean_replace_the_figures_of_a_killed_process_after_the_last_checkpoint(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log/stats.jsonl").write_text(
        '{"validation_loss": 3.0, "global_step": 8}\n{"nll": 2.0, "global_step": 9}\n{"nll": 2.')
    finished = object.__new__(averaged_end._FinishedRun)
    finished._run = RunDirectory(tmp_path)
    finished._add_to_statistics(8, {LOSS: 2.5})
    run = read_run(tmp_path, "run")
    assert (run.values(LOSS), run.values(f"averaged_{LOSS}"), run.last_step) == ([(8, 3.0)], [(8, 2.5)], 8)
    assert run.notes == []


@pytest.mark.parametrize(("asked", "there", "taken"), [(4, 5, 5), (4, 2000, 1000), (1500, 2000, 1500), (0, 2000, 2000)])
def test_more_sentences_decide_at_the_end_than_in_between(place, asked, there, taken):
    sets = [SimpleNamespace(name="valid", first=lambda count: count or there)]
    settings = apply_overrides(RunDirectory(place / "run").settings(), {"validation.sentences": asked})
    found, _ = averaged_end._validation_sets(settings, SimpleNamespace(validation_sets=sets))
    assert min(found[""], there) == taken


def test_the_mean_over_all_sets_decides_at_the_end_as_in_training(place):
    sets = [SimpleNamespace(name=name, first=lambda count, name=name: name) for name in ("news", "talks")]
    for metric_set, expected in (("", ({"": "news"}, "")), ("news", ({"": "news"}, "")),
                                 ("talks", ({"talks": "talks"}, "talks")),
                                 ("mean", ({"": "news", "talks": "talks"}, "mean"))):
        settings = apply_overrides(RunDirectory(place / "run").settings(), {"validation.metric_set": metric_set})
        assert averaged_end._validation_sets(settings, SimpleNamespace(validation_sets=sets)) == expected


@pytest.mark.thorough
def test_a_run_goes_on_as_if_nothing_had_been_averaged(logdir, place, tmp_path, scored, caplog):
    plain = Path(shutil.copytree(logdir, tmp_path / "plain"))
    average(logdir, place)
    assert train(logdir, place, "train.steps=12", "checkpoint.average=2") == 0
    assert train(plain, place, "train.steps=12") == 0
    assert caplog.text.count("Averaging the last 2 checkpoints") == 2
    assert read_average_record(logdir / "averaged").compared_step == 12
    found, expected = (checkpoint_values(run / "checkpoints/step-12") for run in (logdir, plain))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    one, other = ({key: value for key, value in read_state(run / "checkpoints/step-12").callbacks.items()
                   if key != "progress"} for run in (logdir, plain))       # which has seconds
    assert one == other
    assert (logdir / "best/record.json").read_text() == (plain / "best/record.json").read_text()


def test_a_run_before_its_limit_is_not_averaged(logdir, place, caplog):
    run = RunDirectory(logdir)
    settings = apply_overrides(run.settings(), {"checkpoint.average": 2, "train.steps": 9})   # ended by a signal at 8
    average_if_due(settings, PreparedData(place / "data"), run, Components(), None)
    assert not run.averaged.exists() and "Averaging" not in caplog.text


@pytest.mark.parametrize("status", [0, 143])
def test_a_run_that_a_signal_stopped_or_that_diverged_is_not_averaged(place, tmp_path, monkeypatch, status):
    asked = []
    monkeypatch.setattr(launch, "average_if_due", lambda *_: asked.append(True))
    settings, data = RunDirectory(place / "run").settings(), PreparedData(place / "data")
    monkeypatch.setattr(launch, "_check_and_train", lambda *_: status)
    assert launch.train(settings, data, tmp_path / "run") == status
    assert asked == [True] * (status == 0)

    def diverged(*_: object) -> int:
        raise DivergenceError("at step 3")

    monkeypatch.setattr(launch, "_check_and_train", diverged)
    with pytest.raises(DivergenceError):
        launch.train(settings, data, tmp_path / "run")
    assert asked == [True] * (status == 0)


@pytest.fixture
def scored(monkeypatch) -> dict[str, float]:
    """Replace validations by losses: of checkpoints by their step or "best", and of means by the number of theirs."""
    losses = {"best": 2.0, "2": 1.0, "3": 0.5}

    def found(self, checkpoint: str) -> dict[str, ValidationOutcome]:
        state = read_state(Path(checkpoint).parent)
        loss = losses[str(len(state.mean_of))] if state.mean_of else losses.get(f"step-{state.step}", losses["best"])
        outcome = ValidationOutcome((), Scores(10.0, 20.0, ""), loss)
        return dict.fromkeys(self._sets, outcome)

    monkeypatch.setattr(averaged_end._FinishedRun, "_outcome", found)
    return losses


def kept(logdir: Path) -> tuple[int, list[int]]:
    """Return the step of the last comparison, and the steps of the mean that is used by default."""
    record = read_average_record(logdir / "averaged")
    taken = Path(RunDirectory(logdir).checkpoint()).parent
    assert record.kept.mean_of == read_state(taken).mean_of
    return record.compared_last, record.kept.mean_of


@pytest.mark.thorough
@pytest.mark.parametrize("second", [0.5, 5.0])
def test_killed_at_any_file_operation_it_is_made_when_the_run_is_started_again(
        logdir, place, scored, monkeypatch, killed_after, second):
    """A better mean replaces the old one, and a worse one does not, with a kill and without."""
    scored["3"] = second
    average(logdir, place, 2)
    assert kept(logdir) == (2, [6, 8])
    first = Path(shutil.copytree(logdir / "averaged", logdir.parent / "first"))
    run = RunDirectory(logdir)
    ready = average_checkpoints(run, last_checkpoints(run, 3), logdir.parent / "mean")
    monkeypatch.setattr(averaged_end, "average_checkpoints", lambda run, steps, place, model: Path(
        shutil.copytree(ready, place / ready.name)))        # which takes no time, and is atomic
    of_files = [(os, "fsync"), (shutil, "rmtree"), (Path, "rename"), (Path, "replace")]
    for operations in itertools.count():
        with killed_after(operations, of_files) as left:
            average(logdir, place, 3)
        taken = Path(run.checkpoint()).parent       # never a partial one
        assert {"model.index", "state.json", "model.data-00000-of-00001"} == {path.name for path in taken.iterdir()}
        average(logdir, place, 3)
        assert kept(logdir) == (3, [4, 6, 8] if second == 0.5 else [6, 8])
        assert recorded(logdir, "averaged_validation_loss") == min(1.0, second)
        assert [path.name for path in logdir.glob("averaged*")] == ["averaged"]
        if left[0] >= 0:
            break
        shutil.rmtree(logdir / "averaged")
        shutil.copytree(first, logdir / "averaged")
    assert operations > 4


def test_the_beginning_is_in_no_mean_and_one_checkpoint_is_none(logdir, place, scored, caplog):
    for step in (4, 6):
        shutil.rmtree(logdir / f"checkpoints/step-{step}")
    state = {**json.loads((logdir / "checkpoints/step-8/state.json").read_text()), "step": 0}
    write_values(checkpoint_values(logdir / "checkpoints/step-8"), logdir / "checkpoints", 0, state)
    average(logdir, place, 2)
    assert "Nothing is averaged, because the run has 1 checkpoint" in caplog.text
    assert not (logdir / "averaged").exists()


def test_what_was_averaged_of_another_past_is_set_aside(logdir, place, scored):
    average(logdir, place, 2)
    run = RunDirectory(logdir)
    set_later_average_aside(run)
    assert run.checkpoint().startswith(str(run.averaged))
    shutil.rmtree(logdir / "checkpoints/step-8")
    set_later_average_aside(run)
    assert not run.averaged.exists() and (logdir / "averaged.1/step-8/model.index").is_file()
    assert run.checkpoint() == run.checkpoint("best")


def mean(step: int, score: float, mode: str = "max") -> KeptAverage:
    return KeptAverage(step, [1, step], "validation_bleu", mode, {"validation_bleu": score})


@pytest.mark.parametrize(("best", "mode", "taken"), [
    (BestEntry(8, 50.0, "validation_bleu"), "max", True),       # it was compared and is worse, in spite of its record
    (BestEntry(9, 45.9, "validation_bleu"), "max", True),
    (BestEntry(9, 46.0, "validation_bleu"), "max", False),      # of equal scores the later step
    (BestEntry(9, 46.1, "validation_bleu"), "max", False),
    (BestEntry(9, 46.1, "validation_bleu"), "min", True),
    (BestEntry(9, 45.9, "validation_bleu"), "min", False),
    (BestEntry(9, 1.0, "validation_chrf"), "max", False)])      # another metric: not comparable
def test_a_later_best_takes_the_place_of_the_mean_when_its_score_is_as_good(best, mode, taken):
    assert mean(8, 46.0, mode).is_before(best) is taken


def test_a_damaged_record_is_one_sentence(tmp_path):
    assert read_average_record(tmp_path) is None
    record = dataclasses.asdict(AverageRecord(8, 2, mean(8, 1.0)))
    record["kept"]["scores"] = {}
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"record.json: kept.scores has no validation_bleu. Move"):
        read_average_record(tmp_path)


@pytest.mark.parametrize(("settings", "sets", "message"), [
    ({}, [], "but this run has none"),
    ({"validation.steps": 0}, ["one"], "but this run has none"),
    ({"checkpoint.keep": 4}, ["one"], "set checkpoint.keep=5"),
    ({"checkpoint.keep_best": 0}, ["one"], "checkpoint.keep_best=0 keeps no best"),
    ({"checkpoint.average": 0}, [], ""), ({}, ["one"], "")])
def test_averaging_that_cannot_work_is_refused_at_the_start(place, settings, sets, message):
    asked = apply_overrides(RunDirectory(place / "run").settings(),
                            {"checkpoint.average": 5, "checkpoint.keep": 5, **settings})
    data = SimpleNamespace(validation_sets=sets)
    if message:
        with pytest.raises(SettingsError, match=message):
            check_average(asked, data)
    else:
        check_average(asked, data)


def test_the_user_is_told_before_training_begins(place, tmp_path, capsys):
    assert train(tmp_path / "new", place, "train.steps=8", *SETTINGS, "checkpoint.average=4") == 1
    assert "set checkpoint.keep=4" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
