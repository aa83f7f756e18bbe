"""Preparing from sources: the same data as from two text files, and the settings of a YAML file."""

from __future__ import annotations

import gzip
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.training_data import StreamedCorpus
from towernmt.dataflow.preparation import input_texts
from towernmt.dataflow.preparation.input_texts import text_files
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.sources.corpora import read_corpora
from towernmt.dataflow.vocabulary.base import Vocabulary

PAIRS = [(f"ja {n} wort", f"yes {n}  word") for n in range(60)]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with the pairs as text files, TSV and a database."""
    for side, name in enumerate(("de", "en")):
        (tmp_path / f"train.{name}").write_text("".join(pair[side] + "\n" for pair in PAIRS))
    with gzip.open(tmp_path / "train.tsv.gz", "wt") as file:
        file.writelines("\t".join(pair) + "\n" for pair in PAIRS)
    with sqlite3.connect(tmp_path / "train.db") as database:
        database.execute("create table pairs (id integer primary key, source text, target text)")
        database.executemany("insert into pairs (source, target) values (?, ?)", PAIRS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(**settings: object) -> PreparedData:
    return prepare(PrepareSettings(output="out", vocab_kind="word", **settings))  # type: ignore[arg-type]


def blocks(data: PreparedData) -> list[np.ndarray]:
    return [np.array(array) for index in range(data.num_blocks) for array in vars(data.read_block(index)).values()]


@pytest.mark.parametrize("uri", ["train.{de,en}", "train.tsv.gz", "sqlite:///train.db?table=pairs"])
def test_a_source_is_prepared_as_two_text_files_are(directory: Path, uri: str) -> None:
    if uri.startswith("sqlite"):
        pytest.importorskip("sqlalchemy")
    expected = prepare(PrepareSettings("train.de", "train.en", "text", vocab_kind="word"))
    data = prepared(source=uri)
    assert data.pairs == 60
    for block, expected_block in zip(blocks(data), blocks(expected), strict=True):
        assert np.array_equal(block, expected_block)
    assert not list(directory.glob("**/corpus.source"))


def test_a_text_that_is_too_long_for_a_line_is_named_by_its_source(directory: Path, monkeypatch: pytest.MonkeyPatch
                                                                  ) -> None:
    monkeypatch.setattr(input_texts, "LONGEST_LINE", 11)
    with pytest.raises(DataError, match=r"train\.tsv\.gz, pair 11: the line is longer than"):
        prepared(source="train.tsv.gz")


def test_workers_of_a_cluster_get_absolute_paths(directory: Path) -> None:
    settings = PrepareSettings("train.de", "train.en", "out", alignments="links", source_factor_files=["tags"])
    names = {"source": "train.de", "target": "train.en", "source_factor_1": "tags", "alignments": "links"}
    assert text_files(settings) == names
    assert text_files(replace(settings, ray="")) == {key: str(Path.cwd() / name) for key, name in names.items()}


def test_a_mixture_brings_its_tags_limits_and_validation_text(directory: Path) -> None:
    Path("corpora.yaml").write_text(
        "sources:\n  - {uri: train.{de,en}, tag: <a>}\n  - train.tsv.gz\nmix: concatenate\nmax_length: 7\n"
        "validation: {source: train.de, target: train.en}\n")
    data = prepared(source="corpora.yaml")
    assert data.pairs == 120
    assert data.source_vocabulary.decode(data.source_vocabulary.encode("<a> ja")) == "<a> ja"
    assert data.manifest["settings"]["max_length"] == 7
    assert data.manifest["settings"]["vocab_symbols"] == "<a>"
    assert data.valid_target == [pair[1] for pair in PAIRS]


@pytest.mark.parametrize("is_prepared", [True, False])
def test_validation_sentences_get_the_tag_of_their_set(directory: Path, is_prepared: bool) -> None:
    Path("some.de").write_text("ja  1\n\nnein 2\n")
    Path("some.en").write_text("yes 1\n\nno 2\n")
    text = ("sources:\n  - {uri: train.{de,en}, tag: <2a>}\n  - {uri: train.tsv.gz, tag: <2b>}\nvalidation:\n"
            "  - {name: a, source: some.de, target: some.en, tag: <2a>}\n"
            "  - {name: b, source: some.de, target: some.en, tag: <2b>}\n"
            "  - {name: c, source: some.de, target: some.en}\n")
    Path("corpora.yaml").write_text(text)
    data: PreparedData | StreamedCorpus = prepared(source="corpora.yaml")
    if not is_prepared:
        Path("streamed.yaml").write_text(text + "vocabulary: out\n")
        data = StreamedCorpus(read_corpora("streamed.yaml"))
    assert {one.name: list(one.source) for one in data.validation_sets} == {
        "a": ["<2a> ja 1", "", "<2a> nein 2"], "b": ["<2b> ja 1", "", "<2b> nein 2"], "c": ["ja 1", "", "nein 2"]}
    assert data.valid_target == ["yes 1", "", "no 2"]


def test_each_word_of_a_tag_is_one_subword_unless_it_is_only_letters(directory: Path) -> None:
    def vocabulary(tag: str, **settings: object) -> Vocabulary:
        Path("corpora.yaml").write_text(f"sources:\n  - {{uri: train.tsv.gz, tag: '{tag}'}}\n")
        return prepare(PrepareSettings(source="corpora.yaml", output="out", overwrite=True, vocab_size=60,
                                       **settings)).source_vocabulary   # type: ignore[arg-type]

    def pieces(vocabulary: Vocabulary, text: str) -> list[str]:
        return [vocabulary.id_to_piece(id) for id in vocabulary.encode(text)]

    assert {"<a>", "<2b>"} <= set(pieces(vocabulary("<a> <2b>"), "<a> <2b> ja"))
    assert {"<2b>", "<c>"} <= set(pieces(vocabulary("<2b>", vocab_symbols="<c>"), "<2b> ja <c>"))
    assert "o" not in pieces(vocabulary("zu o <b>"), "wort")        # a symbol would divide every word with an o
    with pytest.raises(SettingsError, match=r"corpora\.yaml: the tag <a,b> cannot become a subword.*without a comma"):
        vocabulary("<a,b>")
    assert "<a,b>" in pieces(vocabulary("<a,b>", vocab_kind="word"), "<a,b> ja")


def test_a_tag_that_an_existing_vocabulary_does_not_know_is_refused(directory: Path) -> None:
    for output, factor in (("plain", ""), ("factored", "|X")):
        Path("train.de").write_text("".join(" ".join(word + factor for word in source.split()) + "\n"
                                            for source, _ in PAIRS))
        prepare(PrepareSettings("train.de", "train.en", output, vocab_kind="word", source_factors=len(factor) // 2))

    def prepare_with(tag: str, vocabulary: str, factors: int = 0) -> PreparedData:
        Path("corpora.yaml").write_text(f"sources:\n  - {{uri: 'train.{{de,en}}', tag: '{tag}'}}\n")
        files = {f"{side}_vocab": f"{vocabulary}/vocabulary/{side}.words" for side in ("source", "target")}
        return prepare(PrepareSettings("corpora.yaml", output="out", overwrite=True, source_factors=factors, **files))

    assert prepare_with("ja|X", "factored", 1).pairs == 60
    for tag, vocabulary in (("<a>|X", "factored"), ("ja|Y", "factored"), ("<a>|X", "plain")):
        with pytest.raises(SettingsError, match=r"^corpora\.yaml: the tag .* is not in the source vocabulary"):
            prepare_with(tag, vocabulary, 1)
    assert prepare_with("ja|Y", "plain", 1).pairs == 60     # the values of the factor are learned
    with pytest.raises(SettingsError, match=r"^corpora\.yaml: the tag <a> is not in the source vocabulary"):
        prepare_with("<a>", "plain")
    Path("corpora.yaml").write_text("sources: ['train.{de,en}']\n"
                                    "validation: {source: train.de, target: train.en, tag: <b>}\n")
    with pytest.raises(SettingsError, match=r"^corpora\.yaml: the tag <b> is not in the source vocabulary"):
        prepare(PrepareSettings("corpora.yaml", output="out", overwrite=True, source_vocab=(
            "plain/vocabulary/source.words"), target_vocab="plain/vocabulary/target.words"))


def test_a_tag_of_validation_text_without_its_factor_is_refused_before_the_text_is_read(directory: Path) -> None:
    Path("corpora.yaml").write_text("sources: ['missing.{de,en}']\nsource_factors: 1\n"
                                    "validation: {source: train.de, target: train.en, tag: <2en>}\n")
    with pytest.raises(SettingsError, match=r"^corpora\.yaml: the tag '<2en>' does not have the form word\|factor1"):
        prepared(source="corpora.yaml")


def test_a_mixture_brings_its_filters_unless_the_settings_have_others(directory: Path) -> None:
    Path("some.tsv").write_text("eins\teins\nja 2\tyes 2\nnein 3\tno 4\nзет\tzet\n")
    Path("corpora.yaml").write_text("sources: [some.tsv]\ndrop_identical: true\nmatch_digits: true\n"
                                    "source_script: Latin\n")
    data = prepared(source="corpora.yaml", source_script="Latin,Cyrillic")
    assert {reason: entry["pairs"] for reason, entry in data.statistics["dropped"].items() if entry["pairs"]} == {
        "identical sides": 1, "digits": 1}
    assert data.manifest["settings"]["match_digits"] and data.pairs == 2


def test_a_mixture_brings_all_its_validation_sets_with_all_references(directory: Path) -> None:
    Path("corpora.yaml").write_text(
        "sources: [train.tsv.gz]\nvalidation:\n- {name: both, source: train.de, target: [train.en, train.de]}\n"
        "- {source: train.en, target: train.de}\n")
    both, swapped = prepared(source="corpora.yaml").validation_sets
    assert (both.name, len(both.references), swapped.name, len(swapped.references)) == ("both", 2, "train", 1)
    assert list(both.references[1]) == list(swapped.references[0])
    assert prepared(source="corpora.yaml").validation_sets == [both, swapped]


def test_known_problems_are_reported_before_the_sources_are_read(directory: Path) -> None:
    Path("broken.tsv").write_text("one column\n")
    Path("corpora.yaml").write_text("sources: [broken.tsv]\nvalidation: {source: missing.de, target: train.en}\n")
    with pytest.raises(DataError, match=r"missing\.de: the file does not exist"):
        prepared(source="corpora.yaml")
    prepared(source="train.tsv.gz")
    with pytest.raises(DataError, match=r"out contains another preparation \(max_length 200 there, 100 now\)"):
        prepared(source="broken.tsv", max_length=100)
    for settings in ({}, {"max_length": 100, "overwrite": True}):
        with pytest.raises(DataError, match=r"broken\.tsv line 1"):
            prepared(source="broken.tsv", **settings)


def test_automatic_settings_of_an_old_preparation_are_compared_after_the_text_was_measured(directory: Path) -> None:
    for name in ("train.tsv.gz", "train.tsv.gz", "train.{de,en}"):      # the second one is kept
        prepare(PrepareSettings(name, output="out", workers=1))
    with pytest.raises(DataError, match=r"another preparation \(vocab_size \d+ there, 60 now"):
        prepare(PrepareSettings("train.tsv.gz", output="out", workers=1, vocab_size=60))


def test_prepared_again_from_the_same_sources_it_is_kept(directory: Path) -> None:
    before = prepared(source="train.tsv.gz").manifest
    stamp = Path("out/manifest.json").stat().st_mtime_ns
    assert prepared(source="train.tsv.gz").manifest == before
    assert Path("out/manifest.json").stat().st_mtime_ns == stamp


def test_sources_without_a_pair_are_refused_by_name(directory: Path) -> None:
    Path("empty.tsv").write_text("")
    with pytest.raises(DataError, match=r"empty\.tsv: it contains no pair"):
        prepared(source="empty.tsv")
    Path("long.tsv").write_text("a a a\tb\n")
    with pytest.raises(DataError, match=r"long\.tsv: no pair is left; dropped: 1 long source"):
        prepared(source="long.tsv", max_length=2)
    with pytest.raises(SettingsError, match="--source is missing"):
        prepared()
