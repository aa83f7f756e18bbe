"""`corpora.yaml`: the meaning of its content, and the messages for invalid content."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import SettingsError
from towernmt.dataflow.sources.corpora import Corpora, Sides, SourceEntry, read_corpora
from towernmt.dataflow.text.pair_filters import PairFilter, TextFilters
from towernmt.dataflow.text.validation_set import ValidationFiles

OF_THE_MANUAL = """
sources:
  - {uri: /data/europarl.{de,en}.gz, weight: 2}
  - {uri: 'sqlite:///crawl.db?table=pairs&where=score>0.7', weight: 1, tag: <crawl>}
  - {uri: 's3://bucket/backtranslated/part-*.tsv.gz?endpoint_url=http://127.0.0.1:8333', weight: 1}
mix: temperature 5            # or: by weight, or: concatenate
"""


@pytest.fixture
def read(tmp_path: Path):
    """Return `read(text)`, which reads a YAML file with that text."""

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
    assert (corpora.vocabulary, corpora.validation, corpora.pair_filter) == (None, [], PairFilter(200, 9.0))


@pytest.mark.parametrize(("entry", "uri"), [
    ("{uri: x.{de,en}}", "x.{de,en}"), ("{uri: x.{de,en}, weight: 2}", "x.{de,en}"),
    ("{weight: 2, uri: a{b,c}/x.{de,en}}", "a{b,c}/x.{de,en}"), ('{uri: "x.{de,en}"}', "x.{de,en}"),
    ("{uri: it's.tsv}", "it's.tsv"), ("x.{de,en}.gz", "x.{de,en}.gz"), ("uri: x.{de,en}", "x.{de,en}"),
    ("{uri: x.tsv?columns=0,1}", "x.tsv?columns=0,1"),
    ("uri: /my texts/x.tsv", "/my texts/x.tsv"), ("uri: /my texts/x.{de,en}  # new", "/my texts/x.{de,en}"),
    ("{uri: /my texts/x.tsv, weight: 2}", "/my texts/x.tsv"), ("{uri: x.{de,en} }", "x.{de,en}"),
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
    assert corpora.validation == [ValidationFiles("", "v.de", ["v.en"])]
    assert corpora.pair_filter == PairFilter(50, 3.0)
    assert read("sources: [a.tsv]\nvocabulary: some/where").vocabulary == "some/where"
    assert read("sources: [a.tsv]\nvalidation: {name: , source: v.de, target: v.en}").validation[0].name == ""


def test_several_validation_sets_have_names_and_any_number_of_references(read) -> None:
    corpora = read("sources: [a.tsv]\nvalidation:\n  - {name: news, source: v.de, target: [a.en, b.en]}\n"
                   "  - {source: talks/t 1.de.gz, target: t.en}\n")
    assert corpora.validation == [ValidationFiles("news", "v.de", ["a.en", "b.en"]),
                                  ValidationFiles("t_1", "talks/t 1.de.gz", ["t.en"])]


def test_words_that_are_booleans_in_yaml_are_texts(read) -> None:
    corpora = read("sources: [{uri: a.tsv, tag: no}]\nvalidation: {name: no, source: on, target: off, tag: no}\n"
                   "source_language: no\ndrop_identical: yes\nmatch_digits: off\n")
    assert corpora.sources == [SourceEntry("a.tsv", 1.0, "no")]
    assert corpora.validation == [ValidationFiles("no", "on", ["off"], "no")]
    assert corpora.pair_filter.texts == TextFilters(source_language="no", drop_identical=True)


def test_a_uri_is_a_corpus_of_one_source() -> None:
    assert read_corpora("s3://bucket/x.tsv").sources == [SourceEntry("s3://bucket/x.tsv")]


@pytest.mark.parametrize(("text", "message"), [
    ("sorces: [a]", "unknown name 'sorces'. Did you mean 'sources'?"),
    ("sources: [a]\nmax_lenght: 3", "unknown name 'max_lenght'. Did you mean 'max_length'?"),
    ("sources: []", "`sources` is missing or not a list"),
    ("sources: a.tsv", "`sources` is missing or not a list"),
    ("", "expected `sources:` with a list of sources, found NoneType"),
    ("sources:\n  - {uri: a, wieght: 2}", "source 1: unknown name 'wieght'. Did you mean 'weight'?"),
    ("sources:\n  - a\n  - {weight: 2}", "source 2: `uri` is missing"),
    ("sources:\n  - {uri: a, weight: much}", "source 1: weight=much is not a number"),
    ("sources:\n  - {uri: a, on_end: stop}", "source 1: on_end=stop is not one of restart, drop, end"),
    ("sources: [7]", "source 1: expected `{uri: ..., weight: ...}`, found int"),
    ("sources: [a]\nmix: temprature 5", "Did you mean 'temperature 5'?"),
    ("sources: [a]\nmix: temperature warm", "mix 'temperature warm' is not one of"),
    ("sources: [a]\nmax_length: 0", "max_length=0 "),
    ("sources: [a]\nvalidation: v.de", "validation: expected `{source: FILE, target: FILE}`, found str"),
    ("sources: [a]\nvalidation: [{name: a/b, source: v, target: w}]", "'a/b' is not a valid name of a validation set"),
    ("sources: [a]\nvalidation: [{source: v, target: w}, {source: x/v, target: w}]",
     "two validation sets have the name 'v'"),
    ("sources: [a]\nvalidation: {source: v, target: [w, 3]}", "`target` is missing or not a path"),
    ("sources: [a]\nvalidation: {source: v.de}", "`target` is missing"),
    ("sources:\n  - {uri: a, weight: [}", "line 2: not valid YAML"),
    ("sources: [a]\nmix: weight\nsources: [b]", "line 3: not valid YAML (the key 'sources' is there twice)"),
    ("sources:\n  - {uri: a, weight: 1, weight: 2}", "line 2: not valid YAML (the key 'weight' is there twice)"),
    ('sources:\n  - "a\\0b"', r"line 2: not valid YAML (a text has the character NUL (\0))"),
    ("sources: " + "[" * 700, "not valid YAML (it is nested too deeply)"),
    ("sources: &a [*a]", "not valid YAML (it is nested too deeply)"),
    ("sources:\n  - {uri: a, weight: 0}", "source 1: weight=0 must be above 0"),
    ("sources:\n  - {uri: a, weight: .nan}", "source 1: weight=nan"),
    ("sources:\n  - {uri: a, tag: '<a> '}", "source 1: tag '<a> ': expected words"),
    ("sources: [a]\nvalidation: {source: v, target: w, tag: '<a> '}", "validation: tag '<a> ': expected words"),
    ("sources: [{uri: a, tag: <2de>}, {uri: b, tag: <2fi>}, c]\nvalidation: {source: v, target: w, tag: <2ed>}",
     "validation: no source has the tag '<2ed>', so the model would not know it: write one of <2de>, <2fi>."),
    ("sources: [a]\nmix: temperature 0.5", "mix: temperature 0.5: expected 1 (by size) or more"),
    ("sources: [a, {uri: b, weight: 2}]\nmix: concatenate", "source 2: weight 2 has no effect"),
    ("sources: [a]\nmix: temperature inf", "mix 'temperature inf' is not one of"),
    ("sources: [a]\nsource_factors: -1", "source_factors -1: expected the number"),
    ("sources: [a]\nvocabulary: 5", "vocabulary: expected `{source: FILE, target: FILE}`, found int"),
])
def test_an_invalid_entry_is_reported_with_its_position(read, tmp_path: Path, text: str, message: str) -> None:
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


@pytest.mark.parametrize("text", ["sources:\n  - postgresql://me:secret@host/db?table=t: 1\n",
                                  "{? 's3://KEY:secret@b/x' : 1, ? 's3://KEY:secret@b/x' : 2}"])
def test_no_password_is_shown_that_became_a_key(read, text: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(text)
    assert "secret" not in str(error.value)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates()
    | st.sampled_from(["a.tsv", "temperature 5", "restart"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["uri", "weight", "tag", "on_end", "source", "target", "temperature"]) | st.integers(), inner,
        max_size=3), max_leaves=6)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["mix", "vocabulary", "validation", "source_factors", "max_length",
                                        "max_length_ratio"]), _VALUES), st.lists(_VALUES, min_size=1, max_size=2))
def test_any_content_is_a_corpus_or_an_error_with_the_file(
        tmp_path_factory: pytest.TempPathFactory, content: dict[str, object], sources: list[object]) -> None:
    path = tmp_path_factory.mktemp("yaml") / "corpora.yaml"
    path.write_text(yaml.safe_dump({**content, "sources": sources}), encoding="utf-8")
    try:
        assert isinstance(read_corpora(path), Corpora)
    except SettingsError as error:
        assert str(error).startswith(str(path))


def test_credentials_in_an_s3_uri_are_refused_without_being_shown(read) -> None:
    with pytest.raises(SettingsError) as error:
        read("sources: ['s3://KEY:secret@bucket/x.tsv']").mixture()
    assert "must not contain a user or a password" in str(error.value)
    assert "secret" not in str(error.value) and "KEY:" not in str(error.value)
