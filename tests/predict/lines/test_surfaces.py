"""Text of the target to tokens in any segmentation, compared with the text that real vocabularies write."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import BOS, EOS, UNK, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.word_vocabulary import learn_words
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.request_encoder import TargetText
from towernmt.predict.search.surfaces import SPACE_MARK, Surfaces

SENTENCES = ["the house is old", "there were houses on the hill", "a lighthouse (in New York ) is there", "straße über",
             "he hid the hat in the house, and she had the hats", "New houses, old hills", "\"the hat\" is here"]


@pytest.fixture(scope="module", params=["unigram", "bpe", "bytes", "bpe-codes", "word"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    if request.param == "bpe-codes":
        return learn_bpe_codes(SENTENCES * 3, 90)
    if request.param == "word":
        return learn_words(SENTENCES, 60)
    kind = "unigram" if request.param == "unigram" else "bpe"
    size = 330 if request.param == "bytes" else 70
    return learn_sentence_piece(SENTENCES * 3, kind, size, byte_fallback=request.param == "bytes")


def allowed(inputs: dict[str, np.ndarray], surfaces: Surfaces, written: list[int]) -> list[int]:
    """Return the tokens that may follow the prefix and `written`; empty if any token may."""
    table = inputs.get("continuation", np.zeros([0, 1], int))
    done = sum(len(surfaces.texts[id]) for id in written)
    return [id for id in table[done].tolist() if id] if done < len(table) else []


def test_all_ways_to_go_on_with_a_text_write_it_and_the_vocabularys_own_is_among_them(vocabulary: Vocabulary) -> None:
    draw, surfaces, text = random.Random(3), Surfaces(vocabulary), TargetText(vocabulary)
    for sentence in SENTENCES:
        for end in range(1, len(sentence) + 1):
            begun = sentence[:end]
            inputs = text.prefix(LineOptions(prefix=begun, partial_word=True))
            complete_ids = inputs["prefix"].tolist()
            assert complete_ids == vocabulary.encode(begun if begun.endswith(" ") or "continuation" not in inputs
                                                     else begun.rpartition(" ")[0])
            expected_ids = vocabulary.encode(sentence)[len(complete_ids):]
            for index, id in enumerate(expected_ids if "continuation" in inputs else []):
                tokens = allowed(inputs, surfaces, expected_ids[:index])
                assert not tokens or id in tokens
            path: list[int] = []
            while tokens := allowed(inputs, surfaces, path):
                path.append(draw.choice(tokens))
            written_text = vocabulary.decode([*complete_ids, *path])
            assert written_text.startswith(begun.rstrip()) or UNK in complete_ids
            if begun.endswith(" ") and vocabulary.kind == "sentencepiece":    # and a new word has begun
                assert surfaces.texts[path[0]].startswith(SPACE_MARK)


def test_what_no_tokens_can_write_is_refused(vocabulary: Vocabulary) -> None:
    options = LineOptions(prefix="the \U0001f600", partial_word=True)
    if vocabulary.size == 330:      # bytes can write every text
        assert "continuation" in TargetText(vocabulary).prefix(options)
    else:
        with pytest.raises(SettingsError, match="does not know"):
            TargetText(vocabulary).prefix(options)


def test_an_avoided_phrase_is_cut_in_all_ways_of_few_tokens(vocabulary: Vocabulary) -> None:
    surfaces = Surfaces(vocabulary)
    for phrase in ("the", "hat", "New York"):
        marked = phrase.encode().replace(b" ", SPACE_MARK)
        marked = SPACE_MARK + marked if vocabulary.kind == "sentencepiece" else marked + SPACE_MARK
        pieces = [id for id in range(4, vocabulary.size) if surfaces.texts[id] and surfaces.texts[id] in marked]
        expected = {ids for count in range(1, 4) for ids in itertools.product(pieces, repeat=count)
                    if b"".join(surfaces.texts[id] for id in ids) == marked}
        segmentations = surfaces.segmentations(phrase, True, 10_000)
        assert expected == {tuple(ids) for ids in segmentations if len(ids) <= 3}
        assert segmentations == sorted(segmentations, key=len)
        assert {vocabulary.decode(ids) for ids in segmentations} == {phrase}
        assert vocabulary.encode(phrase) in segmentations
        assert surfaces.segmentations(phrase, True, 2) == segmentations[:2]


def test_only_texts_as_long_as_a_token_are_looked_up(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    surfaces, lengths = Surfaces(vocabulary), []

    class Recorded(dict[bytes, list[int]]):
        def get(self, text: bytes, default: Any = None) -> Any:
            lengths.append(len(text))
            return super().get(text, default)

    monkeypatch.setitem(vars(surfaces), "_ids", Recorded(surfaces._ids))
    longest = max(map(len, surfaces.texts))
    word = "hat" * 200
    can_write = vocabulary.kind == "sentencepiece"
    assert bool(surfaces.segmentations(word, True, 20)) == can_write
    assert (surfaces.continuations(word, False) is not None) == can_write
    assert max(lengths) <= longest < len(word)


def test_phrases_and_words_that_no_translation_has_are_not_divided(vocabulary: Vocabulary) -> None:
    text = TargetText(vocabulary)
    with pytest.raises(SettingsError, match=r"'hathat.*' has 1002 characters: write at most 1000\."):
        text.avoid(LineOptions(avoid=["hat" * 334]))
    if UNK not in vocabulary.encode("hat" * 334):
        assert set(text.prefix(LineOptions(prefix="the " + "hat" * 334, partial_word=True))) == {"prefix"}


def test_phrases_are_avoided_with_a_capital_where_they_have_none_and_only_where_they_are_told_to_be(
        vocabulary: Vocabulary) -> None:
    text = TargetText(vocabulary)

    def avoided(phrase: str) -> list[list[int]]:
        array = text.avoid(LineOptions(avoid=[phrase])).get("avoid", np.zeros([0, 1], int))
        return [[id for id in row if id] for row in array.tolist()]

    lower, upper = avoided("new"), avoided("New")
    assert {vocabulary.decode(id for id in ids if id > 0) for ids in upper} == {"New"}
    assert all(ids in lower for ids in upper)
    assert {ids[0] for ids in avoided("<s> the")} == {BOS} and {ids[-1] for ids in avoided("the </s>")} == {EOS}
    assert [ids[:-1] for ids in avoided("the </s>")] == avoided("the")
    if vocabulary.size != 330:
        assert avoided("\U0001f600") == []      # it cannot occur at all


def test_a_sentencepiece_word_is_avoided_behind_brackets_and_not_within_words() -> None:
    vocabulary = learn_sentence_piece(SENTENCES * 3, "bpe", 70)
    breaks = Surfaces(vocabulary).breaks
    written = {vocabulary.id_to_piece(id).strip("\u2581"): bool(breaks[id]) for id in range(4, vocabulary.size)}
    assert written["("] and written[","] and written["-"] if "-" in written else written["("]
    assert not written["h"] and not any(broken for piece, broken in written.items() if piece and piece[-1].isalpha())


def test_a_combining_mark_ends_no_word_and_a_character_of_a_script_without_spaces_does() -> None:
    breaks = Surfaces(learn_sentence_piece(["किताब कि", "東京に住む"] * 3, "bpe", 24)).breaks
    vocabulary = learn_sentence_piece(["किताब कि", "東京に住む"] * 3, "bpe", 24)
    ends = {vocabulary.id_to_piece(id): bool(breaks[id]) for id in range(4, vocabulary.size)}
    assert not ends["ि"] and not ends["क"] and ends["東"]
