"""Lines of JSON to requests, and translations to lines of JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.hypotheses import Hypothesis, TokenDetails, Translation
from towernmt.predict.lines.line_options import LineOptions, LineRequest, json_answer, read_requests
from towernmt.predict.lines.terminology import Term

WORDS = WordVocabulary([*SPECIAL_PIECES, "good", "morning"])


def read(*objects: Any) -> list[LineRequest]:
    lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in objects]
    return list(read_requests(lines, "in.jsonl"))


def test_an_object_says_what_is_asked_in_our_names_or_sockeyes() -> None:
    assert read({"text": "Guten Morgen"}, {"text": "a", "target_prefix": "x", "avoid": ["y", "z"], "n_best": 3},
                {"text": "a", "prefix": "x", "partial_word": True, "search": {"beam_size": 9}, "id": {"k": 1}},
                {"text": "a", "use_target_prefix_all_chunks": False, "search": {"length_penalty": 1}},
                {"text": "a", "source_prefix": "<2de>"}) == [
        LineRequest("Guten Morgen", LineOptions(), {}),
        LineRequest("a", LineOptions(prefix="x", avoid=["y", "z"], n_best=3), {}),
        LineRequest("a", LineOptions(prefix="x", partial_word=True, search={"beam_size": 9}), {"id": {"k": 1}}),
        LineRequest("a", LineOptions(prefix_every_piece=False, search={"length_penalty": 1}), {}),
        LineRequest("a", LineOptions(source_prefix="<2de>"), {})]


def test_factors_stand_in_the_text_or_beside_it_as_sockeye_has_them() -> None:
    beside, = read({"text": "das Haus", "factors": ["DET NOUN", "low cap"]})
    assert beside.text == "das|DET|low Haus|NOUN|cap"
    with pytest.raises(DataError, match=r"line 1: factor 2 has 1 values for the 2 words"):
        read({"text": "das Haus", "factors": ["DET NOUN", "low"]})
    with pytest.raises(DataError, match="one for each factor"):
        read({"text": "das Haus", "factors": "DET NOUN"})


@pytest.mark.parametrize(("line", "message"), [
    (b"{", r"in.jsonl line 2: this is not JSON \(character 2: Expecting property name"),
    (b'{"text": "\xff"}', r"in.jsonl line 2: this is not JSON \(not UTF-8\)"), (b"\n", "line 2: this is not JSON"),
    (["text"], "line 2: write one JSON object a line, with a text"), ({"txt": "a"}, "with a text to translate"),
    ({"text": 5}, "with a text to translate"),
    ({"text": "a", "prefx": "b"}, "line 2: the field 'prefx' is not known. Did you mean 'prefix'?"),
    ({"text": "a", "qqq": "b"}, "line 2: the field 'qqq' is not known. The fields are: avoid, "),
    ({"text": "a", "inputs": {}}, "line 2: the field 'inputs' is not known"),
    ({"text": "a", "prefix": "b", "target_prefix": "c"}, "'target_prefix' repeats another field"),
    ({"text": "a", "prefix": ["b"]}, r"line 2: prefix=\['b'\]: give a text"),
    ({"text": "a", "avoid": "b"}, "line 2: avoid='b': give a list of texts"),
    ({"text": "a", "n_best": 0}, "line 2: n_best=0: give 1 or more"),
    ({"text": "a", "search": {"beam": 3}}, "line 2: search: 'beam' is not a search setting"),
    ({"text": "a", "search": {"averaged": False}}, "line 2: search: 'averaged' is not a search setting of a line"),
    ({"text": "a", "search": {"beam_size": "3"}}, "line 2: search: beam_size='3': give a value of the kind of 5"),
    ({"text": "a", "search": {"beam_size": True}}, "line 2: search: beam_size=True"),
    ({"text": "a", "search": {"length_penalty": None}}, "line 2: search: length_penalty=None")])
def test_what_cannot_be_read_is_one_sentence_with_its_line(line: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read({"text": "a"}, line)
    assert "\n" not in str(error.value)


def test_an_answer_has_what_is_known_of_the_best_and_of_all() -> None:
    details = TokenDetails([7, EOS], [4, 5, EOS], np.array([-0.5, -0.25, -0.125]))
    translation = Translation([Hypothesis("good morning", -0.123456, details), Hypothesis("", -2.0)])
    request, = read({"text": "a", "id": 5})
    answer = json.loads(json_answer(3, request, translation, WORDS, 2))
    assert answer == {"sentence_id": 3, "id": 5, "translation": "good morning", "score": -0.1235,
                      "tokens": ["good", "morning", "</s>"], "log_probs": [-0.5, -0.25, -0.125],
                      "translations": ["good morning", ""], "scores": [-0.1235, -2.0]}
    translation[0].fault, translation.retried, translation.terms = "loop", True, [Term("gut", "good")]
    looks = {"source": ["guten"], "target": ["good", "morning"], "weights": [[1.0], [0.5]]}
    assert json.loads(json_answer(3, request, translation, WORDS, 2, [(0, 1), (1, 0)], looks)) == {
        **answer, "fault": "loop", "retried": True, "terms": [{"source": "gut", "target": "good"}],
        "alignment": [[0, 1], [1, 0]], "attention": looks}
