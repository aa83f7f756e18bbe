"""Servers with engines of known translations, and pages of a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import ServerProcess

ENGINES = f"{Path(__file__).parent / 'toy_engine.py'}"
WAIT = 60_000
"""Milliseconds for what takes one second."""


@pytest.fixture(scope="session")
def toys() -> Iterator[ServerProcess]:
    """Start a server of two directions, German to English and back."""
    started = ServerProcess("--model", f"de-en={ENGINES}:Toy", "--model", f"en-de={ENGINES}:Back", "--max-characters",
                            "3000")
    yield started
    started.stop()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 800}, accept_downloads=True)
    context.set_default_timeout(WAIT)
    yield context
    context.close()


@pytest.fixture
def page(context: Any) -> Iterator[Any]:
    """Open a page; a test fails if its scripts report errors."""
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert errors == []
