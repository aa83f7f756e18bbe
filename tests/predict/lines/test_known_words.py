"""The names and numbers that a model copies are placeholders of spans."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import pytest

from tests.predict.lines.test_special_lines import Model, translate
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.documents.shields import find_placeholders, make_placeholders, placeholder_pattern
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.known_words import KnownWords
from towernmt.predict.lines.line_options import LineRequest

WORDS = ("the", "Berlin", "device", "USA", "Bett", "is", "Paris")


def model_that_copies(*words: str) -> Model:
    """Return a model in capitals that copies these words, and translates others with a digit or a capital as `bed`."""
    return Model(lambda text: re.sub(r"[\w/:.@-]*\w", lambda match: match[0] if match[0] in words else (
        "bed" if re.search(r"\d|[A-Z]", match[0]) or "@" in match[0] else match[0].upper()), text))


@pytest.mark.parametrize(("copied", "expected"), [
    (["Berlin", "Paris", "25"], "The device Berlin is at Paris for 25"),
    (["Berlin", "60"], "The device Berlin is at X1 for 60"),
    ([], "The device X1 is at X2 for X3"), (["X1", "Berlin", "25"], "The device X1 is at X2 for X3")])
def test_placeholders_are_words_that_the_model_copies(copied: Sequence[str], expected: str) -> None:
    model = model_that_copies(*copied)
    translate(model, ["The device a@x.de is at b@x.de for 12 €", "The device a@x.de"], source_text=SourceText(WORDS))
    assert expected in model.texts
    assert sum(text.startswith("X1, X1") for text in model.texts) == 1      # the names are found once


def test_names_are_found_for_each_source_prefix_with_the_prefix() -> None:
    model, prefixes = model_that_copies("Berlin", "25"), list[str]()

    def translate_requests(requests: Iterable[LineRequest], *, again: bool) -> Iterator[Translation]:
        read = list(requests)
        prefixes.extend(request.options.source_prefix for request in read)
        return model(read, again=again)

    words = KnownWords(WORDS)
    assert [words.of(translate_requests, prefix) for prefix in ("<2de>", "", "<2de>")] == [["Berlin", "25"]] * 3
    assert prefixes.count("<2de>") == prefixes.count("") == len(prefixes) / 2


def test_the_spans_replace_the_names_of_the_translation() -> None:
    model = model_that_copies("Berlin", "25")
    assert translate(model, ["see a@x.de now: 12 €"], source_text=SourceText(WORDS)) == ["SEE a@x.de NOW: 12 €"]


def test_a_damaged_number_is_the_place_of_its_placeholder() -> None:
    model = Model(lambda text: text if text.endswith(", 25.") else re.sub("25", "255", text).upper() if "25" in text
                  else "damaged")
    assert translate(model, ["the 12 € device is"], source_text=SourceText(WORDS)) == ["THE 12 € DEVICE IS"]


def test_a_model_without_words_gets_the_usual_placeholders() -> None:
    model = model_that_copies("Berlin")
    translate(model, ["see a@x.de now"])
    assert model.texts == ["see a@x.de now", "see X1 now"]


QUANTITIES = ["12", "1,000.5", "12 €", "$1,234.56", "-5 °C", "120 km/h", "20 m²", "3,5 GB", "50 %", "1 000 000", "4711"]
OTHER_SPANS = ["12.03.1998", "10:30", "192.168.0.1", "030/1234567", "+49 30 1234567", "a@x.de", "{name}", "%d", "CO2"]


@pytest.mark.parametrize(("span", "expected"), [*((span, "25") for span in QUANTITIES),
                                                *((span, "Tom") for span in OTHER_SPANS)])
def test_numbers_stand_for_quantities_and_names_for_other_spans(span: str, expected: str) -> None:
    assert make_placeholders([span], "see", ["Tom", "25", "Mary"]) == [expected]


def test_words_of_the_text_are_no_placeholders() -> None:
    placeholders = make_placeholders(["a", "b", "5", "6"], "Toms 25 x1", ["Tom", "25", "60", "Mary"])
    assert placeholders == ["Mary", "X2", "60", "X3"]


@pytest.mark.parametrize(("translation", "found"), [
    ("Tom, 25 und X1", ["Tom", "25", "X1"]), ("TOM x1", ["TOM", "x1"]),
    ("Toms Haus, Tom's Tomas", ["Tom", "Tom", "Tom"]),
    ("Tommies Atom 125 2.25 25,5 25.", ["25"]), ("在Tom家X12 X2", ["Tom"]), ("Mary 2", [])])
def test_placeholders_are_found_as_words(translation: str, found: Sequence[str]) -> None:
    names = {"Tom": 4, "25": 6, "X1": 8}
    spans = find_placeholders(names, placeholder_pattern(names), translation)
    assert [translation[start:end] for _, start, end in spans] == found
    assert all(names[translation[start:end].capitalize()] == value for value, start, end in spans)
