"""A worker on its machine, without Ray: what its process says and how it ends."""

from __future__ import annotations

import signal
from pathlib import Path

from towernmt.jobs.worker_actor import ERRORS, PORTS, WorkerActor


def told(worker: WorkerActor) -> tuple[dict[int, bytes], int]:
    """All that it says, and the status."""
    found: dict[int, bytes] = {}
    while (said := worker.follow()).status is None:
        for kind, piece in said.pieces:
            found[kind] = found.get(kind, b"") + piece
    return found, said.status


def test_all_that_the_process_says_comes_before_its_status(tmp_path: Path) -> None:
    worker = WorkerActor()
    worker.start(["train", "--data", str(tmp_path / "none"), "--logdir", str(tmp_path / "run")],
                 ["127.0.0.1:20001"], 0, 1, str(tmp_path / "run"))
    found, status = told(worker)
    assert status == 1 and found[ERRORS].startswith(b"towernmt: ") and not (tmp_path / "run").exists()


def test_a_killed_process_is_told_by_its_signal(tmp_path: Path) -> None:
    worker = WorkerActor()
    worker.start(["completion", "bash"], ["127.0.0.1:20001"], 0, 1, "")
    worker.kill()
    assert told(worker)[1] == -signal.SIGKILL
    worker.send(signal.SIGTERM)     # comes too late, and does no harm


def test_a_port_is_one_that_nothing_has() -> None:
    assert WorkerActor().port() in PORTS
