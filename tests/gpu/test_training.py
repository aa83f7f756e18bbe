"""Training on fake GPUs gives the weights of CPU towers, and copies little except batches, weights and gradients."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.gpu import fake_gpu
from tests.gpu.training import COUNTED, LENGTH, ROWS, Case, write_cases

pytestmark = pytest.mark.thorough

SMALL = 8 * 1024
"""Largest small copy, in bytes. Hidden states and logits of a batch, weights and gradients are larger."""
ARCHITECTURES = ("transformer", "seq2seq", "rnnsearch", "convs2s")
PRECISIONS = ("float32", "bfloat16", "float16")
TWO, FOUR = (0, 1), (0, 1, 2, 3)
CASES = [
    *(Case(architecture, precision=precision) for architecture in ARCHITECTURES for precision in PRECISIONS),
    *(Case(architecture, TWO, collectives="ring") for architecture in ARCHITECTURES if architecture != "rnnsearch"),
    Case(gpus=FOUR, collectives="ring"),
    Case(update_cycle=3), Case(gpus=TWO, update_cycle=3, collectives="ring"),
    Case(gpus=TWO, staging=False, collectives="ring"),
    Case(gpus=TWO, collectives="sum"),
    Case(gpus=TWO, optimizer="adafactor", collectives="ring"),
    Case(model={"tie_embeddings": "none"}),
    Case(recompute=True), Case(deterministic=False),
]
"""Towers on several cards add their gradients by TensorFlow's ring, in place of NCCL; `test_collectives` has more."""
IDS = [case.name for case in CASES]


@pytest.fixture(scope="module")
def trained(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results of all cases: `gpu/` of fake GPUs, `cpu/` of CPU towers."""
    folder = tmp_path_factory.mktemp("trained")
    write_cases(folder / "cases.json", CASES)
    programs = []
    for name, cards in (("gpu", len(FOUR)), ("cpu", 0)):
        (folder / name).mkdir()
        programs.append(subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.training", str(folder / "cases.json"), str(folder / name)],
            env=fake_gpu.environment(library, cards), cwd=Path(__file__).parents[2]))
    assert [program.wait() for program in programs] == [0, 0]
    return folder


def counts(folder: Path, case: Case) -> fake_gpu.Counts:
    """Return what the cards of a case did in the counted steps."""
    return fake_gpu.parse((folder / "gpu" / f"{case.name}.tsv").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_final_variables_are_those_of_cpu_towers(trained: Path, case: Case) -> None:
    on_gpus, on_cpu = (fake_gpu.read_arrays(trained / place / f"{case.name}.npz") for place in ("gpu", "cpu"))
    assert on_gpus.keys() == on_cpu.keys()
    assert not counts(trained, case).missing
    # The narrow types round differently in the sums of several threads.
    largest, share = (1e-5, 1e-4) if case.precision == "float32" else (1e-4, 0.05)      # of weights, and of moments
    far = {}
    for name, value in on_gpus.items():
        distance = float(np.abs(value.astype(np.float64) - on_cpu[name]).max()) if value.size else 0.0
        if distance > (largest if name.startswith("weights/") else 1e-6 + share * float(np.abs(on_cpu[name]).max())):
            far[name] = distance
    assert far == {}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_card_makes_few_small_copies(trained: Path, case: Case) -> None:
    copies = [copy for copy in counts(trained, case).copies if copy.size <= SMALL * copy.times]
    for card in map(str, case.gpus):
        ends = sum(copy.times for copy in copies if card in (copy.source, copy.target)
                   and fake_gpu.HOST in (copy.source, copy.target))
        assert ends <= 30 * COUNTED * case.update_cycle


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_host_and_a_card_exchange_nothing_large_but_the_batch(trained: Path, case: Case) -> None:
    """`test_collectives` counts what the cards exchange."""
    large = [copy for copy in counts(trained, case).copies if copy.size > SMALL * copy.times]
    batch = f"[{math.ceil(ROWS / len(case.gpus))},{LENGTH}]"
    assert [copy for copy in large if fake_gpu.HOST in (copy.source, copy.target) and copy.shape != batch] == []


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_nothing_happens_on_a_card_that_was_not_chosen(trained: Path, case: Case) -> None:
    assert counts(trained, case).cards() == set(map(str, case.gpus))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_gradient_is_scattered(trained: Path, case: Case) -> None:
    """With deterministic kernels, TensorFlow computes `ScatterNd` of a GPU on the host."""
    assert [kernel.name for kernel in counts(trained, case).kernels if kernel.type == "ScatterNd"] == []


def test_a_card_that_is_not_the_first_does_all_the_work(library: Path, tmp_path: Path) -> None:
    """TensorFlow numbers its devices once in a process, so this needs a separate process."""
    case = Case(gpus=(3, 1))
    write_cases(tmp_path / "cases.json", [case])
    (tmp_path / "gpu").mkdir()
    subprocess.run([sys.executable, "-m", "tests.gpu.training", str(tmp_path / "cases.json"), str(tmp_path / "gpu")],
                   env=fake_gpu.environment(library, 4), cwd=Path(__file__).parents[2], check=True)
    assert fake_gpu.read_arrays(tmp_path / "gpu" / f"{case.name}.npz")
    assert counts(tmp_path, case).cards() == {"1", "3"}
