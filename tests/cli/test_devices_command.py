"""`towernmt devices` without a GPU, and with stubs of CUDA's libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.cuda_stubs import DRIVER, build_stub, needs_compiler, run_with
from towernmt.cli.main import main

RUN = """import sys
import towernmt.core.gpus as gpus
gpus.has_gpu_driver = lambda *root: True
from towernmt.cli.main import main
sys.exit(main(["devices", *{options}]))"""


def test_without_a_gpu_the_reason_is_printed(capsys):
    assert main(["devices"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("towernmt ") and ", TensorFlow 2." in shown[0]
    assert any(line.startswith("No GPU: ") and line.endswith(".") for line in shown)
    assert shown[-1].startswith("CPU: ")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("system")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        build_stub(folder, name, DRIVER)
    for name in ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusparse.so.12",
                 "libcudnn.so.9"):
        build_stub(folder, name)
    return folder


@needs_compiler
@pytest.mark.processes
def test_gpus_are_listed_with_their_capabilities_and_the_messages_of_tensorflow(system, tmp_path):
    build_stub(tmp_path / "nvidia/cusolver/lib", "libcusolver.so.11")
    shown = run_with(RUN.format(options=["--verbose"]), system, [tmp_path], STUB_GPUS="2", STUB_CAPABILITY="120")
    assert "GPU 1: Stub 1, compute capability 12.0, bfloat16 and TF32, 80.0 GiB\n  Warning: " in shown
    assert "No GPU" not in shown and "supports CUDA 12.4" in shown
    assert "kernel binaries compatible with compute capability 12.0" in shown.partition("TensorFlow reports:")[2]


@needs_compiler
@pytest.mark.slow       # test_gpus has the reason, and the test above the messages of TensorFlow
@pytest.mark.processes
def test_a_missing_library_is_named_and_tensorflows_message_shown(system):
    shown = run_with(RUN.format(options=[]), system)
    assert "No GPU: the GPU is there, but CUDA's libraries are missing (libcusolver.so.11)" in shown
    assert "Cannot dlopen some GPU libraries" in shown.partition("TensorFlow reports:")[2]
