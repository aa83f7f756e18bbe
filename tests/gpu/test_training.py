"""Training on fake GPUs gives the weights of CPU towers, and copies little besides batches, weights and gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.gpu import fake_gpu
from tests.gpu.training import COUNTED, Case, write_cases

pytestmark = pytest.mark.thorough

SMALL = 8 * 1024
"""Largest small copy, in bytes. Hidden states and logits of a batch are larger."""

CASES = [Case(), Case(gpus=(0, 1))]
IDS = [case.name for case in CASES]


@pytest.fixture(scope="module")
def trained(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results of all cases: `gpu/` of fake GPUs, `cpu/` of CPU towers."""
    folder = tmp_path_factory.mktemp("trained")
    write_cases(folder / "cases.json", CASES)
    programs = []
    for name, cards in (("gpu", 4), ("cpu", 0)):
        (folder / name).mkdir()
        environment = fake_gpu.environment(library, cards)
        if not cards:
            del environment[fake_gpu.LIBRARY]
        programs.append(subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.training", str(folder / "cases.json"), str(folder / name)],
            env=environment, cwd=Path(__file__).parents[2]))
    assert [program.wait() for program in programs] == [0, 0]
    return folder


def variables(folder: Path, case: Case) -> dict[str, np.ndarray]:
    """Return the final variables of a case."""
    error = folder / f"{case.name}.error"
    assert not error.exists(), error.read_text(encoding="utf-8")
    with np.load(folder / f"{case.name}.npz") as arrays:
        return {name.replace("|", "/"): arrays[name] for name in arrays.files}


def counts(folder: Path, case: Case) -> fake_gpu.Counts:
    """Return what the cards of a case did in the counted steps."""
    return fake_gpu.parse((folder / "gpu" / f"{case.name}.tsv").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_final_variables_are_those_of_cpu_towers(trained: Path, case: Case) -> None:
    on_gpus, on_cpu = variables(trained / "gpu", case), variables(trained / "cpu", case)
    assert on_gpus.keys() == on_cpu.keys()
    assert not counts(trained, case).missing
    far = {name: float(np.abs(value - on_cpu[name]).max()) for name, value in on_gpus.items() if value.size}
    assert {name: distance for name, distance in far.items() if distance > 1e-5} == {}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_card_makes_few_small_copies(trained: Path, case: Case) -> None:
    copies = [copy for copy in counts(trained, case).copies if copy.size <= SMALL * copy.times]
    for card in map(str, case.gpus):
        ends = sum(copy.times for copy in copies if card in (copy.source, copy.target)
                   and fake_gpu.HOST in (copy.source, copy.target))
        assert ends <= 30 * COUNTED * case.update_cycle


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_nothing_happens_on_a_card_that_was_not_chosen(trained: Path, case: Case) -> None:
    assert counts(trained, case).cards() == set(map(str, case.gpus))


@pytest.mark.xfail(strict=True, reason="the gradient of the cross-entropy's tf.gather_nd")
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_gradient_is_scattered(trained: Path, case: Case) -> None:
    """With deterministic kernels, TensorFlow computes `ScatterNd` of a GPU on the host."""
    assert [kernel.name for kernel in counts(trained, case).kernels if kernel.type == "ScatterNd"] == []
