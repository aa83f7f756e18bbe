"""`towernmt inspect`: its counts, its samples, and errors in a source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from towernmt.cli.main import main

LINES = ["ja wort\tyes word", "ja ja\tyes yes", "\tempty", "nein nein nein\tno", "ja wort\tyes word"]


@pytest.fixture
def inspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs `inspect` in a directory with sources and returns the status and the output."""
    (tmp_path / "good.tsv").write_text("".join(line + "\n" for line in LINES))
    (tmp_path / "broken.tsv").write_text("a\tb\nno second column\n")
    (tmp_path / "words.words").write_text("<pad>\n<s>\n</s>\n<unk>\nja\nwort\nyes\nword\n")
    (tmp_path / "corpora.yaml").write_text(
        "sources:\n  - {uri: good.tsv, weight: 3}\n  - broken.tsv\nvocabulary: words.words\nmax_length_ratio: 2\n")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["inspect", *arguments])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def test_a_source_is_counted_measured_and_shown(inspect) -> None:
    status, text = inspect("good.tsv", "--samples", "2")
    assert status == 0
    assert re.search(r"\[1\]\s+5\s+100\.0 %\s+1\.8, 3, 3\s+1\.6, 2, 2\s+-\s+[\d,]+\s+1 to drop\n", text), text
    assert "1 of 5 pairs would be dropped: empty source" in text
    assert "1 of 5 pairs came before" in text
    assert text.endswith("  ja wort\n    yes word\n  ja ja\n    yes yes\n")


def test_pairs_that_the_filters_of_text_would_drop_are_counted(inspect, tmp_path) -> None:
    (tmp_path / "some.tsv").write_text("eins\teins\nzwei 2\ttwo 2\ndrei 3\tthree\n\tempty 4\nvier\tvier\n")
    (tmp_path / "filtered.yaml").write_text(
        "sources:\n  - {uri: some.tsv, tag: <2de>}\ndrop_identical: true\nmatch_digits: true\n")
    text = inspect("filtered.yaml")[1]
    assert re.findall(r"(\d) of 5 pairs would be dropped: (.*)\n", text) == [
        ("1", "digits"), ("1", "empty source"), ("2", "identical sides")]
    assert "4 to drop" in text


def test_the_filters_of_text_do_not_see_the_factors_of_sources_without_a_vocabulary(inspect, tmp_path) -> None:
    (tmp_path / "factors.tsv").write_text("eins|N7\teins\nzwei|N7 2|D\ttwo 2\ndrei|N7 3|D\tthree\n")
    (tmp_path / "filtered.yaml").write_text(
        "sources: [factors.tsv]\nsource_factors: 1\ndrop_identical: true\nmatch_digits: true\n")
    text = inspect("filtered.yaml")[1]
    assert re.findall(r"(\d) of 3 pairs would be dropped: (.*)\n", text) == [("1", "digits"), ("1", "identical sides")]
    (tmp_path / "factors.tsv").write_text("eins|N7\tone\nzwei\ttwo\n")
    status, text = inspect("filtered.yaml")
    assert status == 1 and "error: factors.tsv line 2: 'zwei' does not have the form word|factor1" in text


def test_repeated_source_sentences_are_counted_with_the_most_frequent(inspect, tmp_path) -> None:
    pairs = ["a\tx", "b\ty", "a\tz", " a \tx", "b\ty", "c\tx", "\tx", "\ty", f"{'long ' * 30}\tx", f"{'long ' * 30}\ty"]
    (tmp_path / "again.tsv").write_text("\n".join(pairs) + "\n")
    text = inspect(str(tmp_path / "again.tsv"))[1]
    shown = ("long " * 30)[:57] + "..."
    assert "2 of 10 pairs came before" in text
    assert f"4 of 10 pairs have a source that came before: 'a' (3 times), 'b' (2 times), '{shown}' (2 times)\n" in text
    assert "have a source that came before" not in inspect("good.tsv", "--no-count", "--pairs", "2")[1]


def test_a_mixture_has_a_row_for_each_source_even_if_one_source_has_an_error(inspect) -> None:
    status, text = inspect("corpora.yaml")
    assert status == 1
    assert "75.0 %" in text and "25.0 %" in text
    assert "Lengths are tokens" in text
    assert "33.33 % / 25.00 %" in text      # unknown: 3 of 9 source tokens (nein), and 2 of 8 target tokens (empty, no)
    assert "1 of 5 pairs would be dropped: length ratio" in text
    assert re.search(r"\[2\] broken\.tsv\n  error: broken\.tsv line 2", text), text


def test_counting_may_be_left_out_and_the_look_limited(inspect) -> None:
    status, text = inspect("good.tsv", "--no-count", "--pairs", "2")
    assert status == 0
    assert "2 or more" in text and "came before" not in text


def test_prepared_data_is_looked_at_too(inspect) -> None:
    assert main(["prepare", "--source", "good.tsv", "--vocab-kind", "word", "--output", "out"]) == 0
    status, text = inspect("out")
    assert status == 0
    assert "[1] out" in text and "0.00 % / 0.00 %" in text
    assert "would be dropped" not in text and "1 dropped: empty source" in text
    assert inspect("out", "--vocabulary", "words.words") == (1, (
        "towernmt: --vocabulary words.words: out is prepared data, which includes its vocabularies. Remove "
        "--vocabulary.\n"))
    assert inspect("out", "--pairs", "2", "--no-count") == (1, (
        "towernmt: --pairs and --no-count: out is prepared data, of which all shards are read, to verify them. Leave "
        "this out.\n"))


@pytest.mark.parametrize("name", [
    "shard-00000.pairs", "valid.source", "valid.target-2", "valid-2.target", "lengths.tsv", "statistics.json",
    "statistics.txt", "vocabulary/source_text.json", "vocabulary/target.words"])
def test_every_file_of_prepared_data_is_verified(inspect, tmp_path, name: str) -> None:
    for text in ("a", "b"):
        (tmp_path / text).write_text(f"{text} ja\n{text} nein\n")
    assert main(["prepare", "--source", "good.tsv", "--vocab-kind", "word", "--output", "out",
                 "--valid-source", "a", "b", "--valid-target", "b", "a", "a", "b"]) == 0
    assert inspect("out")[0] == 0
    path = tmp_path / "out" / name
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    status, text = inspect("out")
    assert status == 1 and f"out/{name}: " in text


@pytest.mark.parametrize(("arguments", "message"), [
    (["none.yaml"], "none.yaml: cannot be read"), (["nowhere"], "nowhere: the directory does not exist"),
    (["good.tsv", "--pairs", "0"], "at least 1 pair"), (["gopher://x"], "gopher"),
    (["good.tsv", "--vocabulary", "none"], "none: no vocabulary found"),
])
def test_missing_data_is_reported_in_one_sentence(inspect, arguments: list[str], message: str) -> None:
    status, text = inspect(*arguments)
    assert status == 1
    assert text.startswith("towernmt: ") and message in text and text.count("\n") == 1
