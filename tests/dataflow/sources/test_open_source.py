"""URIs: the sources that they name, and the messages for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.core.errors import SettingsError
from towernmt.dataflow.sources.open_source import open_source, open_storage, split_uri
from towernmt.dataflow.storage import s3_storage as s3


@pytest.mark.parametrize(("uri", "message"), (
    ("x.tsv?colums=0,1", r"x\.tsv: this source has no option 'colums'\. Did you mean 'columns'\?"),
    ("x.tsv?zzz=0", r"no option 'zzz'\. The options are: columns, format, header, missing\."),
    ("x.{de,en}?columns=0,1", r"no option 'columns'\. The options are: format\."),
    ("part-?.tsv?colums=0,1", r"^part-\?\.tsv: this source has no option 'colums'"),
    ("x.tsv?columns=0", r"x\.tsv: columns=0: expected the numbers of two columns"),
    ("x.tsv?columns=0,a", "columns=0,a: expected the numbers of two columns"),
    ("x.tsv?columns=0,1,2", "expected the numbers of two columns"),
    ("x.tsv?header=maybe", "header=maybe: expected true or false"),
    ("x.tsv?header=true&columns", r"option 'columns' has no value"),
    ("x.tsv?header=true&header=no", "option 'header' occurs twice"),
    ("x.jsonl?source=", "source=: expected a name"),
    ("x.tsv?missing=ignore", "missing=ignore: expected one of error, skip"),
    ("x.tsv?format=xls", "format=xls: expected one of parallel, tsv, csv"),
    ("x.tsv?format=parallel", "Braces, as in x.{de,en}, name two parallel files"),
    ("x.{de,en}?format=tsv", "Braces, as in x.{de,en}, name two parallel files"),
    ("x.{de,en,fr}", r"\{de,en,fr\} must name exactly two sides"),
    ("corpus", r"corpus: the file does not exist\. Check the path\."),
    ("corpus?header=true", "corpus: the file does not exist"),
    (__file__, r": the format is not clear from the name"),
    ("corpus-*", r"corpus-\*: the format is not clear from the name\. Add it, for example \?format=tsv"),
    ("postgres://me:secret@host/x", r"^postgres://\*\*\*@host/x: 'postgres://' is not a known kind of source"),
    ("postgres://me:a/secret@and@secret@host/x",
     r"^postgres://\*\*\*@host/x: 'postgres://' is not a known kind of source"),
    ("oracle://me:secret@host/x", r"^oracle://\*\*\*@host/x: the table is missing"),
    ("mssql+pyodbc://me:secret@host/x", "the table is missing"),
    ("s3://KEY:secret@bucket/x.tsv", r"^An s3:// name must not contain a user or a password.*AWS_ACCESS_KEY_ID"),
    ("s3://KEY:se/secret@bucket/*.gz?format=tsv", "^An s3:// name must not contain a user or a password"),
    ("s3://bucket/x.tsv?endpoint=http://me:secret@host", "no option 'endpoint'. Did you mean 'endpoint_url'"),
    ("s3://bucket/x.tsv?retries=many", "retries=many: expected a whole number"),
    ("/data/x.tsv?endpoint_url=http://me:secret@host", "no option 'endpoint_url'"),
))
def test_invalid_uris_are_refused_with_the_fix(uri: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        open_source(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("uri", "path", "options"), (
    ("part-?.tsv", "part-?.tsv", {}),
    ("part-?.tsv?header=true", "part-?.tsv", {"header": "true"}),
    ("x.jsonl?source=a%26b&target=c+d", "x.jsonl", {"source": "a&b", "target": "c+d"}),
    ("s3://b/x?endpoint_url=http://127.0.0.1:8333&region=eu", "s3://b/x",
     {"endpoint_url": "http://127.0.0.1:8333", "region": "eu"}),
    ("x.tsv?columns=0,1?", "x.tsv", {"columns": "0,1?"}),
))
def test_options_follow_the_question_mark(uri: str, path: str, options: dict[str, str]) -> None:
    assert split_uri(uri) == (path, options)


def test_options_of_a_bucket_go_to_the_storage_and_those_of_the_format_to_the_format(
        monkeypatch: pytest.MonkeyPatch) -> None:
    passed = {}
    monkeypatch.setattr(s3, "S3Storage", lambda **options: passed.update(options))
    source = open_source("s3://bucket/*.tsv.gz?endpoint_url=http://me:secret@h:1&retries=3&columns=2, 1&timeout=2.5")
    assert passed == {"endpoint_url": "http://me:secret@h:1", "retries": 3, "timeout": 2.5}
    assert (source.pattern, source.columns) == ("s3://bucket/*.tsv.gz", (2, 1))      # type: ignore[attr-defined]
    # Positions contain the name: a run may resume with more patience.
    assert source.name == "s3://bucket/*.tsv.gz?endpoint_url=http://***@h:1&columns=2, 1"
    encoded = open_source("s3://bucket/x.tsv?endpoint_url=http%3A%2F%2Fme%3Asecret%40h:1&region=eu").name
    assert encoded == "s3://bucket/x.tsv?endpoint_url=http%3A%2F%2F***%40h:1&region=eu"
    assert open_source("s3://bucket/part-?.tsv?retries=99").name == open_source("s3://bucket/part-?.tsv").name


def test_the_scheme_of_s3_may_be_in_upper_case() -> None:
    source = open_source("S3://bucket/x-*.{de,en}?region=eu")
    assert source.name == "s3://bucket/x-*.{de,en}?region=eu"
    # Wildcards are compared with the names of listed objects.
    assert source.sides == ("s3://bucket/x-*.de", "s3://bucket/x-*.en")      # type: ignore[attr-defined]
    assert open_storage("S3://bucket/x")[1] == "s3://bucket/x"


def test_files_are_named_by_paths_home_folders_and_file_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x-1.tsv").write_text("a\tb\n")
    (tmp_path / "x[1].dat").write_text("c\td\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for uri in (f"{tmp_path}/x-1.tsv", "~/x-?.tsv", f"file://{tmp_path}/x-1.tsv", f"{tmp_path}/x-1.tsv?format=tsv"):
        source = open_source(uri)
        assert [pair for _, pair in source.read(source.begin())] == [("a", "b")]
        assert source.name == uri
    (tmp_path / "für %.tsv").write_text("a\tb\n")
    for uri in (f"file://localhost{tmp_path}/f%C3%BCr%20%25.tsv", f"{tmp_path}/für %.tsv"):
        source = open_source(uri)
        assert [pair for _, pair in source.read(source.begin())] == [("a", "b")]
    source = open_source(f"{tmp_path}/x[1].dat?format=tsv")
    assert [pair for _, pair in source.read(source.begin())] == [("c", "d")]


def test_s3_in_ranges_of_no_bytes_is_refused() -> None:
    with pytest.raises(SettingsError, match="chunk_bytes=0 of an S3 source"):
        open_source("s3://bucket/pairs.tsv?chunk_bytes=0")
