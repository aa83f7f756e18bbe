"""A run that is killed at any moment and restarted equals an uninterrupted run."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from towernmt.checkpoint.checkpoint_files import checkpoint_steps

pytestmark = [pytest.mark.processes, pytest.mark.optimized]


@pytest.fixture(scope="module")
def killed_twice(corpus, module_start, arguments, long_run, recording, recorded, tmp_path_factory):
    """Kill a run after step 60 (checkpoints: 40, 48) and while the checkpoint of step 96 is written; then finish it.

    Return the run's directory, the record of each of the three processes, and the files among the checkpoints after
    each of them.
    """
    place = tmp_path_factory.mktemp("killed")
    logdir, command = place / "run", arguments(corpus.prepared, place / "run", *long_run)
    records, left = [place / f"steps-{i}" for i in range(3)], []

    first = module_start(*command, program=recording(records[0], "--hold-at", "60"))
    first.wait_for("held at step 60")
    first.send(signal.SIGKILL)
    assert first.wait().status == -signal.SIGKILL
    left.append(sorted(path.name for path in (logdir / "checkpoints").glob("*step-*")))

    second = module_start(*command, program=recording(records[1], "--die-writing", "96"))
    result = second.wait()
    assert result.status == -signal.SIGKILL, result.text
    left.append(sorted(path.name for path in (logdir / "checkpoints").glob("*step-*")))

    third = module_start(*command, program=recording(records[2])).wait()
    assert third.status == 0, third.text
    return logdir, [recorded(record) for record in records], left


def test_a_run_killed_between_checkpoints_equals_the_one_never_stopped_bit_for_bit(
        killed_twice, uninterrupted, assert_same_end):
    logdir, (first, second, third), _ = killed_twice
    assert list(first) == list(range(1, 61))
    assert list(second)[0] == 49        # from the checkpoint of step 48, not from where it was killed
    for steps in (first, second, third):
        for step, entry in steps.items():
            assert entry == uninterrupted.steps[step]   # position, batch, loss and gradient norm
    assert list(third)[-1] == 120
    assert_same_end(logdir, uninterrupted.logdir)


def test_a_process_killed_while_it_writes_a_checkpoint_leaves_only_complete_ones(killed_twice):
    logdir, (_, second, third), (after_first, after_second) = killed_twice
    assert after_first == ["step-0", "step-24", "step-40", "step-48"]
    assert ".writing-step-96" in after_second
    assert "step-96" not in after_second
    assert list(second)[-1] == 96 and list(third)[0] == 81
    assert not list((logdir / "checkpoints").glob(".writing-*"))


def test_the_best_score_is_remembered_over_resumes(killed_twice, uninterrupted):
    logdir = killed_twice[0]
    log = (logdir / "best/log").read_text().splitlines()
    assert [line.split()[1] for line in log] == ["40", "80", "120"]
    scores = {int(line.split()[1]): float(line.split()[-1]) for line in log}
    assert len(set(scores.values())) == 3       # otherwise the test would not show that order
    kept = sorted(scores, key=lambda step: -scores[step])[:2]
    assert {path.name for path in (logdir / "best").glob("step-*")} == {f"step-{step}" for step in kept}


@pytest.mark.slow
def test_a_run_killed_at_random_moments_equals_the_one_never_stopped(
        corpus, start, arguments, long_run, uninterrupted, assert_same_end, tmp_path: Path):
    """There is a checkpoint at every step, so that most kills occur while one is written."""
    logdir = tmp_path / "run"
    often = ["checkpoint.steps=1", "checkpoint.keep=3"]
    command = arguments(corpus.prepared, logdir, *long_run, *often)
    chance, done = random.Random(8), 0
    while done < 100:
        process = start(*command)
        process.wait_for(rf"step {done + chance.randint(1, 16)},")
        for _ in range(chance.randint(0, 3)):
            process.wait_for("")
        process.send(signal.SIGKILL)
        assert process.wait().status == -signal.SIGKILL
        steps = checkpoint_steps(logdir / "checkpoints")
        assert steps[-1] > done
        done = steps[-1]
    assert start(*command).wait().status == 0
    assert_same_end(logdir, uninterrupted.logdir)


def test_a_run_that_starts_from_a_model_with_general_data_resumes_after_a_kill(
        corpus, module_start, arguments, long_run, uninterrupted, recording, recorded, assert_same_end, tmp_path):
    """The model, the validation before the first update and the general pairs are those of the uninterrupted run."""
    short = ["train.steps=24", "checkpoint.steps=6", "validation.steps=12", "validation.at_start=true",
             "validation.metric_set=mean"]
    settings = [*(setting for setting in long_run if setting.split("=")[0] not in (
        "train.steps", "checkpoint.steps", "validation.steps") and not setting.startswith("model.")), *short]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    start = ["--start", uninterrupted.logdir, "--general", corpus.prepared]
    command = [[*arguments(corpus.prepared, logdir, *settings), *start] for logdir in (whole, killed)]
    result = module_start(*command[0], program=recording(tmp_path / "steps-0")).wait()
    assert result.status == 0, result.text

    first = module_start(*command[1], program=recording(tmp_path / "steps-1", "--hold-at", "9"))
    first.wait_for("held at step 9")
    first.send(signal.SIGKILL)
    first.wait()
    second = module_start(*command[1], program=recording(tmp_path / "steps-2")).wait()
    assert second.status == 0, second.text
    expected = recorded(tmp_path / "steps-0")
    for number, begin in (("1", 1), ("2", 7)):
        steps = recorded(tmp_path / f"steps-{number}")
        assert next(iter(steps)) == begin
        assert all(entry == expected[step] for step, entry in steps.items())
    assert_same_end(killed, whole, 24)
    assert (killed / "best/log").read_text().splitlines()[0].startswith("step 0 validation_bleu/mean ")
