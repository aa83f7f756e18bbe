"""Real servers for the tests of sources: each is started once a session, when a test first asks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# tests/servers under a name of its own: tests are no package.
_servers = ModuleType("towernmt_test_servers")
_servers.__path__ = [str(Path(__file__).parents[2] / "servers")]
sys.modules.setdefault(_servers.__name__, _servers)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    from towernmt_test_servers.postgresql import PostgreSQL

    server = PostgreSQL()
    yield server
    server.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Any]:
    from towernmt_test_servers.mariadb import MariaDB

    server = MariaDB()
    yield server
    server.close()
