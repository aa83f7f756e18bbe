"""Checkpoints that are damaged, that belong to another model, or that do not fit onto the disk."""

from __future__ import annotations

import resource
import shutil

import numpy as np
import pytest

from towernmt.checkpoint.checkpoint_files import checkpoint_steps

pytestmark = pytest.mark.processes


def test_a_damaged_last_checkpoint_is_named_and_without_it_the_run_goes_on_from_the_one_before(
        corpus, here, start, arguments, long_run, uninterrupted, assert_same_end, tmp_path):
    logdir = uninterrupted.copy(tmp_path / "run")
    last = logdir / "checkpoints" / "step-120"
    weights = last / "model.data-00000-of-00001"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000] + bytes(1000) + whole[2000:])
    command = arguments(corpus.prepared, logdir, *long_run)
    result = here(*command, "train.steps=130")
    assert result.status == 1
    assert f"{last}: the checkpoint is damaged" in result.the_error()

    shutil.rmtree(last)
    result = start(*command).wait()     # the last bits are those of a separate process
    assert result.status == 0, result.text
    assert "Resuming after step 96" in (logdir / "log" / "log.log").read_text()
    assert_same_end(logdir, uninterrupted.logdir)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
@pytest.mark.parametrize("at", ["a step", "the end"])
def test_a_full_disk_ends_training_with_a_sentence_and_leaves_the_earlier_checkpoints(
        corpus, start, arguments, long_run, variables, tmp_path, at):
    """After step 30, no file of the process may grow beyond 500 bytes: log, events, checkpoints."""
    logdir, never = tmp_path / "run", ["checkpoint.steps=0", "validation.steps=0"]
    command = arguments(corpus.prepared, logdir, *long_run)
    process = start(*command, *(never if at == "the end" else []))
    process.wait_for("step 30,")
    resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (500, 500))
    result = process.wait()
    assert result.status == 1, result.text
    assert "the checkpoint could not be written (File too large)" in result.the_error()
    steps = checkpoint_steps(logdir / "checkpoints")
    assert 0 in steps and 120 not in steps
    for step in steps:
        values = variables(logdir / "checkpoints" / f"step-{step}")
        assert values["global_step"] == step and all(np.isfinite(v).all() for v in values.values())
    assert not list(logdir.rglob(".writing-*"))
