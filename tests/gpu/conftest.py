"""The fake GPUs' library, built once for each version of its sources, and programs on machines with such GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import fake_gpu
from tests.program_process import Process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> Path:
    """Return the library's path; skip the test where it cannot be built."""
    if fake_gpu.compiler() is None:
        pytest.skip("the fake GPUs need a C++ compiler")
    cache = getattr(pytestconfig, "cache", None)
    folder = Path(str(cache.mkdir("fake_gpu")))
    return fake_gpu.build(folder)


@pytest.fixture(scope="module")
def start(library: Path, next_server: Callable[[], Any]) -> Iterator[Callable[..., Process]]:
    """Return `start(cards, command, **variables)`, which starts a Python program on a machine with fake GPUs.

    It is a fork of a process that has imported TensorFlow. `variables` are further environment variables.
    """
    started: list[Process] = []

    def start(cards: int, command: list[str | Path], directory: Path = ROOT, **variables: str) -> Process:
        with pytest.MonkeyPatch.context() as patch:
            environment = fake_gpu.environment(library, cards, **variables)
            if "CUDA_VISIBLE_DEVICES" not in environment:
                patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            started.append(Process(command, directory, next_server()))
        started[-1].take_minutes()
        return started[-1]

    yield start
    for process in started:
        process.end()


def wait_for_all(processes: list[Process]) -> None:
    """Wait for processes whose output is read at the same time, and assert that none of them fails."""
    with ThreadPoolExecutor(len(processes)) as pool:
        for result in pool.map(Process.wait, processes):
            assert result.status == 0, result.text
