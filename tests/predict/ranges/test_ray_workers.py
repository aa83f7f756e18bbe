"""Workers on a Ray cluster, one of which is killed repeatedly."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from towernmt.farm import ray_workers
from towernmt.farm.farm import Farm
from towernmt.farm.ray_workers import connect_workers
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.ranges.job import RangeJob, RangeResult, RangeTask, translation_farm
from towernmt.predict.ranges.plan import RangeReader, make_plan, open_texts
from towernmt.predict.ranges.work_directory import WorkDirectory

ray = pytest.importorskip("ray", reason="needs towernmt[ray]")
pytestmark = pytest.mark.processes


@pytest.fixture
def without_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield
    ray.shutdown()


def test_a_wait_for_a_busy_cluster_is_reported_once(without_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Occupant:
        pass

    class Task:
        description = "made"

    monkeypatch.setattr(ray_workers, "_LONG_WAIT", 0.5)
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    occupant = ray.remote(Occupant).options(num_cpus=1).remote()
    ray.get(occupant.__ray_ready__.remote())
    messages: list[str] = []

    def release(message: str) -> None:
        messages.append(message)
        ray.kill(occupant)

    farm = Farm(connect_workers(lambda number: Task(), 2, "local", False, release), "", print)
    try:
        assert farm.wait_for_first() == "made"
    finally:
        farm.stop()
    assert messages == ["Waiting for the Ray cluster to start a worker with 1 processor: 0 of 1 processors of the "
                        "cluster are free."]


def test_actors_translate_ranges_and_a_killed_one_is_started_again(
        texts: list[Path], tmp_path: Path, without_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    monkeypatch.chdir(tmp_path)

    class Upper:
        """Kills its own process, like `kill -9`, at the first attempt to translate one of two ranges."""

        description = {"model": "a"}

        def __call__(self, work: RangeTask) -> RangeResult:
            mark = Path("killed", str(work.line_range.number))    # the directory is that of the command
            if work.line_range.number in (0, 5) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return RangeResult([b"".join(work.lines.lines).upper()], 1, FaultCounts(work.name).as_json())

    found = open_texts([str(texts[0])])
    plan = make_plan(found, [], [0], 500)
    farm = translation_farm(connect_workers(lambda number: Upper(), 2, "local", False, print), tmp_path / "work")
    try:
        directory = WorkDirectory(tmp_path / "work")
        task: Any = farm.wait_for_first()
        directory.begin(task, plan)
        RangeJob(directory, plan, RangeReader(plan, found, []), [found[0].name], [[str(tmp_path / "out")]], farm,
                 io.StringIO()).run(task)
    finally:
        farm.stop()
    assert len(list(killed.iterdir())) == 2
    assert (tmp_path / "out").read_bytes() == texts[0].read_bytes().upper()
