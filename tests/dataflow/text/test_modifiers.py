"""Letter case by language, and the effect of each modifier on a pair."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edit_distance import edit_distance
from tests.processor_time import processor_seconds
from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.letter_case import capitalized, has_case, is_upper_case, lower_case, title_case, upper_case
from towernmt.dataflow.text.modifiers import MODIFIERS, Modifiers, with_typo, without_accents

SOURCE, TARGET = 'Tom sagte „Hallo“ zu der alten Tür.', 'Tom said "hello" to the old door.'
KEY = [1, 0, 3]


def modify(name: str, seed: int = 0, source: str = SOURCE, target: str = TARGET, following=(), languages=("", "")):
    return Modifiers({name: 1.0}, languages).modify((source, target), following, [name], [*KEY, seed])


@pytest.mark.parametrize("text, language, capitals", [
    ("straße", "de", "STRASSE"), ("ısı için", "tr", "ISI İÇİN"), ("iki", "az", "İKİ"), ("iki", "en", "IKI"),
    ("άνθρωπος", "el", "ΑΝΘΡΩΠΟΣ"), ("ŷ αϊ", "el", "Y ΑΪ".replace("Y", "Ŷ")), ("日本語 नमस्ते", "ja", "日本語 नमस्ते"),
    ("ﬁn", "en", "FIN")])
def test_capitals_follow_unicode_and_the_language(text, language, capitals):
    assert upper_case(text, language).replace("Y\u0302", "Ŷ") == capitals


def test_lower_case_has_final_sigmas_and_dotless_letters():
    assert lower_case("ΣΟΦΟΣ") == "σοφος".replace("ς", "ς") and lower_case("ΣΟΦΟΣ")[-1] == "ς"
    assert lower_case("ISI İÇİN", "tr") == "ısı için"


@pytest.mark.parametrize("text, language, title", [
    ("the user's 2nd guide, part two", "en", "The User's 2nd Guide, Part Two"),
    ("istanbul ili", "tr", "İstanbul İli"), ("ijsberg en ijs", "nl", "IJsberg En IJs"),
    ("NATO-Gipfel in köln", "de", "NATO-Gipfel In Köln"),
    ("你好 abc", "zh", "你好 Abc"), ("ọlọ\u0301run ọba", "yo", "Ọlọ\u0301run Ọba"), ("❤️hi", "en", "❤️Hi")])
def test_titles_have_a_capital_at_each_word(text, language, title):
    assert title_case(text, language) == title


def test_words_and_lines_in_capitals_are_recognised():
    assert capitalized("ǆep") == "ǅep" and capitalized("") == ""
    assert is_upper_case("DER TEST!") and is_upper_case("US-A") and not is_upper_case("Der")
    assert not is_upper_case("A 1")
    assert has_case("a") and not has_case("12 日本 …")


def test_both_sides_are_in_capitals_or_neither():
    assert modify("upper") == (SOURCE.upper(), TARGET.upper())
    assert modify("upper", source="日本", target="Japan") == ("日本", "Japan")
    assert modify("title")[1] == 'Tom Said "Hello" To The Old Door.'
    assert modify("upper", source="istanbul", target="istanbul", languages=("tr", "en")) == ("İSTANBUL", "ISTANBUL")


def test_tags_at_the_beginning_of_a_source_stay():
    assert modify("upper", source="<bt> <2de> ja", target="yes") == ("<bt> <2de> JA", "YES")
    joined = modify("join", source="<bt> ja", target="yes", following=[("<bt> nein", "no")])
    assert joined == ("<bt> ja nein", "yes no")
    assert modify("join") == (SOURCE, TARGET)


def test_a_pair_is_joined_to_the_next_one_with_the_same_tags():
    others = [("<2fi> no", "ei"), ("no", "no"), ("<bt> <2de> no", "nein"), ("<2de> no", "nein"), ("<2de> so", "so")]
    assert modify("join", source="<2de> yes", target="ja", following=others) == ("<2de> yes no", "ja nein")
    assert modify("join", source="yes", target="yes", following=others) == ("yes no", "yes no")
    assert modify("join", source="<2de> yes", target="ja", following=others[:3]) == ("<2de> yes", "ja")


@given(st.text("abcdefgäößüXYZ", min_size=3, max_size=12), st.integers(0, 1000), st.sampled_from(["", "de", "fr"]))
def test_a_typo_is_one_edit(word, seed, language):
    assert edit_distance(word, with_typo(word, random.Random(seed), language)) <= 1


def test_typos_change_the_source_alone_and_use_the_keyboard_of_the_language():
    changed = [modify("typos", seed) for seed in range(60)]
    assert all(target == TARGET for _, target in changed) and len({source for source, _ in changed}) > 30
    assert all(1 <= edit_distance(source, SOURCE) <= 1 for source, _ in changed)
    keys = {with_typo("zzz", random.Random(seed), "de").replace("z", "") for seed in range(200)}
    assert {"t", "u"} <= keys and "x" not in keys
    assert "x" in {with_typo("zzz", random.Random(seed), "en").replace("z", "") for seed in range(200)}


def test_noise_changes_punctuation_accents_or_quotes_of_the_source():
    found = {modify("noise", seed)[0] for seed in range(100)}
    assert found == {SOURCE[:-1], SOURCE + ".", SOURCE.replace("ü", "u"), SOURCE.replace("„", '"').replace("“", '"')}
    assert SOURCE not in map(clean, found)      # otherwise no model would see the change
    assert without_accents("Čeština, naïve, й, ガ, ø") == "Cestina, naive, й, ガ, ø"
    assert modify("noise", source="日本", target="Japan") == ("日本", "Japan")


@pytest.mark.parametrize("seed", range(30))
def test_emoji_and_spans_are_the_same_on_both_sides(seed):
    source, target = modify("emoji", seed)
    extra = [Counter(text) - Counter(before) for text, before in ((source, SOURCE), (target, TARGET))]
    assert extra[0] == extra[1] and extra[0] - Counter(" ")
    source, target = modify("spans", seed)
    span = re.match(r"(.*) sagte „Hallo“ zu der alten Tür\.$", source)       # Tom is the word that both sides have
    assert span is not None and target == f'{span[1]} said "hello" to the old door.'
    source, target = modify("spans", seed, "Ja.", "Yes.")
    assert source.replace("Ja", "").replace(".", "", 1).strip(" .") == target.replace("Yes", "").replace(
        ".", "", 1).strip(" .")


@pytest.mark.parametrize("seed", range(5))
def test_a_span_replaces_a_word_together_with_its_vowel_signs(seed):
    source, target = modify("spans", seed, "शहरों में", "शहरों मध्ये")
    span = source.removesuffix(" में")
    assert target == f"{span} मध्ये" and not re.search("[\u0900-\u097f]", span)


def test_the_time_grows_with_the_length_of_a_line_and_not_with_its_square():
    marks, words = "." * 100_000 + "a", " ".join(f"word{number}" for number in range(20_000))

    def modify_both():
        assert modify("noise", source=marks, target="a") == (marks, "a")
        source, target = modify("spans", source=words, target=words)
        assert source == target != words

    assert processor_seconds(modify_both) < 5


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(sorted(MODIFIERS)), st.integers(0, 99))
def test_any_text_can_be_modified_and_a_modification_depends_on_the_key_alone(source, target, name, seed):
    once = modify(name, seed, source, target, [("a", "b")])
    assert once == modify(name, seed, source, target, [("a", "b")])


def test_pairs_are_drawn_with_their_probabilities_independently():
    modifiers = Modifiers.parse(["typos=0.1", "upper=0.05", "join=0"])
    assert modifiers is not None and list(modifiers.probabilities) == ["upper", "typos"]
    drawn = modifiers.draw(20_000, KEY)
    counts = Counter(name for _, names in drawn for name in names)
    assert counts["typos"] == pytest.approx(2000, abs=150) and counts["upper"] == pytest.approx(1000, abs=110)
    assert sum(len(names) == 2 for _, names in drawn) == pytest.approx(100, abs=35)
    assert drawn == modifiers.draw(20_000, KEY) and drawn != modifiers.draw(20_000, [1, 1, 3])
    assert Modifiers.parse([]) is None and Modifiers.parse(["upper=0"]) is None


@pytest.mark.parametrize("entries, message", [
    (["uper=0.1"], "data.modifiers=uper=0.1: modifier 'uper' does not exist. Did you mean 'upper'?"),
    (["foo=0.1"], "The modifiers are: upper, title, typos, noise, spans, emoji, join"),
    (["upper"], "expected each modifier once"),
    (["upper=2"], "from 0 to 1"), (["upper=0.1", "upper=0.2"], "each modifier once"), (["upper=nan"], "0 to 1")])
def test_invalid_modifiers_are_refused(entries, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        Modifiers.parse(entries)
