"""A signal ends a run with a checkpoint; the resumed run equals an uninterrupted one."""

from __future__ import annotations

import re
import signal

import pytest

from towernmt.checkpoint.checkpoint_files import checkpoint_steps

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def stopped(corpus, module_start, arguments, long_run, tmp_path_factory):
    """Stop a run by SIGTERM soon after step 60; then finish it.

    Return the run's directory and, for both processes, the result and the last checkpoint's step.
    """
    logdir = tmp_path_factory.mktemp("stopped") / "run"
    command = arguments(corpus.prepared, logdir, *long_run)
    results = []
    for line, number in ((r"step 60,", signal.SIGTERM), ("step 90", None)):
        process = module_start(*command)
        process.wait_for(line)
        if number is not None:
            process.send(number)
        results.append((process.wait(), checkpoint_steps(logdir / "checkpoints")[-1]))
    return logdir, results


def test_a_signal_ends_the_run_with_its_status_and_a_checkpoint_of_the_last_step(stopped):
    result, last = stopped[1][0]
    assert result.status == 128 + signal.SIGTERM
    assert "Traceback" not in result.text
    assert "SIGTERM: training ends after this step, with a checkpoint." in result.output
    steps = [int(step) for step in re.findall(r"step (\d+), nll", result.output)]
    assert last == steps[-1] < 120


def test_a_run_stopped_by_a_signal_equals_the_one_never_stopped_bit_for_bit(stopped, uninterrupted, assert_same_end):
    logdir, results = stopped
    assert results[-1][0].status == 0
    assert_same_end(logdir, uninterrupted.logdir)
