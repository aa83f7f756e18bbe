"""`load` into real servers, through connections that are cut and restarts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from towernmt.dataflow.sources import database_connection
from towernmt.dataflow.sources.database_load import load_table
from towernmt.dataflow.sources.database_table import open_database
from towernmt.dataflow.sources.open_source import open_source

ROWS = 1500


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Any:
    server = request.getfixturevalue(request.param)
    server.execute("DROP VIEW IF EXISTS chosen", "DROP TABLE IF EXISTS pairs", "DROP TABLE IF EXISTS towernmt_load")
    return server


@pytest.fixture
def source(tmp_path: Path) -> Any:
    for name in ("de", "en"):
        lines = [f"{name} {n} ä😀 %s :x ? ' \\\n" for n in range(ROWS - 1)] + ["x" * 100_000 + "\n"]
        (tmp_path / f"x.{name}").write_text("".join(lines), encoding="utf-8")
    return open_source(f"{tmp_path}/x.{{de,en}}")


def test_loaded_pairs_are_read_from_the_table_unchanged(server: Any, source: Any) -> None:
    assert load_table(source, server.uri("table=pairs"), batch=400).new == ROWS
    table = open_database(server.uri("table=pairs"))
    assert [p for _, p in table.read(table.begin())] == [p for _, p in source.read(source.begin())]


def test_connections_that_are_cut_and_a_restart_double_and_lose_nothing(server: Any, source: Any,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.servers.cutting_proxy import cutting_proxy

    monkeypatch.setattr(database_connection, "_FIRST_WAIT", 0.01)
    rng = random.Random(3)
    # An answer to a batch is short: these cuts occur in handshakes, in answers to inserts, and in answers to commits.
    with cutting_proxy(server.port, [rng.randint(600, 6000) for _ in range(20)]) as between:
        uri = server.uri("table=pairs&patience=120", port=between.port)
        assert load_table(source, uri, batch=100).pairs == ROWS
        assert between.cuts >= 3
    server.stop()
    server.start()
    assert load_table(source, server.uri("table=pairs"), batch=100).new == 0
    table = open_database(server.uri("table=pairs"))
    expected = [p for _, p in source.read(source.begin())]
    assert [p for _, p in table.read(table.begin())] == expected
