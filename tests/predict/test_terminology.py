"""Terms in lines: occurrences, precedence of longer terms, and the format of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.core.errors import DataError
from towernmt.predict.lines.terminology import Term, Terminology


def targets(terminology: Terminology, line: str) -> list[str]:
    return [term.target for term in terminology.terms_in(line)]


def test_a_term_is_found_as_whole_words_only() -> None:
    terms = Terminology([Term("Haus", "house"), Term("C++", "C++"), Term("e-mail", "email")])
    assert targets(terms, "Das Haus, ein Hausboot.") == ["house"]
    assert targets(terms, "Hausboot und Rathaus") == []
    assert targets(terms, "C++-Programme, als e-mail") == ["C++", "email"]
    assert targets(terms, "(Haus)") == ["house"]


def test_a_longer_term_takes_the_place_of_those_within_it_and_that_overlap_it() -> None:
    terms = Terminology([Term("neue Software", "new software"), Term("Software", "software"),
                         Term("Software im Haus", "in-house software"), Term("Haus", "house")])
    assert targets(terms, "Die neue Software im Haus und Software im Turm") == ["in-house software", "software"]
    assert targets(terms, "neue Software") == ["new software"]


def test_a_term_that_occurs_twice_counts_once_and_the_order_is_that_of_the_line() -> None:
    terms = Terminology([Term("b", "B"), Term("a", "A")])
    assert targets(terms, "a b a b") == ["A", "B"]
    assert targets(terms, "") == []


def test_upper_and_lower_case_count_unless_the_term_says_any() -> None:
    terms = Terminology([Term("engine", "Motor"), Term("WHEEL", "Rad", any_case=True), Term("Straße", "street", True)])
    assert targets(terms, "Engine wheel Wheel STRASSE") == ["Rad", "street"]
    both = Terminology([Term("us", "uns", any_case=True), Term("US", "USA")])
    assert targets(both, "the US and Us") == ["USA", "uns"]


def test_white_space_and_unicode_forms_within_a_term_do_not_matter() -> None:
    terms = Terminology([Term("schöne  Welt", "fine world")])
    assert targets(terms, "Die scho\u0308ne\u00a0Welt!") == ["fine world"]


def test_each_letter_of_a_script_without_spaces_is_a_word() -> None:
    terms = Terminology([Term("東京", "Tokyo")])
    assert targets(terms, "私は東京に住んでいます。") == ["Tokyo"]


@pytest.mark.parametrize(("source", "line", "is_found"), [
    ("कि", "किताब", False), ("कि", "वह बोला कि हाँ", True), ("ताब", "किताब", False), ("க", "கடை", False),
    ("மரம்", "அது மரம்.", True), ("กา", "กาแฟ", True), ("กาแฟ", "ผมดื่มกาแฟร้อน", True), ("ក", "ក្រ", False),
    ("ខ្មែរ", "ភាសាខ្មែរ", True), ("မ", "မင်း", False), ("ك", "كِتَاب", False), ("كتاب", "هذا كِتَابٌ", True),
    ("كِتَاب", "كتاب", False), ("שלום", "שָׁלוֹם!", True), ("서울", "서울 시", True), ("나", "나무", False),
    ("東京", "東\u200b京都", True), ("パン", "パンダ", False), ("パン", "私はパンを食べる", True),
    ("人", "人々", False),
    ("eau", "l'eau", True), ("eau", "l’eau", True), ("l'eau", "de l’eau", True), ("don", "I don't", False),
    ("don't", "I don’t", True), ("t", "don't", False), ("dog", "the dog's", True), ("s", "dog's", False),
    ("İstanbul", "İstanbul'da", True), ("5", "3.5", False), ("km", "5km", False), ("km", "5 km", True),
    ("Haus", "Haus\u00adboot", False), ("Hausboot", "Haus\u00adboot", True), ("👩", "👩\u200d💻", False),
    ("👍", "👍🏽", False), ("❤", "I ❤\ufe0f it", True), ("cafe\u0301", "café", True), ("cafe", "cafe\u0301", False)])
def test_terms_are_found_as_words_in_every_script(source: str, line: str, is_found: bool) -> None:
    assert targets(Terminology([Term(source, "x")]), line) == ["x"] * is_found


@pytest.mark.parametrize(("source", "line"), [
    ("İstanbul", "istanbul"), ("istanbul", "İSTANBUL"), ("Isparta", "ISPARTA"), ("ışık", "IŞIK"), ("Straße", "STRASSE"),
    ("ΟΔΟΣ", "οδος"), ("οδός", "ΟΔΌΣ"), ("ǆ", "ǅ")])
def test_any_case_compares_by_unicode_and_by_turkish_rules(source: str, line: str) -> None:
    assert targets(Terminology([Term(source, "x", any_case=True)]), line) == ["x"]
    assert targets(Terminology([Term("kız", "x", any_case=True)]), "kiz") == []


def test_a_file_has_a_term_a_line_with_a_rule_for_case_if_wanted(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("# terms\nMotor\tengine\n\nRAD\twheel\tany\nBand\tbelt\texact\n", encoding="utf-8")
    terms = Terminology.read(path)
    assert targets(terms, "Motor rad band") == ["engine", "wheel"]
    assert terms.terms[1].where == f"{path} line 4"


@pytest.mark.parametrize(("line", "message"), [
    ("Motor engine", "expected a source term, a tab"), ("\tengine", "expected a source term"),
    ("Motor\t ", "expected a source term"), ("Motor\tengine\tsmart", "exact or any, not 'smart'"),
    ("a\tb\tany\tc", "expected a source term"), ("Band\tbook", "in .*terms.tsv line 1: keep one")])
def test_what_is_wrong_in_a_file_is_said_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(f"Band\tbelt\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"terms\.tsv line 2: .*{message}"):
        Terminology.read(path)
