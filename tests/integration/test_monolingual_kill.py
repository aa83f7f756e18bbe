"""`towernmt train --monolingual` and `--source-monolingual`, killed and restarted, equal an uninterrupted run."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from towernmt.jobs.monolingual_job import STAGES_FOLDER

pytestmark = pytest.mark.processes

SETTINGS = ["train.steps=40", "checkpoint.steps=10", "validation.steps=0"]
LINES = 4500
"""Three windows of a translation: two points at which it can be resumed."""


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Write random sentences of the target language of `corpus`."""
    chance, file = random.Random(5), tmp_path_factory.mktemp("text") / "text"
    words = [last + first + "n" for first in "bdfgkl" for last in "aeio"]
    file.write_text("".join(f"{' '.join(chance.choices(words, k=chance.randint(2, 4)))}\n" for _ in range(LINES)))
    return file


def test_a_training_killed_in_each_stage_equals_the_one_never_stopped(
        corpus, module_start, arguments, tiny, assert_same_end, text, tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    commands = [[*arguments(corpus.prepared, logdir, *tiny, *SETTINGS), "--monolingual", text]
                for logdir in (whole, killed)]
    never_stopped = module_start(*commands[0])
    never_stopped.take_minutes()
    result = never_stopped.wait()
    assert result.status == 0, result.text
    stages = [line.partition(": ")[0][-12:] for line in result.output.splitlines() if "Stage " in line]
    assert stages == [f"Stage {number} of 4" for number in (1, 2, 3, 4)]

    for moment in (r"Saved .*/monolingual/model/checkpoints/step-10 ", "Translated 2,000 of 4,500 lines",
                   "Stage 3 of 4", r"Saved .*/killed/checkpoints/step-20 "):
        process = module_start(*commands[1])
        process.take_minutes()
        process.wait_for(moment)
        process.send(signal.SIGKILL)
        assert process.wait().status == -signal.SIGKILL
    last = module_start(*commands[1])
    last.take_minutes()
    result = last.wait()
    assert result.status == 0, result.text
    assert "Stage 4 of 4" in result.output and "Stage 1 of 4" not in result.output

    for name in ("translations", "data/shard-00000.pairs"):
        assert killed.joinpath(STAGES_FOLDER, name).read_bytes() == whole.joinpath(STAGES_FOLDER, name).read_bytes()
    assert len((whole / STAGES_FOLDER / "translations").read_text().splitlines()) == LINES
    assert_same_end(killed / STAGES_FOLDER / "model", whole / STAGES_FOLDER / "model", 20)
    assert_same_end(killed, whole, 40)


@pytest.mark.slow       # tests/jobs/test_monolingual_resuming.py kills each stage without processes
def test_a_killed_student_that_starts_from_its_teacher_equals_the_one_never_stopped(
        corpus, uninterrupted, module_start, assert_same_end, tmp_path: Path):
    model, whole, killed = uninterrupted.copy(tmp_path / "model"), tmp_path / "whole", tmp_path / "killed"
    commands = [["train", "--defaults", "fixed", "--data", corpus.prepared, "--logdir", logdir, "--start", model,
                 "--source-monolingual", corpus.file("train.source"), "--teacher", model, "--set", "train.steps=20",
                 "checkpoint.steps=10", "validation.steps=10", "data.batch_tokens=256", "optimizer.learning_rate=0.003"]
                for logdir in (whole, killed)]
    result = module_start(*commands[0]).wait()
    assert result.status == 0, result.text
    process = module_start(*commands[1])
    process.wait_for(r"Saved .*/killed/checkpoints/step-10 ")
    process.send(signal.SIGKILL)
    assert process.wait().status == -signal.SIGKILL
    result = module_start(*commands[1]).wait()
    assert result.status == 0, result.text
    assert "Stage 3 of 3" in result.output and "Stage 1 of 3" not in result.output
    assert_same_end(killed, whole, 20)
