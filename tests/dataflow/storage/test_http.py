"""Files of web servers: every pair is read once despite cut connections, or one sentence reports a permanent fault."""

from __future__ import annotations

import base64
import gzip
import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.sources.source import Pair
from towernmt.dataflow.storage import http_storage

PAIRS = [Pair(f"Satz {n} ä{'x' * (n * 37 % 90)}", f"sentence {n}") for n in range(4000)]
TSV = "".join(f"{source}\t{target}\n" for source, target in PAIRS).encode()
BOUND = 60.0


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from tests.servers.web import web_files

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(http_storage, "FIRST_DELAY", 0.001)
    with web_files() as files:
        files.files = {"/x.tsv": TSV, "/x.tsv.gz": gzip.compress(TSV), "/empty.tsv": b"",
                       "/a.de": b"".join(f"{pair.source}\n".encode() for pair in PAIRS),
                       "/a.en": b"".join(f"{pair.target}\n".encode() for pair in PAIRS),
                       "/download": TSV}
        yield files


def read(uri: str) -> list[Pair]:
    source = open_source(uri)
    return [pair for _, pair in source.read(source.begin())]


@pytest.mark.parametrize("path", ["/x.tsv", "/x.tsv.gz", "/a.{de,en}", "/download?format=tsv&id=5"])
@pytest.mark.parametrize("knows", [(True, True, False), (False, True, False), (True, False, True),
                                   (True, False, False)])
def test_files_on_a_server_are_read_from_any_cursor(web: Any, path: str, knows: tuple[bool, bool, bool]) -> None:
    web.ranges, web.etags, web.dates = knows
    source = open_source(web.url(path))
    items = list(source.read(source.begin()))
    assert [pair for _, pair in items] == PAIRS
    for number in (1, 1999, 4000):
        cursor = json.loads(json.dumps(items[number - 1][0]))
        assert list(source.read(cursor)) == items[number:]
    assert source.count() == 4000


@pytest.mark.parametrize("ranges", [True, False])
def test_answers_that_are_cut_cost_no_pair(web: Any, ranges: bool) -> None:
    rng = random.Random(7)
    web.ranges = ranges
    source = open_source(web.url("/x.tsv?patience=60"))
    cursor = source.begin()
    web.faults = [None, *(fault for _ in range(8) for fault in (("cut", rng.randint(0, 60_000)), 503, 429))]
    assert [pair for _, pair in source.read(cursor)] == PAIRS
    starts = [int(headers["Range"][6:-1]) for _, headers in web.requests[2:] if headers.get("Range", "").endswith("-")]
    assert not web.faults and starts == sorted(starts) and len(set(starts)) >= (5 if ranges else 2)


def test_a_file_that_changes_is_noticed_and_refused(web: Any) -> None:
    source = open_source(web.url("/x.tsv"))
    items = source.read(source.begin())
    cursor, _ = next(items)
    changed = TSV.replace(b"Satz 3999", b"Satz 4999")
    web.files["/x.tsv"] = changed
    with pytest.raises(DataError, match="x.tsv: the file has changed since the pass"):
        list(source.read(cursor))
    web.files["/x.tsv"] = TSV
    source = open_source(web.url("/x.tsv"))
    items = source.read(source.begin())
    web.faults = [None, ("cut", 200_000)]
    next(items)
    web.files["/x.tsv"] = changed
    with pytest.raises(DataError, match="x.tsv: the file on the server has changed"):
        list(items)


@pytest.mark.parametrize("knows", ["dates", "nothing"])
def test_a_change_is_seen_by_the_time_or_the_size_where_there_is_no_etag(web: Any, knows: str) -> None:
    web.etags, web.dates = False, knows == "dates"
    source = open_source(web.url("/x.tsv"))
    cursor = source.begin()
    web.files["/x.tsv"] = TSV.replace(b"Satz 1 ", b"Satz 2 ") if knows == "dates" else TSV + b"a\tb\n"
    with pytest.raises(DataError, match="has changed"):
        list(source.read(cursor))


def test_a_server_that_stays_away_ends_with_one_sentence(web: Any) -> None:
    source = open_source(web.url("/x.tsv?patience=0.5"))
    items = source.read(source.begin())
    next(items)
    web.close()
    begin = time.monotonic()
    with pytest.raises(DataError, match=r"x.tsv: not reachable for .* s \(.*patience=SECONDS") as caught:
        list(items)
        list(source.read(source.begin()))
    assert time.monotonic() - begin < BOUND and "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", [503, "stall"])
def test_a_server_that_fails_or_is_silent_ends_with_one_sentence(web: Any, fault: object) -> None:
    web.faults = [fault] * 1000
    begin = time.monotonic()
    with pytest.raises(DataError, match=r"not reachable for .* s \((HTTP 503|the server does not answer)"):
        read(web.url("/x.tsv?patience=0.3&timeout=0.2"))
    assert time.monotonic() - begin < BOUND


@pytest.mark.parametrize(("status", "words"), [
    (404, "the file does not exist on the server .HTTP 404"), (410, "the file does not exist"),
    (403, "access denied .HTTP 403.*USER:PASSWORD"), (400, "refuses the request .HTTP 400"),
    (416, "has become shorter"), (501, "refuses the request")])
def test_a_permanent_failure_is_reported_at_once(web: Any, status: int, words: str) -> None:
    web.faults = [status]
    with pytest.raises(DataError, match=words):
        read(web.url("/x.tsv"))
    assert len(web.requests) == 1


def test_user_and_password_are_sent_and_never_shown(web: Any) -> None:
    web.login = base64.b64encode(b"me:s3cret/@").decode()
    url = web.url("/x.tsv").replace("http://", "http://me:s3cret%2F%40@")
    source = open_source(f"{url}?signature=abc123&part=2")
    assert source.name == web.url("/x.tsv?signature=***&part=2")
    assert len(list(source.read(source.begin()))) == 4000
    assert {path for path, _ in web.requests} == {"/x.tsv?signature=abc123&part=2"}
    for wrong_url in (url.replace("s3cret", "s3crets"), url.replace("/x.tsv", "/y.tsv"), f"{url}?colums=1"):
        with pytest.raises((DataError, SettingsError)) as caught:
            read(f"{wrong_url}{'&' if '?' in wrong_url else '?'}signature=abc123&columns=0,1")
        assert "s3cret" not in str(caught.value) and "abc123" not in str(caught.value)


def test_redirects_are_followed_and_take_no_password_to_another_server(web: Any) -> None:
    from tests.servers.web import web_files

    web.login = base64.b64encode(b"me:pw").decode()
    url = web.url("/moved.tsv").replace("http://", "http://me:pw@")
    web.moved = {"/moved.tsv": "/x.tsv"}
    assert read(url) == PAIRS
    with web_files() as other_server:
        other_server.files["/x.tsv"] = TSV
        web.moved = {"/moved.tsv": other_server.url("/x.tsv")}
        assert read(url) == PAIRS
        assert all("Authorization" not in headers for _, headers in other_server.requests)
    web.moved = {"/moved.tsv": "file:///etc/passwd"}
    with pytest.raises(DataError, match="HTTP 302 .*'file:///etc/passwd' is not allowed"):
        read(url)
    web.moved = {"/moved.tsv": web.url("/moved.tsv")}
    with pytest.raises(DataError, match="refuses the request .HTTP 302"):
        read(url)


def test_a_redirect_from_a_secure_server_to_another_is_not_followed() -> None:
    request = Request("https://h/x.tsv?token=s3cret")
    with pytest.raises(DataError, match="^https://h/x.tsv: the server redirects from https:// to http://h, which"):
        http_storage._Redirects().redirect_request(request, None, 302, "", {}, "http://h/x.tsv?token=s3cret")


def test_a_certificate_must_be_one_that_is_trusted(web: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.servers.web import web_files

    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, which makes a certificate")
    key, certificate, both = (tmp_path / name for name in ("key", "certificate", "both"))
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                    "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    with web_files(both) as secure:
        secure.files["/x.tsv"] = TSV
        with pytest.raises(DataError, match="the certificate of the server is not accepted .*SSL_CERT_FILE"):
            read(secure.url("/x.tsv"))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert read(secure.url("/x.tsv")) == PAIRS


def test_an_empty_file_has_no_pairs(web: Any) -> None:
    assert read(web.url("/empty.tsv")) == []


def test_a_file_of_unknown_length_is_refused(web: Any) -> None:
    web.ranges = web.lengths = False
    with pytest.raises(DataError, match="does not send the size of the file"):
        read(web.url("/x.tsv"))


@pytest.mark.parametrize("path", ["/part-*.tsv", "/part-[01].tsv"])
def test_patterns_are_refused_since_servers_have_no_lists(web: Any, path: str) -> None:
    with pytest.raises(DataError, match="web servers do not list their files"):
        read(web.url(path))
    assert not web.requests


def test_the_brackets_of_an_ipv6_address_are_not_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DataError, match=r"^http://\[::1\]:9/x\.tsv: not reachable for 0 s"):
        read("http://[::1]:9/x.tsv?patience=0")
    with pytest.raises(DataError, match="not a valid URL"):
        read("http://[::1/x.tsv")


@pytest.mark.parametrize(("uri", "words"), [
    ("https://h/x?format=xls", "format=xls: expected one of"),
    ("https://h/x.csv?colums=0,1", "option 'colums' does not exist. Did you mean 'columns'.*write %63olums"),
    ("https://h/x.csv?columns=0,1&id=1&id=2&columns=2,3", "x.csv: option 'columns' occurs twice. Remove one of them"),
    ("https://h/x.tsv?patience=long", "patience=long: expected a number of seconds"),
    ("https://h/x.tsv?timeout=99999999999", "timeout=99999999999: expected a number of seconds below 1,000,000,000"),
    ("https://h/download?id=5", "the format is not clear from the name")])
def test_options_that_cannot_be_are_refused(uri: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        open_source(uri)


@pytest.mark.parametrize("url", ["http:///x.tsv", "http://a b/x.tsv"])
def test_an_invalid_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(DataError, match="not a valid URL .*Write https://HOST/PATH"):
        read(f"{url}?patience=5")


def test_a_parameter_of_the_servers_may_have_the_name_of_an_option(web: Any) -> None:
    assert read(web.url("/x.tsv?%63olumns=9")) == PAIRS
    assert web.requests[0][0] == "/x.tsv?%63olumns=9"
