"""What is set before TensorFlow starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from towernmt.core.machine.processor import processor_flags

# TensorFlow's own word on whether it rewrites graphs for oneDNN stands behind the variable.
PROGRAM = """
import os, sys
from towernmt.core.tf_compat import tf1
print(os.environ.get("TF_ENABLE_ONEDNN_OPTS"))
from tensorflow.python.framework import test_util
print(test_util.IsMklEnabled())
"""


def started(**variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_ENABLE_ONEDNN")}
    return subprocess.run([sys.executable, "-c", PROGRAM], env={**environment, **variables}, text=True,
                          capture_output=True, check=True).stdout.split()


@pytest.mark.thorough
@pytest.mark.skipif("avx2" not in processor_flags(), reason="a processor without AVX2")
def test_onednn_is_on_wherever_there_is_avx2():
    assert started() == ["1", "True"]


@pytest.mark.thorough
def test_a_users_own_choice_stays():
    assert started(TF_ENABLE_ONEDNN_OPTS="0") == ["0", "False"]
