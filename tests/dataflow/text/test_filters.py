"""Pairs that are dropped for other reasons than their length: each filter, and the reported reason."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from tests.processor_time import processor_seconds
from towernmt.core.errors import SettingsError
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.preparation import task_runners
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.sources.corpora import read_corpora
from towernmt.dataflow.text import pair_filters
from towernmt.dataflow.text.pair_filters import (
    KEYS_PER_PAIR,
    TextFilters,
    came_before,
    digits_agree,
    duplicate_keys,
    punctuation_agrees,
    share_in_scripts,
)
from towernmt.dataflow.vocabulary.word_vocabulary import learn_words

CHANCE = random.Random(4)
WORDS = ["".join(CHANCE.choices("abcdefgh", k=CHANCE.randint(2, 6))) for _ in range(200)]


def sentence(words: int) -> str:
    return " ".join(CHANCE.choices(WORDS, k=words))


LONG = sentence(25), sentence(25)
CORPUS = [(sentence(12), sentence(12)) for _ in range(300)]
TROUBLE = {
    301: (CORPUS[4], "duplicate"),
    302: (("  " + CORPUS[5][0], CORPUS[5][1] + " "), "duplicate"),
    303: ((CORPUS[6][0], CORPUS[7][1]), None),
    304: (("gleich", "gleich"), "identical sides"),
    305: (("um 7 uhr", "at 8"), "digits"),
    306: (("ab cd?", "ef gh."), "punctuation"),
    307: (("привет как дела", "abc"), "source script"),
    308: (("abc", "привет как дела"), "target script"),
    309: (LONG, None),
    310: ((LONG[0] + " gh", LONG[1]), "near duplicate"),
    311: ((LONG[0].upper(), LONG[1].title() + " !"), "near duplicate"),
}
ON = {"drop_identical": True, "match_digits": True, "match_punctuation": True, "source_script": "Latin",
      "target_script": "Latin", "duplicates": "near"}


def prepared(tmp_path: Path, **settings: object):
    pairs = CORPUS + [pair for pair, _ in TROUBLE.values()]
    for side in (0, 1):
        (tmp_path / "st"[side]).write_text("".join(pair[side] + "\n" for pair in pairs))
    return prepare(PrepareSettings(source=str(tmp_path / "s"), target=str(tmp_path / "t"), overwrite=True,
                                   output=str(tmp_path / "out"), vocab_size=150, shard_pairs=120, **settings))


def test_each_drop_is_counted_by_its_reason_with_its_lines(tmp_path: Path) -> None:
    pytest.importorskip("datasketch")
    data = prepared(tmp_path, **ON)
    found = {reason: entry["first_lines"] for reason, entry in data.statistics["dropped"].items() if entry["pairs"]}
    wanted: dict[str, list[int]] = {}
    for line, (_, reason) in TROUBLE.items():
        if reason is not None:
            wanted.setdefault(reason, []).append(line)
    assert found == wanted
    for reason in wanted:
        assert f" {reason}: " in data.statistics_table
    assert data.pairs == len(CORPUS) + 2
    assert sum(len(data.read_block(block)) for block in range(data.num_blocks)) == data.pairs


def test_all_filters_are_off_unless_they_are_asked_for(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    assert data.pairs == len(CORPUS) + len(TROUBLE)


@pytest.mark.thorough
def test_what_is_dropped_does_not_depend_on_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasketch")
    monkeypatch.setattr(task_runners, "_POOL_BYTES", 0)
    contents = []
    for workers in (1, 2):
        data = prepared(tmp_path, workers=workers, **ON)
        contents.append({path.name: path.read_bytes() for path in data.directory.rglob("*") if path.is_file()})
    assert contents[0] == contents[1]


def test_duplicates_are_found_across_chunks(tmp_path: Path) -> None:
    pairs = [(sentence(6), sentence(6)) for _ in range(5000)]
    for side in (0, 1):
        (tmp_path / "st"[side]).write_text("".join(pair[side] + "\n" for pair in pairs + pairs[:3000:7]))
    data = prepare(PrepareSettings(source=str(tmp_path / "s"), target=str(tmp_path / "t"), duplicates="exact",
                                   output=str(tmp_path / "out"), vocab_size=150))
    assert data.pairs == len(set(pairs))


def test_the_factors_and_links_of_dropped_pairs_go_with_them(tmp_path: Path) -> None:
    lines = [[f"{word}|{len(word)}" for word in source.split()] for source, _ in CORPUS[:50]]
    sources = [" ".join(line) for line in lines]
    targets = [target for _, target in CORPUS[:50]]
    links = [" ".join(f"{i}-{i}" for i in range(1 + number % 9)) for number in range(50)]
    (tmp_path / "s").write_text("\n".join([*sources[:20], *sources[:20], *sources[20:]]) + "\n")
    (tmp_path / "t").write_text("\n".join([*targets[:20], *targets[:20], *targets[20:]]) + "\n")
    (tmp_path / "a").write_text("\n".join([*links[:20], *links[:20], *links[20:]]) + "\n")
    twice = prepare(PrepareSettings(source=str(tmp_path / "s"), target=str(tmp_path / "t"), vocab_size=150,
                                    alignments=str(tmp_path / "a"), source_factors=1, duplicates="exact",
                                    output=str(tmp_path / "twice")))
    for name, content in (("s", sources), ("t", targets), ("a", links)):
        (tmp_path / name).write_text("\n".join(content) + "\n")
    once = prepare(PrepareSettings(source=str(tmp_path / "s"), target=str(tmp_path / "t"), source_factors=1,
                                   alignments=str(tmp_path / "a"),
                                   source_vocab=str(tmp_path / "twice/vocabulary/source.model"),
                                   target_vocab=str(tmp_path / "twice/vocabulary/target.model"),
                                   output=str(tmp_path / "once")))
    assert twice.pairs == 50
    found, wanted = twice.read_block(0), once.read_block(0)
    for name in ("source_ids", "source_offsets", "target_ids", "target_offsets", "source_factors", "link_offsets",
                 "links"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name


@pytest.mark.parametrize("source, target, agree", [
    ("um 7 Uhr", "at 7", True), ("1.000,50", "1,000.50", True), ("17:00 Uhr", "at 17", True), ("no", "nein", True),
    ("am 3. und 4.", "4th and 3rd", True), ("٣ كتب", "3 books", True), ("um 7", "at 8", False), ("22", "2", False)])
def test_digits_agree_in_any_order_and_script(source: str, target: str, agree: bool) -> None:
    assert digits_agree(source, target) is agree


@pytest.mark.parametrize("digit", ["\U0001ccf1", "\U00011f51"])
def test_digits_that_python_does_not_know_are_compared_as_characters(digit: str, monkeypatch: pytest.MonkeyPatch
                                                                    ) -> None:
    monkeypatch.setattr(pair_filters, "_value", pair_filters._value.__wrapped__)     # without the cache
    monkeypatch.setattr(pair_filters, "unicodedata", unicodedata.ucd_3_2_0)
    assert digits_agree(f"a {digit}", f"b {digit}")
    assert not digits_agree(f"a {digit}", "b")


@pytest.mark.parametrize("source, target, agree", [
    ("Kommst du?", "Are you coming?", True), ("Kommst du?", "You are coming.", False), ("«Où ?»", '"Where?"', True),
    ("你好吗？", "How are you?", True), ("Τι κάνεις;", "How are you?", True), ("Geh!", "Go.", True),
    ("Ինչպե՞ս ես։", "How are you?", True), ("Ինչպե՞ս ես։", "You are well.", False),
    ("a, b, c, d, e, f, g", "a", False), ("a, b, c", "a b c", True)])
def test_punctuation_agrees_across_scripts(source: str, target: str, agree: bool) -> None:
    assert punctuation_agrees(source, target) is agree


def test_the_time_of_the_filter_of_punctuation_grows_with_the_length_of_a_line() -> None:
    assert processor_seconds(lambda: punctuation_agrees(")" * 200_000 + "a", "a")) < 5


@pytest.mark.parametrize(("filters", "source", "target", "reason"), [
    (TextFilters(match_digits=True), "<2de> hello", "hallo", None),
    (TextFilters(match_digits=True), "<2de> <crawl> hello 3", "hallo", "digits"),
    (TextFilters(drop_identical=True), "<bt> Berlin", "Berlin", "identical sides"),
    (TextFilters(drop_identical=True), "<b> Berlin", "<b> Berlin", "identical sides"),
    (TextFilters(source_script="Cyrillic"), "<crawl> да", "yes", None),
    (TextFilters(match_digits=True), ">>cmn_Hant2<< <crawl> hello", "hallo", None),
    (TextFilters(match_digits=True), ">> 2 << hello", "hallo", "digits"),
    (TextFilters(match_digits=True), "1 < 2 > x", "x", "digits"),
])
def test_tags_before_a_text_do_not_count(filters: TextFilters, source: str, target: str, reason: str | None) -> None:
    assert filters.reason(source, target) == reason


def test_pairs_with_different_tags_are_no_duplicates() -> None:
    pairs = [("<2de> hand", "Hand"), ("<2nl> hand", "Hand"), ("<2de> hand", "Hand")]
    assert came_before(duplicate_keys(pairs, "exact")[:, 0]).tolist() == [False, False, True]


def test_the_share_of_a_script_counts_letters_alone() -> None:
    assert share_in_scripts("abc где 12 !", "Latin") == 0.5
    assert share_in_scripts("コーヒーを飲む", "Han,Hiragana,Katakana") == 1
    assert share_in_scripts("コーヒーを飲む", "Hangul") < 0.5
    assert share_in_scripts("123 !", "Latin") == 1
    with pytest.raises(SettingsError, match="script 'Latinn': Unicode has no script of this name"):
        share_in_scripts("a", "Han, Latinn")


def test_languages_are_identified_on_both_sides() -> None:
    pytest.importorskip("py3langid")
    german, english = "Der Zug nach Hamburg fährt heute leider später ab.", "The train to Hamburg leaves later today."
    both = TextFilters(source_language="de", target_language="en")
    both.check()
    assert both.reason(german, english) is None
    assert both.reason(english, german) == "source language"
    assert both.reason(german, german) == "target language"
    assert TextFilters(target_language="en", language_confidence=1.0).reason(german, german) is None
    with pytest.raises(SettingsError, match="language 'xx' cannot be identified. .*: .*de, "):
        TextFilters(source_language="xx").check()


@pytest.mark.parametrize("settings", [{"source_language": "de"}, {"duplicates": "near"}])
def test_a_missing_package_is_told_with_its_extra(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(pair_filters, "import_module", missing)
    pair_filters._identifier.cache_clear()
    pair_filters._permutations.cache_clear()
    with pytest.raises(SettingsError, match=r"pip install 'towernmt\[filters\]'"):
        PrepareSettings(source="a", target="b", output="c", **settings).check()


def test_each_key_that_came_before_is_told() -> None:
    keys = np.random.default_rng(1).integers(0, 3000, 8000).astype(np.uint64)
    before: set[int] = set()
    wanted = [key in before or before.add(key) is not None for key in keys.tolist()]
    assert came_before(keys).tolist() == wanted


def test_near_pairs_share_a_band_and_different_ones_none() -> None:
    pytest.importorskip("datasketch")
    words = [f"w{number}" for number in range(60)]
    changed = [*words[:30], "other", *words[31:]]
    keys = duplicate_keys([(" ".join(words), " ".join(words)), (" ".join(changed), " ".join(words)),
                           (" ".join(reversed(words)), " ".join(words[::2]))], "near")
    assert keys.shape == (3, KEYS_PER_PAIR["near"])
    shared = (keys[0] == keys).sum(axis=1)
    assert shared[1] >= 1 and keys[0, 0] != keys[1, 0] and shared[2] == 0


def test_words_that_differ_in_their_vowel_signs_are_different_words() -> None:
    pytest.importorskip("datasketch")
    keys = duplicate_keys([("वह जाता है", "to go"), ("वह जाती है", "to go")], "near")
    assert not (keys[0] == keys[1])[1:].all()


def test_a_stream_drops_what_the_yaml_file_says_and_counts_it(tmp_path: Path) -> None:
    pairs = [(sentence(5), sentence(5)) for _ in range(30)] + [("gleich", "gleich"), ("um 7", "at 8"), ("где", "abc")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    yaml = tmp_path / "corpora.yaml"
    yaml.write_text("sources: [pairs.tsv]\ndrop_identical: true\nmatch_digits: true\nsource_script: Latin\n".replace(
        "pairs.tsv", str(tmp_path / "pairs.tsv")))
    vocabulary = learn_words([word for pair in pairs for word in pair], 500)
    corpora, said = read_corpora(yaml), list[str]()
    stream = StreamBatches(corpora.mixture(), vocabulary, vocabulary, StreamBatchSettings(batch_tokens=100), epochs=1,
                           pair_filter=corpora.pair_filter, report=said.append)
    assert sum(len(batch.source) for _, batch in stream.read()) == 30
    assert any("3 dropped" in sentence and "1 digits" in sentence for sentence in said), said
    yaml.write_text(yaml.read_text().replace("Latin", "Latinn"))
    with pytest.raises(SettingsError, match="Unicode has no script of this name"):
        read_corpora(yaml)
