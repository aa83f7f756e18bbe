"""Prefixes and constraints in second translations: they stay literal, and affect no other line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.hypotheses import Hypothesis, SearchOutput, TokenDetails, Translation, WordAlignment
from towernmt.predict.lines.line_options import LineOptions, LineRequest
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.required_texts import RequiredTexts
from towernmt.predict.lines.special_lines import SpecialLines, with_final_run
from towernmt.predict.search.search_settings import SearchSettings, SpecialLineSettings, StreamSettings

WORDS = WordVocabulary([*SPECIAL_PIECES, "see", "http://a.b", "here", "the", "device", "is"])
TRAINED = SourceText(("see", "here", "the", "device", "is"))
MARKED = SourceText(TRAINED.words, marked=0.95)


def translated(line: str, options: LineOptions, texts: Mapping[str, str], source_text: SourceText = TRAINED,
               encoder: RequestEncoder | None = None) -> Translation:
    """Return the translation of a line by a model that knows these lines and prefers second translations."""
    def model(requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        for request in requests:
            words = texts[request.text].split()
            details = TokenDetails([], [], alignment=WordAlignment(
                request.text.split(), words, np.eye(len(words), len(request.text.split()), dtype=np.float32)))
            yield Translation([Hypothesis(texts[request.text], -0.1 if again else -9.0, details, tokens=3)])

    special = SpecialLines(SpecialLineSettings(), WORDS, source_text=source_text, encoder=encoder)
    [translation] = special.translated([LineRequest(line, options)], model, 1)
    return translation


@pytest.mark.parametrize(("options", "expected"), [
    (LineOptions(), "<2en> GOOD MORNING, GOOD SIR"),
    (LineOptions(prefix="<2en>"), "<2en> GOOD MORNING, GOOD SIR"),
    (LineOptions(prefix="<2en> Goo", partial_word=True), "<2en> GooD MORNING, GOOD SIR"),
    (LineOptions(constraints=["Good"]), "<2EN> Good MORNING, GOOD SIR"),
    (LineOptions(constraints=["Good", "good"]), "<2EN> Good MORNING, good SIR"),
    (LineOptions(constraints=["<s> <2en> Good", "Good morning", "Sir </s>"]), "<2en> Good morning, GOOD Sir")])
def test_a_prefix_and_constraints_stay_in_a_line_in_capitals(options: LineOptions, expected: str) -> None:
    texts = dict.fromkeys(("SEE THE DEVICE", "See the device"), "<2en> Good morning, good Sir")
    if options == LineOptions():
        expected = expected.upper()
    assert translated("SEE THE DEVICE", options, texts)[0].text == expected


def test_a_final_mark_of_a_constraint_stays() -> None:
    texts = {"see here": "so", "see here.": "so, so!.", "see here?": "so"}
    assert translated("see here", LineOptions(), texts, MARKED)[0].text == "so, so"
    assert translated("see here", LineOptions(constraints=["so!"]), texts, MARKED)[0].text == "so, so!"


@pytest.mark.parametrize(("prefix", "expected"), [("", "so?!"), ("so", "so?!"), ("so.", "so."), ("so!", "so?!")])
def test_several_final_marks_do_not_change_a_prefix(prefix: str, expected: str) -> None:
    request = LineRequest("see?!", LineOptions(prefix=prefix))
    assert with_final_run(request, Translation([Hypothesis("so.", 0.0)]))[0].text == expected


@pytest.mark.parametrize("translation", ["什么？！", "「本当。」", "ماذا؟!", "वह है।", "τι;!"])
def test_final_marks_of_another_script_stay(translation: str) -> None:
    for line in ("what?!", "so..."):
        assert with_final_run(LineRequest(line), Translation([Hypothesis(translation, 0.0)]))[0].text == translation


def test_a_chinese_ellipsis_is_that_of_the_line() -> None:
    for translation, expected in (("等等……", "等等……"), ("「等等」", "「等等...」")):
        assert with_final_run(LineRequest("so..."), Translation([Hypothesis(translation, 0.0)]))[0].text == expected


def test_a_symbol_before_the_line_follows_the_prefix() -> None:
    texts = {"❤️ see here": "so damaged", "see here": "so here"}
    translation = translated("❤️ see here", LineOptions(), texts)
    assert translation[0].text == "❤️ so here" and translation[0].links() == [(0, 0), (1, 1), (2, 2)]
    translation = translated("❤️ see here", LineOptions(prefix="s", partial_word=True), texts)
    assert translation[0].text == "so ❤️ here" and translation[0].links() == [(0, 1), (1, 0), (2, 2)]


def test_a_second_translation_without_the_prefix_is_not_returned() -> None:
    texts = {"see ❤️ here": "see here now", "see here": "see here now"}
    assert translated("see ❤️ here", LineOptions(), texts)[0].text == "see ❤️ here now"
    assert translated("see ❤️ here", LineOptions(prefix="see here"), texts)[0].text == "see here now"


def test_texts_are_also_found_in_the_form_that_the_vocabulary_writes() -> None:
    required = RequiredTexts(LineOptions(prefix="a…", constraints=["b…", "c"]), lambda text: text.replace("…", "..."))
    assert required.changed_around("a... x b... y", str.upper) == "a... X b... Y"
    assert required.num_missing("a... x b... y") == 1
    assert RequestEncoder(SearchSettings(), WORDS, WORDS).written("see  the\tdevice") == "see the device"


def test_complete_words_come_before_parts_of_words_and_texts_may_overlap() -> None:
    required = RequiredTexts(LineOptions(constraints=["in", "in the", "the end"]))
    assert required.changed_around("begin in the end", str.upper) == "BEGIN in the end"
    assert RequiredTexts(LineOptions(constraints=["in"])).changed_around("begin", str.upper) == "BEGin"


class Copying:
    """A search that copies lines after their prefixes, and is unsure about unknown words."""

    def __call__(self, source: np.ndarray, source_length: np.ndarray, prefix: np.ndarray | None = None) -> SearchOutput:
        tokens = source if prefix is None else np.concatenate([prefix, source], axis=1)
        scores = np.where((source == UNK).any(axis=1), -9.0, -0.1).astype(np.float32)
        return SearchOutput(tokens[:, None], scores[:, None])

    def with_settings(self, changed: Mapping[str, Any]) -> Copying:
        return self


def test_a_line_whose_options_cannot_have_placeholders_does_not_change_the_other_lines() -> None:
    translator = LineTranslator(Copying(), WORDS, WORDS, checkpoint="", search=SearchSettings(),
                                stream=StreamSettings(), source_text=TRAINED)
    typo = LineRequest("teh device")
    unwritable = LineRequest("see http://a.b heer", LineOptions(prefix="see http://a.b"))    # `X1` is unknown
    [(text, _)] = translator.translate_nbest([typo])[0]
    assert text == "the device"
    texts = translator.translate([typo, unwritable, typo, unwritable, typo])
    assert texts[::2] == [text] * 3
    assert texts[1] == texts[3] == translator.translate([unwritable])[0]
