"""`kill -9` at random moments: the surviving parameters were trained on each pair once in each epoch.

Steps after the last checkpoint are lost with their process and repeated. The parameters themselves count the pairs (see
`counting_tower`), so the counts are those of the surviving steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["mixture", "shards"])
@pytest.mark.parametrize(("kills", "epochs"), [(3, 3), pytest.param(50, 32, marks=pytest.mark.slow)])
def test_after_kills_at_random_moments_the_parameters_were_trained_on_each_pair_once_in_each_epoch(
        request: pytest.FixtureRequest, kind: str, kills: int, epochs: int, numbered: Any, counting: Any, small: Any,
        start: Any, tmp_path: Path) -> None:
    report, logdir = tmp_path / "report", tmp_path / "run"
    command = ["train", "--defaults=fixed", "--data", request.getfixturevalue(kind), "--logdir", logdir, "--towers",
               "2", "--set", *small(kind == "shards"), f"train.epochs={epochs}"]
    process = start(str(kills), "7", report, "--", *command, program=[HERE / "killed_trainer.py"])
    process.take_minutes()
    result = process.wait()
    assert result.status == 0, result.text
    lives = json.loads(report.read_text())
    last = json.loads((logdir / "checkpoints" / f"step-{last_step(logdir)}" / "state.json").read_text())
    assert len(lives["steps"]) == kills + 1, "it ended before it was killed"
    died = sum(lives["steps"]) - last["step"]
    assert died > 0 or (died == 0 and kills < 10), "updates died with the processes that were killed, but for chance"
    numbered.assert_counted_once(counting.counted(logdir), epochs)


def last_step(logdir: Path) -> int:
    from towernmt.checkpoint.checkpoint_files import checkpoint_steps

    return checkpoint_steps(logdir / "checkpoints")[-1]
