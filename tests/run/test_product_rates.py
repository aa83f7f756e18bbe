"""The measurement of matrix products in a separate process."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import pytest

from towernmt.run import product_rates


@pytest.mark.parametrize(("gpus", "visible", "device"), [
    (None, None, "-1"), (None, "0,1", "-1"), ([], None, "-1"), ([3], None, "3"), ([1, 0], "5,7", "7"),
    ([0], "GPU-8f, GPU-9a", "GPU-8f"), ([4], "5,7", "4"), ([0], "", "0")])
def test_the_device_that_is_measured_is_the_one_that_trains(gpus, visible, device):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert product_rates.visible_device(gpus, environment) == device


def test_the_measurement_sees_that_device_alone(monkeypatch):
    seen = []
    monkeypatch.setattr(subprocess, "run", lambda *_, env, **__: seen.append(env) or SimpleNamespace(
        stdout='{"float32": 1, "bfloat16": 2}'))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert product_rates.product_rates([1]).gain == product_rates.product_rates().gain == 2
    assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == ["5", "-1"]
    assert all(env["PATH"] for env in seen)


@pytest.mark.processes
def test_a_real_measurement_has_the_rates_of_a_processor(start_program):
    result = start_program("import runpy\nrunpy.run_module('towernmt.run.product_rates', run_name='__main__')").wait()
    assert result.status == 0, result.text
    rates = product_rates.ProductRates(**json.loads(result.output.splitlines()[-1]))
    assert 1e8 < rates.float32 < 1e15 and 1e8 < rates.bfloat16 < 1e15       # operations per second


@pytest.mark.parametrize("output", ["", "nonsense", "[1]", '{"float32": 1}'])
def test_rates_are_unknown_if_the_measurement_prints_something_else(monkeypatch, caplog, output):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=output))
    assert product_rates.product_rates() is None
    assert "The speed of matrix products cannot be measured (" in caplog.text


@pytest.mark.parametrize(("stderr", "reason"), [
    ("Traceback\nImportError: no TensorFlow\n", "ImportError: no TensorFlow"),
    ("", "Command 'python' returned non-zero exit status 1."), (None, "Command 'python' returned")])
def test_a_measurement_that_fails_reports_its_reason(monkeypatch, caplog, stderr, reason):
    def run(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "python", stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    assert product_rates.product_rates() is None
    assert f"The speed of matrix products cannot be measured ({reason}" in caplog.text
