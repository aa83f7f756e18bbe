"""Reading text files: line ends, encodings, and two files side by side."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import random
import re
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.text.clean_text import clean, one_line, with_tag
from towernmt.dataflow.text.text_index import scan_pair
from towernmt.dataflow.text.text_lines import clean_lines, read_chunks, read_lines


@pytest.mark.parametrize(("content", "lines"), (
    (b"", []),
    (b"\n", [""]),
    (b"a", ["a"]),
    (b"a\n", ["a"]),
    (b"a\n\n", ["a", ""]),
    (b"a\r\nb\r\n", ["a", "b"]),
    (b"a\rb\n", ["a\rb"]),
    (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    ("a\u2028b\x0bc\x0cd\x1ce\x85f\n".encode(), ["a\u2028b\x0bc\x0cd\x1ce\x85f"]),
))
def test_lines_end_at_line_feeds_alone(content: bytes, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    assert list(read_lines(path)) == lines
    (tmp_path / "text.gz").write_bytes(gzip.compress(content))
    assert list(read_lines(tmp_path / "text.gz")) == lines


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r\ufeff"), max_size=5)),
       size=st.integers(1, 7), end=st.sampled_from(["\n", "\r\n"]))
def test_chunks_hold_every_line_once(lines: list[str], size: int, end: str,
                                     tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes("".join(line + end for line in lines).encode())
    chunks = list(read_chunks(path, size))
    assert [line for chunk in chunks for line in chunk.decode()] == lines
    assert [chunk.first_line for chunk in chunks] == list(range(1, len(lines) + 1, size))
    assert all(len(chunk.decode()) == chunk.lines for chunk in chunks)


@pytest.mark.parametrize(("name", "compress"), (
    ("gzip", gzip.compress), ("xz", lzma.compress), ("bzip2", bz2.compress), ("zstd", zstandard.compress)))
def test_compressed_text_that_is_not_decompressed_is_named(name: str, compress: Callable[[bytes], bytes],
                                                           tmp_path: Path) -> None:
    path = tmp_path / "train.de.compressed"
    path.write_bytes(compress(b"eins zwei drei\n" * 100))
    with pytest.raises(DataError, match=rf"train\.de\.compressed: the file is compressed by {name}, .* Decompress it"):
        list(read_lines(path))


def test_a_suffix_in_capitals_shows_compression_too(tmp_path: Path) -> None:
    (tmp_path / "TRAIN.GZ").write_bytes(gzip.compress(b"a\nb\n"))
    assert list(read_lines(tmp_path / "TRAIN.GZ")) == ["a", "b"]


def test_text_whose_lines_end_in_carriage_returns_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mac.de"
    path.write_bytes(b"eins\rzwei\rdrei\r" * 10)
    with pytest.raises(DataError, match=r"mac\.de: the lines end in carriage returns alone.* tr '\\r' '\\n' < .*mac"):
        list(read_lines(path))
    path.write_bytes(b"eins\rzwei\rdrei\r" * 10 + b"\nvier\r\n")
    assert list(read_lines(path)) == [("eins\rzwei\rdrei\r" * 10).removesuffix("\r"), "vier"]


@pytest.mark.parametrize(("content", "suffix"), [
    (b"gut\r" * 30, "unix"), (("gut\n" * 30).encode("utf-16"), "utf8"), (("gut\n" * 30).encode("utf-16-le"), "utf8")])
def test_the_command_in_the_message_converts_the_file(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "my father's texts" / "train.de"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    _, command = re.split("Convert (?:it|the file): ", str(error.value))
    subprocess.run(command, shell=True, check=True)
    assert list(read_lines(f"{path}.{suffix}")) == ["gut"] * 30


def test_carriage_returns_that_may_end_lines_are_logged_in_translation(caplog: pytest.LogCaptureFixture) -> None:
    assert list(clean_lines(io.BytesIO(b"a\r\nb\rc\n"), "input")) == ["a", "b c"] and not caplog.records
    assert list(clean_lines(io.BytesIO(b"a\r" * 30), "input")) == [("a " * 30).strip()]
    assert "input line 1: its carriage returns become spaces" in caplog.text


def test_bytes_that_are_not_utf8_are_found_by_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin1.de"
    path.write_bytes(b"gut\n" * 9_000 + "früh\n".encode("latin-1") + b"gut\n")
    with pytest.raises(DataError, match=r"latin1\.de line 9001: byte 3 of the line \(0xfc\) is not "
                                         "UTF-8.*iconv"):
        list(read_lines(path))
    path.write_bytes(b"\xef\xbb\xbfab\xff\n")
    with pytest.raises(DataError, match="line 1: byte 3"):
        list(read_lines(path))


@pytest.mark.parametrize(("content", "kind"), [
    (b"%PDF-1.4\n%\xe2\xe3\n", "a PDF file"), (b"PK\x03\x04\x14\0", "a Word, OpenDocument or zip file"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500),
     "an old Microsoft Office file (such as .doc) or a protected one")])
def test_a_document_in_place_of_a_text_is_one_clear_sentence(content: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "scan").write_bytes(content)
    with pytest.raises(DataError, match=f"scan: this is {re.escape(kind)}, but .*text recognition .*towernmt pairs"):
        list(read_lines(tmp_path / "scan"))


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
@pytest.mark.parametrize("text", ["Good morning!\nHow are you?\n", "Hi\n", "Доброе утро!\nКак дела?\n", "früh auf\n"])
def test_text_of_wide_characters_without_a_mark_is_refused_by_name(text: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "wide.de"
    path.write_bytes(text.encode(encoding))
    name = encoding if encoding < "UTF-3" else "UTF-32"
    with pytest.raises(DataError, match=f"wide.de line 1: the text is {name} .*iconv -f {name} -t UTF-8"):
        list(read_lines(path))


def test_a_nul_in_text_of_utf8_is_no_reason_to_refuse_it(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("Guten\0Morgen\nЯ\0\0и\n".encode())
    assert list(read_lines(path)) == ["Guten\0Morgen", "Я\0\0и"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20))
def test_training_and_translation_see_the_same_words_in_any_text(text: str) -> None:
    text = text.replace("\n", " ").removeprefix("\ufeff").removesuffix("\r")
    assert clean(next(clean_lines([text]))) == clean(text)
    assert not re.search("[\0-\x1f\x7f-\x9f\u2028]", clean(text))
    assert clean(clean(text)) == clean(text)


def test_a_nul_is_a_space_in_training_as_it_is_in_translation() -> None:
    assert clean("Guten\0Morgen\x07 \x7f!") == "Guten Morgen !"


def test_utf16_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("früh\n".encode("utf-16"))
    with pytest.raises(DataError, match="the file is UTF-16.*iconv -f UTF-16"):
        list(read_lines(tmp_path / "text"))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.de: the file does not exist"):
        list(read_lines(tmp_path / "none.de"))
    with pytest.raises(DataError, match="Is a directory"):
        list(read_lines(tmp_path))
    whole = gzip.compress(b"text\n" * 1000)
    for name, content in (("cut.gz", whole[:-10]), ("no.gz", b"text\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            list(read_lines(tmp_path / name))


@pytest.mark.parametrize("extra", (1, 5_000))
@pytest.mark.parametrize("longer", ("a", "b"))
def test_unequal_files_are_refused_with_the_line_where_the_shorter_ends(extra: int, longer: str,
                                                                        tmp_path: Path) -> None:
    for name in "ab":
        lines = 5_000 + (extra if name == longer else 0)
        (tmp_path / name).write_text("x\n" * lines)
    shorter = "b" if longer == "a" else "a"
    with pytest.raises(DataError, match=f"{shorter} ends at line 5000, but .*{longer} has {5000 + extra} "
                                        "lines"):
        scan_pair(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("empty", ["a", "b"])
def test_an_empty_file_next_to_one_with_lines_is_reported_as_empty(empty: str, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("" if name == empty else "x\n")
    with pytest.raises(DataError, match=f"/{empty} is empty, but .* has 1 lines: pass a file with one translation"):
        scan_pair(tmp_path / "a", tmp_path / "b")


def test_a_missing_final_line_feed_is_no_missing_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\ny")
    (tmp_path / "b").write_bytes(b"x\r\ny\r\n")
    source, target = scan_pair(tmp_path / "a", tmp_path / "b")
    assert source.lines == target.lines == 2
    assert source.sha256 == hashlib.sha256(b"x\ny").hexdigest() and target.bytes == 6


@pytest.mark.parametrize("alphabet", ["ab ", "ab \u0308\u00a0\u0301e\ud800\x00\u2028\u00dfA\u030a\u1100\u1161\t"])
def test_text_is_cleaned_as_its_definition_says_whatever_the_way(alphabet: str) -> None:
    draw = random.Random(1)
    for _ in range(3000):
        text = "".join(draw.choice(alphabet) for _ in range(draw.randrange(8)))
        assert clean(text) == " ".join(unicodedata.normalize("NFC", one_line(text)).split())


@pytest.mark.parametrize("text, cleaned", [
    ("\u200b", ""), ("a\u200bb\u00adc\ufeff", "abc"), ("\u202bשלום\u202c \u200e!", "שלום !"), ("a \u200b b", "a b"),
    ("می\u200cخواهم", "می\u200cخواهم"), ("क\u094d\u200d", "क\u094d\u200d"), ("👩\u200d💻 👍🏽 ❤️", "👩\u200d💻 👍🏽 ❤️"),
    ("Auf\u200clage \u200d", "Auflage"), ("Ｈｅｌｌｏ　１２３！", "Hello 123！"), ("ｶﾞｷﾞ", "ガギ"), ("ﬁnden", "finden"),
    ("𝐇𝐢 𝟙", "Hi 1"), ("ﷲ", "الله"), ("ﱞ a", "ٌّ a"), ("½ m² ™ ①", "½ m² ™ ①"),
    ("\u2f47本\u2f08", "日本人"), ("가 각", "가 각")])
def test_invisible_characters_and_compatibility_forms_do_not_reach_a_model(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned == clean(cleaned)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("a 1\u200b\u200c\u200d\u00ad\ufeff😀\ufe0fकم\u094dＡ１\ufc5e\u0301\u2028\uff76\uff9e"),
               max_size=12))
def test_cleaned_text_stays_as_it_is(text: str) -> None:
    assert clean(clean(text)) == clean(text) == " ".join(clean(text).split())


def test_a_tag_is_added_to_sentences_with_text_alone() -> None:
    blank = ["", " ", "\u200b", "\u00ad \u200e", "\x00\x07"]     # the last ones are not white space for Python
    assert [with_tag("<2de>", text) for text in ("A house", *blank)] == ["<2de> A house", *blank]
    assert with_tag("", "A house") == "A house"
