"""Variables that are set before TensorFlow starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from towernmt.core.machine import processor_flags
from towernmt.core.tf_compat import tf1

# TensorFlow's function reports whether it rewrites graphs for oneDNN, which the variable determines.
PROGRAM = """
import os, sys
import towernmt
import tensorpack       # which imports TensorFlow
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
def test_onednn_is_on_if_the_processor_has_avx2():
    assert started() == ["1", "True"]


@pytest.mark.thorough
def test_a_choice_of_the_user_is_kept():
    assert started(TF_ENABLE_ONEDNN_OPTS="0") == ["0", "False"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="a system that does not list threads")
def test_a_session_has_its_configured_threads_whatever_an_earlier_session_had():
    def begun(threads: int) -> int:
        """Return the number of threads that a session in its caller's thread starts for the work within operations."""
        before = set(os.listdir("/proc/self/task"))     # those of an earlier session may still be ending
        config = tf1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=-1)
        with tf1.Graph().as_default(), tf1.Session(config=config):
            return len({*os.listdir("/proc/self/task")} - before)

    begun(1)
    assert [begun(5), begun(2), begun(5)] == [5, 2, 5]
