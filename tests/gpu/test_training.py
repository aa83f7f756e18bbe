"""Training on fake GPUs gives the weights of CPU towers, and copies little except batches, weights and gradients.

The fake GPUs use TensorFlow's ring of copies in place of NCCL: the graph differs only in the name of the transport.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu import fake_gpu
from tests.gpu.conftest import wait_for_all
from tests.gpu.plain_runs import RUNS
from tests.gpu.training import COUNTED, LENGTH, ROWS, Case, write_cases

pytestmark = pytest.mark.thorough

SMALL = 8 * 1024
"""Largest small copy, in bytes. Hidden states and logits of a batch, weights and gradients are larger."""
ARCHITECTURES = ("transformer", "seq2seq", "rnnsearch", "convs2s")
CARDS = 4
"""Fake GPUs of the program that trains the cases."""
TWO, THREE = (0, 1), (0, 1, 2)
PROGRAM = ["-m", "tests.gpu.training"]
SLOW = [
    *(Case(architecture, precision=precision) for architecture in ARCHITECTURES if architecture != "transformer"
      for precision in ("float32", "bfloat16", "float16")),
    Case(precision="bfloat16"), Case(precision="float16"), Case(update_cycle=3),
    Case(gpus=TWO, optimizer="adafactor", collectives="ring"), Case(gpus=TWO, staging=False, collectives="ring"),
    Case(gpus=TWO, collectives="sum"), Case("seq2seq", TWO, collectives="ring"), Case(deterministic=False),
    Case(model={"tie_embeddings": "none"}), Case(recompute=True), Case(gpus=TWO, collectives="ring"),
    Case("convs2s", TWO, collectives="ring"), Case(gpus=TWO, staging=False, deterministic=False, collectives="sum"),
]
"""Cases that differ in one option, or in options that another case combines with others; except for Adafactor and
seq2seq. RNNSearch on two GPUs has the same recurrent layers as seq2seq."""
CASES = [Case(), Case("convs2s", TWO, staging=False, deterministic=False, collectives="sum"), *SLOW]
EXCHANGES = [
    Case(gpus=TWO, collectives="ring", precision="bfloat16", recompute=True),
    Case(gpus=TWO, collectives="ring", precision="float16"),
    Case(gpus=TWO, collectives="ring", update_cycle=3, ema_decay=0.9, optimizer="muon"),
    Case(gpus=(2, 0), collectives="ring", optimizer="lazyadam", model={"tie_embeddings": "none"}),
    Case("rnnsearch", gpus=THREE, collectives="ring", model={"tie_embeddings": "none"}),
]
"""Cases that count what the cards exchange."""
ALL = [*CASES, *EXCHANGES]
DISTANCES = {"float32": 1e-5, "float16": 3e-4, "bfloat16": 3e-4}
"""Largest distance from the variables of CPU towers. In bfloat16, gradients are rounded to 8 bits to be sent."""
SCALARS = 64
"""Bytes between two cards in a batch that are not gradients, such as the learning rate and the loss."""


def parameters(cases: list[Case]) -> list[Any]:
    """Return the cases with their names and marks."""
    return [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case in SLOW)) for case in cases]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
            ) -> Path:
    """Return the folder with the results of the cases of the selected tests, and of all runs.

    It has the folders `gpu`, of fake GPUs, and `cpu`, of CPU towers.
    """
    folder = tmp_path_factory.mktemp("trained")
    selected = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    chosen = [test.params["case"] for test in selected if test is not None and "case" in test.params]
    programs = []
    for place, cards, cases in (("gpu", CARDS, chosen), ("cpu", 0, list(map(Case.on_cpu, chosen)))):
        cases = list({case.name: case for case in cases}.values())
        (folder / place).mkdir()
        write_cases(folder / f"{place}.json", cases)
        programs.append(start(cards, [*PROGRAM, folder / f"{place}.json", folder / place, *RUNS]))
    wait_for_all(programs)
    return folder


def arrays(folder: Path, case: Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the final variables of a case on GPUs and on CPU towers, which have the same names."""
    on_gpus = fake_gpu.read_arrays(folder / "gpu" / f"{case.name}.npz")
    on_cpu = fake_gpu.read_arrays(folder / "cpu" / f"{case.on_cpu().name}.npz")
    assert on_gpus.keys() == on_cpu.keys()
    return on_gpus, on_cpu


def distances(on_gpus: dict[str, np.ndarray], on_cpu: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the largest distance between the values of each variable."""
    return {name: float(np.abs(value.astype(float) - on_cpu[name].astype(float)).max(initial=0.0))
            for name, value in on_gpus.items()}


def far_variables(on_gpus: dict[str, np.ndarray], on_cpu: dict[str, np.ndarray], of_weights: float,
                  of_moments: Callable[[float], float]) -> dict[str, float]:
    """Return the distances above the limit of weights, or above that of moments, which depends on their size."""
    return {name: distance for name, distance in distances(on_gpus, on_cpu).items() if distance > (
        of_weights if name.startswith("weights/") else of_moments(float(np.abs(on_cpu[name]).max(initial=0.0))))}


def counts(folder: Path, case: Case) -> fake_gpu.Counts:
    """Return what the cards of a case did in the counted steps."""
    return fake_gpu.parse((folder / "gpu" / f"{case.name}.tsv").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", parameters(CASES))
def test_final_variables_are_those_of_cpu_towers(trained: Path, case: Case) -> None:
    on_gpus, on_cpu = arrays(trained, case)
    assert not counts(trained, case).missing
    # The narrow types round differently in the sums of several threads.
    largest, share = (1e-5, 1e-4) if case.precision == "float32" else (1e-4, 0.05)      # of weights, and of moments
    assert far_variables(on_gpus, on_cpu, largest, lambda size: 1e-6 + share * size) == {}


@pytest.mark.parametrize("case", parameters(ALL))
def test_a_card_makes_few_small_copies(trained: Path, case: Case) -> None:
    copies = [copy for copy in counts(trained, case).copies if copy.size <= SMALL * copy.times]
    for card in map(str, case.gpus):
        ends = sum(copy.times for copy in copies if card in (copy.source, copy.target)
                   and fake_gpu.HOST in (copy.source, copy.target))
        assert ends <= 30 * COUNTED * case.update_cycle


@pytest.mark.parametrize("case", parameters(ALL))
def test_the_host_and_a_card_exchange_nothing_large_but_the_batch(trained: Path, case: Case) -> None:
    large = [copy for copy in counts(trained, case).copies if copy.size > SMALL * copy.times]
    batch = f"[{math.ceil(ROWS / len(case.gpus))},{LENGTH}]"
    assert [copy for copy in large if fake_gpu.HOST in (copy.source, copy.target) and copy.shape != batch] == []


@pytest.mark.parametrize("case", parameters(ALL))
def test_nothing_happens_on_a_card_that_was_not_chosen(trained: Path, case: Case) -> None:
    assert counts(trained, case).cards() == set(map(str, case.gpus))


@pytest.mark.parametrize("case", parameters(ALL))
def test_no_gradient_is_scattered(trained: Path, case: Case) -> None:
    """With deterministic kernels, TensorFlow computes `ScatterNd` of a GPU on the host."""
    assert [kernel.name for kernel in counts(trained, case).kernels if kernel.type == "ScatterNd"] == []


@pytest.mark.parametrize("case", parameters(EXCHANGES))
def test_variables_have_the_names_and_values_of_cpu_towers(trained: Path, case: Case) -> None:
    on_gpus, on_cpu = arrays(trained, case)
    share = 0.0 if case.precision == "float32" else 0.05     # of moments, whose rounding is relative to their size
    limit = DISTANCES[case.precision]
    assert far_variables(on_gpus, on_cpu, limit, lambda size: max(limit, share * size)) == {}


@pytest.mark.parametrize("case", parameters(EXCHANGES))
def test_each_update_sends_the_gradients_once_and_no_weights(trained: Path, case: Case) -> None:
    slots = ("Adam", "Muon", "ExponentialMovingAverage", "power", "loss_scale", "random_clock", "global_step",
             "learning_rate")
    weights = sum(value.size for name, value in arrays(trained, case)[0].items()
                  if not any(slot in name for slot in slots))
    width, others = (2 if case.precision == "bfloat16" else 4), len(case.gpus) - 1
    rows = 2 * 1200 if case.optimizer == "lazyadam" else 0     # counts of the rows of two tables
    sent = sum(copy.size for copy in counts(trained, case).copies
               if fake_gpu.HOST not in (copy.source, copy.target) and copy.source != copy.target) / COUNTED
    at_most = 2 * others * (weights + rows) * width + others * case.update_cycle * SCALARS
    assert 2 * others * weights * width <= sent <= at_most


@pytest.mark.parametrize("name", RUNS)
def test_runs_that_resume_end_or_fail_within_an_update_train_as_on_the_cpu(trained: Path, name: str) -> None:
    on_gpus, on_cpu = (fake_gpu.read_arrays(trained / place / f"{name}.npz") for place in ("gpu", "cpu"))
    assert on_gpus.keys() == on_cpu.keys()
    assert {key: distance for key, distance in distances(on_gpus, on_cpu).items() if distance > 1e-5} == {}


@pytest.mark.slow
def test_a_card_that_is_not_the_first_does_all_the_work(start: Callable[..., Any], tmp_path: Path) -> None:
    """TensorFlow numbers its devices once in a process, so this needs a separate process."""
    case = Case(gpus=(3, 1))
    write_cases(tmp_path / "cases.json", [case])
    (tmp_path / "gpu").mkdir()
    wait_for_all([start(4, [*PROGRAM, tmp_path / "cases.json", tmp_path / "gpu"])])
    assert fake_gpu.read_arrays(tmp_path / "gpu" / f"{case.name}.npz")
    assert counts(tmp_path, case).cards() == {"1", "3"}
