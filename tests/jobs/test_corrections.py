"""Corrections of translations: reading a file of suggestions, and dividing the corrections."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from towernmt.core.errors import DataError
from towernmt.jobs.corrections import (
    FIELDS,
    MIN_CORRECTIONS,
    Correction,
    read_corrections,
    save_corrections,
    split_corrections,
)


def write_corrections(file: Path, pairs: list[tuple[str, str]], direction: str = "de-en", translation: str = "old"
                      ) -> Path:
    """Append corrections as the server does."""
    with file.open("a") as lines:
        lines.writelines(f"2026-11-26T08:00:00Z\t{direction}=runs/a\t{source}\t{translation}\t{target}\n"
                         for source, target in pairs)
    return file


def test_the_last_correction_of_a_source_counts_and_empty_ones_do_not(tmp_path: Path) -> None:
    file = write_corrections(tmp_path / "a.tsv", [("x", "y"), ("u", "v"), ("x", "z"), (" ", "v"), ("q", "")])
    assert read_corrections(file) == ("de-en", [Correction("x", "z"), Correction("u", "v")])


@pytest.mark.parametrize("beginning", ["", "\n", " \n\t\n"])
def test_a_line_with_the_names_of_the_fields_and_blank_lines_are_no_corrections(tmp_path: Path, beginning: str) -> None:
    (tmp_path / "a.tsv").write_text(f"{beginning}time\tmodel\tsource\ttranslation\tsuggestion\n\n")
    file = write_corrections(tmp_path / "a.tsv", [("x", "y")])
    file.write_text(f"{file.read_text()}\n\n")
    assert read_corrections(file)[1] == [Correction("x", "y")]


def test_corrections_of_several_directions_need_one_to_be_named(tmp_path: Path) -> None:
    file = write_corrections(tmp_path / "a.tsv", [("x", "y")])
    write_corrections(file, [("u", "v")], "en-de")
    with pytest.raises(DataError, match=r"corrections of several directions \(de-en, en-de\): select one with --dir"):
        read_corrections(file)
    assert read_corrections(file, "en-de") == ("en-de", [Correction("u", "v")])
    with pytest.raises(DataError, match=r"a.tsv has no corrections of the direction fr-en: pass --direction with one "
                                        r"of those that it has \(de-en, en-de\)"):
        read_corrections(file, "fr-en")


@pytest.mark.parametrize(("written", "direction", "name"), [
    ("de-en", "de_en", "de-en"), ("de-en", "DE-EN", "de-en"), ("DE_en", "de-en", "de-en"),
    ("pt-br-en", "pt_BR-en", "pt-br-en"), ("my model", "my model", "my model")])
def test_a_direction_has_any_spelling(tmp_path: Path, written: str, direction: str, name: str) -> None:
    file = write_corrections(tmp_path / "a.tsv", [("x", "y")], written)
    write_corrections(file, [("u", "v")], "en-de")
    assert read_corrections(file, direction) == (name, [Correction("x", "y")])


def test_two_spellings_of_a_direction_are_one(tmp_path: Path) -> None:
    file = write_corrections(tmp_path / "a.tsv", [("x", "y"), ("u", "v")])
    assert read_corrections(write_corrections(file, [("x", "z")], "DE_EN")) == (
        "de-en", [Correction("x", "z"), Correction("u", "v")])


def test_a_suggestion_that_equals_the_translation_is_no_correction(tmp_path: Path) -> None:
    file = write_corrections(tmp_path / "a.tsv", [("x", "y"), ("u", " old\u200b ")])
    write_corrections(file, [("a", "old")], "en-de")
    assert read_corrections(file) == ("de-en", [Correction("x", "y")])
    with pytest.raises(DataError, match=r"a.tsv has no corrections of the direction en-de: .*it has \(de-en\)"):
        read_corrections(file, "en-de")
    with pytest.raises(DataError, match="b.tsv has no corrections: pass a file .* differs from the translation"):
        read_corrections(write_corrections(tmp_path / "b.tsv", [("a", "old")]), "de-en")


def test_a_confirmation_of_another_translation_withdraws_an_earlier_correction(tmp_path: Path) -> None:
    file = write_corrections(tmp_path / "a.tsv", [("x", "y"), ("u", "v"), ("w", "z"), ("x", "old"), ("w", "old")])
    assert read_corrections(write_corrections(file, [("w", "new")])) == (
        "de-en", [Correction("u", "v"), Correction("w", "new")])
    assert read_corrections(write_corrections(file, [("u", "v")], translation="v")) == (
        "de-en", [Correction("u", "v"), Correction("w", "new")])    # an adapted model has learned the correction
    assert read_corrections(write_corrections(file, [("x", "old")], "en-de"), "de-en")[1] == [
        Correction("u", "v"), Correction("w", "new")]


TABLE = [["2026-11-26T08:00:00Z", "de-en=runs/a", 'Er sagte "Ja".', "old", 'He said "yes".'],
         ["2026-11-26T08:00:00Z", "de-en=runs/b", '"Ja."', "old", '"Yes."'],
         ["2026-11-26T08:00:00Z", "de-en=runs/a", "Linux", "old", "Linux"]]
"""Lines with quotes, of two models of a direction, and with a source that the suggestion keeps."""


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONE])
def test_a_file_that_a_spreadsheet_program_has_saved_has_the_same_corrections(tmp_path: Path, quoting: Any) -> None:
    with (tmp_path / "a.tsv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, "excel-tab", quoting=quoting, quotechar=None if quoting == csv.QUOTE_NONE else '"').writerows(
            [FIELDS, *TABLE])
    assert read_corrections(tmp_path / "a.tsv") == ("de-en", [Correction(row[2], row[4]) for row in TABLE])


def test_corrections_that_are_all_the_same_are_one(tmp_path: Path) -> None:
    file = write_corrections(tmp_path / "a.tsv", [("x", "y")] * 200)
    corrections = read_corrections(file)[1]
    assert corrections == [Correction("x", "y")]
    with pytest.raises(DataError, match="a.tsv has 1 different corrections, which is too few: "):
        split_corrections(corrections, file)


def test_saved_corrections_are_read_again(tmp_path: Path) -> None:
    corrections = [Correction("time", "model"), Correction("a b", "old"), Correction("\u00e4", "c"),
                   Correction('"a"', '"b"'), Correction('"a ""b"""', '""""'), Correction('"', '""')]
    save_corrections(tmp_path / "new" / "a.tsv", "de-en", corrections)
    assert read_corrections(tmp_path / "new" / "a.tsv") == ("de-en", corrections)


@pytest.mark.parametrize(("content", "message"), [
    ("a\tb\n", "a.tsv line 1: 2 fields where 5 were expected .time, model, source, translation, suggestion"),
    ("\na\n", "a.tsv line 2: 1 fields where 5"), ("\n", "a.tsv has no corrections"),
    ("a\tb=c\t\td\te\n", "a.tsv has no corrections")])
def test_another_file_is_one_clear_sentence(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.tsv").write_text(content)
    with pytest.raises(DataError, match=message):
        read_corrections(tmp_path / "a.tsv")


def test_a_correction_stays_in_its_split_while_the_file_grows() -> None:
    pairs = [Correction(f"source {number}", "s") for number in range(300)]
    splits, more_splits = split_corrections(pairs[:200], "a"), split_corrections(pairs, "a")
    for name, split in splits.items():
        assert set(split) <= set(more_splits[name]) and len(split) >= MIN_CORRECTIONS[name]
    assert sum(map(len, more_splits.values())) == 300
    assert [round(len(more_splits[name]) / 300, 1) for name in ("train", "valid", "test")] == [0.7, 0.1, 0.2]
    with pytest.raises(DataError, match="a has 30 different corrections, which is too few"):
        split_corrections(pairs[:30], "a")


def test_the_error_about_too_few_corrections_says_which_are_missing() -> None:
    """Even 100 corrections can have too few of a kind, because a hash divides them."""
    pairs = [Correction(f"source {number}", "s") for number in range(1000)]
    few = split_corrections(pairs, "a")
    with pytest.raises(DataError) as error:
        split_corrections([*few["train"][:80], *few["valid"][:4], *few["test"][:16]], "a")
    assert str(error.value) == (
        "a has 100 different corrections, which is too few: 80, 4, 16 for training, validation and comparison, where "
        "at least 20, 5, 10 are needed: collect more, usually about 100 in all.")
