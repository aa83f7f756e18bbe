"""The forms of a test set, and the scores of systems that translate them well or badly."""

from __future__ import annotations

import random
import re

import pytest
import sacrebleu

from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.modifiers import _EMOJI, with_typos
from towernmt.evaluate.custom_metric import CustomMetric
from towernmt.evaluate.metrics import MetricSettings
from towernmt.evaluate.robustness import (
    RobustnessText,
    robustness_rows,
    robustness_scores,
    robustness_texts,
)

SOURCE = ["Das Haus ist alt und groß.", "Wo ist der Hund geblieben?", "Nein"]
REFERENCES = [["The house is old and large.", "Where has the dog gone to?", "No"]]


def forms(seed: int = 1) -> dict[str, RobustnessText]:
    return {text.name: text for text in robustness_texts(SOURCE, REFERENCES, seed)}


def test_the_forms_are_those_of_their_names():
    texts = forms()
    assert list(texts) == ["clean", "upper case", "title case", "lower case", "no final punctuation", "one typo",
                           "two typos", "emoji", "address", "number", "placeholder", "zero-width space",
                           "joined in twos"]
    assert texts["clean"].source == SOURCE and texts["upper case"].source[0] == "DAS HAUS IST ALT UND GROSS."
    assert texts["title case"].source[1] == "Wo Ist Der Hund Geblieben?" and texts["lower case"].source[2] == "nein"
    assert texts["no final punctuation"].source == ["Das Haus ist alt und groß", "Wo ist der Hund geblieben", "Nein"]
    for name, typos in (("one typo", 1), ("two typos", 2)):
        for text, before in zip(texts[name].source, SOURCE, strict=True):
            pairs = list(zip(text.split(), before.split(), strict=True))
            assert sum(line != changed_line for line, changed_line in pairs) == min(typos, len(pairs))
    assert [clean(text) for text in texts["zero-width space"].source] == SOURCE
    assert texts["joined in twos"].source == [" ".join(SOURCE[:2]), SOURCE[2]]
    assert texts["joined in twos"].references == [[" ".join(REFERENCES[0][:2]), "No"]]
    assert all(texts[name].references == REFERENCES for name in ("clean", "upper case", "one typo", "zero-width space"))


@pytest.mark.parametrize("name", ["emoji", "address", "number", "placeholder"])
def test_a_span_is_added_to_the_source_and_to_the_reference(name):
    text = forms()[name]
    for span, source, reference in zip(text.spans, text.source, text.references[0], strict=True):
        assert span and source.count(span) >= 1 and reference.count(span) >= 1
    assert text.source[0].removesuffix(".") == f"Das Haus ist alt und groß {text.spans[0]}"
    assert forms(2)[name].spans != text.spans == forms()[name].spans


def test_a_span_is_drawn_again_while_the_line_or_its_translation_has_it():
    texts = {text.name: text for text in robustness_texts(["1 2 3 4 5"] * 400, [["6 7 8 9"] * 400])}
    assert not {*"123456789"} & {*texts["number"].spans} and "0" in texts["number"].spans


def test_a_line_that_contains_every_span_gets_none():
    line = "".join(_EMOJI * 2) + " 👍🏽👍🏽"
    every = "".join(emoji * 2 for emoji in _EMOJI)
    texts = {text.name: text for text in robustness_texts([every, line], [[every, "Two"]])}
    assert texts["emoji"].spans[0] == "" and texts["emoji"].source[0] == texts["emoji"].references[0][0] == every
    assert texts["emoji"].spans[1] in {emoji * 2 for emoji in _EMOJI}


def test_a_perfect_system_has_the_best_scores_and_the_scores_are_sacrebleus():
    texts = list(forms().values())
    scores = robustness_scores(texts, [text.references[0] for text in texts], MetricSettings(("bleu",)))
    assert all(score.bleu == pytest.approx(100) and score.relative == pytest.approx(1)
               and score.loops == score.empty == 0
               for score in scores)
    assert {score.name: score.copied for score in scores if score.copied is not None} == {
        "emoji": 1, "address": 1, "number": 1, "placeholder": 1}
    worse = [*texts[1].references[0][:2], "House"]
    hypotheses = [REFERENCES[0], [line.upper() for line in worse]]
    score = robustness_scores(texts[:2], hypotheses, MetricSettings(("bleu",)))[1]
    expected = sacrebleu.corpus_bleu([line.upper() for line in worse], REFERENCES, lowercase=True, force=True).score
    assert score.bleu == pytest.approx(expected) and score.relative == pytest.approx(expected / 100)


def test_custom_metrics_do_not_score_the_forms():
    def metric(*_):
        raise AssertionError("it may be slow, and its scores are not in the table")

    texts = [forms()["clean"]]
    settings = MetricSettings(("bleu",), custom=(CustomMetric("metric", metric),))
    assert robustness_scores(texts, [REFERENCES[0]], settings)[0].bleu == pytest.approx(100)


def test_faults_and_lost_spans_are_counted():
    texts = [text for text in forms().values() if text.name in ("clean", "address")]
    lost = [f"{texts[1].spans[0]} {texts[1].spans[0]}", "", "LALALALALALALALALA"]
    address = robustness_scores(texts, [REFERENCES[0], lost], MetricSettings())[1]
    assert address.copied == 0 and address.empty == pytest.approx(1 / 3) and address.loops == pytest.approx(1 / 3)
    header, row = robustness_rows([address])
    assert header[5] == "spans copied" and row[0] == "address" and row[5:] == ["0.0%", "33.3%", "33.3%"]


def test_the_space_before_a_unit_may_be_missing():
    text = RobustnessText("number", ["a 5 %."] * 4, [["b 5 %."] * 4], ["5 %"] * 4)
    clean_text = RobustnessText("clean", ["a."] * 4, [["b."] * 4], [""] * 4)
    scores = robustness_scores([clean_text, text], [["b."] * 4, ["b 5 %.", "b 5%.", "b 5.", "b 5% 5%."]],
                               MetricSettings())
    assert scores[1].copied == pytest.approx(2 / 4)


def test_final_punctuation_does_not_count_where_the_source_has_none():
    texts = [text for text in forms().values() if text.name in ("clean", "no final punctuation")]
    without = [re.sub(r"\W$", "", line) for line in REFERENCES[0]]
    assert robustness_scores(texts, [REFERENCES[0], without], MetricSettings())[1].bleu == pytest.approx(100)
    assert robustness_scores(texts, [REFERENCES[0], REFERENCES[0]], MetricSettings())[1].bleu == pytest.approx(100)


def test_short_lines_have_as_many_typos_as_words():
    assert with_typos("a 1 !", 2, random.Random(1)) == "a 1 !"
    assert with_typos("ab", 2, random.Random(1)) != "ab"
