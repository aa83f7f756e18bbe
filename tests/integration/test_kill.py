"""A run that is killed at any moment and restarted equals an uninterrupted run."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from towernmt.checkpoint.checkpoint_files import checkpoint_steps

pytestmark = [pytest.mark.processes, pytest.mark.optimized]


@pytest.fixture(scope="module")
def killed(corpus, module_start, arguments, long_run, recording, recorded, tmp_path_factory):
    """Kill a run while the checkpoint of step 48 is written, after that of step 40; then finish it.

    Return the run's directory, the record of both processes, and the files among the checkpoints after the kill.
    """
    place = tmp_path_factory.mktemp("killed")
    logdir, command = place / "run", arguments(corpus.prepared, place / "run", *long_run)
    records = [place / f"steps-{i}" for i in range(2)]

    first = module_start(*command, program=recording(records[0], "--die-writing", "48")).wait()
    assert first.status == -signal.SIGKILL, first.text
    left = sorted(path.name for path in (logdir / "checkpoints").glob("*step-*"))

    second = module_start(*command, program=recording(records[1])).wait()
    assert second.status == 0, second.text
    return logdir, [recorded(record) for record in records], left


def test_a_run_killed_between_checkpoints_equals_the_one_never_stopped_bit_for_bit(
        killed, uninterrupted, assert_same_end):
    logdir, (first, second), _ = killed
    assert list(first) == list(range(1, 49))
    assert list(second) == list(range(41, 121))        # from the checkpoint of step 40, not from where it was killed
    for steps in (first, second):
        for step, entry in steps.items():
            assert entry == uninterrupted.steps[step]   # position, batch, loss and gradient norm
    assert_same_end(logdir, uninterrupted.logdir)


def test_a_process_killed_while_it_writes_a_checkpoint_leaves_only_complete_ones(killed):
    logdir, _, left = killed
    assert left == [".writing-step-48", "step-0", "step-24", "step-40"]
    assert not list((logdir / "checkpoints").glob(".writing-*"))


def test_the_best_score_is_remembered_over_resumes(killed, uninterrupted):
    logdir = killed[0]
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
