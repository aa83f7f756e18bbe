"""Tables as sources: every row once, from any cursor, on each kind of database; and refused tables."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.database_table import open_database
from towernmt.dataflow.sources.source import Pair

TEXTS = ["", "plain", "ä€😀 'quoted' \"twice\" \\ % %s :name ?", "two\nlines\tand a tab", "e\u0301 \u2028 \ufeff"]


class SQLite:
    """SQLite with the interface of the fixtures of servers."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "corpus.db"

    def execute(self, *statements: str) -> list[Any]:
        with sqlite3.connect(self.path) as connection:
            rows: list[Any] = []
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        connection.close()
        return rows

    def uri(self, options: str) -> str:
        return f"sqlite:///{self.path}?{options}"


@pytest.fixture
def sqlite(tmp_path: Path) -> SQLite:
    return SQLite(tmp_path)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Any:
    """Return one of the three databases, without tables."""
    server = request.getfixturevalue(request.param)
    if request.param != "sqlite":
        server.execute("DROP VIEW IF EXISTS chosen", "DROP TABLE IF EXISTS pairs")
    return server


def quoted(text: str, server: Any) -> str:
    text = text.replace("'", "''")
    return "'" + (text.replace("\\", "\\\\") if type(server).__name__ == "MariaDB" else text) + "'"


def fill(server: Any, rows: list[tuple[Any, str, str]], key: str = "BIGINT PRIMARY KEY",
         text: str = "TEXT NOT NULL") -> None:
    server.execute(f"CREATE TABLE pairs (id {key}, de {text}, en {text})")
    for start in range(0, len(rows), 500):
        values = [f"({key if isinstance(key, int) else quoted(key, server)}, {quoted(de, server)}, "
                  f"{quoted(en, server)})" for key, de, en in rows[start:start + 500]]
        server.execute(f"INSERT INTO pairs VALUES {', '.join(values)}")


def rows_of(count: int, step: int = 3) -> list[tuple[Any, str, str]]:
    return [(n * step - 50, f"{TEXTS[n % len(TEXTS)]} {n}", f"{n} {TEXTS[n // 2 % len(TEXTS)]}")
            for n in range(count)]


COLUMNS = "table=pairs&source=de&target=en"


def read(uri: str) -> list[Pair]:
    source = open_database(uri)
    return [pair for _, pair in source.read(source.begin())]


@pytest.mark.parametrize(("count", "page"), [(0, 5), (1, 5), (4, 5), (5, 5), (6, 5), (10, 5), (1201, 100)])
def test_every_row_comes_once_in_the_order_of_the_key(database: Any, count: int, page: int) -> None:
    rows = rows_of(count)
    fill(database, rows[::-1])
    assert read(database.uri(f"{COLUMNS}&page={page}")) == [Pair(de, en) for _, de, en in rows]
    assert open_database(database.uri(COLUMNS)).count() == count


def test_a_pass_resumes_after_any_row(database: Any) -> None:
    fill(database, rows_of(23))
    source = open_database(database.uri(f"{COLUMNS}&page=4"))
    complete = list(source.read(source.begin()))
    for start in (0, 2, 3, 4, 21, 22):
        assert list(source.read(json.loads(json.dumps(complete[start][0])))) == complete[start + 1:]


def test_text_keys_order_the_rows_as_the_database_does(database: Any) -> None:
    keys = ["a", "B", "c'", "", "äh", "Z%", "zz", "z", "10", "9"]
    fill(database, [(key, key, key) for key in keys], key="VARCHAR(40) PRIMARY KEY")
    pairs = read(database.uri(f"{COLUMNS}&page=3"))
    expected = [row[0] for row in database.execute("SELECT id FROM pairs ORDER BY id")]
    assert [pair.source for pair in pairs] == expected and sorted(expected) == sorted(keys)


def test_keys_beyond_32_bits_are_read(database: Any) -> None:
    fill(database, [(2 ** 31 * n, f"{n}", f"{n}") for n in (-5, -1, 1, 2, 2 ** 31 - 1)])
    assert len(read(database.uri(f"{COLUMNS}&page=2"))) == 5


@pytest.mark.parametrize("condition", ["id > 0 AND de LIKE '%25a%25'", "id > 0 OR id < -40",
                                       "en <> ':x ?' AND id%252 = 0"])
def test_a_condition_chooses_rows_and_is_taken_word_for_word(database: Any, condition: str) -> None:
    fill(database, rows_of(40))
    expected = database.execute(f"SELECT de, en FROM pairs WHERE {condition.replace('%25', '%')} ORDER BY id")
    uri = database.uri(f"{COLUMNS}&page=3&where={condition}")
    assert read(uri) == [Pair(*row) for row in expected] and open_database(uri).count() == len(expected) > 3


def test_rows_that_are_added_in_a_pass_belong_to_the_next(database: Any) -> None:
    fill(database, rows_of(20, step=1))
    source = open_database(database.uri(f"{COLUMNS}&page=3"))
    items = source.read(source.begin())
    first = [next(items) for _ in range(5)]
    database.execute("INSERT INTO pairs VALUES (1000, 'late', 'late')", "INSERT INTO pairs VALUES (1001, 'x', 'x')")
    remaining = list(items)
    assert len(first) + len(remaining) == 20 and remaining[-1][1].source != "late"
    assert len(list(source.read(first[-1][0]))) == 15
    assert len(list(source.read(source.begin()))) == 22


def test_a_view_can_be_read(database: Any) -> None:
    fill(database, rows_of(9, step=1))
    database.execute("CREATE VIEW chosen AS SELECT id AS n, en AS source, de AS target FROM pairs WHERE id < -45")
    assert len(read(database.uri("table=chosen&key=n&page=2"))) == 5


def test_no_transaction_stays_open_between_pages(postgresql: Any) -> None:
    postgresql.execute("DROP VIEW IF EXISTS chosen", "DROP TABLE IF EXISTS pairs")
    fill(postgresql, rows_of(20))
    source = open_database(postgresql.uri(f"{COLUMNS}&page=3&application_name=reading"))
    items = source.read(source.begin())
    for _ in range(4):
        next(items)
    states = postgresql.execute("SELECT state FROM pg_stat_activity WHERE application_name = 'reading'")
    assert states == [("idle",)]
    items.close()       # type: ignore[attr-defined]


def test_two_iterators_read_at_the_same_time(database: Any) -> None:
    fill(database, rows_of(50))
    source = open_database(database.uri(f"{COLUMNS}&page=7"))
    for (_, pair), (_, same_pair) in zip(source.read(source.begin()), source.read(source.begin()), strict=True):
        assert pair == same_pair


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[int]]:
    server = SQLite(tmp_path_factory.mktemp("gaps"))
    keys = sorted({n * n % 997 - 300 for n in range(400)})
    fill(server, [(key, str(key), "") for key in keys])
    return server.uri(COLUMNS), keys


@settings(deadline=None)
@given(after=st.one_of(st.none(), st.integers(-400, 800)), until=st.integers(-400, 800), page=st.integers(1, 300))
def test_any_cursor_gives_exactly_the_keys_after_it(gaps: tuple[str, list[int]], after: int | None, until: int,
                                                    page: int) -> None:
    uri, keys = gaps
    items = list(open_database(f"{uri}&page={page}").read([after, until]))
    expected = [key for key in keys if (after is None or key > after) and key <= until]
    assert [int(pair.source) for _, pair in items] == expected
    assert [cursor for cursor, _ in items] == [[key, until] for key in expected]


@pytest.mark.parametrize(("options", "words"), [
    ("table=paris&source=de&target=en", "table 'paris' does not exist. Did you mean 'pairs'?"),
    ("table=pairs&source=dee&target=en", "no column 'dee'. Did you mean 'de'?"),
    ("table=pairs&source=de&target=english", "no column 'english'"),
    ("table=pairs&key=idd&source=de&target=en", "no column 'idd'. Did you mean 'id'?"),
    (f"{COLUMNS}&where=score>0.7", "where=score>0.7"),
    (f"{COLUMNS}&where=id > > 3", "refuses where=id > > 3"),
    ("table=pairs&source=de&target=en&key=weight", "must be an integer or text"),
    ("table=nowhere.pairs&source=de&target=en", "nowhere"),
])
def test_names_that_are_wrong_are_refused_with_the_nearest_right_one(database: Any, options: str, words: str) -> None:
    fill(database, rows_of(3))
    database.execute("ALTER TABLE pairs ADD COLUMN weight DECIMAL(10,2)")
    source = open_database(database.uri(options))
    with pytest.raises(DataError) as caught:
        source.begin()
    assert words in str(caught.value) and source.name in str(caught.value)


def test_a_resumed_pass_whose_table_is_gone_says_so(database: Any) -> None:
    fill(database, rows_of(9))
    source = open_database(database.uri(f"{COLUMNS}&page=3"))
    cursor, _ = next(iter(source.read(source.begin())))
    database.execute("DROP TABLE pairs")
    with pytest.raises(DataError, match="table 'pairs' does not exist"):
        list(source.read(cursor))


def test_a_key_that_is_there_twice_is_refused(database: Any, caplog: pytest.LogCaptureFixture) -> None:
    fill(database, [(1, "a", "a"), (7, "b", "b"), (7, "c", "c")], key="BIGINT")
    with pytest.raises(DataError, match="not unique: 7 occurs 2 times"):
        open_database(database.uri(COLUMNS)).begin()
    assert "has no index" in caplog.text
    assert len(read(database.uri(f"{COLUMNS}&where=de <> 'b'"))) == 2


def test_a_key_that_is_null_is_refused(database: Any) -> None:
    fill(database, [(1, "a", "a")], key="BIGINT NULL")
    database.execute("INSERT INTO pairs VALUES (NULL, 'b', 'b')")
    with pytest.raises(DataError, match="1 of 2 rows have NULL in id, the key"):
        open_database(database.uri(COLUMNS)).begin()


def test_missing_texts_are_refused_with_their_number_or_passed_over(database: Any,
                                                                    caplog: pytest.LogCaptureFixture) -> None:
    fill(database, rows_of(8), text="TEXT")
    database.execute("UPDATE pairs SET en = NULL WHERE id < -45")
    with pytest.raises(DataError, match="2 of 8 rows have NULL in en.*missing=skip"):
        open_database(database.uri(COLUMNS)).begin()
    with pytest.raises(DataError, match="the row with id = -50 has NULL in en"):
        list(open_database(database.uri(COLUMNS)).read([None, 100]))
    skipping = database.uri(f"{COLUMNS}&missing=skip")
    assert len(read(skipping)) == open_database(skipping).count() == 6
    assert "2 of 8 rows have NULL in en; they are skipped" in caplog.text


def test_values_that_are_no_text_are_refused(database: Any) -> None:
    fill(database, rows_of(3))
    with pytest.raises(DataError, match="has int instead of text in id"):
        read(database.uri("table=pairs&source=id&target=en"))


def test_a_text_that_is_not_utf_8_is_refused_at_once(sqlite: SQLite) -> None:
    sqlite.execute("CREATE TABLE pairs (id INTEGER PRIMARY KEY, de TEXT NOT NULL, en TEXT NOT NULL)",
                   "INSERT INTO pairs VALUES (1, 'a', 'b'), (2, 'c', 'd'), (3, CAST(X'FF41' AS TEXT), 'b')")
    message = "the database reports an error .*Could not decode to UTF-8 column 'de'.* in the first "
    with pytest.raises(DataError, match=rf"{message}1000 rows\."):
        read(sqlite.uri(COLUMNS))
    with pytest.raises(DataError, match=rf"{message}2 rows after id = 2\."):
        read(sqlite.uri(f"{COLUMNS}&page=2"))


def test_a_sqlite_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "corpus.db").touch()
    with pytest.raises(DataError, match="corpsu.db is missing. Did you mean 'corpus.db'"):
        open_database(f"sqlite:///{tmp_path}/corpsu.db?table=pairs")
    assert not (tmp_path / "corpsu.db").exists()
    with pytest.raises(DataError, match=f"{tmp_path} is a directory"):
        open_database(f"sqlite:///{tmp_path}?table=pairs")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database, but many words\n" * 100)
    with pytest.raises(DataError, match="file is not a database"):
        open_database(f"sqlite:///{tmp_path}/text.db?table=pairs").begin()


def test_sqlites_own_row_number_can_be_the_key(sqlite: SQLite) -> None:
    sqlite.execute("CREATE TABLE pairs (source TEXT NOT NULL, target TEXT NOT NULL)",
                   "INSERT INTO pairs VALUES ('a', 'b'), ('c', 'd'), ('e', 'f')", "DELETE FROM pairs WHERE source='c'")
    assert read(sqlite.uri("table=pairs&key=rowid&page=1")) == [Pair("a", "b"), Pair("e", "f")]


@pytest.mark.parametrize("cursor", [None, 5, [1], [1.5, 2], ["x", {}], "ab"])
def test_a_cursor_of_another_kind_of_source_is_refused(sqlite: SQLite, cursor: object) -> None:
    fill(sqlite, rows_of(3))
    with pytest.raises(DataError, match="not a position in a table"):
        list(open_database(sqlite.uri(COLUMNS)).read(cursor))


def test_a_key_whose_collation_equates_different_texts_is_refused_with_any_index(
        sqlite: SQLite) -> None:
    fill(sqlite, [(key, key, key) for key in "aAbBc"], key="TEXT NOT NULL COLLATE NOCASE")
    sqlite.execute("CREATE UNIQUE INDEX exact ON pairs (id COLLATE BINARY)")
    with pytest.raises(DataError, match="the key id is not unique: '[aA]' occurs 2 times .in the comparison"):
        open_database(sqlite.uri(f"{COLUMNS}&page=1")).begin()
    sqlite.execute("DELETE FROM pairs WHERE id COLLATE BINARY IN ('A', 'B')")
    assert [pair.source for pair in read(sqlite.uri(f"{COLUMNS}&page=1"))] == ["a", "b", "c"]


def test_a_collation_of_postgresql_in_which_cases_are_equal_is_seen_too(postgresql: Any) -> None:
    postgresql.execute("DROP VIEW IF EXISTS chosen", "DROP TABLE IF EXISTS pairs", "DROP COLLATION IF EXISTS ci",
                       "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    fill(postgresql, [(key, key, key) for key in "aAbBc"], key="TEXT COLLATE ci NOT NULL")
    postgresql.execute('CREATE UNIQUE INDEX exact ON pairs (id COLLATE "C")')
    with pytest.raises(DataError, match="the key id is not unique"):
        open_database(postgresql.uri(f"{COLUMNS}&page=1")).begin()
    postgresql.execute("DROP TABLE pairs")
    fill(postgresql, [(key, key, key) for key in "aAbBc"], key="TEXT NOT NULL")
    postgresql.execute('CREATE UNIQUE INDEX exact ON pairs (id COLLATE "C")')
    assert len(read(postgresql.uri(f"{COLUMNS}&page=1"))) == 5


def test_a_table_of_sqlite_in_another_case_is_named(sqlite: SQLite) -> None:
    fill(sqlite, rows_of(3))
    with pytest.raises(DataError, match="table 'Pairs' does not exist. Did you mean 'pairs'?"):
        open_database(sqlite.uri("table=Pairs&source=de&target=en&key=id")).begin()


def test_a_view_has_no_row_numbers(sqlite: SQLite) -> None:
    fill(sqlite, rows_of(3))
    sqlite.execute("CREATE VIEW chosen AS SELECT de, en FROM pairs")
    with pytest.raises(DataError, match="chosen is a view, whose rows have no rowid. Name a unique column"):
        open_database(sqlite.uri("table=chosen&source=de&target=en&key=rowid")).begin()


def test_a_table_with_a_dot_in_its_name_is_read(database: Any) -> None:
    mark = "`" if type(database).__name__ == "MariaDB" else '"'
    name = f"{mark}a.b{mark}"
    database.execute(f"DROP TABLE IF EXISTS {name}",
                     f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, de TEXT NOT NULL, en TEXT NOT NULL)",
                     f"INSERT INTO {name} VALUES (1, 'x', 'y')")
    try:
        assert read(database.uri('table="a.b"&source=de&target=en')) == [("x", "y")]
        with pytest.raises(DataError, match='contains a dot.* Put it in quotation marks: table="a.b"'):
            open_database(database.uri("table=a.b&source=de&target=en")).begin()
    finally:
        database.execute(f"DROP TABLE {name}")


def test_a_table_of_a_schema_is_read_with_or_without_quotation_marks(postgresql: Any) -> None:
    postgresql.execute('CREATE SCHEMA IF NOT EXISTS "my.own"', 'DROP TABLE IF EXISTS "my.own".t',
                       'CREATE TABLE "my.own".t (id INT PRIMARY KEY, de TEXT NOT NULL, en TEXT NOT NULL)',
                       """INSERT INTO "my.own".t VALUES (1, 'x', 'y')""")
    for table in ('my.own.t', '"my.own".t', '"my.own"."t"'):
        assert read(postgresql.uri(f"table={table}&source=de&target=en")) == [("x", "y")]
    postgresql.execute('DROP SCHEMA "my.own" CASCADE')


def test_a_key_that_is_a_fraction_is_refused_as_it_is_read(sqlite: SQLite) -> None:
    sqlite.execute("CREATE TABLE pairs (id INTEGER, de TEXT NOT NULL, en TEXT NOT NULL)",
                   "INSERT INTO pairs VALUES (1, 'a', 'b'), (1.5, 'c', 'd'), (2, 'e', 'f')")
    source = open_database(sqlite.uri(f"{COLUMNS}&page=1"))
    items = source.read(source.begin())
    cursor, _ = next(items)
    with pytest.raises(DataError, match="the key id has the value 1.5, but must be an integer or text"):
        next(items)
    with pytest.raises(DataError, match="the value 1.5"):
        next(source.read(cursor))
