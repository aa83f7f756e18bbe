"""A worker on its machine, without Ray: the output of its process and its end."""

from __future__ import annotations

import signal
from pathlib import Path

from towernmt.jobs.attempt import PORTS, TrainingWorker
from towernmt.jobs.training_process import ERRORS


def read_all(worker: TrainingWorker) -> tuple[dict[int, bytes], int]:
    """Return all output by stream, and the exit status."""
    found: dict[int, bytes] = {}
    while (output := worker.read()).status is None:
        for kind, chunk in output.chunks:
            found[kind] = found.get(kind, b"") + chunk
    return found, output.status


def test_all_that_the_process_says_comes_before_its_status(tmp_path: Path) -> None:
    worker = TrainingWorker("127.0.0.1")
    worker.start(["train", "--data", str(tmp_path / "none"), "--logdir", str(tmp_path / "run")],
                 ["127.0.0.1:20001"], 0, 1, str(tmp_path / "run"))
    found, status = read_all(worker)
    assert status == 1 and found[ERRORS].startswith(b"towernmt: ") and not (tmp_path / "run").exists()


def test_a_killed_process_is_told_by_its_signal() -> None:
    worker = TrainingWorker("127.0.0.1")
    worker.start(["completion", "bash"], ["127.0.0.1:20001"], 0, 1, "")
    worker.kill()
    assert read_all(worker)[1] == -signal.SIGKILL
    worker.send(signal.SIGTERM)     # comes too late, and has no effect


def test_a_port_is_one_that_nothing_has() -> None:
    assert TrainingWorker("127.0.0.1").find_port() in PORTS
