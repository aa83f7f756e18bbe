"""Translation catalogues: the messages that are pairs, compared with polib and gettext."""

from __future__ import annotations

import gettext
import gzip
import io
from pathlib import Path

import polib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.message_catalogues import Message, parse_mo, parse_po
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.sources.source import Pair

HEADER = ('msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
          '"Plural-Forms: nplurals=%s;\\n"\n\n')
PO = HEADER % "2; plural=(n != 1)" + r'''
# a comment
#. for translators
#: main.c:1
msgctxt "menu"
msgid "_Open \"%s\"\n"
msgstr "_Öffnen „%s“\n"

#, c-format
msgid ""
"Two "
"lines"
msgstr ""
"Zwei\t"
"Zeilen"

#, c-format, fuzzy
#| msgid "Bad"
msgid "Sad"
msgstr "Schlecht"

msgid "Untranslated"
msgstr ""
msgid "Close"
msgstr "Schließen"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

#~ msgid "Old"
#~ msgstr "Alt"
'''
PAIRS = [('_Open "%s"\n', "_Öffnen „%s“\n"), ("Two lines", "Zwei\tZeilen"), ("Close", "Schließen"),
         ("%d file", "%d Datei"), ("%d files", "%d Dateien")]
TEXTS = st.text(st.one_of(st.sampled_from('\\"\n\t\r\u2028\x85 aß漢_&#'),
                          st.characters(codec="utf-8", min_codepoint=32)), min_size=1, max_size=10)
ENTRIES = st.tuples(TEXTS, st.none() | TEXTS, TEXTS, TEXTS, st.booleans(), st.none() | TEXTS)


def read(uri: str) -> list[Pair]:
    source = open_source(uri)
    everything = list(source.read(source.begin()))
    assert source.count() == len(everything)
    for k, (cursor, _) in enumerate(everything):
        assert list(source.read(cursor)) == everything[k + 1:]
    return [pair for _, pair in everything]


def test_translated_messages_in_use_are_pairs(tmp_path: Path) -> None:
    for content in (PO, PO.replace("\n", "\r\n"), "\ufeff" + PO):
        (tmp_path / "de.po").write_bytes(content.encode())
        assert read(f"{tmp_path}/de.po") == PAIRS
    (tmp_path / "de.po.gz").write_bytes(gzip.compress(PO.encode()))
    assert read(f"{tmp_path}/de.po.gz") == PAIRS
    assert read(f"{tmp_path}/de.po?reverse=true") == [(target, source) for source, target in PAIRS]


def test_compiled_catalogues_give_the_same_pairs_sorted_in_folders_of_any_depth(tmp_path: Path) -> None:
    for folder in ("a", "b/LC_MESSAGES"):
        (tmp_path / folder).mkdir(parents=True)
        polib.pofile(PO).save_as_mofile(str(tmp_path / folder / "app.mo"))
    pairs = read(f"{tmp_path}/**/*.mo")
    assert sorted(pairs) == sorted(PAIRS * 2)
    assert pairs[:len(PAIRS)] == pairs[len(PAIRS):]


@pytest.mark.parametrize(("forms", "translations", "pairs"), (
    ("1; plural=0", ["本"], [("books", "本")]),
    ("3; plural=n==1 ? 2 : n==2 ? 0 : 1", ["two", "many", "one"],
     [("books", "two"), ("books", "many"), ("book", "one")]),
    ("2; plural=n != 1 || rm(-rf)", ["Buch", "Bücher"], [("book", "Buch"), ("books", "Bücher")]),
    ("2; plural=n != 1", ["Buch", ""], [("book", "Buch")]),
))
def test_plurals_follow_the_formula_of_the_header(forms: str, translations: list[str], pairs: list[tuple[str, str]],
                                                  tmp_path: Path) -> None:
    entry = 'msgid "book"\nmsgid_plural "books"\n' + "".join(
        f'msgstr[{i}] "{translation}"\n' for i, translation in enumerate(translations))
    (tmp_path / "x.po").write_text(HEADER % forms + entry)
    assert read(f"{tmp_path}/x.po") == pairs


@pytest.mark.parametrize(("text", "mark", "plain"), (
    ("_Open", "_", "Open"), ("Save _As", "_", "Save As"), ("ファイル(_F)", "_", "ファイル"), ("&Open", "%26", "Open"),
    ("Ben & Jerry", "%26", "Ben & Jerry"), ("some_file_name", "_", "some_file_name"), ("&Open", "_", "&Open"),
))
def test_marks_of_menu_letters_are_taken_out_if_asked_for(text: str, mark: str, plain: str, tmp_path: Path) -> None:
    (tmp_path / "x.po").write_text(HEADER % "1; plural=0" + f'msgid "{text}"\nmsgstr "{text}"\n')
    assert read(f"{tmp_path}/x.po?accelerators={mark}") == [(plain, plain)]
    assert read(f"{tmp_path}/x.po") == [(text, text)]


@settings(max_examples=150, deadline=None)
@given(entries=st.lists(ENTRIES, max_size=5), wrap=st.sampled_from([10, 78]))
def test_a_catalogue_written_by_polib_is_read_unchanged(
        entries: list[tuple[str, str | None, str, str, bool, str | None]], wrap: int) -> None:
    file = polib.POFile(wrapwidth=wrap)
    file.metadata = {"Content-Type": "text/plain; charset=utf-8"}
    for text, plural, singular_text, plural_text, fuzzy, context in entries:
        entry = polib.POEntry(msgid=text, msgctxt=context, flags=["fuzzy"] if fuzzy else [])
        if plural:
            entry.msgid_plural, entry.msgstr_plural = plural, {0: singular_text, 1: plural_text}
        else:
            entry.msgstr = singular_text
        file.append(entry)
    expected = [Message(text, plural, [singular_text, plural_text] if plural else [singular_text])
                for text, plural, singular_text, plural_text, fuzzy, _ in entries if not fuzzy]
    assert parse_po(str(file).encode(), "x.po").messages == expected


@settings(max_examples=100, deadline=None)
@given(entries=st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_compiled_catalogues_are_read_as_gettext_reads_them(entries: dict[str, str]) -> None:
    file = polib.POFile()
    file.metadata = {"Content-Type": "text/plain; charset=utf-8"}
    for text, translation in entries.items():
        file.append(polib.POEntry(msgid=text, msgstr=translation))
    data = file.to_binary()
    reference = gettext.GNUTranslations(io.BytesIO(data))
    messages = parse_mo(data, "x.mo").messages
    assert {message.text: message.translations[0] for message in messages} == {
        message.text: reference.gettext(message.text) for message in messages}
    assert len(messages) == len(entries)


def test_the_header_names_the_encoding(tmp_path: Path) -> None:
    content = (HEADER % "2; plural=0").replace("UTF-8", "ISO-8859-2") + 'msgid "dog"\nmsgstr "pies ąę"\n'
    (tmp_path / "x.po").write_bytes(content.encode("iso-8859-2"))
    assert read(f"{tmp_path}/x.po") == [("dog", "pies ąę")]
    (tmp_path / "x.po").write_bytes(content.replace("ISO-8859-2", "CHARSET").encode())
    assert read(f"{tmp_path}/x.po") == [("dog", "pies ąę")]


def test_the_flag_of_an_obsolete_message_is_not_that_of_the_next_one() -> None:
    catalogue = parse_po(b'#, fuzzy\n#~ msgid "old"\n#~ msgstr "alt"\n\nmsgid "new"\nmsgstr "neu"\n', "x.po")
    assert catalogue.messages == [Message("new", None, ["neu"])]


def test_escaped_bytes_are_text_in_the_encoding_of_the_header(tmp_path: Path) -> None:
    entry = r'msgid "a\x41\\303\8"' "\n" r'msgstr "fr\303\274h \xe2\x82\254\t\1011"' "\n"     # of msgcat --escape
    (tmp_path / "x.po").write_text(HEADER % "1; plural=0" + entry)
    assert read(f"{tmp_path}/x.po") == [(r"aA\303\8", "früh €\tA1")]
    header = (HEADER % "1; plural=0").replace("UTF-8", "ISO-8859-1")
    (tmp_path / "x.po").write_text(header + 'msgid "a"\nmsgstr "fr\\374h"\n')
    assert read(f"{tmp_path}/x.po") == [("a", "früh")]


@pytest.mark.parametrize(("content", "message"), (
    (b'msgid "a"\nmsgstr "\\374"\n', r"x\.po line 2: byte 1 of a message \(0xfc\) is not UTF-8, the encoding in"),
    (b'msgid "a"\nmsgstr "b\n', r"x\.po line 2: not a valid line of a \.po file"),
    (b'msgid "a"\nmsgstr "b\\"\n', r"x\.po line 2: not a valid line of a \.po file"),
    (b'"a"\n', "line 1: not a valid line"),
    (b"<html>\n", "line 1: not a valid line"),
    (b'msgid "a"\nmsgid "b"\n', "line 2: msgid is not expected here"),
    (b'msgstr "b"\n', "line 1: msgstr is not expected here"),
    (b'msgid "a"\nmsgstr "\xff"\n', "x.po line 2: byte 9 of the line"),
    ((HEADER % "1").replace("UTF-8", "ASCII").encode() + 'msgid "a"\nmsgstr "ä"\n'.encode(),
     rf"x\.po line {HEADER.count(chr(10)) + 2}: byte 9 of the line \(0xc3\) is not ASCII, the encoding in the header"),
))
def test_an_invalid_catalogue_is_refused_with_its_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.po").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(f"{tmp_path}/x.po")


def test_a_compiled_catalogue_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    content = polib.pofile(PO).to_binary()
    path = tmp_path / "x.mo"
    for length in range(0, len(content) - 1, 3):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"x\.mo: (the file does not begin|the \.mo file is damaged)"):
            read(str(path))


@pytest.mark.parametrize("charset", ["hex", "rot13", "undefined", "nothing"])
def test_a_codec_that_is_no_encoding_of_text_counts_as_an_unknown_encoding(charset: str) -> None:
    catalogue = parse_po(PO.replace("charset=UTF-8", f"charset={charset}").encode(), "x.po")
    assert catalogue.messages == parse_po(PO.encode(), "x.po").messages


def test_an_encoding_that_does_not_report_the_position_is_named() -> None:
    with pytest.raises(DataError, match=r"x\.po: a message is not PUNYCODE, the encoding in the header"):
        parse_po(b'msgid ""\nmsgstr "Content-Type: text/plain; charset=punycode\\n"\n', "x.po")


@pytest.mark.parametrize("formula", ["n/0", "n%0", "(n"])
def test_a_formula_of_plurals_that_cannot_be_computed_takes_the_first_form_as_the_singular(formula: str, tmp_path: Path
                                                                                          ) -> None:
    (tmp_path / "x.po").write_text(PO.replace("(n != 1)", formula), encoding="utf-8")
    source = open_source(f"{tmp_path}/x.po")
    assert [pair for _, pair in source.read(source.begin())] == PAIRS
