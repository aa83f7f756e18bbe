"""`towernmt train --workers`: workers that Ray places; one is killed, one loses its machine, and the run resumes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker_processes import assert_near, assert_same_bits, data_position, ended_well, start_workers
from tests.waiting import has_ended, wait_until
from towernmt.checkpoint.checkpoint_files import checkpoint_steps

ray = pytest.importorskip("ray", reason="needs towernmt[ray]")
pytestmark = [pytest.mark.processes, pytest.mark.optimized]    # workers of Ray are not forks

SETTINGS = ["train.steps=120", "checkpoint.steps=20", "validation.steps=0", "model.residual_dropout=0.1"]
LONG = [*SETTINGS, "train.steps=200"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a Ray cluster of two simulated machines, each with two processors."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield made
    made.shutdown()


@pytest.fixture
def train(cluster: Any, corpus: Any, start: Callable[..., Any], arguments: Any, tiny: list[str],
          tmp_path: Path) -> Callable[..., Any]:
    """Return `train(options, *settings)`, which starts a training of workers on the cluster."""
    def begin(options: list[str], *settings: str, run: Path = tmp_path / "run") -> Any:
        return start(*arguments(corpus.prepared, run, *tiny, *settings), "--ray", cluster.address, *options)

    return begin


@pytest.fixture(scope="module")
def by_hand(corpus: Any, module_start: Any, arguments: Any, tiny: list[str], tmp_path_factory: Any) -> Path:
    """Return the directory of an undisturbed run of two workers that were started by hand."""
    run = tmp_path_factory.mktemp("by_hand") / "run"
    ended_well(start_workers(module_start, [arguments(corpus.prepared, run, *tiny, *SETTINGS)] * 2))
    return run


def process_of(run: Path, worker: int) -> int:
    """Return the process that trains as a worker of a run."""
    for directory in Path("/proc").iterdir():
        try:
            command, environment = (directory.joinpath(name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:     # no process, or one that has ended
            continue
        if b"towernmt.jobs.training_process" in command and f"={run}\0".encode() in command \
                and f'"index": {worker}'.encode() in environment:
            return int(directory.name)
    raise AssertionError(f"no worker {worker}")


def test_when_a_worker_is_killed_the_run_goes_on_and_equals_that_of_undisturbed_workers(
        train, by_hand, variables, tmp_path):
    process = train(["--workers", "2"], *SETTINGS)
    process.wait_for("step 10,")
    os.kill(process_of(tmp_path / "run", 1), signal.SIGKILL)
    result = process.wait()
    assert result.status == 0, result.text
    assert "Traceback" not in result.text and "towernmt:" not in result.text
    assert "Worker 1 (" in result.output and "was ended by SIGKILL" in result.output
    assert "Attempt 2 resumes from step" in result.output
    assert_same_bits(variables(tmp_path / "run/checkpoints/step-120"), variables(by_hand / "checkpoints/step-120"))
    assert (tmp_path / "run/log/worker-1.log").read_text().count("--- attempt") == 2


@pytest.mark.slow
def test_when_a_machine_is_lost_the_run_goes_on_with_those_that_are_left(
        train, cluster, corpus, here, arguments, tiny, variables, tmp_path):
    machine = cluster.add_node(num_cpus=1)
    settings = [*LONG, "model.residual_dropout=0", "model.embedding_dropout=0", "optimizer.learning_rate=0.001"]
    process = train(["--workers", "3", "--min-workers", "2", "--wait", "3"], *settings)
    process.wait_for("Attempt 1: 3 workers")
    process.wait_for("step 30,")
    cluster.remove_node(machine, allow_graceful=False)
    result = process.wait()
    assert result.status == 0, result.text
    assert "was lost with its machine" in result.output
    assert "Attempt 2: 2 of 3 workers" in result.output
    assert "Traceback" not in result.text
    alone = tmp_path / "alone"
    assert here(*arguments(corpus.prepared, alone, *tiny, *settings)).status == 0
    assert_near(variables(tmp_path / "run/checkpoints/step-200"), variables(alone / "checkpoints/step-200"))
    assert data_position(tmp_path / "run", 200) == data_position(alone, 200)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_signal_ends_all_workers_with_a_checkpoint_from_which_the_same_command_goes_on(train, tmp_path):
    process = train(["--workers", "2"], *LONG, "train.steps=100000", "checkpoint.steps=0")
    process.wait_for("step 30,")
    process.send(signal.SIGTERM)
    result = process.wait()
    assert result.status == 128 + signal.SIGTERM
    assert "Attempt 2" not in result.output and result.errors == ""
    last = checkpoint_steps(tmp_path / "run/checkpoints")[-1]
    assert last >= 30
    result = train(["--workers", "2"], *LONG, f"train.steps={last + 2}").wait()
    assert result.status == 0, result.text
    assert f"Resuming after step {last} " in result.output


@pytest.mark.thorough
def test_when_the_command_is_killed_its_workers_end(train, tmp_path):
    process = train(["--workers", "2"], *LONG, "train.steps=100000")
    process.wait_for("step 1,")
    workers = [process_of(tmp_path / "run", worker) for worker in range(2)]
    process.send(signal.SIGKILL)
    for worker in workers:
        wait_until(lambda worker=worker: has_ended(worker))


@pytest.mark.slow
@pytest.mark.thorough
def test_what_a_new_attempt_would_not_mend_is_one_sentence_and_not_repeated(train):
    result = train(["--workers", "2"], *LONG, "data.memory_gb=1").wait()
    assert result.status == 1
    assert "needs a single process" in result.the_error()
    assert "Attempt 2" not in result.output


@pytest.mark.slow
@pytest.mark.thorough
def test_workers_that_are_lost_too_often_end_the_training(train, tmp_path):
    process = train(["--workers", "2", "--max-failures", "0"], *LONG)
    process.wait_for("step 30,")
    os.kill(process_of(tmp_path / "run", 0), signal.SIGKILL)
    result = process.wait()
    assert result.status == 75
    assert "An attempt was lost without a checkpoint since (--max-failures 0): the same command resumes from step" \
        in result.the_error()


def test_a_cluster_without_resources_is_one_sentence(train, tmp_path):
    result = train(["--workers", "3", "--wait", "0"]).wait()
    assert result.status == 1
    assert "had no resources for 3 workers of 1 processor" in result.the_error()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_of_three_workers_of_which_one_is_killed_four_times_equals_that_of_undisturbed_ones(
        train, cluster, variables, tmp_path):
    settings, workers, draw = [*LONG, "train.steps=800"], ["--workers", "3"], random.Random(7)
    machine = cluster.add_node(num_cpus=1)
    assert train(workers, *settings, run=tmp_path / "undisturbed").wait().status == 0
    process = train([*workers, "--max-failures", "1"], *settings)
    process.take_minutes()
    for attempt in range(2, 6):
        for _ in range(draw.randint(25, 60)):       # a checkpoint lies between any two failures
            process.wait_for(r"step \d+,")
        os.kill(process_of(tmp_path / "run", draw.randrange(3)), signal.SIGKILL)
        process.wait_for(f"Attempt {attempt} resumes from step")
    result = process.wait()
    assert result.status == 0, result.text
    assert "Traceback" not in result.text
    assert_same_bits(*(variables(tmp_path / run / "checkpoints/step-800") for run in ("run", "undisturbed")))
    cluster.remove_node(machine)
