from __future__ import annotations

import itertools
import json
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from towernmt.core.errors import DataError
from towernmt.dataflow.sources.default_corpus import CorpusFiles, default_corpus, split_corpus

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def in_words(number: int, words: list[str]) -> str:
    return " ".join(words[int(digit)] for digit in f"{number:03d}")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Write a small wheel in the layout of the real one: 300 clean pairs, and unusable pairs of every kind."""
    english: dict = {"config": {"step": {"user": {"data": {
        str(n): f"Turn on lamp {in_words(n, NUMBERS)}." for n in range(300)}}}}}
    german: dict = {"config": {"step": {"user": {"data": {
        str(n): f"Lampe {in_words(n, ZAHLEN)} einschalten." for n in range(300)}}}}}
    english["more"] = {
        "untranslated": "Wi-Fi", "empty": "Something", "only_english": "Nobody", "symbols": "100 %",
        "reference": "[%key:common::ok%]", "spaces": "  A\u00a0lot \t of   space ",
        "not_nfc": "u\u0308ber alles hier",
        "lines": "First line here\n\nSecond line here\n", "uneven": "One line here\nand another", "number": 7,
        "placeholder": "Hello {name}, welcome back", "list": ["Item in a list"]}
    german["more"] = {
        "untranslated": "Wi-Fi", "empty": " ", "symbols": "100 Prozent",
        "reference": "[%key:common::ok%] gut", "spaces": "Viel Platz", "not_nfc": "over everything here",
        "lines": "Erste Zeile hier\nZweite Zeile hier", "uneven": "Eine Zeile hier", "number": 7,
        "placeholder": "Hallo {name}, willkommen zurück", "list": ["Ding in einer Liste"]}
    path = tmp_path / "index" / "homeassistant-2026.11.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        folder = "homeassistant/components/lamp/translations"
        archive.writestr(f"{folder}/en.json", json.dumps(english))
        archive.writestr(f"{folder}/de.json", json.dumps(german))
        archive.writestr(f"{folder}/pt-BR.json", json.dumps(german))
        archive.writestr(f"{folder}/ur.json", json.dumps({"more": {"spaces": "بہت جگہ"}}))
        for component, language, text in (("copy", "en", "Turn on lamp zero."), ("copy", "de", "Lampe an."),
                                          ("english", "en", "Only English")):
            archive.writestr(f"homeassistant/components/{component}/translations/{language}.json",
                             json.dumps({"x": text}))
        archive.writestr("homeassistant-2026.11.0.dist-info/licenses/LICENSE.md", "Apache License 2.0")
        archive.writestr("homeassistant/backports/LICENSE.Python", "not this one")
    return path


@pytest.fixture
def pip(wheel: Path, tmp_path: Path) -> list[str]:
    """Return a fake pip that copies the wheel to --dest and counts its calls."""
    program = tmp_path / "pip.py"
    program.write_text(f"""
import shutil, sys
open({str(tmp_path / "calls")!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
shutil.copy({str(wheel)!r}, sys.argv[sys.argv.index("--dest") + 1])
""")
    return [sys.executable, str(program)]


def failing_pip(tmp_path: Path, body: str) -> list[str]:
    program = tmp_path / "failing_pip.py"
    program.write_text(body)
    return [sys.executable, str(program)]


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def parts(files: CorpusFiles) -> list[tuple[list[str], list[str]]]:
    return [(lines(files.train_source), lines(files.train_target)),
            (lines(files.valid_source), lines(files.valid_target)),
            (lines(files.test_source), lines(files.test_target))]


def folded(texts: list[str]) -> set[str]:
    return {unicodedata.normalize("NFKC", text).lower() for text in texts}


def test_the_corpus_is_made_of_texts_with_the_same_key(pip: list[str], tmp_path: Path) -> None:
    files = default_corpus("en-de", tmp_path / "cache", pip)
    pairs = [pair for part in parts(files) for pair in zip(*part, strict=True)]
    expected = [(f"Turn on lamp {in_words(n, NUMBERS)}.", f"Lampe {in_words(n, ZAHLEN)} einschalten.")
                for n in range(300)]
    expected += [("A lot of space", "Viel Platz"), ("über alles hier", "over everything here"),
                 ("First line here", "Erste Zeile hier"), ("Second line here", "Zweite Zeile hier"),
                 ("One line here and another", "Eine Zeile hier"), ("Item in a list", "Ding in einer Liste"),
                 ("Hello {name}, welcome back", "Hallo {name}, willkommen zurück"),
                 ("Turn on lamp zero.", "Lampe an.")]
    assert sorted(pairs) == sorted(expected)
    train, valid, test = parts(files)
    assert len(valid[0]) == len(test[0]) == 30


def test_no_valid_or_test_sentence_is_in_train_on_either_side(pip: list[str], tmp_path: Path) -> None:
    train, valid, test = parts(default_corpus("en-de", tmp_path / "cache", pip))
    for side in (0, 1):
        assert not folded(train[side]) & folded(valid[side] + test[side])
        assert not folded(valid[side]) & folded(test[side])
    assert all(len(text.split()) >= 3 for part in (valid, test) for side in part for text in side)


def test_licence_source_and_dropped_pairs_are_recorded_next_to_the_corpus(pip: list[str], tmp_path: Path) -> None:
    files = default_corpus("en-de", tmp_path / "cache", pip)
    origin = (files.directory / "SOURCE.txt").read_text()
    for part in ("Apache-2.0", "homeassistant 2026.11.0", "PyPI", "308  distinct pairs",
                 "1  dropped: both sides are the same", "1  dropped: a side is empty",
                 "1  dropped: a reference", "1  dropped: a side without letters",
                 "248 train, 30 valid, 30 test"):
        assert part in origin
    assert (files.directory / "LICENSE.md").read_text() == "Apache License 2.0"
    assert not (files.directory / "LICENSE.Python").exists()


@pytest.mark.parametrize("name", ["LICENSE\\..\\..\\evil", "LICENSE:evil"])
def test_an_archive_names_no_file_outside_its_place(name: str, wheel: Path, pip: list[str], tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(f"homeassistant-2026.11.0.dist-info/{name}", "evil")
    with pytest.raises(DataError, match="names the file .* which may lie outside its directory"):
        default_corpus("en-de", tmp_path / "cache", pip)
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_an_archive_nested_too_deeply_is_damaged(wheel: Path, pip: list[str], tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        for language in ("en", "de"):
            archive.writestr(f"homeassistant/components/deep/translations/{language}.json", "[" * 10**6 + "]" * 10**6)
    with pytest.raises(DataError, match="is damaged"):
        default_corpus("en-de", tmp_path / "cache", pip)


def test_pip_is_called_once_and_only_to_download(pip: list[str], tmp_path: Path) -> None:
    for pair in ("en-de", "en-de", "de-en", "pt-BR-en", "EN-pt-br", "en_de", "pt_BR-en"):
        assert default_corpus(pair, tmp_path / "cache", pip).complete()
    [call] = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("download ") and call.endswith(" homeassistant==2026.11.0")
    assert {"--no-deps", "--ignore-requires-python", "--only-binary=:all:"} <= set(call.split())


def test_the_same_corpus_comes_out_every_time_and_the_other_way_round(pip: list[str], tmp_path: Path) -> None:
    first, second = (default_corpus("en-de", tmp_path / name, pip) for name in ("one", "two"))
    assert parts(first) == parts(second)
    turned = default_corpus("de-en", tmp_path / "one", pip)
    assert (turned.source_language, turned.train_source.name) == ("de", "train.de")


def test_a_finished_pair_needs_neither_network_nor_wheel(pip: list[str], tmp_path: Path) -> None:
    files = default_corpus("en-pt-BR", tmp_path / "cache", pip)
    next((tmp_path / "cache").rglob("*.whl")).unlink()
    assert default_corpus("en-pt-BR", tmp_path / "cache", ["/no/such/pip"]) == files


def test_a_corpus_with_a_missing_file_is_made_again(pip: list[str], tmp_path: Path) -> None:
    files = default_corpus("en-de", tmp_path / "cache", pip)
    before = parts(files)
    files.valid_target.unlink()
    assert parts(default_corpus("en-de", tmp_path / "cache", pip)) == before


def test_several_processes_at_once_make_one_whole_corpus(pip: list[str], tmp_path: Path) -> None:
    program = ("import sys; from pathlib import Path;"
               "from towernmt.dataflow.sources.default_corpus import default_corpus;"
               "print(default_corpus('en-de', Path(sys.argv[1]), sys.argv[2:]).complete())")
    runs = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "cache"), *pip],
                             stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [run.communicate(timeout=PATIENCE)[0] for run in runs] == ["True\n"] * 4
    directories = sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_dir())
    assert directories == ["en-de", "homeassistant-2026.11.0", "recipe-1"]


def test_the_environment_names_the_cache(pip: list[str], tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOWERNMT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_corpus(pip=pip).directory.is_relative_to(tmp_path / "xdg" / "towernmt")
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "own"))
    assert default_corpus(pip=pip).directory.is_relative_to(tmp_path / "own")


@pytest.mark.parametrize("body", [
    "import sys; print('WARNING: Retrying', file=sys.stderr); "
    "print('ERROR: Could not find a version (from versions: none)', file=sys.stderr); sys.exit(1)",
    "import sys; sys.exit('No module named pip')", "pass"])
def test_without_a_network_one_sentence_says_so_and_shows_the_way(body: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        default_corpus("en-de", tmp_path / "cache", failing_pip(tmp_path, body))
    message = str(error.value)
    assert "could not be downloaded" in message and "--source train.de --target train.en" in message
    assert "\n" not in message and "Retrying" not in message
    if "ERROR" in body:
        assert "Could not find a version" in message
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_missing_pip_is_the_same_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be downloaded.*No such file"):
        default_corpus("en-de", tmp_path / "cache", ["/no/such/pip"])


@pytest.mark.parametrize("pair", ["en-xx", "en", "en-en", "", "-", "../en-de", "en-de-fr"])
def test_an_unknown_language_is_answered_with_those_there_are(pair: str, pip: list[str],
                                                              tmp_path: Path) -> None:
    with pytest.raises(DataError, match="The languages are: de, en, pt-BR, ur"):
        default_corpus(pair, tmp_path / "cache", pip)


def test_a_pair_with_too_little_text_is_refused(pip: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only 1 usable pairs of en and ur"):
        default_corpus("en-ur", tmp_path / "cache", pip)


@pytest.mark.parametrize("content", [b"", b"not a zip file", None])
def test_a_damaged_wheel_is_named(content: bytes | None, wheel: Path, pip: list[str], tmp_path: Path) -> None:
    if content is None:
        data = bytearray(wheel.read_bytes())
        offset = data.index(b"Turn on lamp")
        data[offset:offset + 8] = b"damaged!"
        content = bytes(data)
    wheel.write_bytes(content)
    with pytest.raises(DataError, match="is damaged .*delete it"):
        default_corpus("en-de", tmp_path / "cache", pip)


def test_a_cache_that_cannot_be_written_is_named(pip: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="TOWERNMT_CACHE"):
        default_corpus("en-de", tmp_path / "file" / "cache", pip)


WORD = st.sampled_from(["ja", "Ja", "nein", "ﬁn", "fin", "7", "!", "ＡＢ", "ab"])
TEXT = st.lists(WORD, min_size=1, max_size=5).map(" ".join)


@pytest.mark.parametrize("letters", [
    "กขคงจฉ", "ກຂຄງຈຊ", "កខគឃងច", "ကခဂဃငစ", "一二三四五六", "あいうえおか", "アイウエオカ"],
    ids=["Thai", "Lao", "Khmer", "Burmese", "Chinese", "Hiragana", "Katakana"])
def test_a_sentence_of_six_letters_without_spaces_is_long_enough_for_the_test_set(letters: str) -> None:
    texts = ["".join(order) for order in itertools.islice(itertools.permutations(letters), 40)]
    train, valid, test = split_corpus([(in_words(n, NUMBERS), text) for n, text in enumerate(texts)])
    assert (len(train), len(valid), len(test)) == (32, 4, 4)


@given(st.lists(st.tuples(TEXT, TEXT), unique=True, min_size=1, max_size=80))
def test_the_split_loses_nothing_and_keeps_sentences_apart(pairs: list[tuple[str, str]]) -> None:
    train, valid, test = split_corpus(pairs)
    assert sorted(train + valid + test) == sorted(pairs)
    assert split_corpus(pairs[::-1]) == (train, valid, test)
    for side in (0, 1):
        texts = [folded([pair[side] for pair in part]) for part in (train, valid, test)]
        assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
