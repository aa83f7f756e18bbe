"""A run that starts from another run, is killed and restarted, equals an uninterrupted run."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.slow       # test_monolingual_kill has general data; test_bleu_validator, a resumed validation at the start
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
