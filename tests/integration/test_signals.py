"""SIGINT and SIGTERM end a run with a checkpoint; the resumed run equals an uninterrupted one."""

from __future__ import annotations

import re
import signal

import pytest

from towernmt.checkpoint.checkpoint_files import checkpoint_steps

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def stopped_twice(corpus, module_start, arguments, long_run, tmp_path_factory):
    """Stop a run by Ctrl-C soon after step 10 and by SIGTERM soon after step 60; then finish it.

    Return the run's directory and, for each process, its result and its last checkpoint's step.
    """
    logdir = tmp_path_factory.mktemp("stopped") / "run"
    command = arguments(corpus.prepared, logdir, *long_run)
    results = []
    for line, number in ((r"step 10,", signal.SIGINT), (r"step 60,", signal.SIGTERM), ("step 90", None)):
        process = module_start(*command)
        process.wait_for(line)
        if number is not None:
            process.send(number)
        results.append((process.wait(), checkpoint_steps(logdir / "checkpoints")[-1]))
    return logdir, results


@pytest.mark.parametrize("which, number", [(0, signal.SIGINT), (1, signal.SIGTERM)],
                         ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_run_with_its_status_and_a_checkpoint_of_the_last_step(
        stopped_twice, which, number):
    result, last = stopped_twice[1][which]
    assert result.status == 128 + number
    assert "Traceback" not in result.text
    assert f"{number.name}: training ends after this step, with a checkpoint." in result.output
    steps = [int(step) for step in re.findall(r"step (\d+), nll", result.output)]
    assert last == steps[-1] < 120


def test_a_run_stopped_by_signals_equals_the_one_never_stopped_bit_for_bit(
        stopped_twice, uninterrupted, assert_same_end):
    logdir, results = stopped_twice
    assert results[-1][0].status == 0
    assert_same_end(logdir, uninterrupted.logdir)
