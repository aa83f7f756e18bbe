"""`corpora.yaml`: what it says, and what is said of what it must not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.dataflow.corpora import Corpora, Sides, SourceEntry, read_corpora
from towernmt.dataflow.encode import PairFilter
from towernmt.errors import SettingsError

OF_THE_MANUAL = """
sources:
  - {uri: /data/europarl.{de,en}.gz, weight: 2}
  - {uri: 'sqlite:///crawl.db?table=pairs&where=score>0.7', weight: 1, tag: <crawl>}
  - {uri: 's3://bucket/backtranslated/part-*.tsv.gz?endpoint_url=http://127.0.0.1:8333', weight: 1}
mix: temperature 5            # or: by weight, or: concatenate
"""


@pytest.fixture
def read(tmp_path: Path):
    """`read(text)` reads a YAML file with that text."""

    def read(text: str) -> Corpora:
        path = tmp_path / "corpora.yaml"
        path.write_text(text)
        return read_corpora(path)

    return read


def test_the_example_is_understood_also_where_braces_are_not_quoted(read) -> None:
    corpora = read(OF_THE_MANUAL)
    assert corpora.sources == [
        SourceEntry("/data/europarl.{de,en}.gz", 2.0),
        SourceEntry("sqlite:///crawl.db?table=pairs&where=score>0.7", 1.0, "<crawl>"),
        SourceEntry("s3://bucket/backtranslated/part-*.tsv.gz?endpoint_url=http://127.0.0.1:8333", 1.0)]
    assert (corpora.mix, corpora.temperature) == ("temperature", 5.0)
    assert (corpora.vocabulary, corpora.validation, corpora.pair_filter) == (None, None, PairFilter(200, 9.0))


@pytest.mark.parametrize(("entry", "uri"), [
    ("{uri: x.{de,en}}", "x.{de,en}"), ("{uri: x.{de,en}, weight: 2}", "x.{de,en}"),
    ("{weight: 2, uri: a{b,c}/x.{de,en}}", "a{b,c}/x.{de,en}"), ('{uri: "x.{de,en}"}', "x.{de,en}"),
    ("{uri: it's.tsv}", "it's.tsv"), ("x.{de,en}.gz", "x.{de,en}.gz"), ("uri: x.{de,en}", "x.{de,en}"),
    ("{uri: x.tsv?columns=0,1}", "x.tsv?columns=0,1"),
])
def test_a_uri_may_have_braces_commas_and_quotes(read, entry: str, uri: str) -> None:
    assert read(f"sources:\n  - {entry}\n").sources[0].uri == uri


@pytest.mark.parametrize(("mix", "expected"), [
    ("temperature 5", ("temperature", 5.0)), ("{temperature: 2.5}", ("temperature", 2.5)),
    ("weight", ("weight", 1.0)), ("by weight", ("weight", 1.0)), ("concatenate", ("concatenate", 1.0))])
def test_the_ways_to_mix(read, mix: str, expected: tuple[str, float]) -> None:
    corpora = read(f"sources: [a.tsv]\nmix: {mix}\n")
    assert (corpora.mix, corpora.temperature) == expected


def test_vocabulary_validation_and_limits(read) -> None:
    corpora = read("sources: [a.tsv]\nvocabulary: {source: a.model, target: b.model}\n"
                   "validation: {source: v.de, target: v.en}\nmax_length: 50\nmax_length_ratio: 3\n")
    assert corpora.vocabulary == Sides("a.model", "b.model")
    assert corpora.validation == Sides("v.de", "v.en")
    assert corpora.pair_filter == PairFilter(50, 3.0)
    assert read("sources: [a.tsv]\nvocabulary: some/where").vocabulary == "some/where"


def test_a_uri_is_a_corpus_of_one_source() -> None:
    assert read_corpora("s3://bucket/x.tsv").sources == [SourceEntry("s3://bucket/x.tsv")]


@pytest.mark.parametrize(("text", "message"), [
    ("sorces: [a]", "there is no 'sorces' here. Did you mean 'sources'?"),
    ("sources: [a]\nmax_lenght: 3", "there is no 'max_lenght' here. Did you mean 'max_length'?"),
    ("sources: []", "`sources` is missing or no list"),
    ("sources: a.tsv", "`sources` is missing or no list"),
    ("", "expected `sources:` with a list of sources, found NoneType"),
    ("sources:\n  - {uri: a, wieght: 2}", "source 1: there is no 'wieght' here. Did you mean 'weight'?"),
    ("sources:\n  - a\n  - {weight: 2}", "source 2: `uri` is missing"),
    ("sources:\n  - {uri: a, weight: much}", "source 1: weight=much is not a number"),
    ("sources:\n  - {uri: a, on_end: stop}", "source 1: on_end=stop is not one of restart, drop, end"),
    ("sources: [7]", "source 1: expected `{uri: ..., weight: ...}`, found int"),
    ("sources: [a]\nmix: temprature 5", "Did you mean 'temperature 5'?"),
    ("sources: [a]\nmix: temperature warm", "mix 'temperature warm' is not one of"),
    ("sources: [a]\nmax_length: 0", "must be at least 1"),
    ("sources: [a]\nvalidation: v.de", "validation: expected `{source: FILE, target: FILE}`, found str"),
    ("sources: [a]\nvalidation: {source: v.de}", "`target` is missing"),
    ("sources:\n  - {uri: a, weight: [}", "line 2: not valid YAML"),
])
def test_what_is_wrong_is_said_with_its_place(read, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(text)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "corpora.yaml"))


def test_a_missing_file_and_another_encoding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_corpora(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"sources: [\xe4.tsv]")
    with pytest.raises(SettingsError, match="not UTF-8 text"):
        read_corpora(tmp_path / "latin.yaml")


def test_no_message_shows_a_password(read) -> None:
    with pytest.raises(SettingsError) as error:
        read("sources:\n  - {uri: 'postgresql://me:secret@host/db?table=t', weight: [}\n")
    assert "secret" not in str(error.value)
