"""The URIs of tables: their content, and that no message shows a password."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.database_connection import url_secrets
from towernmt.dataflow.sources.database_table import open_database
from towernmt.dataflow.sources.database_uri import parse_database_uri

SECRET = "hunter2-s3cret"


def test_options_of_ours_are_taken_off_and_the_rest_goes_to_the_driver() -> None:
    uri = parse_database_uri("postgresql://me@host:5433/corpus?table=web.pairs&key=n&source=de&target=en"
                             "&where=score>0.7 AND lang='de'&page=7&patience=1.5&missing=skip&sslmode=require")
    assert (uri.table, uri.key, uri.source, uri.target) == ("web.pairs", "n", "de", "en")
    assert (uri.where, uri.page, uri.patience, uri.missing) == ("score>0.7 AND lang='de'", 7, 1.5, "skip")
    assert dict(uri.url.query) == {"sslmode": "require"}
    assert (uri.url.host, uri.url.port, uri.url.database, uri.url.username) == ("host", 5433, "corpus", "me")


@pytest.mark.parametrize(("scheme", "driver"), [
    ("postgresql", "postgresql+psycopg"), ("mysql", "mysql+pymysql"), ("mariadb", "mariadb+pymysql"),
    ("postgresql+pg8000", "postgresql+pg8000"), ("sqlite", "sqlite")])
def test_a_bare_scheme_means_the_driver_of_our_extras(scheme: str, driver: str) -> None:
    assert parse_database_uri(f"{scheme}://host/corpus?table=pairs").url.drivername == driver


@given(st.text(st.characters(codec="utf-8", exclude_characters="%&"), min_size=1))
def test_a_condition_may_hold_any_text(condition: str) -> None:
    uri = parse_database_uri(f"postgresql://host:1/db?table=t&where={condition}")
    assert uri.where == condition and uri.url.host == "host"


def test_percent_signs_and_ampersands_in_values_are_escaped() -> None:
    name = "sqlite:///a.db?table=t&where=a LIKE '%25x%26'"
    uri = parse_database_uri(name)
    assert uri.where == "a LIKE '%x&'" and uri.name == name


def test_the_name_opens_the_same_table_without_the_password() -> None:
    uri = parse_database_uri(f"mysql://me:{SECRET}@host:3307/db?table=t&where=a%26b&password={SECRET}&page=3")
    assert uri.name == "mysql://me@host:3307/db?table=t&where=a%26b"
    reopened = parse_database_uri(uri.name)
    assert (reopened.table, reopened.where, reopened.name) == (uri.table, uri.where, uri.name)


@pytest.mark.parametrize("uri", [
    f"postgresql://me:{SECRET}@host:54x/db?table=t",
    f"postgresql://me:p@{SECRET}@host/db?table=t",
    f"postgresql://me:p?{SECRET}@host/db?table=t",
    f"postgresql://me:1?{SECRET}@host/db?table=t",
    f"postgresql://me:p/{SECRET}@host/db",
    f"postgresql://me:{SECRET}@host/db?tabel=t",
    f"postgresql://me:{SECRET}@host/db?table=t&page=none",
    f"postgresql://me:{SECRET}@host/db?table=t&table=u",
    f"postgresql://me:{SECRET}@host/db?table=t&missing=what",
    f"nonsense://me:{SECRET}@host/db?table=t",
])
def test_no_error_about_a_uri_shows_the_password(uri: str) -> None:
    with pytest.raises((SettingsError, DataError)) as caught:
        open_database(uri)
    assert SECRET not in str(caught.value) and "host" in str(caught.value)


@pytest.mark.parametrize("option", ["page=0", "page=99999999999999999999", "patience=1e300", "patience=nan"])
def test_a_number_that_cannot_be_is_refused(option: str) -> None:
    with pytest.raises(SettingsError, match=f"{option} is not a positive number up to 1,000,000,000"):
        parse_database_uri(f"postgresql://me@host/db?table=t&{option}")


def test_a_password_is_in_neither_name_nor_representation() -> None:
    uri = parse_database_uri(f"postgresql://me:{SECRET}@host/db?table=t")
    source = open_database(f"postgresql://me:{SECRET}@host/db?table=t")
    for text in (uri.name, repr(uri), str(uri), source.name, repr(source), repr(vars(source))):
        assert SECRET not in text
    assert url_secrets(uri.url) == [SECRET]


def test_an_option_with_a_typing_error_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match="option 'soruce' does not exist. Did you mean 'source'"):
        parse_database_uri("sqlite:///a.db?table=t&soruce=de")


def test_mysqls_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", SECRET)
    uri = parse_database_uri("mysql://me@host/db?table=t")
    assert uri.url.password == SECRET and SECRET not in uri.name + repr(uri)
    assert parse_database_uri("mysql://me:other@host/db?table=t").url.password == "other"
    assert parse_database_uri("postgresql://me@host/db?table=t").url.password is None


@pytest.mark.parametrize(("uri", "package", "extra"), [
    ("sqlite:///a.db?table=t", "sqlalchemy", "towernmt[sql]"),
    ("postgresql://host/db?table=t", "psycopg", "towernmt[postgresql]"),
    ("mysql://host/db?table=t", "pymysql", "towernmt[mysql]")])
def test_a_missing_package_is_named_with_its_extra(uri: str, package: str, extra: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)     # importing it raises an error, as if it were not installed
    with pytest.raises(DataError) as caught:
        open_database(uri)
    assert package in str(caught.value) and f"pip install '{extra}'" in str(caught.value)
