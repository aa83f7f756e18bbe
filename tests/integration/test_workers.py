"""Several workers, each a process: their run equals that of one process; and the loss of a worker."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.worker_processes import (
    assert_near,
    assert_same_bits,
    data_position,
    ended_well,
    free_addresses,
    start_workers,
)
from towernmt.core.errors import WorkerLostError

pytestmark = pytest.mark.processes

NO_DROPOUT = ["model.residual_dropout=0", "model.embedding_dropout=0", "validation.steps=0"]
TWENTY = ["train.steps=20", "checkpoint.steps=0", *NO_DROPOUT]
LOST = WorkerLostError.exit_status


@pytest.fixture
def workers(start: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return `workers([arguments of worker 0, of worker 1, ...])`, which starts them; see `start_workers`."""
    return partial(start_workers, start)


@pytest.fixture(scope="module")
def alone(corpus: Any, here: Any, arguments: Any, tiny: list[str], tmp_path_factory: Any) -> Callable[..., Path]:
    """Return a function that trains a run of one process, once for the same settings and number of towers."""
    made: dict[tuple[Any, ...], Path] = {}

    def run(*settings: str, towers: int = 1) -> Path:
        if (settings, towers) not in made:
            place = made[settings, towers] = tmp_path_factory.mktemp("alone") / "run"
            result = here(*arguments(corpus.prepared, place, *tiny, *TWENTY, *settings), "--towers", str(towers))
            assert result.status == 0, result.text
        return made[settings, towers]

    return run


def test_three_workers_make_the_run_and_the_scores_of_one_process_and_only_the_first_writes_anything(
        alone, corpus, workers, arguments, tiny, variables, tmp_path):
    run, unused, validated = tmp_path / "run", tmp_path / "unused", ["validation.steps=10", "validation.metric=loss"]
    ended_well(workers([arguments(corpus.prepared, place, *tiny, *TWENTY, *validated)
                        for place in (run, unused, unused)]))
    expected = alone(*validated)
    assert_near(variables(run / "checkpoints/step-20"), variables(expected / "checkpoints/step-20"))
    assert data_position(run, 20) == data_position(expected, 20)
    assert not unused.exists()
    scores, expected_scores = scores_of_validation(run), scores_of_validation(expected)
    assert [step for step, *_ in scores] == [step for step, *_ in expected_scores] == [10, 20]
    assert np.allclose(scores, expected_scores, rtol=1e-4)


def scores_of_validation(run: Path) -> list[list[float]]:
    """Return step, BLEU and loss of each validation."""
    rows = map(json.loads, (run / "log/stats.jsonl").read_text().splitlines())
    return [[row["global_step"], row["validation_bleu"], row["validation_loss"]]
            for row in rows if "validation_bleu" in row]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("count, towers, settings", [
    (2, 1, []), (2, 2, []), (2, 1, ["train.update_cycle=2"]), (2, 1, ["train.clip_norm=0.5"])])
def test_any_number_of_workers_towers_and_batches_makes_the_run_of_one_tower(
        alone, corpus, workers, arguments, tiny, variables, tmp_path, count, towers, settings):
    command = [*arguments(corpus.prepared, tmp_path / "run", *tiny, *TWENTY, *settings), "--towers", str(towers)]
    ended_well(workers([command] * count))
    expected = alone(*settings)
    assert_near(variables(tmp_path / "run/checkpoints/step-20"), variables(expected / "checkpoints/step-20"))
    assert data_position(tmp_path / "run", 20) == data_position(expected, 20)


@pytest.mark.slow
@pytest.mark.thorough
def test_with_dropout_workers_of_one_tower_make_the_run_of_one_process_with_as_many_towers(
        alone, corpus, workers, arguments, tiny, variables, tmp_path):
    dropout = "model.residual_dropout=0.3"      # drawn for each tower of the world
    ended_well(workers([arguments(corpus.prepared, tmp_path / "run", *tiny, *TWENTY, dropout)] * 2))
    assert_near(variables(tmp_path / "run/checkpoints/step-20"),
                variables(alone(dropout, towers=2) / "checkpoints/step-20"))


def test_a_worker_with_other_settings_is_refused_by_all_with_what_differs(corpus, workers, arguments, tiny, tmp_path):
    command = arguments(corpus.prepared, tmp_path / "run", *tiny, *TWENTY)
    for process in workers([command, [*command, "data.batch_tokens=128", "optimizer.learning_rate=0.02"]]):
        result = process.wait()
        assert result.status == 1
        assert "data.batch_tokens is 128 in worker 1 and 256 in worker 0" in result.the_error()
        assert "optimizer.learning_rate is 0.02 in worker 1 and 0.01 in worker 0" in result.the_error()


SAVED_OFTEN = ["optimizer.name=muon", "train.steps=48", "checkpoint.steps=8", "validation.steps=0",
               "model.residual_dropout=0.1"]


@pytest.fixture(scope="module")
def undisturbed(corpus: Any, module_start: Any, arguments: Any, tiny: list[str], tmp_path_factory: Any) -> Path:
    """Return the directory of an undisturbed run of two workers with dropout."""
    run = Path(tmp_path_factory.mktemp("undisturbed") / "run")
    ended_well(start_workers(module_start, [arguments(corpus.prepared, run, *tiny, *SAVED_OFTEN)] * 2))
    return run


@dataclass
class Loss:
    """The end of two workers of which one was lost, and the names of the checkpoints at that time."""

    lost: Any
    other: Any
    checkpoints: list[str]


@pytest.fixture(scope="module")
def lost_twice(corpus: Any, module_start: Any, arguments: Any, tiny: list[str], recording: Any, tmp_path_factory: Any
               ) -> tuple[Path, list[Loss]]:
    """Kill a worker after step 10, then the chief while the checkpoint of step 40 is written; then finish the run."""
    place = tmp_path_factory.mktemp("lost")
    run, losses = place / "run", []
    command = arguments(corpus.prepared, run, *tiny, *SAVED_OFTEN)

    def note(lost: Any, other: Any) -> None:
        ended = lost.wait()     # first, because a chief that nobody reads would wait
        losses.append(Loss(ended, other.wait(), [path.name for path in (run / "checkpoints").iterdir()]))

    chief, other = start_workers(module_start, [command] * 2)
    chief.wait_for("step 10,")
    other.send(signal.SIGKILL)
    note(other, chief)
    chief, other = start_workers(module_start, [command] * 2, {0: recording(place / "steps", "--die-writing", "40")})
    note(chief, other)
    ended_well(start_workers(module_start, [command] * 2))
    return run, losses


def test_when_a_worker_is_killed_the_other_names_it_and_saves_nothing_more(lost_twice):
    first = lost_twice[1][0]
    assert first.other.status == LOST
    assert "Worker 1 (127.0.0.1:" in first.other.the_error()
    assert "step-40" not in first.checkpoints       # it reads ahead of the log by about 24 lines at most
    assert not [name for name in first.checkpoints if name.startswith(".writing")]


def test_when_the_chief_dies_while_it_saves_the_others_end(lost_twice):
    second = lost_twice[1][1]
    assert second.lost.status == -signal.SIGKILL, second.lost.text
    assert second.other.status == LOST
    assert "Worker 0 (127.0.0.1:" in second.other.the_error()
    assert {"step-32", ".writing-step-40"} <= {*second.checkpoints} and "step-40" not in second.checkpoints


def test_after_both_losses_the_run_equals_the_undisturbed_one(lost_twice, undisturbed, variables):
    assert_same_bits(variables(lost_twice[0] / "checkpoints/step-48"), variables(undisturbed / "checkpoints/step-48"))


ENDLESS = [*NO_DROPOUT, "train.steps=1000000"]


@pytest.mark.slow       # to the others, it is as silent as one behind a cut of the network, here for the real limit
@pytest.mark.thorough
def test_a_worker_that_stands_still_is_found_long_before_the_timeout(corpus, workers, arguments, tiny, tmp_path):
    chief, other = workers([arguments(corpus.prepared, tmp_path / "run", *tiny, *ENDLESS)] * 2)
    chief.wait_for("step 10,")
    other.send(signal.SIGSTOP)
    result = chief.wait()
    assert result.status == LOST
    assert re.search(r"Worker 1 \(127.0.0.1:\d+\) has not answered for 12 s: ", result.the_error())


@pytest.mark.thorough
def test_a_cut_of_the_network_ends_both_sides_long_before_the_timeout(corpus, workers, arguments, tiny, tmp_path):
    wires: list[Wire] = []

    def by_wire(index: int, addresses: list[str]) -> list[str]:
        wires.append(Wire(addresses[1 - index]))
        return [address if i == index else wires[-1].address for i, address in enumerate(addresses)]

    program = [Path(__file__).with_name("impatient_train.py")]
    both = workers([arguments(corpus.prepared, tmp_path / "run", *tiny, *ENDLESS)] * 2, dict.fromkeys((0, 1), program),
                   by_wire)
    threads = Path(f"/proc/{both[0].popen.pid}/task")
    both[0].wait_for("step 20,")
    at_first = len([*threads.iterdir()])
    both[0].wait_for("step 80,")
    assert len([*threads.iterdir()]) < at_first + 30        # no step leaves a thread
    for wire in wires:
        wire.cut()
    for process, lost in zip(both, (1, 0), strict=True):
        result = process.wait()
        assert result.status == LOST
        assert re.search(r"Port \d+ accepts connections at 127.0.0.1, and at no other address", result.text)
        assert re.search(rf"Worker {lost} \(127.0.0.1:\d+\) has not answered for 6 s: ", result.the_error())


class Wire:
    """Forwards bytes to an address and back until it is cut; then it forwards nothing more and closes nothing."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def cut(self) -> None:
        self._cut.set()

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=run, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        host, _, port = self._to.rpartition(":")
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:     # not begun yet
                near.close()
                continue
            self._start(self._carry, near, far)
            self._start(self._carry, far, near)

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):     # one of the processes has ended
            while data := here.recv(1 << 16):
                if not self._cut.is_set():
                    there.sendall(data)
        if not self._cut.is_set():
            with suppress(OSError):
                there.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
def test_a_run_goes_on_with_other_numbers_of_workers(alone, corpus, workers, arguments, tiny, variables, tmp_path):
    run = tmp_path / "run"
    for steps, count in (("5", 3), ("10", 2), ("15", 1), ("20", 3)):
        ended_well(workers([arguments(corpus.prepared, run, *tiny, *TWENTY, f"train.steps={steps}")] * count))
    assert_near(variables(run / "checkpoints/step-20"), variables(alone() / "checkpoints/step-20"))
    assert data_position(run, 20) == data_position(alone(), 20)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_chief_alone_averages_at_the_end(corpus, workers, arguments, tiny, tmp_path):
    command = arguments(corpus.prepared, tmp_path / "run", *tiny, "train.steps=20", "checkpoint.steps=5",
                        "validation.steps=10", "checkpoint.average=2")
    chief, other = (process.wait() for process in workers([command] * 2))
    assert (chief.status, other.status) == (0, 0), chief.text + other.text
    assert "Averaging the last 2 checkpoints: " in chief.output and "Averaging" not in other.output
    assert json.loads((tmp_path / "run/averaged/record.json").read_text())["compared_step"] == 20


@pytest.mark.thorough
@pytest.mark.parametrize(("to", "number"), [
    pytest.param(0, signal.SIGTERM, marks=pytest.mark.slow), (1, signal.SIGINT),
    pytest.param(0, signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_to_one_worker_ends_all_after_the_same_step_with_its_status(
        corpus, workers, arguments, tiny, tmp_path, number, to):
    command = arguments(corpus.prepared, tmp_path / "run", *tiny, *NO_DROPOUT, "train.steps=100000")
    chief, other = workers([command] * 2)
    chief.wait_for("step 5,")
    (chief, other)[to].send(number)
    result, others = chief.wait(), other.wait()
    assert (result.status, others.status) == (128 + number,) * 2, result.text + others.text
    assert "another process ended training" in (others.output, result.output)[to]
    assert "Translate with it" not in result.output + others.output
    assert len([*(tmp_path / "run/checkpoints").glob("step-*")]) == 2       # the first, and the last


@pytest.mark.thorough
def test_a_port_that_is_taken_is_one_sentence(corpus, start, arguments, tiny, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("TF_CONFIG", json.dumps({
            "cluster": {"worker": [f"127.0.0.1:{port}", *free_addresses(1)]}, "task": {"type": "worker", "index": 0}}))
        result = start(*arguments(corpus.prepared, tmp_path / "run", *tiny, *TWENTY)).wait()
    assert result.status == 1
    assert f"Port {port} of this worker" in result.the_error()


def patient(processes: list[Any]) -> list[Any]:
    for process in processes:
        process.take_minutes()
    return processes


@pytest.mark.slow
def test_a_run_of_three_workers_of_which_one_is_killed_thirty_times_equals_the_undisturbed_one(
        corpus, workers, arguments, tiny, variables, tmp_path):
    settings = [*SAVED_OFTEN, "train.steps=600", "checkpoint.steps=10"]
    expected, run, draw = tmp_path / "undisturbed", tmp_path / "run", random.Random(5)
    seconds: list[float] = []
    ended_well(patient(workers([arguments(corpus.prepared, expected, *tiny, *settings)] * 3)))
    command = arguments(corpus.prepared, run, *tiny, *settings)
    for _ in range(30):
        started = workers([command] * 3)
        for _ in range(draw.randint(1, 20)):
            started[0].wait_for(r"step \d+,")
        killed = draw.choice(started)
        killed.send(signal.SIGKILL)
        at = time.monotonic()
        statuses = [process.wait().status for process in started if process is not killed]
        seconds.append(time.monotonic() - at)
        print(f"the others ended {seconds[-1]:.1f} s after the kill of worker {started.index(killed)}", flush=True)
        assert statuses == [75, 75]
        killed.wait()
    ended_well(patient(workers([command] * 3)))
    assert_same_bits(variables(run / "checkpoints/step-600"), variables(expected / "checkpoints/step-600"))
    assert max(seconds) < 10
