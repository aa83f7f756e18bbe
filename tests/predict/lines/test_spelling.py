"""Corrections of typos, compared with a search of all words by their distance."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edit_distance import edit_distance
from towernmt.predict.lines.spelling import TypoCorrector, with_spaces

ENGLISH = ["the", "device", "is", "not", "Tom", "available", "here", "Berlin", "USA", "don't", "hear", "hare", "we"]


@pytest.mark.parametrize(("typed", "expected"), [
    ("teh device is not avialable.", "the device is not available."),               # exchanged letters
    ("The devise iss not herr.", "The device is not here."),                        # replaced and doubled
    ("Th devce is not in Berlni.", "The device is not in Berlin."),                 # missing, in a name
    ("we dont", "we don't"),
    ("Devive here", "Device here"),                                                 # a capital at the beginning
    ("Hello. Devive, here", "Hello. Device, here")])
def test_a_typo_is_corrected_to_a_word_of_the_training_text(typed: str, expected: str) -> None:
    spelling = TypoCorrector([*ENGLISH, "in", "hello"])
    assert spelling.has_unknown(typed)
    assert spelling.corrected(typed) == expected


@pytest.mark.parametrize("text", [
    "The device is not available.", "THE USA", "berlin", "Is he from NASA?", "McDonald", "x 12 345a", "", "東京は",
    "हिन्दी", "Xylophon unvergleichlich"])
def test_known_words_abbreviations_and_distant_words_are_kept(text: str) -> None:
    assert TypoCorrector([*ENGLISH, "he", "from"]).corrected(text) == text


@pytest.mark.parametrize(("typed", "expected"), [
    ("sooooo schoen", "so schön"), ("Hallooo", "Hallo"), ("Neeeeiiiin", "Nein"), ("Schiffffahrt", "Schifffahrt"),
    ("fuer die Bruecke", "für die Brücke"), ("Strasse", "Straße"), ("deja", "déjà"),
    ("Nr. 5 und Mio. hier", "Nr. 5 und Mio. hier"),
    ("Das ist so. Nn.", "Das ist so. Nu.")])
def test_words_typed_without_accents_or_with_repeated_letters_are_corrected(typed: str, expected: str) -> None:
    words = ["so", "schön", "hallo", "nein", "Schifffahrt", "für", "Brücke", "Straße", "déjà", "die", "das", "ist",
             "und", "nur", "mir", "hier", "nu"]
    assert TypoCorrector(words).corrected(typed) == expected


@pytest.mark.parametrize(("typed", "expected"), [
    ("Ja,ich komme.Du auch?Nein", "Ja, ich komme. Du auch? Nein"), ("Hallo!Wie?", "Hallo! Wie?"),
    ("z.B. 10:30, 1,5 und Lehrer:innen, x.de, U.S.A.", "z.B. 10:30, 1,5 und Lehrer:innen, x.de, U.S.A.")])
def test_a_space_is_added_after_a_mark_that_joins_words(typed: str, expected: str) -> None:
    assert with_spaces(typed) == expected


def test_without_words_no_word_is_unknown() -> None:
    assert not TypoCorrector([]).has_unknown("teh device")
    assert TypoCorrector([]).corrected("teh device") == "teh device"


@pytest.mark.parametrize(("rank", "typed", "corrected"), [
    (100, "hunf", "hund"), (100, "hxnd", "hund"), (50_000, "hunf", "hund"), (50_000, "hxnd", "hxnd"),   # a distant key
    (50_000, "Hunf", "Hunf")])
def test_an_improbable_correction_to_a_rare_word_is_not_made(rank: int, typed: str, corrected: str) -> None:
    words = [f"word{number:05}" for number in range(rank)]
    assert TypoCorrector([*words, "hund", "und"]).corrected(f"und {typed}") == f"und {corrected}"


def test_words_of_kept_phrases_are_not_corrected() -> None:
    assert TypoCorrector(ENGLISH).corrected("teh devise", excluded_phrases=["devise pro"]) == "the devise"


def test_a_near_key_is_more_probable_than_a_frequent_word() -> None:
    words = ["fine", *(f"word{letter}" for letter in "abcdefgh"), "dine"]
    assert TypoCorrector(words).corrected("sine") == "dine"          # s is next to d, far from f
    assert TypoCorrector(["wake", "make"]).corrected("nake") == "make"


def test_the_keyboard_and_the_case_are_those_of_the_language() -> None:
    assert TypoCorrector(["aus", "axs"], "de").corrected("azs") == "aus"             # u is right of z in Germany
    assert TypoCorrector(["ılık"], "tr").corrected("IILIK") == "IILIK"               # capitals may be an abbreviation
    assert TypoCorrector(["ılık"], "tr").corrected("Ilkı") == "Ilık"


@st.composite
def words_with_a_change(draw: st.DrawFn) -> tuple[list[str], str]:
    """Return words, and a text of letters of which some words differ by one or two changes."""
    typed = draw(st.text("abcst", min_size=2, max_size=7))
    words = draw(st.lists(st.text("abcs", min_size=2, max_size=6), max_size=4))
    for _ in range(draw(st.integers(1, 4))):
        word = typed
        for _ in range(draw(st.integers(1, 2))):
            index, letter = draw(st.integers(0, len(word) - 1)), draw(st.sampled_from("abcst"))
            before, after = word[:index], word[index:]
            word = draw(st.sampled_from([before + letter + after, word + letter, before + letter + after[1:],
                                         before + after[1:] or letter, before + after[1:2] + after[:1] + after[2:]]))
        words.append(word)
    return list(dict.fromkeys(words)), typed


@given(words_with_a_change())
def test_the_correction_is_a_nearest_word_and_none_is_missed(words_and_typed: tuple[list[str], str]) -> None:
    words, typed = words_and_typed
    correction = TypoCorrector(words).corrected(f"x, {typed}").removeprefix("x, ")
    stretched = re.sub(r"(.)\1{2,}", r"\1{1,2}", typed)
    near = [word for word in words if edit_distance(typed, word) == 1 or re.fullmatch(stretched, word)]
    assert correction in near if near and typed not in words else correction == typed
