"""Locks and frozen servers: each wait has a time limit, and its error names the cause."""

from __future__ import annotations

import logging
import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from towernmt.core.errors import DataError
from towernmt.dataflow.sources import database_connection
from towernmt.dataflow.sources.database_table import open_database

PATIENCE = 2
COLUMNS = f"table=pairs&source=de&target=en&page=5&patience={PATIENCE}"
BOUND = 60.0        # much more than `patience`, because the machine may be busy
WAITING = {"PostgreSQL": "SELECT count(*) FROM pg_locks WHERE NOT granted",
           "MariaDB": "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'"}
"""The query for the number of sessions that wait for a lock."""
ROWS = [(str(n), f"n{n}") for n in range(20)]


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Any:
    server = request.getfixturevalue(request.param)
    server.execute("DROP VIEW IF EXISTS chosen", "DROP TABLE IF EXISTS pairs",
                   "CREATE TABLE pairs (id BIGINT PRIMARY KEY, de TEXT NOT NULL, en TEXT NOT NULL)",
                   "INSERT INTO pairs VALUES " + ", ".join(f"({n}, '{de}', '{en}')"
                                                           for n, (de, en) in enumerate(ROWS)))
    return server


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a source wait less than `PATIENCE` for an answer, but longer than for a lock, which takes one second."""
    monkeypatch.setattr(database_connection, "_SHORTEST_ANSWER", 1.5)


def freeze(process: int) -> None:
    """Stop a process, and return when all of its threads are stopped, because a running thread may still answer."""
    def is_stopped(thread: Path) -> bool:
        try:
            return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError):     # it has ended in the meantime
            return True

    os.kill(process, signal.SIGSTOP)
    while not all(map(is_stopped, Path(f"/proc/{process}/task").iterdir())):
        os.sched_yield()


@contextmanager
def locked(server: Any) -> Iterator[None]:
    """Lock the table by another session while the block runs."""
    user, password, database = "tester", "s3:cr@t/%", "corpus"
    if hasattr(server, "crash") and type(server).__name__ == "PostgreSQL":
        import psycopg

        with psycopg.connect(host="127.0.0.1", port=server.port, user=user, password=password,
                             dbname=database) as holder:
            holder.execute("LOCK TABLE pairs IN ACCESS EXCLUSIVE MODE")
            yield
        return
    import pymysql

    with pymysql.connect(host="127.0.0.1", port=server.port, user=user, password=password,
                         database=database) as holder:
        holder.cursor().execute("LOCK TABLES pairs WRITE")
        yield


def refused(work: Any, words: str) -> float:
    """Return the seconds until `work` ends with a DataError that contains these words."""
    begin = time.monotonic()
    with pytest.raises(DataError, match=words):
        work()
    return time.monotonic() - begin


def test_a_locked_table_is_waited_for_as_long_as_patience_says(postgresql: Any, server: Any,
                                                               caplog: pytest.LogCaptureFixture) -> None:
    source = open_database(server.uri(COLUMNS))
    items = source.read(source.begin())
    read = [next(items) for _ in range(5)]
    # On a busy machine the answer that reports the lock may itself be late.
    words = r"pairs.*: (locked|not reachable) for \d+ s \(.*(End the process that holds the lock|Start the server)"
    with locked(server):
        assert refused(lambda: next(items), words) < BOUND
        if server is postgresql:
            assert refused(source.begin, words) < BOUND
    assert "retrying for" in caplog.text
    remaining = [pair for _, pair in source.read(read[-1][0])]
    assert [pair for _, pair in read] + remaining == ROWS


def test_a_lock_that_is_let_go_costs_no_pair(server: Any) -> None:
    source = open_database(server.uri(COLUMNS.replace(f"patience={PATIENCE}", "patience=120")))
    items = source.read(source.begin())
    read = [next(items)[1] for _ in range(5)]
    with locked(server):
        reader = threading.Thread(target=lambda: read.extend(pair for _, pair in items))
        reader.start()
        wait_until(lambda: server.execute(WAITING[type(server).__name__]) == [(1,)])
    reader.join(BOUND)
    assert read == ROWS


def test_a_backend_that_freezes_is_left_for_another(postgresql: Any, server: Any,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    if server is not postgresql:
        pytest.skip("a backend of MariaDB is a thread, which cannot be frozen alone")
    source = open_database(server.uri(f"{COLUMNS}&application_name=frozen"))
    items = source.read(source.begin())
    read = [next(items)[1] for _ in range(5)]
    # The connection of begin() may still be open.
    [(backend,)] = server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'frozen' "
                                  "ORDER BY backend_start DESC LIMIT 1")
    freeze(backend)
    try:
        read += [pair for _, pair in items]
    finally:
        os.kill(backend, signal.SIGCONT)
    assert read == ROWS
    assert "lost (no answer for" in caplog.text and "connected again" in caplog.text


def test_a_server_that_freezes_ends_with_one_sentence(server: Any) -> None:
    source = open_database(server.uri(f"{COLUMNS}&connect_timeout=2&application_name=frozen"
                                      if type(server).__name__ == "PostgreSQL" else f"{COLUMNS}&connect_timeout=2"))
    items = source.read(source.begin())
    read = [next(items) for _ in range(5)]
    processes = [server._process.pid]
    if type(server).__name__ == "PostgreSQL":
        processes += [row[0] for row in server.execute("SELECT pid FROM pg_stat_activity "
                                                       "WHERE application_name = 'frozen'")]
    for process in processes:
        freeze(process)
    try:
        assert refused(lambda: next(items), r"not reachable for \d+ s .*patience=SECONDS") < BOUND
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    assert [pair for _, pair in source.read(read[-1][0])] == ROWS[5:]


def test_a_long_wait_for_an_answer_says_so(postgresql: Any, monkeypatch: pytest.MonkeyPatch,
                                           caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(database_connection, "FIRST_REPORT", 0.5)
    caplog.set_level(logging.WARNING)
    postgresql.execute("DROP VIEW IF EXISTS chosen", "DROP TABLE IF EXISTS pairs",
                       "CREATE TABLE pairs (id BIGINT PRIMARY KEY, de TEXT, en TEXT)",
                       "INSERT INTO pairs VALUES (1, 'a', 'b')")
    uri = postgresql.uri(f"{COLUMNS}&where=pg_sleep(1.2) IS NOT NULL")
    assert open_database(uri).count() == 1
    assert re.search(r"no answer for \d+ s \(a lock, a long query, or a frozen server\); waiting up to 20 s",
                     caplog.text)


def test_a_locked_sqlite_file_is_waited_for_as_long_as_patience_says(tmp_path: Path) -> None:
    path = tmp_path / "corpus.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("CREATE TABLE pairs (id INTEGER PRIMARY KEY, de TEXT NOT NULL, en TEXT NOT NULL)")
    source = open_database(f"sqlite:///{path}?table=pairs&source=de&target=en&patience=0.5")
    writer.execute("BEGIN EXCLUSIVE")
    assert refused(source.begin, r"locked for .* s \(database is locked\)") < BOUND
    writer.execute("COMMIT")
    writer.close()
    assert source.count() == 0
