"""`load`: any source into a table, each pair once, after any interruption."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from towernmt.cli.main import main
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources import database_load
from towernmt.dataflow.sources.database_load import load_table
from towernmt.dataflow.sources.database_table import open_database
from towernmt.dataflow.sources.database_uri import DatabaseURI
from towernmt.dataflow.sources.source import Cursor, Pair, Source

PAIRS = [Pair(f"{n} ä😀 %s :x ?", f"'{n}' \\ \"x\"") for n in range(1000)]


class ListSource(Source):
    """A source of pairs in memory that may fail after some of them."""

    def __init__(self, pairs: list[Pair], fails_after: int | None = None, name: str = "list") -> None:
        self.name, self._pairs, self._fails_after = name, pairs, fails_after

    def begin(self) -> Cursor:
        return {"at": 0, "of": len(self._pairs)}

    def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
        for at in range(cursor["at"], cursor["of"]):
            if at == self._fails_after:
                raise DataError("the source broke")
            yield {"at": at + 1, "of": cursor["of"]}, self._pairs[at]

    def count(self) -> int:
        return len(self._pairs)


def rows(path: Path, statement: str = "SELECT * FROM pairs ORDER BY 1") -> list[Any]:
    with sqlite3.connect(path) as connection:
        fetched = connection.execute(statement).fetchall()
    connection.close()
    return fetched


@pytest.fixture
def uri_and_path(tmp_path: Path) -> tuple[str, Path]:
    path = tmp_path / "corpus.db"
    return f"sqlite:///{path}?table=pairs&source=de&target=en", path


@pytest.mark.parametrize("batch", [1, 7, 1000, 4000])
def test_all_pairs_come_into_a_new_table_in_their_order(uri_and_path: tuple[str, Path], batch: int) -> None:
    pairs = PAIRS[:30] if batch == 1 else PAIRS
    loaded = load_table(ListSource(pairs), uri_and_path[0], batch)
    assert (loaded.pairs, loaded.new) == (len(pairs), len(pairs))
    assert rows(uri_and_path[1]) == [(n + 1, *pair) for n, pair in enumerate(pairs)]
    source = open_database(uri_and_path[0])
    assert [pair for _, pair in source.read(source.begin())] == pairs


def test_an_interrupted_load_resumes_and_a_finished_one_is_kept(uri_and_path: tuple[str, Path]) -> None:
    with pytest.raises(DataError, match="the source broke"):
        load_table(ListSource(PAIRS, fails_after=333), uri_and_path[0], 100)
    assert len(rows(uri_and_path[1])) == 300
    assert load_table(ListSource(PAIRS), uri_and_path[0], 64)[:2] == (1000, 700)
    assert load_table(ListSource(PAIRS), uri_and_path[0], 64)[:2] == (1000, 0)
    assert [row[1:] for row in rows(uri_and_path[1])] == PAIRS


def test_several_sources_share_a_table_and_a_dropped_table_is_loaded_again(uri_and_path: tuple[str, Path]) -> None:
    load_table(ListSource(PAIRS[:10]), uri_and_path[0])
    load_table(ListSource(PAIRS[10:15], name="other"), uri_and_path[0])
    assert [row[1:] for row in rows(uri_and_path[1])] == PAIRS[:15]
    rows(uri_and_path[1], "DROP TABLE pairs")
    assert load_table(ListSource(PAIRS[:10]), uri_and_path[0]).new == 10
    assert len(rows(uri_and_path[1])) == 10


@pytest.mark.parametrize("statements", [
    ["DELETE FROM pairs"], ["DROP TABLE pairs", "CREATE TABLE pairs (id INTEGER PRIMARY KEY, de, en)"]])
def test_a_table_whose_rows_were_removed_is_not_taken_for_loaded(uri_and_path: tuple[str, Path], statements: list[str]
                                                                 ) -> None:
    load_table(ListSource(PAIRS[:10]), uri_and_path[0])
    for statement in statements:
        rows(uri_and_path[1], statement)
    with pytest.raises(DataError, match="is empty, but the table towernmt_load records 10 pairs of list in it"):
        load_table(ListSource(PAIRS[:10]), uri_and_path[0])
    rows(uri_and_path[1], "DELETE FROM towernmt_load WHERE name = 'pairs'")
    assert load_table(ListSource(PAIRS[:10]), uri_and_path[0])[:2] == (10, 10)
    assert [row[1:] for row in rows(uri_and_path[1])] == PAIRS[:10]


def test_a_source_that_changed_since_it_was_loaded_is_not_taken_for_loaded(uri_and_path: tuple[str, Path]) -> None:
    load_table(ListSource(PAIRS[:10]), uri_and_path[0])
    with pytest.raises(DataError, match="has changed since"):
        load_table(ListSource(PAIRS[:20]), uri_and_path[0])


def test_an_empty_source_makes_an_empty_table(uri_and_path: tuple[str, Path]) -> None:
    assert load_table(ListSource([]), uri_and_path[0])[:2] == (0, 0)
    assert rows(uri_and_path[1]) == []


def test_two_processes_that_load_the_same_table_are_distinguished(uri_and_path: tuple[str, Path]) -> None:
    class Overtaken(ListSource):
        def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
            for n, item in enumerate(super().read(cursor)):
                if n == 50:     # the other process loads everything meanwhile
                    load_table(ListSource(PAIRS), uri_and_path[0])
                yield item

    with pytest.raises(DataError, match="another process loads"):
        load_table(Overtaken(PAIRS), uri_and_path[0], 20)
    assert [row[1:] for row in rows(uri_and_path[1])] == PAIRS


def test_two_loads_of_a_new_table_that_start_at_once_both_succeed(
        uri_and_path: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    new_table, other = database_load._new_table, [ListSource(PAIRS[:5], name="other")]

    def overtaken(uri: DatabaseURI) -> Any:
        if other:       # the other process creates the tables between the check and the creation
            load_table(other.pop(), uri_and_path[0])
        return new_table(uri)

    monkeypatch.setattr(database_load, "_new_table", overtaken)
    assert load_table(ListSource(PAIRS[5:9]), uri_and_path[0])[:2] == (4, 4)
    assert [row[1:] for row in rows(uri_and_path[1])] == PAIRS[:9]


def test_pairs_that_the_database_refuses_are_named_by_their_range(uri_and_path: tuple[str, Path]) -> None:
    load_table(ListSource([]), uri_and_path[0])
    connection = sqlite3.connect(uri_and_path[1])
    connection.execute("CREATE UNIQUE INDEX once ON pairs (de)")
    connection.close()
    with pytest.raises(DataError, match=r"UNIQUE constraint failed: pairs\.de.* It refused pairs 41 to 51 of twice\."):
        load_table(ListSource([*PAIRS[:50], PAIRS[0]], name="twice"), uri_and_path[0], 20)
    assert len(rows(uri_and_path[1])) == 40


@pytest.mark.parametrize(("options", "words"), [
    ("table=pairs&source=de&target=fr", "no column 'fr'"), ("table=pairs&where=a=1", "Remove the option")])
def test_an_invalid_destination_is_refused(uri_and_path: tuple[str, Path], options: str, words: str) -> None:
    load_table(ListSource(PAIRS[:3]), uri_and_path[0])
    with pytest.raises((DataError, SettingsError), match=words):
        load_table(ListSource(PAIRS), f"sqlite:///{uri_and_path[1]}?{options}")
    with pytest.raises(SettingsError, match="--batch 0"):
        load_table(ListSource(PAIRS), uri_and_path[0], 0)


@pytest.mark.parametrize("name", [
    "{path}?table=pairs&source=de&target=en", "{link}?table=pairs&source=de&target=en",
    "{path}?table=pairs&source=en&target=de", "{path}?table=main.pairs&source=de&target=en"])
def test_a_table_is_not_loaded_into_itself(uri_and_path: tuple[str, Path], name: str) -> None:
    load_table(ListSource(PAIRS[:3]), uri_and_path[0])
    link = uri_and_path[1].with_name("link.db")
    link.symlink_to(uri_and_path[1])
    source = open_database("sqlite:///" + name.format(path=uri_and_path[1], link=link))
    before = rows(uri_and_path[1]), rows(uri_and_path[1], "select * from towernmt_load")
    for _ in range(2):
        with pytest.raises(DataError, match="is the table .* itself, so each pair would be duplicated"):
            load_table(source, uri_and_path[0])
    assert (rows(uri_and_path[1]), rows(uri_and_path[1], "select * from towernmt_load")) == before


def test_a_table_is_loaded_into_one_of_its_name_elsewhere(uri_and_path: tuple[str, Path], tmp_path: Path) -> None:
    load_table(ListSource(PAIRS[:3]), uri_and_path[0])
    copy = f"sqlite:///{tmp_path}/copy.db?table=pairs&source=de&target=en"
    assert load_table(open_database(uri_and_path[0]), copy).pairs == 3
    assert load_table(open_database(uri_and_path[0]), f"sqlite:///{uri_and_path[1]}?table=others").pairs == 3


def command(files: Path, uri: str) -> list[str]:
    return ["load", "--source", f"{files}/x.{{de,en}}", "--output", uri, "--batch", "50"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for side, name in enumerate(("de", "en")):
        (tmp_path / f"x.{name}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    return tmp_path


@pytest.mark.processes
def test_a_process_that_is_killed_loses_and_doubles_nothing(uri_and_path: tuple[str, Path], files: Path) -> None:
    """The process is killed inside transactions, after the rows and before the commit, repeatedly."""
    program = ("import os, signal, sys, sqlite3, sqlalchemy\n"
               "from towernmt.cli.main import main\n"
               "left = [int(sys.argv[1])]\n"
               "def commit(connection):\n"
               "    left[0] -= 1\n"
               "    if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
               "sqlalchemy.event.listen(sqlalchemy.Engine, 'commit', commit)\n"
               "sys.exit(main(sys.argv[2:]))\n")
    row_counts = []
    for commits in (2, 5, 9, 12):
        done = subprocess.run([sys.executable, "-c", program, str(commits), *command(files, uri_and_path[0])],
                              cwd=Path(__file__).parents[3], env=dict(os.environ), check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        table_names = rows(uri_and_path[1], "SELECT name FROM sqlite_master WHERE name = 'pairs'")
        row_counts.append(len(rows(uri_and_path[1])) if table_names else 0)
    assert row_counts == sorted(row_counts) and 0 < row_counts[-1] < 1000 and row_counts[-1] % 50 == 0
    assert main(command(files, uri_and_path[0])) == 0
    assert [row[1:] for row in rows(uri_and_path[1])] == PAIRS


def test_the_command_says_what_it_did(uri_and_path: tuple[str, Path], files: Path,
                                      capfd: pytest.CaptureFixture[str]) -> None:
    assert main(command(files, uri_and_path[0])) == 0
    out, err = capfd.readouterr()
    assert out.startswith("1,000 pairs, 1,000 of them new, are in sqlite:///")
    assert "loading: 1,000 lines" in err
