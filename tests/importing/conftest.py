"""Marian models of random weights, and one of them as a run."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("towernmt_opus", Path(__file__).with_name("opus.py"))
opus = importlib.util.module_from_spec(_SPEC)
sys.modules["towernmt_opus"] = opus
_SPEC.loader.exec_module(opus)


@pytest.fixture
def make_opus(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of an OPUS-MT model of random weights."""
    return lambda **settings: opus.write_opus(tmp_path / "opus", **settings)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a folder."""
    return opus.write_opus(tmp_path_factory.mktemp("opus") / "de-en")


@pytest.fixture(scope="session")
def imported(original: Path) -> Path:
    """The run that `towernmt import` makes of it."""
    from towernmt.cli.main import main

    run = original.parent / "run"
    assert main(["import", str(original), "--from", "marian", "--output", str(run)]) == 0
    return run
