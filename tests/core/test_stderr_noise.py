"""Standard error without TensorFlow's lines: the lines that pass, and the descriptor afterwards."""

import os
import subprocess
import sys
import tempfile

import pytest

from towernmt.core.standard_streams import NOISE, without_noise

PROGRAM = """
import os, sys
from towernmt.core.standard_streams import without_noise
with without_noise():
    os.write(2, b"I0000 00:00:1 port.cc:153] noise\\nof a library\\n")
    print("of Python", file=sys.stderr)
os.write(2, b"I0000 00:00:1 after it\\n")
"""


def test_lines_of_tensorflow_are_dropped_while_it_is_active_and_all_others_pass():
    said = subprocess.run([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True, check=True).stderr
    assert sorted(said.splitlines()) == ["I0000 00:00:1 after it", "of Python", "of a library"]


def test_a_log_handler_of_the_block_writes_after_it_too():
    program = """
import logging
from towernmt.core.standard_streams import without_noise
with without_noise():
    handler = logging.StreamHandler()
handler.emit(logging.makeLogRecord({"msg": "of a thread"}))
"""
    said = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=True).stderr
    assert said == "of a thread\n"


def test_a_descriptor_that_was_redirected_meanwhile_is_left_alone():
    mine = os.dup(2)
    try:
        with tempfile.TemporaryFile() as elsewhere:
            with without_noise():
                os.dup2(elsewhere.fileno(), 2)
            os.write(2, b"written elsewhere")
            elsewhere.seek(0)
            assert elsewhere.read() == b"written elsewhere"
    finally:
        os.dup2(mine, 2)
        os.close(mine)


@pytest.mark.parametrize(("line", "dropped"), [
    (b"E0000 00:00:17.1 1 cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no device", True),
    (b"E0000 00:00:17.1 1 cuda_dnn.cc:8310] Unable to register cuDNN factory", True),
    (b"W0000 00:00:17.1 1 gpu_device.cc:2] TensorFlow was not built with CUDA kernel binaries compatible", False),
    (b"E0000 00:00:17.1 1 cuda_executor.cc:9] CUDA_ERROR_INVALID_PTX: a PTX JIT compilation failed", False)])
def test_messages_about_a_gpu_that_fails_are_no_noise(line: bytes, dropped: bool) -> None:
    assert bool(NOISE.match(line)) is dropped
