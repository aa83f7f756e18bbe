"""Fixtures shared by all tests: each test builds its own graph."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(autouse=True)
def no_determinism_left_behind() -> Iterator[None]:
    """Op determinism is a switch of the whole process: a test that trains as a command does turns it on."""
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework.config import disable_op_determinism

        disable_op_determinism()


@pytest.fixture
def graph() -> Iterator[object]:
    """A fresh default graph."""
    from towernmt.tf_compat import tf

    with tf.Graph().as_default() as fresh:
        yield fresh
