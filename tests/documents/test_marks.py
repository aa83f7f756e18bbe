"""Marks return to the words next to them, for any word order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.documents import fake_translator as fakes
from tests.processor_time import processor_seconds
from towernmt.dataflow.text.clean_text import clean
from towernmt.documents.formats.html import HtmlDocument
from towernmt.documents.segments import Mark, Segment, Shielded

pytest.importorskip("sentencex")


SPACES = (" ", " ", " ", "\n  ", "")
ENDS = ("", "", "", ".", ",", ". ")


def tree(seed: int, spaces: tuple[str, ...], ends: tuple[str, ...]) -> Segment:
    """Return a random segment of distinct words, with random pairs and single marks."""
    rng = random.Random(seed)
    parts: list[str | Mark | Shielded] = []
    path: list[int] = []
    keys = iter(range(1000))
    for number in range(rng.randrange(1, 14)):
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            kind = rng.choice(("open", "open", "close", "single"))
            if kind == "close" and path:
                key = path.pop()
                parts.append(Mark("close", key, f"</{key}>"))
            elif kind == "open":
                path.append(next(keys))
                parts.append(Mark("open", path[-1], f"<{path[-1]}>"))
            elif kind == "single":
                key = next(keys)
                parts.append(Mark("single", key, f"<{key}/>"))
            if rng.random() < 0.3:
                parts.append(rng.choice(spaces))
        parts.append(Shielded(f"code{number}", f"code{number}") if rng.random() < 0.1
                     else f"{rng.choice('abcäöü')}w{number}" + rng.choice(ends))
        parts.append(rng.choice(spaces))
    parts += [Mark("close", key, f"</{key}>") for key in reversed(path)]
    return tuple(part for part in parts if part != "")


SEEDS = st.integers(0, 10 ** 9)


@settings(max_examples=150, deadline=None)
@given(SEEDS, SEEDS, st.sampled_from([None, "de"]))
@example(2714, 1, None)      # pairs inside a pair whose words are scattered
@example(268, 1, "de")       # a pair that continues in the next sentence
def test_each_mark_comes_once_within_the_pairs_that_it_was_in(seed: int, order: int, language: str | None) -> None:
    segment = tree(seed, SPACES, ENDS)
    for translate in (fakes.permuted(order, str.upper), fakes.without_links, fakes.capitals):
        [found] = fakes.translate_segments([segment], translate, language)
        assert fakes.parents(found) == fakes.parents(segment)
        shielded = sorted(part.text for part in segment if isinstance(part, Shielded))
        assert sorted(part.text for part in found if isinstance(part, Shielded)) == shielded


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from([None, "de"]))
def test_what_the_translator_leaves_as_it_is_is_as_it_was(seed: int, language: str | None) -> None:
    segment = tree(seed, SPACES, ENDS)
    for translate, change in ((fakes.identity, str), (fakes.capitals, str.upper)):
        [found] = fakes.translate_segments([segment], translate, language)
        expected = "".join(change(part) if isinstance(part, str) else part.content for part in segment)
        assert fakes.shown(found) == expected


@settings(max_examples=150, deadline=None)
@given(SEEDS, SEEDS)
@example(126017050, 1844592)    # a scattered pair needs more words than it has
def test_a_pair_surrounds_the_words_linked_with_its_own_where_these_are_together(seed: int, order: int) -> None:
    segment = tree(seed, (" ",), ("",))
    [found] = fakes.translate_segments([segment], fakes.permuted(order), None)
    target = [word for part in found if not isinstance(part, Mark)
              for word in (part if isinstance(part, str) else part.text).split()]
    inside, expected = fakes.words_inside(found), fakes.words_inside(segment)
    together = {key for key, words in expected.items() if _are_together(set(words), target)}
    for (kind, key), path in fakes.parents(segment).items():
        if kind == "open" and together >= {key, *path}:
            assert inside[key] == expected[key], (segment, found)


def _are_together(words: set[str], text: list[str]) -> bool:
    places = [index for index, word in enumerate(text) if word in words]
    return not places or places[-1] - places[0] + 1 == len(places)


def pair(key: int, *inside: str | Mark) -> tuple[str | Mark, ...]:
    return Mark("open", key, f"<{key}>"), *inside, Mark("close", key, f"</{key}>")


BREAK = Mark("single", 9, "<br>")
CASES = [   # source, translation, links, expected
    (("Das ", *pair(1, "alte"), " Haus"), "House old the", [(0, 2), (1, 1), (2, 0)], "House <1>old</1> the"),
    ((*pair(1, "alt"), "."), "old.", [(0, 0)], "<1>old</1>."),
    ((*pair(1, "alt."),), "old.", [(0, 0)], "<1>old.</1>"),
    (("Ich habe ", *pair(1, "das Haus gesehen.")), "I have seen the house.",
     [(0, 0), (1, 1), (2, 3), (3, 4), (4, 2)], "I have <1>seen the house.</1>"),
    (("Ich habe ", *pair(1, "das Haus gesehen"), "."), "I have seen the house.",
     [(0, 0), (1, 1), (2, 3), (3, 4), (4, 2)], "I have <1>seen the house</1>."),
    ((*pair(1, "A"), "utomat da"), "a machine there", [(0, 1), (1, 2)], "a <1>machine</1> there"),
    ((*pair(1, "Haus"), "tür da"), "front door there", [(0, 0), (0, 1), (1, 2)], "<1>front</1> door there"),
    (("Der ", *pair(1, "Hund "), "bellt"), "barks the dog", [(0, 1), (1, 2), (2, 0)], "barks the <1>dog</1>"),
    (("eins", BREAK, "zwei"), "one two", [(0, 0), (1, 1)], "one<br>two"),
    (("eins", BREAK, "zwei drei"), "three one two", [(0, 1), (1, 2), (2, 0)], "three one<br>two"),
    (("Haus", BREAK, " ist"), "is house", [(0, 1), (1, 0)], "is house<br>"),
    (("(", *pair(1, "a"), "), b"), "b (a)", [(0, 1), (1, 0)], "b (<1>a</1>)"),
    (("H", *pair(1, "2"), "O ist gut"), "Good is H2O", [(0, 2), (1, 1), (2, 0)], "Good is H<1>2</1>O"),
    (("我们", *pair(1, "喜欢"), "猫"), "we like cats", [(0, 0), (0, 1), (0, 2)], "we <1>like</1> cats"),
    (("wir ", *pair(1, "mögen"), " Katzen"), "我们喜欢猫", [(0, 0)], "我<1>们喜</1>欢猫"),
    (("wir ", *pair(1, "zwei")), "กิกิ", [(0, 0)], "กิ<1>กิ</1>"),
    (("👩\u200d💻 ", *pair(1, "ja"), " ❤\ufe0f"), "yes", [(0, 0)], "👩\u200d💻 <1>yes</1> ❤\ufe0f"),
    (("a ", *pair(1, "b")), "", None, ""),
    ((*pair(1, *pair(2, "b")), *pair(3)), "", None, "<3></3>"),
    (("a ", *pair(1, "b"), " c"), "d e", [(0, 0)], "d <1>e</1>"),
    ((*pair(1, *pair(2, "a"), " b ", *pair(3, "c")), " d e"), "c d a e b", [(0, 2), (1, 4), (2, 0), (3, 1), (4, 3)],
     "<1><3>c</3> <2>d</2> </1>a e b"),
    (("a ", *pair(1), "b"), "b a", [(0, 1), (1, 0)], "<1></1>b a"),
    (("Das ", Shielded("f()", "f()"), " im ", *pair(1, "Buch")), "X1 X1 X1 of the book", [(0, 4), (1, 0), (3, 5)],
     "f() of the <1>book</1>"),
]


@pytest.mark.parametrize(("segment", "text", "links", "expected"), CASES, ids=[case[3] for case in CASES])
def test_marks_surround_the_words_that_are_linked_with_theirs(
        segment: Segment, text: str, links: list[tuple[int, int]], expected: str) -> None:
    [found] = fakes.translate_segments([segment], lambda sentences: [fakes.Fake(text, links)], None)
    assert fakes.shown(found) == expected


@pytest.mark.parametrize(("text", "translated"), [
    ("der \u200b <b>alte</b> hund", "DER <b>ALTE</b> HUND"),
    ("der Prophet \ufdfa <b>sagte</b> es", "DER PROPHET صلى الله عليه وسلم <b>SAGTE</b> ES")])
def test_words_that_cleaning_removes_or_divides_do_not_displace_marks(text: str, translated: str) -> None:
    def translate(sentences: Sequence[str]) -> list[fakes.Fake]:
        """Translate as a model, which cleans the text and aligns its words."""
        return fakes.capitals([clean(sentence) for sentence in sentences])

    document = HtmlDocument(text)
    assert document.text(fakes.translate_segments(document.segments, translate, None)) == translated


def test_a_pair_around_several_sentences_is_still_around_them() -> None:
    segment = ("Das ", *pair(1, "ist eins. Das ist zwei. Und"), " das drei.")
    [found] = fakes.translate_segments([segment], fakes.capitals, "de")
    assert fakes.shown(found) == "DAS <1>IST EINS. DAS IST ZWEI. UND</1> DAS DREI."
    reverse = [fakes.Fake("Eins that is.", [(0, 1), (1, 2), (2, 0)]), fakes.Fake("Two that is.", None),
               fakes.Fake("And that three.", [(0, 0), (1, 1), (2, 2)])]
    [found] = fakes.translate_segments([segment], lambda sentences: reverse, "de")
    assert fakes.shown(found) == "Eins that <1>is. Two that is. And</1> that three."


@pytest.mark.parametrize("segment", [
    pytest.param(tuple(Mark("open", key, "") for key in range(20_000)) + ("word more",)
                 + tuple(Mark("close", key, "") for key in reversed(range(20_000))),
                 id="nested", marks=pytest.mark.thorough),
    pytest.param(tuple(part for key in range(5_000) for part in (Mark("open", key, ""), f"w{key} "))
                 + tuple(Mark("close", key, "") for key in reversed(range(5_000))), id="nested with words"),
    pytest.param(tuple(part for key in range(5_000) for part in (*pair(key, "w"), "")), id="in one word"),
    pytest.param(tuple(part for key in range(5_000) for part in (*pair(key, "w"), " ")),
                 id="beside", marks=pytest.mark.slow),
    pytest.param(("a", *(Mark("single", key, "") for key in range(20_000)), "b"), id="in one place"),
    pytest.param(tuple(part for key in range(5_000) for part in (Shielded("x", ""), " word ")),
                 id="shields", marks=pytest.mark.thorough),
])
def test_many_marks_take_little_time(segment: Segment) -> None:
    def place_marks() -> None:
        [found] = fakes.translate_segments([segment], lambda sentences: [fakes.Fake("", None)] * len(sentences), None)
        assert all(part.kind == "single" for part in found if isinstance(part, Mark))
        for translate in (fakes.identity, fakes.permuted(1), fakes.without_links):
            [found] = fakes.translate_segments([segment], translate, None)
            assert sorted(part.key for part in found if isinstance(part, Mark)) == sorted(
                part.key for part in segment if isinstance(part, Mark))

    assert processor_seconds(place_marks) < 15
