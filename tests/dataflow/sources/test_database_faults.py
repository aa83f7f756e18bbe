"""Faults of servers and networks: every pair is read once, or one sentence reports a fault that does not pass."""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE, wait_until
from towernmt.core.errors import DataError
from towernmt.dataflow.sources import database_connection
from towernmt.dataflow.sources.database_table import open_database
from towernmt.dataflow.sources.source import Pair

ROWS = 3000
COLUMNS = "table=pairs&source=de&target=en"
PATIENT = f"{COLUMNS}&patience=120"


def pairs() -> list[Pair]:
    rng = random.Random(5)
    return [Pair(f"{n} {'ä' * rng.randint(0, 60)}", f"{'x ' * rng.randint(0, 60)}{n}") for n in range(ROWS)]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a source connect again soon after a lost connection."""
    monkeypatch.setattr(database_connection, "_FIRST_WAIT", 0.01)


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Any:
    """Return a real server with the table."""
    server = request.getfixturevalue(request.param)
    server.execute("DROP VIEW IF EXISTS chosen", "DROP TABLE IF EXISTS pairs",
                   "CREATE TABLE pairs (id BIGINT PRIMARY KEY, de TEXT NOT NULL, en TEXT NOT NULL)",
                   "INSERT INTO pairs VALUES " + ", ".join(f"({n * 2}, '{pair.source}', '{pair.target}')"
                                                           for n, pair in enumerate(pairs())))
    return server


@pytest.mark.parametrize("how", ["quick_stop", "crash"])
def test_a_server_that_restarts_in_mid_pass_costs_no_pair(server: Any, how: str,
                                                          caplog: pytest.LogCaptureFixture) -> None:
    source = open_database(server.uri(f"{PATIENT}&page=100"))
    read = []
    for _, pair in source.read(source.begin()):
        read.append(pair)
        if len(read) in (150, 1700):
            server.stop(getattr(server, how))
            server.start()
    assert read == pairs()
    assert "lost (" in caplog.text and "connected again" in caplog.text


def test_a_server_that_is_away_for_a_while_is_waited_for(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = open_database(server.uri(f"{PATIENT}&page=100"))
    items = source.read(source.begin())
    read = [next(items)[1] for _ in range(100)]
    server.stop()
    reader = threading.Thread(target=lambda: read.extend(pair for _, pair in items))
    reader.start()
    wait_until(lambda: "retrying" in caplog.text)       # it has noticed that the server is down
    server.start()
    reader.join(PATIENCE)
    assert read == pairs()


def test_connections_that_are_cut_in_mid_row_cost_no_pair(server: Any, proxy: Any) -> None:
    rng = random.Random(11)
    allowances = [0, 3, 60, *(rng.randint(200, 60_000) for _ in range(8))]
    with proxy(server.port, [10_000_000, *allowances]) as between:
        source = open_database(server.uri(f"{PATIENT}&page=200", port=between.port))
        read = [pair for _, pair in source.read(source.begin())]
        assert between.cuts >= 5
    assert read == pairs()


@pytest.fixture
def proxy() -> Any:
    from tests.servers.cutting_proxy import cutting_proxy

    return cutting_proxy


def test_a_server_that_stays_away_ends_with_one_sentence(server: Any) -> None:
    source = open_database(server.uri(f"{COLUMNS}&page=100&patience=0.3"))
    items = source.read(source.begin())
    read = [next(items) for _ in range(100)]
    server.stop()
    try:
        with pytest.raises(DataError, match="not reachable for .* s .*patience=SECONDS") as caught:
            next(items)
    finally:
        server.start()
    assert source.name in str(caught.value) and "\n" not in str(caught.value)
    remaining = [pair for _, pair in source.read(read[-1][0])]
    assert [pair for _, pair in read] + remaining == pairs()


@pytest.mark.parametrize("change", [{"password": "wr0ng-s3cret"}, {"user": "nobody"}, {"database": "corpsu"}])
def test_refused_credentials_are_reported_at_once(server: Any, change: dict[str, str],
                                                  caplog: pytest.LogCaptureFixture) -> None:
    source = open_database(server.uri(PATIENT, **change))
    with pytest.raises(DataError) as caught:
        source.begin()
    text = str(caught.value)
    assert source.name in text and ("password" in change or next(iter(change.values())) in text)
    assert "retrying" not in caplog.text
    if "database" not in change:
        assert "denies access" in text
    for secret in ("wr0ng-s3cret", "s3:cr@t/%", "s3%3Acr%40t"):
        assert secret not in text + caplog.text + repr(caught.value.__cause__)


def test_an_option_that_the_driver_does_not_know_is_refused_at_once(server: Any) -> None:
    with pytest.raises(DataError, match="colour"):
        open_database(server.uri(f"{PATIENT}&colour=blue")).begin()


def test_the_password_may_come_from_the_environment(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "s3:cr@t/%")
    monkeypatch.setenv("MYSQL_PWD", "s3:cr@t/%")
    with_password = open_database(server.uri(COLUMNS))
    source = open_database(with_password.name)
    assert "s3" not in source.name and source.count() == ROWS


def test_the_password_may_come_from_the_drivers_file(postgresql: Any, server: Any, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    if server is postgresql:
        (tmp_path / "pgpass").write_text(f"127.0.0.1:{server.port}:*:tester:s3\\:cr@t/%\n")
        (tmp_path / "pgpass").chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
        uri = open_database(server.uri(COLUMNS)).name
    else:
        (tmp_path / "my.cnf").write_text("[client]\npassword='s3:cr@t/%'\n")
        uri = open_database(server.uri(COLUMNS)).name + f"&read_default_file={tmp_path}/my.cnf"
    assert open_database(uri).count() == ROWS


def test_a_sqlite_database_that_another_process_writes_is_waited_for(tmp_path: Path,
                                                                     caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "corpus.db"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("CREATE TABLE pairs (id INTEGER PRIMARY KEY, de TEXT NOT NULL, en TEXT NOT NULL)")
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO pairs VALUES (?, ?, ?)", [(n, *pair) for n, pair in enumerate(pairs())])
    writer.execute("COMMIT")
    source = open_database(f"sqlite:///{path}?{PATIENT}&timeout=0.05")
    cursor = source.begin()
    writer.execute("BEGIN EXCLUSIVE")
    read: list[Pair] = []
    reader = threading.Thread(target=lambda: read.extend(pair for _, pair in source.read(cursor)))
    reader.start()
    wait_until(lambda: "retrying" in caplog.text)
    writer.execute("COMMIT")
    reader.join(PATIENCE)
    writer.close()
    assert read == pairs() and "database is locked" in caplog.text
