"""Lines that a model may not be trained for, around a model that is a function of a text."""

from __future__ import annotations

import copy
import io
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processor_time import processor_seconds
from tests.waiting import PATIENCE
from towernmt.core.errors import DataError, DivergenceError, SettingsError
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.documents.shields import EVERYTHING, Protection, compiled_pattern
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines import number_spans
from towernmt.predict.lines.capitals import is_in_capitals, usual_case
from towernmt.predict.lines.hypotheses import Hypothesis, SearchOutput, TokenDetails, Translation, WordAlignment
from towernmt.predict.lines.line_options import LineOptions, LineRequest, line_requests
from towernmt.predict.lines.line_spans import LineSpans
from towernmt.predict.lines.mark_spans import LineMarks
from towernmt.predict.lines.number_spans import numbers_in
from towernmt.predict.lines.protected_sentences import ProtectedLine, with_placeholders
from towernmt.predict.lines.special_lines import SpecialLines, copied
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.predict.search.search_settings import SearchSettings, SpecialLineSettings, StreamSettings

WORDS = WordVocabulary([*SPECIAL_PIECES, "the", "device", "is", "not", "here", "Berlin", "USA", "I", "é"])
PARTS = 3
"""Number of parts of a window whose second translations are searched at the same time."""
ALL = ("copy_lines", "protection", "casing", "spelling", "final_marks", "sentences")


class Model:
    """A model that is a function of a text to a text, or to a text and a mean log-probability of a token."""

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function
        self.texts: list[str] = []
        self.requests: list[LineRequest] = []

    def another(self) -> Model:
        """Return the same model without the texts that it has translated."""
        model = copy.copy(self)
        model.texts, model.requests = [], []
        return model

    def __call__(self, requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        for request in requests:
            self.requests.append(request)
            if not request.text.strip():
                yield Translation([Hypothesis("", 0.0)])
                continue
            self.texts.append(request.text)
            result = self._function(request.text)
            text, mean = result if isinstance(result, tuple) else (result, -0.1)
            missing = [phrase for phrase in request.options.constraints if phrase not in text]
            words = " ".join([*text.split(), *missing])
            tokens = len(words.split()) + 1
            log_prob = mean * tokens
            score = log_prob / ((5 + tokens) / 6) ** 0.6
            yield Translation([Hypothesis(words, score, tokens=tokens, log_prob=log_prob)])


def translate(model: Model, lines: Sequence[str | LineRequest], off: Sequence[str] = (), vocabulary: Any = WORDS,
              window: int = 100, source_text: SourceText = SourceText()) -> list[str]:  # noqa: B008
    """Return the translations, which are the same if second translations begin early."""
    settings = SpecialLineSettings(**dict.fromkeys(off, "off"))
    requests = [line if isinstance(line, LineRequest) else LineRequest(line) for line in lines]
    late, early = ([translation[0].text for translation in SpecialLines(
        settings, vocabulary, source_text=source_text).translated(requests, *arguments)]
        for arguments in ((model, window), (model.another(), window, PARTS)))
    assert late == early
    return late


def marked(text: str) -> str:
    """Return the text in capitals, and without the digits and signs of spans."""
    return " ".join(re.sub(r"(?<!X)\d|[/@%]", "", text.upper()).split())


WITHOUT_WORDS = ["❤️", "\u200b", "---", "•", "12345", "12.5", "50 %", "+49 (30) 123456", "👩‍💻 👍🏽", "5 km", "***",
                 "https://example.com/x?y=1", "a.b@example.com", "/usr/bin/env", "{name}", "%s", "?!",
                 "v2.3.1", "notes.txt", "<br/>"]


TRAINED = SourceText(("the", "device", "is", "not", "here", "Berlin"))


@pytest.mark.parametrize(("typed", "corrected", "expected"), [(-0.9, -0.3, "THE DEVICE"), (-0.3, -0.9, "TEH DEVICE")])
def test_the_surer_one_of_the_typed_and_the_corrected_line_is_translated(typed: float, corrected: float, expected: str
                                                                         ) -> None:
    model = Model(lambda text: (text.upper(), typed if "teh" in text else corrected))
    assert translate(model, ["teh device", "the device"], source_text=TRAINED) == [expected, "THE DEVICE"]
    assert model.texts == ["teh device", "the device", "the device"]


def test_typos_are_corrected_around_spans_and_in_lines_in_capitals() -> None:
    model = Model(lambda text: (text, -0.9 if "vi ce" in text or "deviec" in text else -0.1))
    assert translate(model, ["teh deviec {name} is", "TEH DEVIEC IS"], source_text=TRAINED) == [
        "the device {name} is", "THE DEVICE IS"]


def test_second_translations_that_are_certain_begin_before_the_first_ones_end() -> None:
    model, begun = Model(lambda text: (text.upper(), -0.9 if "teh" in text else -0.3)), threading.Event()

    def translate_requests(requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        if again:
            begun.set()
            yield from model(requests, again=again)
        else:
            read = list(requests)
            assert begun.wait(PATIENCE)
            yield from model(read, again=again)

    special = SpecialLines(SpecialLineSettings(), WORDS, source_text=TRAINED)
    requests = [LineRequest(text) for text in ("teh device", "the device", "teh device is", "NOT HERE")]
    translations = [translation[0].text for translation in special.translated(requests, translate_requests, 100, PARTS)]
    assert translations == ["THE DEVICE", "THE DEVICE", "THE DEVICE IS", "NOT HERE"]
    assert sorted(model.texts) == sorted([
        "teh device", "the device", "teh device is", "NOT HERE", "the device", "Not here", "the device is"])


@pytest.mark.parametrize("window", [1, 2, 3, 5, 7, 100])
def test_early_translations_of_each_window_are_used_once(window: int) -> None:
    model = Model(lambda text: (text.upper(), -0.9 if "teh" in text else -0.3))
    special = SpecialLines(SpecialLineSettings(), WORDS, source_text=TRAINED)
    requests = [LineRequest(f"teh device{' is' * (number % 3)}") for number in range(13)]
    translations = [translation[0].text for translation in special.translated(requests, model, window, PARTS)]
    assert translations == [request.text.replace("teh", "the").upper() for request in requests]
    assert len(model.texts) == 26


def test_an_early_translation_that_fails_fails_again_where_it_is_used() -> None:
    def translate_requests(requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        if again:
            raise DivergenceError("not a number")
        yield from Model(str.upper)(requests, again=again)

    special = SpecialLines(SpecialLineSettings(), WORDS, source_text=TRAINED)
    with pytest.raises(DivergenceError, match="not a number"):
        list(special.translated([LineRequest("teh device")], translate_requests, 100, PARTS))


def test_a_line_without_a_correction_is_translated_once() -> None:
    model = Model(str.upper)
    assert translate(model, ["xylophone is here", "USA"], source_text=TRAINED) == ["XYLOPHONE IS HERE", "USA"]
    assert translate(model, ["teh device"], off=["spelling"], source_text=TRAINED) == ["TEH DEVICE"]
    assert len(model.texts) == 3


@pytest.mark.parametrize(("line", "mean", "expected"), [
    ("Hola como estas", -0.8, "Hola como estas"), ("Hola como estas", -0.2, "HOLA COMO ESTAS"),
    ("Hola como", -0.8, "HOLA COMO"), ("Hola como here", -0.8, "HOLA COMO HERE"), ("X 1 2 3", -0.8, "X 1 2 3")])
def test_a_line_of_unknown_words_is_copied_if_the_model_is_unsure(line: str, mean: float, expected: str) -> None:
    assert translate(Model(lambda text: (text.upper(), mean)), [line], source_text=TRAINED) == [expected]


def test_a_line_of_unknown_words_is_translated_without_copying_and_without_facts() -> None:
    model = Model(lambda text: (text.upper(), -0.8))
    assert translate(model, ["Hola como estas"], off=["copy_lines"], source_text=TRAINED) == ["HOLA COMO ESTAS"]
    assert translate(model, ["Hola como estas"], off=["spelling"], source_text=TRAINED) == ["Hola como estas"]
    assert translate(model, ["Hola como estas"]) == ["HOLA COMO ESTAS"]


MARKED = SourceText((), 0.95)


@pytest.mark.parametrize(("best", "expected"), [("", "(IS IT HERE)"), (".", "IS IT HERE"), ("?", "QIS IT HERE")])
def test_a_line_without_a_final_mark_gets_the_one_that_the_model_prefers(best: str, expected: str) -> None:
    def function(text: str) -> tuple[str, float]:
        mark = text[-1] if text[-1] in ".?" else ""
        translation = {"": f"({text.upper()})", ".": text.upper(), "?": f"Q{text.upper()}"}[mark]
        return translation, -0.1 if mark == best else -0.9

    model = Model(function)
    assert translate(model, ["is it here", "is it here.", "here"], source_text=MARKED)[0] == expected
    assert model.texts == ["is it here", "is it here.", "here", "is it here.", "is it here?"]


def test_final_marks_are_those_of_the_script_and_only_added_if_the_training_text_has_them() -> None:
    model = Model(str)
    assert translate(model, ["هو هنا", "你好 世界", "वह है"], vocabulary=Letters(), source_text=MARKED) == [
        "هو هنا", "你好 世界", "वह है"]
    assert model.texts[3:] == ["هو هنا.", "هو هنا؟", "你好 世界。", "你好 世界？", "वह है।", "वह है?"]
    for options in ({"source_text": SourceText((), 0.5)}, {"source_text": MARKED, "off": ["final_marks"]}):
        plain = Model(str.upper)
        assert translate(plain, ["is it here"], **options) == ["IS IT HERE"]      # type: ignore[arg-type]
        assert len(plain.texts) == 1


@pytest.mark.parametrize("mark", [".", "。", "؟", "।", "۔", "።", "։", "။", "។"])
def test_the_final_mark_of_a_line_without_one_is_removed_in_each_script(mark: str) -> None:
    model = Model(lambda text: (f"so{mark}", -0.1 if text.endswith(".") else -0.9))
    assert translate(model, ["is it here"], source_text=MARKED) == ["so"]


def test_a_line_of_invisible_characters_gets_no_final_mark() -> None:
    requests = [LineRequest("\u200b \u200b", LineOptions(constraints=["so"]))]
    assert translate(Model(lambda text: "so"), requests, source_text=MARKED) == ["so"]


def test_a_line_in_capitals_with_a_typo_and_without_a_mark_gets_all_corrections() -> None:
    model = Model(lambda text: (text, -0.1 if text == "The device is." else -0.9))
    assert translate(model, ["TEH DEVICE IS"], source_text=SourceText(TRAINED.words, 1.0)) == ["THE DEVICE IS"]


def test_words_are_not_looked_up_if_neither_typos_nor_lines_of_unknown_words_matter() -> None:
    class Words(Sequence[str]):
        def __len__(self) -> int:
            raise AssertionError

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError

    assert translate(Model(str.upper), ["teh device"], off=["spelling", "copy_lines", "casing"],
                     source_text=SourceText(Words())) == ["TEH DEVICE"]


def test_terms_are_not_corrected() -> None:
    options = LineOptions(terminology=Terminology([Term("devise", "here")]))
    model = Model(lambda text: (text, -0.9 if "teh" in text else -0.1))
    translations = translate(model, [LineRequest("teh devise", options)], source_text=TRAINED)
    assert translations[0].startswith("the devise")


@pytest.mark.parametrize("line", WITHOUT_WORDS)
def test_a_line_without_words_is_its_own_translation(line: str) -> None:
    model = Model(lambda text: "noise")
    assert translate(model, [line]) == [line]
    assert model.texts == []
    assert translate(Model(lambda text: "noise"), [line], off=ALL) == ["noise"]


def test_a_blank_line_stays_empty_and_a_word_is_translated() -> None:
    assert translate(Model(marked), ["", "   ", "here", "X"]) == ["", "", "HERE", "X"]


def test_numbers_are_translated_by_a_model_without_letters() -> None:
    digits = WordVocabulary([*SPECIAL_PIECES, "1", "2"])
    assert translate(Model(lambda text: text[::-1]), ["1 2"], vocabulary=digits) == ["2 1"]
    assert translate(Model(lambda text: text[::-1]), ["1 2"]) == ["1 2"]


def test_a_line_with_a_prefix_is_not_copied() -> None:
    assert translate(Model(lambda text: "so"), [LineRequest("12", LineOptions(prefix="so"))]) == ["so"]


PROTECTED = [      # a line, and its translation by a model that damages spans
    ("see https://x.de/a?b=1 now", "SEE https://x.de/a?b=1 NOW"),
    ("write to a@b.de.", "WRITE TO a@b.de."),
    ("read /usr/bin/env or C:\\x", "READ /usr/bin/env OR C:\\x"),
    ("hello %s and {name}", "HELLO %s AND {name}"),
    ("at 12:45 it was 1,000.5 kg", "AT 12:45 IT WAS 1,000.5 kg"),
    ("error 40512 here", "ERROR 40512 HERE"),
    ("I love you ❤️.", "I LOVE YOU ❤️."),
    ("❤️ I love you 👍🏽", "❤️ I LOVE YOU 👍🏽"),
    ("see https://x.de and https://x.de", "SEE https://x.de AND https://x.de"),
    ("the [A1] device", "THE [A1] DEVICE"), ("run __init__.py now", "RUN __init__.py NOW"),
    ("run C:\\Program Files\\NVIDIA\\a now", "RUN C:\\Program Files\\NVIDIA\\a NOW")]


@pytest.mark.parametrize(("line", "expected"), PROTECTED)
def test_damaged_spans_are_protected_in_a_second_translation(line: str, expected: str) -> None:
    damaging = Model(lambda text: marked(text).replace("❤️", "").replace("👍🏽", ""))
    assert translate(damaging, [line]) == [expected]
    assert len(damaging.texts) == 2
    assert translate(Model(marked), [line], off=ALL) == [marked(line)]


@pytest.mark.parametrize("line", [line for line, _ in PROTECTED])
def test_a_model_that_keeps_spans_is_asked_once(line: str) -> None:
    model = Model(lambda text: f"so {text}")
    assert translate(model, [line]) == [f"so {line}"]
    assert model.texts == [line]


@pytest.mark.parametrize(("line", "translation", "is_kept"), [
    ("it is 49235 °C.", "es sind 49235.", False), ("it is 49235 °C.", "es sind 49235 Grad.", True),
    ("it costs 88 €!", "das kostet 88!", False), ("it costs 88 €!", "das kostet €88!", True),
    ("it costs EUR 88", "das kostet 88 EUR", True),
    ("it costs EUR 88", "das kostet 88.", False), ("zoom 250x", "250 Zoom", True), ("zoom 250x", "250-Zoom", False),
    ("3x a day", "dreimal am Tag", True), ("46685713% of it", "46685713.", False)])
def test_a_number_without_its_unit_is_changed(line: str, translation: str, is_kept: bool) -> None:
    assert LineSpans(line, EVERYTHING).changed(translation) == (not is_kept)


@pytest.mark.parametrize(("translation", "mean", "expected"), [
    ("ES SIND 41 MEILEN.", -0.3, "IT IS 41 MB."),           # another unit: the placeholder keeps it
    ("ES SIND 41 MEGABYTE.", -0.9, "ES SIND 41 MEGABYTE."),     # the placeholder costs more than 0.5 nats a token
    ("ES SIND 41MB.", -0.1, "ES SIND 41MB.")])
def test_a_unit_is_kept_by_a_placeholder_unless_that_is_improbable(translation: str, mean: float, expected: str
                                                                   ) -> None:
    model = Model(lambda text: (text.upper(), mean) if "X1" in text else translation)
    assert translate(model, ["it is 41 MB."]) == [expected]
    assert len(model.texts) == (1 if "41MB" in translation else 2)


def test_an_ordinary_line_reaches_the_model_unchanged() -> None:
    requests = [LineRequest("the device is here"), LineRequest("So, not here (é)!", LineOptions(n_best=2))]
    model = Model(marked)
    special = SpecialLines(SpecialLineSettings(), WORDS)
    list(special.translated(requests, model, 1))
    assert [passed is request for passed, request in zip(model.requests, requests, strict=True)] == [True, True]


def test_a_missing_span_is_inserted_next_to_its_neighbours() -> None:
    losing = Model(lambda text: " ".join(word.upper() for word in text.split() if not re.match("X|http", word)))
    assert translate(losing, ["see https://x.de/a now"]) == ["SEE https://x.de/a NOW"]
    assert len(losing.requests) == 2


@pytest.mark.parametrize(("line", "damaged", "expected"), [
    ("founded in 1910.", "GEGRÜNDET 194.", "GEGRÜNDET 1910."),
    ("it is 21.5 °C here", "HIER SIND 2,5 °C", "HIER SIND 21.5 °C"),
    ("12345 or 7777 of 2", "2: 1235 ODER 777", "2: 12345 ODER 7777"), ("it is 36", "366", "36")])
def test_a_number_that_the_model_damages_is_replaced_in_its_translation(line: str, damaged: str, expected: str) -> None:
    model = Model(lambda text: damaged)
    assert translate(model, [line]) == [expected]
    assert model.texts == [line]
    assert translate(Model(lambda text: damaged), [line], off=["protection"]) == [damaged]


@pytest.mark.parametrize(("line", "damaged"), [
    ("call 12345 now", "99 RUFEN"), ("see 1910 and 1920", "SIEHE 194"), ("error 40512: so", "FEHLER 4052:2-SO")])
def test_other_numbers_than_damaged_ones_are_translated_again(line: str, damaged: str) -> None:
    model = Model(lambda text: damaged if "X1" not in text else text.upper())
    assert translate(model, [line]) == [line.upper()]


def test_a_wrong_number_is_replaced_if_no_second_translation_is_better() -> None:
    class Looping(Model):
        def __call__(self, requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
            for translation in super().__call__(requests, again=again):
                yield translation.changed(lambda hypothesis: hypothesis.replaced(fault="loop" if again else None))

    model = Looping(lambda text: "99 RUFEN")
    assert translate(model, ["call 12345 now"]) == ["12345 RUFEN"]
    assert translate(model, ["call 12345 or 678"]) == ["99 RUFEN"]


def test_a_number_of_the_prefix_stays() -> None:
    model = Model(lambda text: "194 WAR ES")
    assert translate(model, [LineRequest("it was in 1910", LineOptions(prefix="194"))])[0].startswith("194")


def test_the_number_of_a_placeholder_is_its_place() -> None:
    digits = Model(lambda text: text.upper().replace("X1", "1") if "X1" in text else "damaged")
    assert translate(digits, ["see the device: https://x.de/a"]) == ["SEE THE DEVICE: https://x.de/a"]
    joined = Model(lambda text: "1:SEE" if "X1" in text else "damaged")
    assert translate(joined, ["see the device: https://x.de/a"]) == ["https://x.de/a:SEE"]
    other_model = Model(lambda text: text.upper().replace("X1", "91") if "X1" in text else "damaged")
    assert translate(other_model, ["it is not 232:782."]) == ["IT IS NOT 232:782."]
    assert translate(other_model, ["it is 91 https://x.de"])[0].count("https://x.de") == 1
    glued = Model(lambda text: "IT COSTS111." if "X1" in text else "damaged")
    assert translate(glued, ["it costs 12 €."]) == ["IT COSTS 12 €."]
    unclear = Model(lambda text: "IT111 COSTS112 R2D2." if "X1" in text else "damaged")
    assert translate(unclear, ["it costs 12 €."])[0] == "IT COSTS R2D2 12 €."
    two = Model(lambda text: "AT 1, 1" if "X" in text else "damaged")
    assert translate(two, ["at 1, https://x.de/a"])[0].count("https://x.de/a") == 1


def test_a_span_that_the_model_writes_twice_comes_once() -> None:
    twice = Model(lambda text: f"{text} {text}" if "http" in text else text)
    assert translate(twice, ["see https://x.de now"]) == ["see https://x.de now"]


def test_patterns_of_a_line_are_protected_also_without_the_others() -> None:
    line = LineRequest("the AcmeTool at https://x.de", LineOptions(protect=[r"\w*Tool"]))
    assert translate(Model(marked), [line]) == ["THE AcmeTool AT https://x.de"]
    assert translate(Model(marked), [line], off=["protection"]) == ["THE AcmeTool AT HTTPS:X.DE"]


def test_each_protected_word_of_an_option_gets_its_placeholder_once() -> None:
    line = "12 und 1 und 21"
    sentence = ProtectedLine(line, LineSpans(line, Protection(False, (r"\d+",)), False).segment).sentence
    assert sentence is not None
    names = {sentence.atoms[index].text: name for name, index in sentence.names.items()}
    options = with_placeholders(LineOptions(prefix="1 und 12", avoid=["121, 1, 1"]), sentence)
    assert options.prefix == f"{names['1']} und {names['12']}" and options.avoid == (f"121, {names['1']}, 1",)


@pytest.mark.parametrize("pattern", ["ha" * 251, "a" * 501, "x|" + "a" * 501 + "+", r"\-" * 501, "- " * 251])
def test_a_pattern_with_a_long_literal_text_is_refused(pattern: str) -> None:
    with pytest.raises(SettingsError, match=r"protect '.{40}\.\.\.': the pattern has a text of more than 500 char"):
        LineOptions(protect=[pattern])
    LineOptions(protect=["|".join(["Acme", "a" * 500] * 20)])


def test_a_pattern_that_is_not_a_regular_expression_is_one_clear_error() -> None:
    with pytest.raises(SettingsError, match=r"^protect '\[a': this is not a regular expression \(.*\): correct it"):
        LineOptions(protect=["[a"])


@pytest.mark.parametrize(("line", "numbers"), [
    ("at 12:45 in 3 rooms", ["12:45"]), ("12345", ["12345"]), ("12/05/2020, 2020-05-12", ["12/05/2020", "2020-05-12"]),
    ("10 km, 5 %, €20, $ 3.50 and 7 °C", ["10 km", "5 %", "€20", "$ 3.50", "7 °C"]),
    ("EUR 25, -USD 5 and 30 SEK, NEUR 7", ["EUR 25", "-USD 5", "30 SEK"]), ("10 000 people", ["10 000"]),
    ("7 p.m. or 7:30 pm, 3-4 days, 1/2, 25 men", []), ("X1, A320, 1990s, v1.2.3x", []),
    ("v1.2.3 and V10.4.", ["v1.2.3", "V10.4"]), ("10–20 days, 9–17, 1.5e-3", ["10–20", "9–17", "1.5e-3"]),
    ("-5 €, −7 °C, (-273.15) and 4 -3", ["-5 €", "−7 °C", "-273.15"]), ("E-Mail-2 1990-5", ["1990-5"]),
    ("1920x1080, 2 x 3 m or 2×3,5 cm", ["1920x1080", "2 x 3 m", "2×3,5 cm"]),
    ("+49 30 1234567, (030) 123 45 67, 0176-12 34 56 78, (555) 123-4567", [
        "+49 30 1234567", "(030) 123 45 67", "0176-12 34 56 78", "(555) 123-4567"]),
    ("nel 2015 l'azienda, 3 l’an", ["2015"]), ("5 w domu, 5 v Praze, 5 ma non, 5 Sek., 5 Ms Lee", []),
    ("60 W, 12 V, 9 mA, 5 ms, 5 EUR, 3 L, 2 KM", ["60 W", "12 V", "9 mA", "5 ms", "5 EUR", "3 L", "2 KM"]),
    ("2015'te 5 m'", ["2015", "5 m"]), ("în 2015 m-am mutat, 5 l-Kanister", ["2015", "5 l"]),
    ("52°31′12″N 13°24'18\"E", ["52°31′12″N", "13°24'18\"E"])])
def test_numbers_that_must_stay(line: str, numbers: list[str]) -> None:
    assert [line[start:end] for start, end in numbers_in(line)] == numbers


@pytest.mark.parametrize(("line", "words"), [
    ("CO2 and H2O on A4 at 12a, no 3x, 8h, 1st, 90s, 5 km", ["CO2", "H2O", "A4", "12a"]),
    ("au 19e siècle, de 5e eeuw, il 5o canto", []), ("ON THE 5TH IN THE 90S AT 8H AU 19E", []),
    ("A4 AND CO2 IN 12A", ["A4", "CO2", "12A"]),
    ("2 + 2 = 4, x > 5, a = b and 3×10⁸", ["2 + 2 = 4", "x > 5", "a = b", "3×10⁸"]),
    ("half: ½ or 2 ½ l", ["½", "2 ½"]), ("a - b, 3 - 4, a b, I + you", []), ("Hi <Name>, so", ["<Name>"]),
    ("the page (https://x.de) and <a@b.de>", ["(https://x.de)", "<a@b.de>"]),
    ("Hi [Name], so in [City]. [Music]", ["[Name]", "[City]"]),
    ("{Your Name} and ___ [12]", ["{Your Name}", "___", "[12]"]),
    ("so [here] or [the Name], a[Name] _x __y", [])])
def test_names_with_digits_and_equations_are_words_that_must_stay(line: str, words: list[str]) -> None:
    assert LineSpans(line, EVERYTHING).words == words


@pytest.mark.parametrize(("language", "line", "words"), [
    ("it", "la 2a edizione, 5a B e via Roma 12b", ["12b"]), ("it", "LA 2A EDIZIONE DEL CO2", ["CO2"]),
    ("es", "la 5a vez", []), ("pt", "a 2a vez", []), ("sv", "på 2a plats", []), ("eo", "la 2a libro", []),
    ("ca", "el 1r, el 2n, el 3r, el 4t i la 5a", []), ("fr", "le 2d tour en 12a", ["12a"]),
    ("nl", "om 20u in kamer 12a", ["12a"]), ("nl", "OM 20U", []), ("it", "5A sezione", ["5A"]),
    ("", "2a, 4t, 20u", ["2a", "4t", "20u"]), ("de", "Haus 2a, 4t", ["2a", "4t"])])
def test_an_ordinal_number_or_an_hour_of_a_language_is_no_name(language: str, line: str, words: list[str]) -> None:
    assert LineSpans(line, EVERYTHING, language=language).words == words


def test_an_ordinal_number_may_change_if_the_language_of_the_line_is_known() -> None:
    def translated(language: str) -> str:
        model = Model(lambda text: "the 2nd device" if "2a" in text else f"the {text.split()[-1]} device")
        lines = SpecialLines(SpecialLineSettings(), WORDS, (language, "en"))
        return [translation[0].text for translation in lines.translated([LineRequest("device 2a")], model, 1)][0]

    assert translated("it") == "the 2nd device" and translated("de") == "the 2a device"


def test_numbers_that_only_a_comma_or_a_dash_separates_get_one_placeholder() -> None:
    model = Model(lambda text: text.upper() if "X1" in text else "damaged")
    assert translate(model, ["on 12.03.2024, 18:30 in 52.52, 13.405"]) == ["ON 12.03.2024, 18:30 IN 52.52, 13.405"]
    assert model.texts[1] == "on X1 in X2"


@pytest.mark.parametrize(("line", "translation", "changed"), [
    ("it is -5 °C", "es sind 5 °C", 1), ("it is -5 °C", "es sind −5 °C", 0), ("at 10–20 €", "um 10-20 €", 0),
    ("it costs 1,000.50 €", "es kostet 1.000,50 €", 0), ("it costs 1,000.50 €", "es kostet 1.000,5 €", 1),
    ("12345 birds", "1245 Vögel", 1), ("12345 birds", "١٢٣٤٥ طائر", 0), ("12345 birds", "12345 Vögel 12345", 1),
    ("it is 21.5 °C", "es sind 215", 1), ("it is 21.5 °C", "es sind 21,5 °C", 0), ("at 12:45", "um 12.45 Uhr", 0),
    ("at 4:340", "um 4340", 1), ("at 4:340", "um 4:340", 0), ("on 12/05/2020", "am 12.05.2020", 0),
    ("10,000 birds", "10 000 Vögel", 0), ("3 birds", "drei Vögel", 0), ("in 1990 and 1990", "1990 und 1990", 0)])
def test_a_number_is_kept_by_its_digits(line: str, translation: str, changed: int) -> None:
    assert LineSpans(line, EVERYTHING).changed(translation) == changed


@pytest.mark.parametrize("unit", ["EUR 12 ", "-1 ", "12 €, ", "-€ 5 x "])
def test_only_the_characters_next_to_a_number_are_read_for_it(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    class Recorded:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self._pattern = pattern

        def search(self, text: str) -> re.Match[str] | None:
            lengths.append(len(text))
            return self._pattern.search(text)

    for name in ("_BEFORE_A_NUMBER", "_NEGATIVE"):
        monkeypatch.setattr(number_spans, name, Recorded(getattr(number_spans, name)))
    line = unit * 100
    assert LineSpans(line, EVERYTHING).changed(line.replace("2", "3")) >= 0
    assert number_spans.negative_values(line) | number_spans.values_with_units(line)
    assert lengths and max(lengths) <= 5


@pytest.mark.parametrize(("text", "values"), [
    ("EUR 5", {"5"}), ("xEUR 5", set()), ("in EUR\u00a05,", {"5"}), ("€ 5", {"5"}), ("USD5", {"5"}), ("AUSD 5", set()),
    ("5 km", {"5"}), ("5. km", set())])
def test_values_with_units_before_or_after_them(text: str, values: set[str]) -> None:
    assert number_spans.values_with_units(text) == values


@pytest.mark.parametrize(("text", "values"), [
    ("-5", {"5"}), ("− 5", {"5"}), ("- € 5", {"5"}), ("–€5", {"5"}), ("-- 5", {"5"}), ("-  5", set()), ("5", set())])
def test_values_after_a_minus_sign(text: str, values: set[str]) -> None:
    assert number_spans.negative_values(text) == values


def test_numbers_are_compared_by_their_first_digits() -> None:
    long = "12345678" * 10_000
    assert number_spans.are_similar(long, long[:-1] + "0") and not number_spans.are_similar("1" * 10_000, "2" * 10_000)


@pytest.mark.parametrize("line", [
    "take 5 **mg** now", "the [A1] device", "on <A4 paper> here", "the <Your **Name**> is", "pay €*5* here",
    "{room 12a} is"])
def test_the_parts_of_a_line_are_the_line(line: str) -> None:
    segment = LineSpans(line, Protection(True, (r"\d+\s*mg",))).segment
    assert "".join(getattr(part, "text", part) for part in segment) == line


def test_a_raised_digit_of_a_unit_belongs_to_its_number() -> None:
    segment = LineSpans("we have 350 m\u00b2 and 5\u2605", EVERYTHING).segment
    assert [getattr(part, "text", part) for part in segment] == [
        "we have ", "350 m\u00b2", " and 5", "\u2605"]


def by_case(capitals: float, usual: float) -> Callable[[str], tuple[str, float]]:
    """Return a model whose translation is the reversed words, with these probabilities by the case of the line."""
    def function(text: str) -> tuple[str, float]:
        return " ".join(text.split()[::-1]), capitals if text.isupper() else usual
    return function


def test_a_line_in_capitals_is_translated_in_its_usual_case_and_raised() -> None:
    model = Model(by_case(-2.0, -0.1))
    assert translate(model, ["THE DEVICE IS NOT IN BERLIN, USA. I SEE"]) == ["SEE I USA. BERLIN, IN NOT IS DEVICE THE"]
    assert model.texts[1] == "The device is not in Berlin, USA. I see"
    assert translate(Model(by_case(-2.0, -0.1)), ["THE DEVICE"], off=["casing"]) == ["DEVICE THE"]


def test_a_model_that_prefers_capitals_translates_them() -> None:
    knows = Model(lambda text: ("GERÄT FEHLT", -0.1) if text.isupper() else ("noise", -1.0))
    assert translate(knows, ["THE DEVICE IS NOT HERE"]) == ["GERÄT FEHLT"]
    copies = Model(lambda text: (text, -0.01) if text.isupper() else ("Gerät fehlt", -1.0))
    assert translate(copies, ["THE DEVICE IS NOT HERE"]) == ["GERÄT FEHLT"]


@pytest.mark.parametrize("line", ["NOT!", "IS?"])
def test_a_short_word_in_capitals_before_a_mark_is_translated_in_its_usual_case(line: str) -> None:
    model = Model(lambda text: ("noise", -0.9) if text.isupper() else (f"so {text}", -0.1))
    assert translate(model, [line]) == [f"SO {line}"]
    assert model.texts == [line, line.capitalize()]


@pytest.mark.parametrize("line", ["OK", "USA", "U.S.!", "NOT.", "A", "The device", "Peter Paul", "THE Device is here"])
def test_abbreviations_names_and_mixed_case_are_translated_once(line: str) -> None:
    model = Model(lambda text: text)
    assert translate(model, [line]) == [line]
    assert len(model.texts) == 1


MARKS = [       # a line, the text that the model sees in the second translation, and the translation
    ("das **sehr gute** buch", "das sehr gute buch", "DAS **SEHR GUTE** BUCH"),
    ("_so_ ist ~~das~~ auto**bahn**", "so ist das autobahn", "_SO_ IST ~~DAS~~ AUTO**BAHN**"),
    ("lies [das buch](https://x.de/a_(b)) da", "lies das buch da", "LIES [DAS BUCH](https://x.de/a_(b)) DA"),
    ("das <b>gute</b> buch<br/>da", "das gute buch da", "DAS <b>GUTE</b> BUCH<br/>DA"),
    ("[b]wo bist du?[/b]", "wo bist du?", "[b]WO BIST DU?[/b]"),
    ("{\\i1}wo bist du?{\\i0}\\NIch da", "wo bist du? Ich da", "{\\i1}WO BIST DU?{\\i0}\\NICH DA"),
    ("das ist&nbsp;gut", "das ist gut", "DAS IST&nbsp;GUT"),
    ("- [x] milch kaufen", "milch kaufen", "- [x] MILCH KAUFEN"), ("> > so ist das", "so ist das", "> > SO IST DAS"),
    ("a) so ist das", "so ist das", "a) SO IST DAS"), ("## so ist das", "so ist das", "## SO IST DAS"),
    ("– so ist das", "so ist das", "– SO IST DAS"), ("*** so ist das ***", "so ist das", "*** SO IST DAS ***"),
    ("| ein hund | so |", "ein hund so", "| EIN HUND | SO |"), ("(so ist das.)", "so ist das.", "(SO IST DAS.)"),
    ("1.2.3 So ist das", "So ist das", "1.2.3 SO IST DAS"), ("1. so ist das", "so ist das", "1. SO IST DAS"),
    ("(12) so ist das", "so ist das", "(12) SO IST DAS"), ("so ist das :-)", "so ist das", "SO IST DAS :-)"),
    ("»so ist das«, ja", "so ist das, ja", "»SO IST DAS«, JA"), ("‚so ist‘ das", "so ist das", "‚SO IST‘ DAS"),
    ("<i>so ist **das** da</i>", "so ist das da", "<i>SO IST **DAS** DA</i>")]


@pytest.mark.parametrize(("line", "second_text", "expected"), MARKS, ids=[line for line, _, _ in MARKS])
def test_marks_that_a_model_damages_surround_the_same_words(line: str, second_text: str, expected: str) -> None:
    calls: list[str] = []

    def model(requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        for request in requests:
            calls.append(request.text)
            words = request.text.split() if again else ["damaged"]
            details = TokenDetails([], [], alignment=WordAlignment(words, words, np.eye(len(words), dtype=np.float32)))
            yield Translation([Hypothesis(" ".join(words).upper(), -0.1, details)])

    special = SpecialLines(SpecialLineSettings(casing="off"), WORDS)
    assert [translation[0].text for translation in special.translated([LineRequest(line)], model, 1)] == [expected]
    assert calls == [line, second_text]


@pytest.mark.parametrize("line", [line for line, _, _ in MARKS])
def test_a_model_that_keeps_marks_is_asked_once(line: str) -> None:
    model = Model(lambda text: text)
    assert translate(model, [line], off=["casing"]) == [line]
    assert model.texts == [line]


def test_other_quotes_are_kept_quotes() -> None:
    assert LineMarks("»so« ist das").lost('"so" is that') == 0
    assert LineMarks("»so« ist das").lost("so is that") == 2
    assert LineMarks("»so« ist das").lost("so it isn't") == 2
    assert LineMarks("»so« ist das").lost("that is 'so'") == 0


@pytest.mark.parametrize(("mean", "expected"), [(-0.1, "1. OPEN THE DOOR"), (-0.9, "FIRST 1 DOOR")])
def test_the_number_of_a_list_item_stays_at_the_beginning_if_the_model_is_surer(mean: float, expected: str) -> None:
    model = Model(lambda text: ("FIRST 1 DOOR", -0.5) if text[0].isdigit() else (text.upper(), mean))
    assert translate(model, ["1. open the door"]) == [expected]
    assert model.texts == ["1. open the door", "open the door"]


def test_a_list_item_whose_translation_is_only_the_number_is_translated_without_it() -> None:
    model = Model(lambda text: ("12.", -0.9) if text.startswith("12.") else (text.upper(), -0.1))
    assert translate(model, ["12. the device is here."]) == ["12. THE DEVICE IS HERE."]


@pytest.mark.parametrize(("line", "inner"), [
    ("the [device here] is", "device here"), ("[Music] the device", "Music"), ("it is. [Music]", "Music"),
    ("it [is] so", "is"), ("it is [at Here's 5].", "at Here's 5"),
    ("он [врач] там", "врач"), ("هنا [شرح] هناك", "شرح")])
def test_square_brackets_around_ordinary_words_are_marks(line: str, inner: str) -> None:
    marks = LineMarks(line)
    [(start, _, _), (end, _, _)] = marks.spans
    assert (line[start + 1:end], marks.lost(line), marks.lost(inner)) == (inner, 0, 2)


@pytest.mark.parametrize("line", [
    "5 * 3 * 2 is", "Lehrer*innen and Schüler_innen", "snake_case_name is", "a [ b ] c", "x < y > z", "am 3. Mai so",
    "the - is -", "f(x) is", "a|b is", "C:\\Neu is",
    "see [12] or [ ]", "the [Name] is", "f[x] is", "run __init__.py", "src/__tests__/a.js is", "the {__name__} is",
    "вот [Имя] тут", "C:\\WINDOWS\\NOTEPAD.EXE is"])
def test_signs_of_other_uses_are_not_marks(line: str) -> None:
    assert LineMarks(line).spans == []


def test_program_text_and_patterns_contain_no_marks() -> None:
    assert LineMarks("`**x**` is").spans == []
    options = LineOptions(protect=[r"\*\*\w+\*\*"])
    model = Model(lambda text: text.replace("*", ""))
    assert translate(model, [LineRequest("the **x** is", options)]) == ["the **x** is"]


def test_the_time_to_find_marks_grows_with_the_length() -> None:
    for text in ("**a** ", "*", "<b>", "[a](b) ", "- ", "_a ", "[", "[a b] ", "(", "{\\i1}"):
        short, long = (processor_seconds(lambda line=text * n: LineMarks(line).spans) for n in (1_000, 4_000))
        assert long < 10 * short + 1, text


@pytest.mark.parametrize("text", [lambda n: "(" + "ab " * n, lambda n: "<b>" * n + "</i>" * n], ids=["bracket", "tags"])
def test_the_time_to_find_marks_without_a_partner_grows_with_the_length(text: Callable[[int], str]) -> None:
    short, long = (processor_seconds(lambda line=line: LineMarks(line).spans) for line in map(text, (4_000, 16_000)))
    assert long < 10 * short + 1


@pytest.mark.parametrize("unit", [". ", "! ", "… ", ".", "?! "])
def test_the_time_for_a_row_of_signs_in_a_line_grows_with_its_length(unit: str) -> None:
    def work(count: int) -> Callable[[], object]:
        line = f"THE DEVICE {unit * count}1 IS TEH"
        return lambda: translate(Model(str.lower), [line], source_text=MARKED)

    short, long = (processor_seconds(work(count)) for count in (300, 1_500))     # was cubic: dot leaders
    assert long < 12 * short + 1


def test_a_sentence_begins_after_a_final_mark_with_a_space_among_other_signs() -> None:
    usual = {"HAUS": "haus"}
    for between, word in ((". ", "Haus"), (" ", "haus"), (".", "haus"), ("! – ", "Haus"), (" .", "haus"),
                          (". 1 ", "haus"), ("…” ", "Haus"), (" . . ", "Haus")):
        assert usual_case([f"HAUS{between}HAUS"], usual) == [f"Haus{between}{word}"]
        assert usual_case([f"HAUS{between}", "HAUS"], usual) == [f"Haus{between}", word]


def test_a_word_before_a_mark_is_in_capitals() -> None:
    assert [text for text in ("NO", "NO!", "NO?)", "NO! 1", "NO.", "1!") if is_in_capitals([text])] == ["NO!", "NO?)"]


@pytest.mark.parametrize(("line", "translation", "expected"), [
    ("so!!", "SO!", "SO!!"), ("was?!", "WHAT?", "WHAT?!"), ("so...", "SO.", "SO..."), ("so…", "SO", "SO..."),
    ("so…", "SO...", "SO..."), ('"so?!"', '"SO?"', '"SO?!"'), ("so!", "SO.", "SO."), ("so?", "SO", "SO"),
    ("was?!", "QUOI ?", "QUOI ?!"), ("« so ?!\u00a0»", "« SO ? »", "« SO ?! »"), ("so...\u200f", "SO.", "SO...")])
def test_several_final_marks_are_those_of_the_line(line: str, translation: str, expected: str) -> None:
    model = Model(lambda text: translation)
    assert translate(model, [line]) == [expected]
    assert model.texts == [line]
    assert translate(Model(lambda text: translation), [line], off=["final_marks"]) == [translation]


@pytest.mark.parametrize(("line", "text", "expected"), [
    ("the device!!!!", "the device!", "THE DEVICE!!!!"), ("here?!?! not here", "here? not here", "HERE? NOT HERE"),
    ("the device.....", "the device...", "THE DEVICE.....")])
def test_a_run_of_marks_is_shortened_for_the_model(line: str, text: str, expected: str) -> None:
    model = Model(lambda text: ("!!!!", -0.01) if re.search(r"[!?]{3}|[.]{4}", text) else (text.upper(), -0.9))
    assert translate(model, [line]) == [expected]
    assert model.texts == [line, text]


@pytest.mark.parametrize("line", ["the device?!", "the device..."])
def test_two_marks_and_an_ellipsis_are_not_shortened(line: str) -> None:
    model = Model(str.upper)
    assert translate(model, [line]) == [line.upper()]
    assert model.texts == [line]


def test_marks_after_a_final_mark_do_not_hide_it() -> None:
    model = Model(lambda text: text.upper() if "<" not in text and ":" not in text else "damaged")
    assert translate(model, ["<i>is it here?</i>"], source_text=MARKED) == ["<i>IS IT HERE?</i>"]
    assert model.texts[1:] == ["is it here?"]
    face = Model(lambda text: text.upper() if ":" not in text else "damaged")
    assert translate(face, ["it is here :-)"], source_text=MARKED) == ["IT IS HERE :-)"]
    assert face.texts[1:] == ["it is here.", "it is here?"]


def test_words_in_mixed_case_are_translated_in_their_usual_case_but_not_names() -> None:
    model = Model(lambda text: (text.upper(), -0.1 if text == "Der Berlin ist wichtig, eBay." else -0.9))
    known_words = SourceText((*GERMAN.words, "eBay"))
    assert translate(model, ["dEr BeRLin iST wICHTIG, eBay."], ["spelling"], Letters(), source_text=known_words) == [
        "DER BERLIN IST WICHTIG, eBay."]


def test_names_that_the_training_text_lacks_are_kept() -> None:
    model = Model(lambda text: text.replace("userName", "us").replace("ISBN", "US"))
    assert translate(model, ["the userName is ISBN", "the USA is"], ["spelling"], source_text=TRAINED_NAMES) == [
        "the userName is ISBN", "the USA is"]
    numbers = Model(lambda text: text.upper())
    assert translate(numbers, ["the device is 3,5 GB and EUR 250 in II"], ["spelling"], source_text=TRAINED_NAMES) == [
        "THE DEVICE IS 3,5 GB AND EUR 250 IN II"]
    assert len(numbers.texts) == 1


@pytest.mark.parametrize(("line", "source"), [
    ("the ISBN is here", "ISBN"), ("the ISBN is here", "isbn"), ("the A4 device is here", "A4 device"),
    ("the 2. device is here", "2. device")])
def test_protected_words_of_a_term_are_translated(line: str, source: str) -> None:
    options = LineOptions(terminology=Terminology([Term(source, "Berlin", any_case=True)]))
    model = Model(lambda text: re.sub(re.escape(source), "Berlin", text, flags=re.IGNORECASE))
    assert translate(model, [LineRequest(line, options)], ["spelling"], source_text=TRAINED_NAMES) == [
        "the Berlin is here"]
    assert ("ISBN" in line) == (len(model.texts) == 1)


@pytest.mark.parametrize("line", ["<de> the device is", "<hr> THE DEVICE", ">>fra<< so. The device. Here is."])
def test_a_line_with_a_tag_of_the_training_text_is_translated_once(line: str) -> None:
    tags = WordVocabulary([*SPECIAL_PIECES, "<de>", "<hr>", ">>fra<<", "the", "device"])
    model = Model(lambda text: text.partition(" ")[2].lower())
    assert translate(model, [line], vocabulary=tags, source_text=TRAINED) == [line.partition(" ")[2].lower()]
    assert model.texts == [line]
    other = Model(lambda text: text.replace("<de>", ""))
    assert translate(other, ["<de> the device is"], source_text=TRAINED) == ["<de> the device is"]


TRAINED_NAMES = SourceText((*TRAINED.words, "USA", "eBay", "YouTube", "TeachersInnen", "berlin"))


@pytest.mark.parametrize(("line", "spans"), [
    ("the eBay is YouTube.", ["eBay", "YouTube"]), ("the USA is berLin, TeachersInnen.", []),
    ("hahaha, the Mmmm is hmmm", ["hahaha", "Mmmm"]), ("the Brrrr is oooh", ["Brrrr"]), ("the theeeee is heree", []),
    ("haha mama bananas", [])])
def test_names_with_capitals_inside_and_sounds_are_spans(line: str, spans: list[str]) -> None:
    special = SpecialLines(SpecialLineSettings(), WORDS, source_text=TRAINED_NAMES)
    special_line = special.special_line(LineRequest(line))
    assert (special_line.spans.words if special_line else []) == spans


def test_words_of_a_line_are_not_compiled() -> None:
    compiled_before = compiled_pattern.cache_info().misses
    word = "ha" * 700
    lines = [f"the {word} is", f"the {word}", word, "the userName is ISBN", f"the {'ж' * 700} жж"]
    model = Model(lambda text: re.sub("(?:ha|ж|N)+", "", text))
    assert translate(model, lines[:4], source_text=TRAINED_NAMES) == lines[:4]
    assert translate(model, lines[4:], vocabulary=Letters("жï")) == lines[4:]
    assert compiled_pattern.cache_info().misses == compiled_before


def test_lines_of_sounds_are_copied() -> None:
    lines = ["aaaaaaa", "Hahahaha!", "hahaha hahaha", "lalalala", "Mmm"]
    model = Model(lambda text: "damaged")
    assert translate(model, lines) == translate(model, lines, source_text=TRAINED) == lines
    assert translate(model, ["Brrrrrr!", "haha"], source_text=TRAINED) == ["Brrrrrr!", "damaged"]


def test_the_correction_of_a_word_with_a_repeated_letter_is_used_though_the_model_is_less_sure() -> None:
    model = Model(lambda text: (text.upper(), -0.1 if "eeee" in text else -0.9))
    assert translate(model, ["heeeere"], source_text=TRAINED) == ["HERE"]


def test_lines_of_programs_are_copied() -> None:
    lines = ["for (int i = 0; i < 10; i++) { print(i); }", "x = 5;", "}", "print(the);"]
    assert translate(Model(lambda text: "damaged"), lines) == lines
    assert translate(Model(str.upper), ["he is here (now);"]) == ["HE IS HERE (NOW);"]
    tags = Model(lambda text: text.replace("device", "Gerät"))
    assert translate(tags, ["the <b>device</b> is here;"], off=["casing"]) == ["the <b>Gerät</b> is here;"]


def test_a_line_is_cleaned_before_its_words_are_looked_up() -> None:
    words = ("möchte", "ich", "hier")
    model, vocabulary = Model(lambda text: text), WordVocabulary([*SPECIAL_PIECES, *words, "ö"])
    lines = ["ich mo\u0308chte", "ich\u200b hier"]
    assert translate(model, lines, vocabulary=vocabulary, source_text=SourceText(words))[0] == "ich mo\u0308chte"
    assert len(model.texts) == 2


def test_small_numbers_that_a_second_translation_lacks_get_placeholders_in_a_third() -> None:
    model = Model(lambda text: "IT IS 3" if text.isupper() else text.replace("3", "three"))
    assert translate(model, ["IT IS 3"]) == ["IT IS 3"]
    assert model.texts == ["IT IS 3", "It is 3", "It is X1"]


def test_a_line_in_its_usual_case_that_keeps_its_numbers_gets_no_placeholders() -> None:
    model = Model(lambda text: "damaged" if text.isupper() or "X1" in text else text)
    assert translate(model, ["IT IS 3"]) == ["IT IS 3"]
    assert model.texts == ["IT IS 3", "It is 3"]


def test_a_line_whose_translation_lacks_a_sentence_is_translated_by_sentence() -> None:
    class Forgetful(Model):
        def __call__(self, requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
            requests = list(requests)
            for request, translation in zip(requests, super().__call__(requests, again=again), strict=True):
                best = translation[0]
                complete = Hypothesis(request.text.upper(), 3 * best.score, tokens=best.tokens)     # less probable
                yield Translation([complete]) if request.by_sentence else translation

    model = Forgetful(lambda text: text.split(".")[0].upper() + ".")
    lines = ["the device is. It is here.", "the device is.", "see https://x.de now. It is here.",
             "THE DEVICE IS. IS IT."]
    assert translate(model, lines, off=["casing"]) == [
        "THE DEVICE IS. IT IS HERE.", "THE DEVICE IS.", "SEE https://x.de NOW. IT IS HERE.", "THE DEVICE IS. IS IT."]
    assert translate(Forgetful(lambda text: text.split(".")[0].upper() + "."), lines[:1], off=["sentences"]) == [
        "THE DEVICE IS."]
    sure = Model(lambda text: ("THE DEVICE IS, AND IT IS HERE.", -0.1))
    assert translate(sure, lines[:1]) == ["THE DEVICE IS, AND IT IS HERE."]


def test_a_request_by_sentence_stays_one_in_its_second_translation() -> None:
    model = Model(lambda text: text.replace("@", ""))
    translate(model, [*line_requests([LineRequest("see a@x.de. It is here.", by_sentence=True)])])
    assert len(model.requests) == 2 and all(request.by_sentence for request in model.requests)


def test_spans_keep_their_case_in_a_line_in_capitals() -> None:
    model = Model(by_case(-2.0, -0.1))
    assert translate(model, ["THE DEVICE https://x.de/a IS HERE"]) == ["HERE IS https://x.de/a DEVICE THE"]
    assert model.texts[1] == "The device X1 is here"


def test_a_line_in_title_case_is_translated_in_its_usual_case_if_the_model_prefers_that() -> None:
    model = Model(lambda text: ("gut", -0.1) if text == "The device is not here." else ("schlecht", -1.0))
    assert translate(model, ["The Device Is Not Here."]) == ["gut"]
    other_model = Model(lambda text: ("schlecht", -1.0) if text == "The device is not here." else ("gut", -0.1))
    assert translate(other_model, ["The Device Is Not Here."]) == ["gut"]


def test_a_line_in_lower_case_is_translated_in_its_usual_case_if_the_model_prefers_that() -> None:
    model = Model(lambda text: (text.upper(), -0.1 if "Berlin" in text else -0.5))
    assert translate(model, ["berlin is not here"]) == ["BERLIN IS NOT HERE"]
    assert model.texts == ["berlin is not here", "Berlin is not here"]
    confident = Model(lambda text: ("second" if "Berlin" in text else "first", -0.5 if "Berlin" in text else -0.1))
    assert translate(confident, ["is berlin here"]) == ["first"]
    assert confident.texts[1] == "Is Berlin here"
    assert translate(Model(lambda text: text), ["berlin is not here"], off=["casing"]) == ["berlin is not here"]


GERMAN = SourceText(("der", "Berlin", "ist", "groß", "Haus", "USA", "gross", "wichtig", "Der"))


@pytest.mark.parametrize(("line", "usual"), [
    ("DER BERLIN IST GROSS", "Der Berlin ist groß"), ("der berlin ist gross", "Der Berlin ist gross"),
    ("Der Berlin Ist Usa", "Der Berlin ist USA"), ("DAS HAUS DER USA", "Das Haus der USA")])
def test_the_usual_case_is_that_of_the_training_text(line: str, usual: str) -> None:
    model = Model(lambda text: ("gut", -0.1) if text == usual else ("noise", -1.0))
    assert translate(model, [line], source_text=GERMAN)[0].lower() == "gut"
    assert translate(Model(lambda text: text), [usual], source_text=GERMAN) == [usual]


@pytest.mark.parametrize(("line", "usual"), [
    ("der Berlin ist WICHTIG.", "Der Berlin ist wichtig."), ("GROSS ist der Berlin", "Groß ist der Berlin"),
    ("WICHTIG: USA ist groß", "Wichtig: USA ist groß")])
def test_words_in_capitals_are_translated_in_their_usual_case_if_the_model_is_surer(line: str, usual: str) -> None:
    sure = Model(lambda text: ("gut", -0.1 if text == usual else -0.9))
    assert translate(sure, [line], ["spelling"], Letters(), source_text=GERMAN) == ["gut"]
    assert sure.texts == [line, usual]
    unsure = Model(lambda text: ("schlecht", -0.9) if text == usual else ("gut", -0.1))
    assert translate(unsure, [line], ["spelling"], Letters(), source_text=GERMAN) == ["gut"]


@pytest.mark.parametrize("line", ["der NATO ist wichtig", "USA ist wichtig", "Der ist IT", "der Berlin"])
def test_abbreviations_are_not_words_in_capitals(line: str) -> None:
    model = Model(lambda text: text)
    assert translate(model, [line], off=["spelling"], source_text=GERMAN) == [line]
    assert model.texts == [line]


@pytest.mark.parametrize(("line", "damaged", "expected"), [
    ("he is 30 today", "HE IS TWO", "HE IS 30 TODAY"), ("it is 7 here.", "IT IS 8 NOW.", "IT IS 7 HERE."),
    ("at 12:45 in 3 rooms", "AT 12:45 IN ROOMS", "AT 12:45 IN 3 ROOMS")])
def test_a_small_number_that_is_lost_is_protected_in_a_second_translation(
        line: str, damaged: str, expected: str) -> None:
    model = Model(lambda text: text.upper() if "X1" in text else damaged)
    assert translate(model, [line]) == [expected]
    assert len(model.texts) == 2
    assert translate(Model(lambda text: damaged), [line], off=["protection"]) == [damaged]


@pytest.mark.parametrize(("mean", "expected"), [(-0.5, "3 DAYS"), (-0.7, "DREI TAGE"), (-9.0, "DREI TAGE")])
def test_a_word_of_a_number_stays_if_the_model_is_unsure_about_the_placeholder(mean: float, expected: str) -> None:
    model = Model(lambda text: (text.upper(), mean) if "X1" in text else ("DREI TAGE", -0.1))
    assert translate(model, ["3 days"]) == [expected]


@pytest.mark.parametrize(("line", "translation", "lost"), [
    ("am 3. Mai", "on May 3rd", []), ("um 14 Uhr 30", "at 2:30 p.m.", []), ("at 2 p.m.", "um 14 Uhr", []),
    ("at 12 p.m.", "um 0 Uhr", []), ("um halb 8", "at 7:30", []), ("um 3 in 15", "at 15", [3]),
    ("in 14 Tagen", "in two weeks", [14]), ("30 Leute", "thirty people", [30]), ("30 oder 31", "30 or 31", []),
    ("3 und 3", "3 and three", [3]), ("3-4 Tage, 1/2, A4, 3x", "so", [3, 4, 1, 2]),
    ("3–4 Tage", "three or 4 days", [3]), ("1/2 Liter", "1/2 litre", []), ("3 Tage", "\u0663 days", [])])
def test_small_numbers_that_a_translation_lacks(line: str, translation: str, lost: list[int]) -> None:
    assert LineSpans(line, EVERYTHING).lost_small_numbers(translation) == lost


def test_only_small_numbers_that_are_lost_get_placeholders() -> None:
    model = Model(lambda text: text.upper() if "X1" in text else "19")
    assert translate(model, ["the 18. and 19. device"]) == ["THE 18. AND 19. DEVICE"]
    assert model.texts[1] == "the X1. and 19. device"


def test_a_line_whose_words_are_usual_in_lower_case_is_translated_once() -> None:
    model = Model(lambda text: text)
    assert translate(model, ["the device is here. is not"]) == ["the device is here. is not"]
    assert len(model.texts) == 1


def test_a_word_with_an_apostrophe_may_be_in_a_line_in_title_case() -> None:
    model = Model(lambda text: ("gut", -0.1) if text == "The device isn't here." else ("schlecht", -1.0))
    assert translate(model, ["The Device Isn't Here."]) == ["gut"]


def test_letters_that_the_vocabulary_lacks_are_read_without_accents_or_copied() -> None:
    confident_model = Model(lambda text: ("gut", -0.2) if text == "the device ist" else ("schlecht", -2.0))
    assert translate(confident_model, ["the device ïst"], vocabulary=Letters()) == ["gut"]
    assert translate(Model(lambda text: ("noise", -2.0)), ["the device ïst"], vocabulary=Letters()) == [
        "the device ïst"]


def test_a_letter_in_decomposed_form_is_known_if_its_composed_form_is() -> None:
    line = "\u1112\u1161\u11ab the"
    assert translate(Model(lambda text: ("gut", -2.0)), [line], vocabulary=Letters(line[:3])) == ["gut"]


def test_words_of_unknown_letters_are_kept() -> None:
    model = Model(lambda text: text.upper().replace("Ж", ""))
    assert translate(model, ["the жж жжж is", "жж жжж", "the ï"], vocabulary=Letters("жï")) == [
        "THE жж жжж IS", "жж жжж", "THE Ï"]
    assert model.texts == ["the жж жжж is", "the ï", "the X1 is", "the i"]
    for word in ("हिन्दी", "สวัสดี", "می\u200cخواهم"):        # with vowel signs and a joiner
        other_model = Model(lambda text: " ".join(re.findall("[A-Z0-9]+", text.upper())))
        assert translate(other_model, [f"the {word} is"], vocabulary=Letters(word)) == [f"THE {word} IS"]
    words = WordVocabulary([*SPECIAL_PIECES, "the", "жж"])
    assert translate(Model(str), ["the жж"], vocabulary=words) == ["the жж"]


@pytest.mark.parametrize("options", [
    LineOptions(prefix="so"), LineOptions(constraints=["so"]),
    LineOptions(terminology=Terminology([Term("device", "so")]))], ids=["prefix", "constraint", "term"])
def test_a_line_whose_translation_has_required_words_is_not_copied(options: LineOptions) -> None:
    model = Model(lambda text: ("so", -2.0))
    assert translate(model, [LineRequest("the device ïst", options)], vocabulary=Letters()) == ["so"]


def test_a_fragment_with_a_translation_that_is_too_long_is_translated_with_a_full_stop() -> None:
    long = "Haus und noch ein Haus und mehr und mehr"
    model = Model(lambda text: ("Haus .", -0.5) if text.endswith(".") else (long, -0.5))
    assert translate(model, ["the house"]) == ["Haus"]
    assert model.texts == ["the house", "the house."]
    assert translate(model, ["the house"], off=["final_marks"]) == [long]
    sure = Model(lambda text: ("Haus .", -5.0) if text.endswith(".") else (long, -0.1))
    assert translate(sure, ["the house", "the house.", "the house is here"]) == [long, "Haus .", long]
    chinese = Model(lambda text: long)
    translate(chinese, ["我的房子", "今天我们在这里看书"], vocabulary=Letters())
    assert chinese.texts == ["我的房子", "今天我们在这里看书", "我的房子。"]


class Letters(WordVocabulary):
    """A vocabulary that has all words but those with an unknown letter."""

    def __init__(self, unknown: str = "ï") -> None:
        super().__init__([*SPECIAL_PIECES, "a"])
        self._unknown = set(unknown)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [[3 if self._unknown.intersection(text.lower()) else 4] for text in texts]


def test_lines_before_a_wrong_one_are_translated_first() -> None:
    def requests() -> Iterator[LineRequest]:
        yield LineRequest("12")
        yield LineRequest("the device")
        raise DataError("line 3")

    translations = []
    with pytest.raises(DataError, match="line 3"):
        for translation in SpecialLines(SpecialLineSettings(), WORDS).translated(
                requests(), Model(marked), 10):
            translations.append(translation[0].text)       # noqa: PERF402 -- an error follows
    assert translations == ["12", "THE DEVICE"]


@pytest.mark.parametrize("window", [1, 3])
def test_no_more_than_a_window_is_read_before_its_first_translation(window: int) -> None:
    read_lines: list[str] = []

    def requests() -> Iterator[LineRequest]:
        for line in ["the device", "❤️", "THE DEVICE", "see https://x.de", "here", "is"]:
            read_lines.append(line)
            yield LineRequest(line)

    translations = SpecialLines(SpecialLineSettings(), WORDS).translated(
        requests(), Model(marked), window)
    for number, _ in enumerate(translations):
        assert len(read_lines) == (number // window + 1) * window


def test_the_alignment_of_a_copied_line_takes_no_more_memory_than_its_words() -> None:
    for count in (0, 1, 2, 900):
        alignment = copied("12 " * count)[0].alignment
        assert alignment is not None
        np.testing.assert_array_equal(alignment.weights, np.eye(count, dtype=np.float32))
        assert alignment.weights.dtype == np.float32 and alignment.links() == [(index, index) for index in range(count)]
        begin, end = np.lib.array_utils.byte_bounds(alignment.weights)
        assert end - begin <= max(2 * count, 1) * 4


class Noise:
    """A search whose translation of each line is one word."""

    def __call__(self, source: np.ndarray, source_length: np.ndarray) -> SearchOutput:
        count = len(source)
        return SearchOutput(np.full([count, 1, 1], WORDS.piece_to_id("Berlin")), np.full([count, 1], -0.1, np.float32))

    def with_settings(self, changed: Mapping[str, Any]) -> Noise:
        return self


def test_a_translator_copies_lines_of_a_file_that_have_no_words() -> None:
    translator = LineTranslator(Noise(), WORDS, WORDS, checkpoint="", search=SearchSettings(), stream=StreamSettings())
    lines = "\u200b\n❤️\nhttps://example.com/x?y=1\nthe device\n12345\n\n"
    translations = [translation[0].text for translation in translator.translate_stream(io.BytesIO(lines.encode()))]
    assert translations == ["\u200b", "❤️", "https://example.com/x?y=1", "Berlin", "12345", ""]


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"casing=yes: choose one of auto, off\."):
        SpecialLineSettings(casing="yes")


SPANS = ["https://x.de/a?b=1", "a@b.de", "❤️", "👍🏽", "%(name)s", "{x}", "12:45", "1,000.5", "/etc/hosts", "#tag", "→"]


def test_a_number_before_a_placeholder_is_a_span() -> None:
    line = "12:45 %(name)s"
    assert [line[start:end] for start, end in numbers_in(line)] == ["12:45"]
    assert LineSpans(line, EVERYTHING).changed("%(name)s") == 1


@given(st.lists(st.sampled_from(["the", "device", "is", "here", *SPANS]), min_size=1, max_size=12),
       st.integers(0, 99), st.integers(1, 3))
def test_each_span_comes_as_often_as_in_the_line_by_any_model(
        words: list[str], seed: int, window: int) -> None:
    def shuffled(text: str) -> str:
        chance = random.Random(f"{seed} {text}")
        parts = [word for word in text.split() if chance.random() < 0.7]
        chance.shuffle(parts)
        return " ".join(re.sub("[:/@]", "", word) for word in parts) or "so"

    line = " ".join(words)
    for translation in translate(Model(shuffled), [line, "here", line], window=window)[::2]:
        assert LineSpans(line, EVERYTHING).changed(translation) == 0


def aligned(text: str) -> Translation:
    """Return the words of a line as its translation, each aligned with itself."""
    words = text.split()
    details = TokenDetails([], [], alignment=WordAlignment(words, words, np.eye(len(words), dtype=np.float32)))
    return Translation([Hypothesis(text, -0.1, details)])


@pytest.mark.parametrize("line", ["❤️ see https://x.de/a now 👍🏽", "❤️see 12:45, now", "---", "THE DEVICE IS HERE",
                                  "see 12 € now", "❤️ see 10.05.2024, 12:30 and (12 €) now"])
def test_word_alignments_are_those_of_the_words_of_the_line(line: str) -> None:
    def model(requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        return (aligned(request.text if again else "damaged") for request in requests)

    special = SpecialLines(SpecialLineSettings(), WORDS)
    [translation] = special.translated([LineRequest(line)], model, 1)
    assert translation[0].text == line
    count = len(line.split())
    assert translation[0].links() == [(index, index) for index in range(count)]
    assert translation[0].alignment is not None
    assert translation[0].alignment.source == translation[0].alignment.target == line.split()


def test_the_alignment_of_a_line_without_a_final_mark_has_no_mark() -> None:
    def model(requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        for request in requests:
            words = request.text.split()
            target = [*words[:-1], words[-1].rstrip(".?"), *(["?"] if again else [])]
            weights = np.eye(len(target), len(words), dtype=np.float32)
            details = TokenDetails([], [], alignment=WordAlignment(words, target, weights))
            yield Translation([Hypothesis(" ".join(target).upper(), -0.1 if again else -0.9, details)])

    special = SpecialLines(SpecialLineSettings(), WORDS, source_text=MARKED)
    [[hypothesis]] = special.translated([LineRequest("is it here")], model, 1)
    assert hypothesis.text == "IS IT HERE" and hypothesis.links() == [(0, 0), (1, 1), (2, 2)]
    assert hypothesis.alignment is not None and hypothesis.alignment.target == ["IS", "IT", "HERE"]


@pytest.mark.parametrize(("text", "links", "token_words"), [
    ("a 1,0 c ?", [(0, 0), (1, 1), (2, 2), (3, 3)], [0, 1, 1, 2, 3, -1]),
    ("A 1,0 C", [(0, 0), (1, 1), (2, 2)], [0, 1, 1, 2, -1, -1]),
    ("A 1,0 C?!", [(0, 0), (1, 1), (2, 2)], [0, 1, 1, 2, 2, -1]),
    ("A 1 000 C ?", [(0, 0), (1, 1), (2, 3), (3, 4)], [0, 1, 1, 3, 4, -1]), ("", [], [-1] * 6)])
def test_a_changed_text_keeps_the_alignment_of_its_words(text: str, links: list[tuple[int, int]],
                                                         token_words: list[int]) -> None:
    words = ["A", "1,0", "C", "?"]
    alignment = WordAlignment(words, words, np.eye(4, dtype=np.float32))
    hypothesis = Hypothesis("A 1,0 C ?", -0.1, TokenDetails([], [], words=[0, 1, 1, 2, 3, -1], alignment=alignment))
    changed = hypothesis.with_text(text)
    assert changed.links() == links and changed.details is not None and changed.details.words == token_words
    assert changed.alignment is not None and changed.alignment.target == text.split()
