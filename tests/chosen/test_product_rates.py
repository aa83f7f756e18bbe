"""The measurement of products, in a process."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from towernmt.chosen import product_rates


@pytest.mark.processes
def test_rates_are_those_of_a_processor():
    rates = product_rates.product_rates()
    assert rates is not None
    assert 1e8 < rates.float32 < 1e15 and 1e8 < rates.bfloat16 < 1e15


@pytest.mark.parametrize("output", ["", "nonsense", "[1]", '{"float32": 1}'])
def test_what_cannot_be_measured_is_not_known(monkeypatch, output):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=output))
    assert product_rates.product_rates() is None


def test_a_measurement_that_fails_is_not_known(monkeypatch):
    def run(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "python")

    monkeypatch.setattr(subprocess, "run", run)
    assert product_rates.product_rates() is None
