"""Fixtures of the tests of models."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def imports_as_before() -> Iterator[None]:
    """Remove the modules that a test imports, and restore the path of modules."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in sys.modules.keys() - modules.keys():
        del sys.modules[name]
    sys.path[:] = path
