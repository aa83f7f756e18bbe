"""The fake GPUs' library, built once for each version of its sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import fake_gpu


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> Path:
    """Return the library's path; skip the test where it cannot be built."""
    if fake_gpu.compiler() is None:
        pytest.skip("the fake GPUs need a C++ compiler")
    cache = getattr(pytestconfig, "cache", None)
    folder = Path(str(cache.mkdir("fake_gpu")))
    return fake_gpu.build(folder)
