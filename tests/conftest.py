"""Fixtures shared by all tests: each test builds its own graph."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def graph() -> Iterator[object]:
    """A fresh default graph."""
    from towernmt.tf_compat import tf

    with tf.Graph().as_default() as fresh:
        yield fresh
