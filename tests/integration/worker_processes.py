"""Processes of several workers, and comparisons of their runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.free_ports import free_ports

MAX_DIFFERENCE = 1e-5
"""Largest difference of a parameter that another order of sums makes, relative to the largest of its variable."""


def free_addresses(count: int) -> list[str]:
    """Return different addresses whose ports are free."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def start_workers(start: Callable[..., Any], arguments: list[list[Any]], programs: dict[int, Any] | None = None,
                  seen: Callable[[int, list[str]], list[str]] = lambda _, addresses: addresses) -> list[Any]:
    """Start a process for each worker, and return the processes.

    Args:
        start: starts one process, as the fixture `start` does.
        arguments: arguments of each worker.
        programs: programs of some workers, as `start` takes them.
        seen: returns the addresses of all workers as one worker knows them.
    """
    addresses, started = free_addresses(len(arguments)), []
    with pytest.MonkeyPatch.context() as patch:
        for index, of_worker in enumerate(arguments):
            patch.setenv("TF_CONFIG", json.dumps({
                "cluster": {"worker": seen(index, addresses)}, "task": {"type": "worker", "index": index}}))
            others = {"program": programs[index]} if programs and index in programs else {}
            started.append(start(*of_worker, **others))
    return started


def ended_well(processes: list[Any]) -> None:
    """Wait for the end of processes, and assert that none of them has failed."""
    for process in processes:
        result = process.wait()
        assert result.status == 0, result.text


def assert_near(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Assert that variables are equal up to the order of sums."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        if value.dtype.kind == "f":
            difference = np.max(np.abs(found[name] - value), initial=0)
            assert difference <= MAX_DIFFERENCE * max(1e-3, np.max(np.abs(value), initial=0)), name
        else:
            assert np.array_equal(found[name], value), name


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Assert that variables are equal to the last bit."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def data_position(run: Path, step: int) -> Any:
    """Return the data position of a checkpoint."""
    return json.loads((run / f"checkpoints/step-{step}/state.json").read_text())["position"]
