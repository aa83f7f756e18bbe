"""Marian models with random weights, and a run that was imported from one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.importing import opus


@pytest.fixture
def make_opus(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes the folder of an OPUS-MT model with random weights."""
    return lambda **settings: opus.write_opus(tmp_path / "opus", **settings)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache of a test."""
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an OPUS-MT model with random weights."""
    return opus.write_opus(tmp_path_factory.mktemp("opus") / "de-en")


@pytest.fixture(scope="session")
def imported(original: Path) -> Path:
    """The run that `towernmt import` writes for `original`."""
    from towernmt.cli.main import main

    run = original.parent / "run"
    assert main(["import", str(original), "--from", "marian", "--output", str(run)]) == 0
    return run
