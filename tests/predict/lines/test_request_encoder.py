"""Requests of lines as pieces with inputs of the search."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES, UNK
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.batch_inputs import LinePiece
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineOptions, LineRequest, line_requests
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.predict.lines.words_of_lines import Cut
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.stream import translate_stream

WORDS = WordVocabulary([*SPECIAL_PIECES, "house", "hour", "the", "House"])
SEARCH = SearchSettings(beam_size=4, n_best=2)


def pieces(count: int = 1, **options: object) -> list[LinePiece]:
    """Return the pieces of a line "a" that is cut into `count` pieces."""
    request = LineRequest("a", LineOptions(**options))  # type: ignore[arg-type]
    return RequestEncoder(SEARCH, WORDS, WORDS).pieces(request, [Cut([], 0, "a")] * count)


def changed_search(**options: object) -> dict[str, object]:
    return dict(pieces(1, **options)[0].search)


def test_more_translations_than_the_search_gives_are_another_search_and_fewer_are_not() -> None:
    assert pieces() == [LinePiece(())] == pieces(n_best=1) == pieces(n_best=2) == pieces(search={"beam_size": 4})
    assert changed_search() == changed_search(n_best=2) == changed_search(search={"beam_size": 4}) == {}
    assert changed_search(n_best=3) == {"n_best": 3}
    assert changed_search(n_best=9) == {"n_best": 9, "beam_size": 9}
    assert changed_search(search={"min_length": 1}) == {"min_length": 1}


def test_each_of_many_lines_that_avoid_many_phrases_takes_little_memory() -> None:
    phrases = ["the " * count + "house" for count in range(1, 100)]
    [piece], [same], [other] = (pieces(avoid=avoided) for avoided in (phrases, phrases, phrases[1:]))
    assert piece == same != other and hash(piece) == hash(same)
    assert len(pickle.dumps(piece.key)) < 1000 < piece.inputs["avoid"].nbytes


def test_only_the_first_piece_of_a_long_line_begins_with_its_prefix_where_that_is_wanted() -> None:
    every_prefix = pieces(3, prefix="the ho", partial_word=True, avoid=["hour"])
    assert all(set(piece.inputs) == {"prefix", "continuation", "avoid"} for piece in every_prefix)
    first_prefix = pieces(3, prefix="the ho", partial_word=True, avoid=["hour"], prefix_every_piece=False)
    assert [set(piece.inputs) for piece in first_prefix] == [{"prefix", "continuation", "avoid"}, {"avoid"}, {"avoid"}]
    assert np.array_equal(first_prefix[0].inputs["prefix"], every_prefix[0].inputs["prefix"])


def test_each_piece_begins_with_the_source_prefix() -> None:
    house, hour, the = WORDS.encode("house hour the")
    request = LineRequest("the house", LineOptions(source_prefix=" house\u00a0 hour "))
    pieces = RequestEncoder(SEARCH, WORDS, WORDS).pieces(request, [Cut([the], 0, "the"), Cut([house], 4, "house")])
    assert [piece.ids for piece in pieces] == [(house, hour, the), (house, hour, house)]
    assert [piece.text_ids for piece in pieces] == [(the,), (house,)]
    assert pieces[0].with_search({"min_length": 1}).text_ids == (the,)
    assert request.prefixed_text == "house hour the house" and LineRequest("the").prefixed_text == "the"


def test_a_source_prefix_with_unknown_words_is_refused() -> None:
    with pytest.raises(SettingsError, match="the source prefix 'the cat' has a word that the source voc"):
        pieces(1, source_prefix="the cat")


def test_a_source_prefix_has_the_factors_of_the_source() -> None:
    factored = FactoredVocabulary(WORDS, [WordVocabulary([*SPECIAL_PIECES, "X"])])
    encoder = RequestEncoder(SEARCH, factored, WORDS)
    assert encoder.source_prefix(LineOptions(source_prefix="the|X")) == tuple(factored.encode("the|X"))
    with pytest.raises(SettingsError, match=r"the source prefix 'the': 'the' does not have the form word\|factor1"):
        encoder.check(LineOptions(source_prefix="the"))


def test_a_tag_that_the_vocabulary_divides_is_found() -> None:
    text = [f"{first} {second}" for first in ("<2de>", "dog", "cat") for second in ("one", "two", "ten")] * 20
    vocabulary = learn_sentence_piece(text, "unigram", 40, symbols=["<2de>"])
    encoder = RequestEncoder(SEARCH, vocabulary, WORDS)
    assert encoder.divided_tags(LineOptions(source_prefix="<2de>")) == []
    assert encoder.divided_tags(LineOptions(source_prefix="<2de> <2on> one")) == ["<2on>"]


def ids_of(piece: LinePiece) -> dict[str, list]:
    return {name: value.tolist() for name, value in piece.inputs.items()}


def inputs_of(**options: object) -> dict[str, list]:
    return ids_of(pieces(1, **options)[0])


def test_anchored_phrases_are_a_prefix_or_end_with_the_sentence() -> None:
    house, hour, the = WORDS.encode("house hour the")
    assert inputs_of(constraints=["<s> the house"]) == {"prefix": [the, house]}
    assert inputs_of(constraints=["the house </s>"]) == {"constraints": [[the, house, EOS]]}
    assert inputs_of(constraints=["<s> the  </s>"]) == {"prefix": [the, EOS]}
    assert inputs_of(constraints=["<s> the", "hour", "house </s>"]) == {
        "prefix": [the], "constraints": [[hour, 0], [house, EOS]]}
    assert inputs_of(constraints=["<s> the hour", "<s> the"], prefix="the") == {"prefix": [the, hour]}
    assert inputs_of(constraints=["<s> the"], prefix="the hour") == {"prefix": [the, hour]}
    assert inputs_of(constraints=["<s> the hour"], prefix="the ho", partial_word=True) == {"prefix": [the, hour]}
    first_piece, last_piece = pieces(2, constraints=["<s> the", "hour", "house </s>"])
    assert ids_of(first_piece) == {"prefix": [the], "constraints": [[hour]]}
    assert ids_of(last_piece) == {"constraints": [[house, EOS]]}


def test_the_terms_of_a_piece_are_those_of_its_text_and_of_its_tokens_if_that_is_divided() -> None:
    terms = [Term("Ω", "hour"), Term("the", "house")]
    request, [the] = LineRequest("Ω the", LineOptions(terminology=Terminology(terms))), WORDS.encode("the")
    encoder = RequestEncoder(SEARCH, WORDS, WORDS)
    pieces = encoder.pieces(request, [Cut([UNK], 0, "Ω"), Cut([the], 1, "the")])
    assert [piece.terms for piece in pieces] == [terms[:1], terms[1:]]
    pieces = encoder.pieces(request, [Cut([UNK], 0, request.text, is_divided=True),
                                      Cut([the], 0, request.text, is_divided=True, first_token=1)])
    assert [piece.terms for piece in pieces] == [[], terms[1:]]


def test_a_whole_translation_gets_no_terms() -> None:
    terms = Terminology([Term("a", "hour")])
    assert "constraints" not in inputs_of(constraints=["<s> the </s>"], terminology=terms)
    assert "constraints" in inputs_of(constraints=["<s> the"], terminology=terms)


@pytest.mark.parametrize(("options", "message"), [
    ({"constraints": ["<s>"]}, "anchor without a phrase"), ({"constraints": ["</s>"]}, "anchor without a phrase"),
    ({"avoid": ["<s> </s>"]}, "anchor without a phrase"),
    ({"constraints": ["<s> the", "<s> hour"]}, "exclude each other"),
    ({"constraints": ["the </s>", "hour </s>"]}, "exclude each other"),
    ({"constraints": ["<s> the </s>", "hour"]}, "exclude each other"),
    ({"constraints": ["<s> the"], "prefix": "hour"}, "the prefix 'hour' and the phrase '<s> the' exclude"),
    ({"constraints": ["<unk>"]}, "does not know"), ({"constraints": ["<pad>"]}, "does not know"),
    ({"constraints": ["the <s> house"]}, "does not know"), ({"constraints": ["</s> the"]}, "does not know")])
def test_anchors_that_cannot_be_met_and_other_special_tokens_are_refused(options: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        pieces(1, **options)


def test_options_are_those_of_the_line_when_another_thread_encodes_others_meanwhile() -> None:
    terms, other_terms = (Terminology([Term("the", target)]) for target in ("house", "hour"))
    options, other_options = (LineOptions(prefix=prefix, terminology=terminology)
                              for prefix, terminology in (("the", terms), ("hour", other_terms)))

    class Disturbed(RequestEncoder):
        """An encoder that another thread uses whenever this one has written an attribute."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if value is not None and name in others:
                super().__setattr__(name, others[name])

    others: dict[str, Any] = {}
    encoder = RequestEncoder(SEARCH, WORDS, WORDS)
    encoder.check(other_options)
    disturbed = Disturbed(SEARCH, WORDS, WORDS)
    others = {name: getattr(encoder, name) for name in ("_last_encoded", "_terms")}
    [piece] = disturbed.pieces(LineRequest("the", options), [Cut(WORDS.encode("the"), 0, "the")])
    assert ids_of(piece) == {"prefix": WORDS.encode("the"), "constraints": [WORDS.encode("house")]}


def translated(options: list[LineOptions]) -> Iterator[Translation]:
    """Translate a line "the" with each of these options into itself."""
    def predictor(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return source[:, None], np.zeros([len(source), 1])

    requests = line_requests(["the"] * len(options), "in", options=options)
    return translate_stream(predictor, WORDS, WORDS, requests, StreamSettings(), "in",
                            RequestEncoder(SEARCH, WORDS, WORDS))


def test_a_setting_that_cannot_work_is_named_with_its_line() -> None:
    options = [LineOptions(), LineOptions(search={"beam_size": 1})]
    with pytest.raises(DataError, match="in line 2: n_best=2: choose 1 to beam_size"):
        list(translated(options))


@pytest.mark.parametrize("search", [{"selection": "sampling"}, {"beam_groups": 2}], ids=str)
def test_phrases_in_a_search_without_lexical_constraints_are_refused_before_it(search: dict[str, Any]) -> None:
    terms = Terminology([Term("a", "hour")])
    for options in (LineOptions(constraints=["the"]), LineOptions(terminology=terms)):
        with pytest.raises(SettingsError, match="Lexical constraints need a plain beam search"):
            RequestEncoder(SearchSettings(**{"beam_size": 4, **search}), WORDS, WORDS).check(options)
    options = LineOptions(constraints=["the"], search=search)
    with pytest.raises(DataError, match="in line 2: Lexical constraints need"):
        list(translated([LineOptions(), options]))
    assert inputs_of(constraints=["<s> the"], search=search) == {"prefix": WORDS.encode("the")}


@pytest.mark.parametrize(("prefix", "partial"), [
    ("cat", False), ("the cat", False), ("the cat ", True), ("cat ho", True), ("the cat", True), ("ho", False),
    ("\u2047", False)])
def test_a_prefix_that_the_vocabulary_cannot_write_is_refused(prefix: str, partial: bool) -> None:
    with pytest.raises(SettingsError, match="contains text that the target vocabulary does not know"):
        pieces(prefix=prefix, partial_word=partial)


@pytest.mark.parametrize(("prefix", "partial"), [("the ho", True), ("the ", True), ("the", False), (" ", True)])
def test_a_prefix_that_the_vocabulary_can_write_is_accepted(prefix: str, partial: bool) -> None:
    assert "prefix" in inputs_of(prefix=prefix, partial_word=partial)


def test_a_line_with_a_prefix_that_cannot_be_written_is_named() -> None:
    with pytest.raises(DataError, match="in line 2: the prefix 'cat' contains"):
        list(translated([LineOptions(), LineOptions(prefix="cat")]))


def test_a_term_that_cannot_be_written_is_named_with_its_line_behind_the_translations_of_those_before() -> None:
    terms = Terminology([Term("a", "cat", where="terms.tsv line 3")])
    translations = translated([LineOptions(), LineOptions(terminology=terms)])
    assert next(translations)[0].text == "the"
    with pytest.raises(DataError, match="in line 2: terms.tsv line 3: 'cat' contains text"):
        next(translations)
