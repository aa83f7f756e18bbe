"""Towers on several fake GPUs exchange nothing but gradients, once per update, and train as CPU towers do.

The fake GPUs use TensorFlow's ring of copies in place of NCCL: the graph differs only in the name of the transport.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.gpu import fake_gpu
from tests.gpu.plain_runs import RUNS
from tests.gpu.training import COUNTED, Case, write_cases

pytestmark = pytest.mark.thorough

CASES = [
    Case(gpus=(0, 1), collectives="ring", precision="bfloat16", recompute=True),
    Case(gpus=(0, 1), collectives="ring", precision="float16", ema_decay=0.9),
    Case(gpus=(0, 1, 2, 3), collectives="ring", update_cycle=3, ema_decay=0.9, optimizer="muon"),
    Case(gpus=(2, 0), collectives="ring", optimizer="lazyadam", model={"tie_embeddings": "none"}),
    Case("rnnsearch", gpus=(0, 1), collectives="ring", model={"tie_embeddings": "none"}),
]
IDS = [case.name for case in CASES]
DISTANCES = {"float32": 1e-5, "float16": 3e-4, "bfloat16": 3e-4}
"""Largest distance from the variables of CPU towers. In bfloat16, gradients are rounded to 8 bits to be sent."""
SCALARS = 64
"""Bytes between two cards in a batch that are not gradients, such as the learning rate and the loss."""


def run_twice(module: str, library: Path, folder: Path, arguments: Sequence[str] = ()) -> None:
    """Run a module on fake GPUs and on CPU towers; its last argument is `folder/gpu` or `folder/cpu`."""
    programs = []
    for name, cards in (("gpu", 4), ("cpu", 0)):
        (folder / name).mkdir()
        programs.append(subprocess.Popen([sys.executable, "-m", module, *arguments, str(folder / name)],
                                         env=fake_gpu.environment(library, cards), cwd=Path(__file__).parents[2]))
    assert [program.wait() for program in programs] == [0, 0]


def assert_near(folder: Path, name: str, largest: float) -> None:
    """Assert that the variables on GPUs and on the CPU have the same names and nearly the same values."""
    on_gpus, on_cpu = (fake_gpu.read_arrays(folder / place / f"{name}.npz") for place in ("gpu", "cpu"))
    assert on_gpus.keys() == on_cpu.keys()
    far = {key: float(np.abs(value.astype(float) - on_cpu[key].astype(float)).max(initial=0.0))
           for key, value in on_gpus.items()}
    assert {key: distance for key, distance in far.items() if distance > largest} == {}


@pytest.fixture(scope="module")
def trained(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results of all cases."""
    folder = tmp_path_factory.mktemp("collectives")
    write_cases(folder / "cases.json", CASES)
    run_twice("tests.gpu.training", library, folder, [str(folder / "cases.json")])
    return folder


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_variables_have_the_names_and_values_of_cpu_towers(trained: Path, case: Case) -> None:
    assert_near(trained, case.name, DISTANCES[case.precision])


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_each_update_sends_the_gradients_once_and_no_weights(trained: Path, case: Case) -> None:
    slots = ("Adam", "Muon", "ExponentialMovingAverage", "power", "loss_scale", "random_clock", "global_step",
             "learning_rate")
    weights = sum(value.size for name, value in fake_gpu.read_arrays(
        trained / "gpu" / f"{case.name}.npz").items()
                  if not any(slot in name for slot in slots))
    width, others = (2 if case.precision == "bfloat16" else 4), len(case.gpus) - 1
    rows = 2 * 1200 if case.optimizer == "lazyadam" else 0     # counts of the rows of two tables
    counts = fake_gpu.parse((trained / "gpu" / f"{case.name}.tsv").read_text(encoding="utf-8"))
    sent = sum(copy.size for copy in counts.copies
               if fake_gpu.HOST not in (copy.source, copy.target) and copy.source != copy.target) / COUNTED
    at_most = 2 * others * (weights + rows) * width + others * case.update_cycle * SCALARS
    assert 2 * others * weights * width <= sent <= at_most
    assert counts.cards() == set(map(str, case.gpus))


@pytest.fixture(scope="module")
def plain(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results of the runs of a small model."""
    folder = tmp_path_factory.mktemp("plain_runs")
    run_twice("tests.gpu.plain_runs", library, folder)
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_runs_that_resume_end_or_fail_within_an_update_train_as_on_the_cpu(plain: Path, name: str) -> None:
    assert_near(plain, name, 1e-5)
