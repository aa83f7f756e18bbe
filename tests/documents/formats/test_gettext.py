"""Gettext catalogues; polib reads the translations as an independent reference."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.documents import fake_translator as fakes
from tests.processor_time import processor_seconds
from towernmt.core.errors import DataError
from towernmt.documents.formats.gettext import open_po
from towernmt.documents.segments import Segment, Shielded
from towernmt.documents.shields import placeholders_in

polib = pytest.importorskip("polib")

HEADER = r'''# Translators
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;\n"

'''
CATALOGUE = HEADER + r'''#. extracted
#: a.c:1
#, c-format
msgctxt "menu"
msgid "Open \"%s\" now"
msgstr ""

#: b
#, fuzzy
#| msgid "old"
msgid ""
"First line\n"
"\n"
"The second line, which is so long that it does not go on one line of the file.\n"
msgstr "alt"

msgid "done"
msgstr "fertig"

msgid "one file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "obsolete"
#~ msgstr "veraltet"
'''
TRANSLATED = HEADER + r'''#. extracted
#: a.c:1
#, fuzzy, c-format
msgctxt "menu"
msgid "Open \"%s\" now"
msgstr "OPEN \"%s\" NOW"

#: b
#, fuzzy
#| msgid "old"
msgid ""
"First line\n"
"\n"
"The second line, which is so long that it does not go on one line of the file.\n"
msgstr ""
"FIRST LINE\n"
"\n"
"THE SECOND LINE, WHICH IS SO LONG THAT IT DOES NOT GO ON ONE LINE OF THE "
"FILE.\n"

msgid "done"
msgstr "fertig"

#, fuzzy
msgid "one file"
msgid_plural "%d files"
msgstr[0] "ONE FILE"
msgstr[1] "%D FILES"
msgstr[2] "%D FILES"

#~ msgid "obsolete"
#~ msgstr "veraltet"
'''


def translated(text: str, encoding: str = "utf-8") -> str:
    document = open_po(text.encode(encoding))
    return document.written(fakes.capital_segments(document.segments)).decode(encoding)


def test_what_has_no_translation_gets_a_fuzzy_one() -> None:
    segments = open_po(CATALOGUE.encode()).segments
    assert len(segments[0]) == 3 and isinstance(segments[0][1], Shielded)
    assert segments[1:] == [ ("First line",),
        ("The second line, which is so long that it does not go on one line of the file.",), ("one file",),
        ("%d files",)]
    assert translated(CATALOGUE) == TRANSLATED
    assert translated(CATALOGUE.replace("\n", "\r\n")) == TRANSLATED.replace("\n", "\r\n")


def test_polib_reads_the_translations_and_all_else_as_it_was() -> None:
    before, after = polib.pofile(CATALOGUE), polib.pofile(translated(CATALOGUE))
    assert after.metadata == before.metadata and len(after) == len(before)
    for one, other in zip(before, after, strict=True):
        assert [getattr(one, name) for name in ("msgctxt", "msgid", "comment", "occurrences", "obsolete",
                                                "previous_msgid")] == [
            getattr(other, name) for name in ("msgctxt", "msgid", "comment", "occurrences", "obsolete",
                                              "previous_msgid")]
    assert [entry.msgid for entry in after.fuzzy_entries()] == [
        entry.msgid for entry in before if not entry.translated() and not entry.obsolete]
    assert after.find("one file").msgstr_plural == {0: "ONE FILE", 1: "%D FILES", 2: "%D FILES"}


RUSSIAN = ("nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2)")


@pytest.mark.parametrize(("forms", "msgid", "expected"), [
    (RUSSIAN, "a", "MMM"), (RUSSIAN, "%d a", "MMM"), (RUSSIAN, "%s a", "MMM"),
    ("nplurals=1; plural=0", "a", "M"), ("nplurals=1; plural=0", "%d a", "M"),
    ("nplurals=2; plural=n != 1", "a", "SM"), ("nplurals=2; plural=(n != 1)", "%d a", "SM"),
    ("nplurals=2; plural=n > 1", "a", "MM"), ("nplurals=2; plural=n>1", "%d a", "MM"),
    ("nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2", "a", "SMM"),
    ("nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2)", "a", "SMM"),
    ("nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3)", "a", "MMMM"),
    ("nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3)", "%d a", "MMMM"),
    ("nplurals=5; plural=n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4", "a", "SMMMM"),
    ("nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5", "a",
     "MSMMMM"),
    ("nplurals=2; plural=n%10==1 && n%100!=11 ? 0 : 1", "a", "MM"), ("nplurals=3; plural=n / 0", "a", "SMM"),
    ("nplurals=INTEGER; plural=EXPRESSION", "a", "SM"), ("nplurals=4", "a", "SMMM"),
    ("nplurals=2; plural=__import__(1)", "a", "SM"), ("nplurals=2; plural=" + "(" * 5000 + "n", "a", "SM")])
def test_only_a_form_for_the_number_one_alone_takes_the_singular(
        forms: str, msgid: str, expected: str) -> None:
    text = re.sub('"Plural-Forms: [^"]*"', lambda _: f'"Plural-Forms: {forms};\\n"', HEADER) + (
        f'msgid "{msgid}"\nmsgid_plural "%d b"\nmsgstr[0] ""\nmsgstr[1] ""\n')
    document = open_po(text.encode())
    found = polib.pofile(document.written(document.segments).decode()).find(msgid).msgstr_plural
    assert ["S" if form == msgid else "M" for form in found.values()] == list(expected)


@pytest.mark.parametrize(("forms", "expected"), [(1, "M"), (2, "SM"), (3, "SMM")])
def test_without_plural_forms_in_the_header_an_entry_keeps_its_number_of_forms(forms: int, expected: str) -> None:
    text = re.sub('"Plural-Forms: [^"]*"\n', "", HEADER) + 'msgid "a"\nmsgid_plural "b"\n' + "".join(
        f'msgstr[{number}] ""\n' for number in range(forms))
    assert "Plural-Forms" not in text
    document = open_po(text.encode())
    found = polib.pofile(document.written(document.segments).decode()).find("a").msgstr_plural
    assert ["S" if form == "a" else "M" for form in found.values()] == list(expected)


def entry_of(msgid: str, flags: str, change: Callable[[list[Segment]], list[Segment]]) -> Any:
    """Return an entry with its translation, read by polib."""
    catalogue = polib.POFile()
    catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    catalogue.append(polib.POEntry(msgid=msgid, flags=[flags] if flags else []))
    document = open_po(str(catalogue).encode())
    return polib.pofile(document.written(change(list(document.segments))).decode())[0]


class Reversed:
    """Return translations with reversed words, and their word alignment."""

    def __init__(self, source: str) -> None:
        words = source.split()
        self.text = " ".join(reversed(words))
        self._links = [(index, len(words) - 1 - index) for index in range(len(words))]

    def links(self) -> list[tuple[int, int]]:
        return self._links


def in_reverse(segments: list[Segment]) -> list[Segment]:
    return fakes.translate_segments(segments, lambda texts: [Reversed(text) for text in texts], None)


@pytest.mark.parametrize(("flag", "msgid", "expected"), [
    ("c-format", "%d of %s files", "files %2$s of %1$d"), ("c-format", "%*d of %s", "%3$s of %2$*1$d"),
    ("c-format", "%2$s of %1$s", "%1$s of %2$s"), ("c-format", "%s%s is here", "here is %s%s"),
    ("c-format", "%<PRIu64> or %-5.2f", "%2$-5.2f or %1$<PRIu64>"), ("c-format", "100%% of %lld", "%lld of 100%%"),
    ("c-format", "about %m and %zu", "%zu and %m about"), ("objc-format", "%@ and %d", "%2$d and %1$@"),
    ("python-format", "%s of %d", ""), ("python-format", "%(a)s of %(b)d", "%(b)d of %(a)s"),
    ("python-brace-format", "{} of {:>5} is {{x}}", "{{x}} is {1:>5} of {0}"),
    ("python-brace-format", "{a} of {b.c[0]}", "{b.c[0]} of {a}"), ("java-format", "{0} of {1}", "{1} of {0}"),
    ("qt-format", "%1 of %2", "%2 of %1"), ("sh-format", "$a of ${b}", "${b} of $a"), ("lua-format", "%s of %d", ""),
    ("no-c-format", "of %s and %d", "%d and %s of"), ("", "of %s and %d", "%d and %s of"),
    ("php-format", "the %s saw <a href=\"%s\">it</a>", "<a href=\"%2$s\">it</a> saw %1$s the"),
    ("python-brace-format", "the {} saw <a href='{}'>it</a>", "<a href='{1}'>it</a> saw {0} the"),
    ("python-format", "the %s saw <a href=\"%s\">it</a>", ""),
    ("python-format", "the %(a)s saw <a href=\"%(b)s\">it</a>", "<a href=\"%(b)s\">it</a> saw %(a)s the"),
    ("c-format", "see <a href=\"%s\">%d files</a>", "<a href=\"%s\">files %d</a> see"),
    ("c-format", "<p class=\"5%%\">%s of %d</p>", "<p class=\"5%%\">%2$d of %1$s</p>")])
def test_placeholders_in_another_order_get_numbers_or_the_translation_stays_empty(
        flag: str, msgid: str, expected: str) -> None:
    entry = entry_of(msgid, flag, in_reverse)
    assert entry.msgstr == expected and entry.fuzzy


@pytest.mark.parametrize(("flag", "msgid", "translation", "expected"), [
    ("c-format", "Open %s now", "Jetzt", ""), ("c-format", "Open %s now", "Jetzt %d", ""),
    ("c-format", "Open %s now", "Zu 50% offen: %s", "Zu 50%% offen: %s"), ("c-format", "Open %s", "%s %s", "%s %%s"),
    ("python-brace-format", "Open {x} now", "{x} {y}", "{x} {{y}}"), ("python-brace-format", "Open {x} now", "Auf", ""),
    ("python-format", "Open %(x)s", "Auf %(y)s", ""), ("no-c-format", "Open %s", "Auf", "Auf"),
    ("java-format", "the user''s {0}", "l'ami {0}", "l''ami {0}"), ("java-format", "open {0}", "ouvre {0} {", ""),
    ("java-format", "Can't open '{0}'", "Impossible d'ouvrir '{0}'", "Impossible d'ouvrir '{0}'"),
    ("c-format", "a is 50% (b)", "a ist 50% (b)", "a ist 50% (b)"),
    ("c-format", "Open <a href=\"%s\">this</a>", "Auf", "")])
def test_a_translation_with_other_placeholders_stays_empty_and_stray_signs_are_escaped(
        flag: str, msgid: str, translation: str, expected: str) -> None:
    entry = entry_of(msgid, flag, lambda segments: [(translation,)])
    assert entry.msgstr == expected and entry.fuzzy


@pytest.mark.parametrize("msgid", ["a is 50% (b) or 50%<b>c</b>", "<a href=\"%s\"><b>%d</b></a> of %s<br>",
                                   "<img width='50%' src='%s'> %d"])
def test_a_tag_is_no_end_of_a_placeholder(msgid: str) -> None:
    assert entry_of(msgid, "c-format", list).msgstr == msgid


@pytest.mark.parametrize(("msgid", "expected"), [
    ("the <b>bold</b> word", "word <b>bold</b> the"),
    ("see <a href=\"x y\">this page</a>",
     "<a href=\"x y\">page this</a> see"),
    ("run <code>make all</code> now", "now <code>make all</code> run"), ("a < b and c", "c and b < a"),
    ("usage: x <file>", "<file> x usage:"), ("one<br/>two", "<br/>two one"),
    ("<x:y>in</x:y> out", "out <x:y>in</x:y>")])
def test_tags_of_html_are_marks(msgid: str, expected: str) -> None:
    assert entry_of(msgid, "", in_reverse).msgstr == expected


@pytest.mark.parametrize(("msgid", "translation", "expected"), [
    ("&File", "Datei", "&Datei"), ("E&xit", "Verlassen", "&Verlassen"),
    ("_Save file", "Datei sichern", "Datei _sichern"),
    ("E_xit", "exakt", "e_xakt"),
    ("&File", "ファイル", "ファイル(&F)"), ("R&D", "F&E", "F&E"),
    ("&nbsp;x", "&nbsp;y", "&nbsp;y"),
    ("a_b", "c_d", "c_d"), ("call _exit", "rufe _exit", "rufe _exit"),
    ("Save & exit", "Sichern & weg", "Sichern & weg")])
def test_the_letter_of_a_keyboard_shortcut_is_marked_once(msgid: str, translation: str, expected: str) -> None:
    assert entry_of(msgid, "", lambda segments: [(translation,)]).msgstr == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("%s%s", ["%s%s"]), ("%dx%d px", ["%dx%d"]), ("%dMB free", ["%d"]), ("%1$s%2$s", ["%1$s%2$s"]),
    ("{}{}", ["{}{}"]),
    ("{0}{1}", ["{0}{1}"]), ("${x}y", ["${x}"]), ("a %(name)s", ["%(name)s"]), ("100%% of", ["%%"]),
    ("%-5.2f", ["%-5.2f"]), ("%lld %zu", ["%lld", "%zu"]), ("%<PRIu64>", ["%<PRIu64>"]), ("{{ x }}", ["{{ x }}"]),
    ("$t(key)", ["$t(key)"]), ("a\\nb", ["\\n"]), ("&nbsp;", ["&nbsp;"]), ("%Y-%m", ["%Y", "%m"]), ("%@", ["%@"]),
    ("%1 of %2", ["%1", "%2"]), ("%*d %.*f", ["%*d", "%.*f"]), ("%NAME%", ["%NAME%"]), ("foo%s's", ["%s"]),
    ("{n, plural, one {# a} other {# b}} c", ["{n, plural, one {# a} other {# b}}"]), ("{x:>{w}}", ["{x:>{w}}"]),
    ("%description", ["%description"]), ("50 %ige 10%ige 5% %50 indirim % d 10 %-ige R&D US$5", [])])
def test_placeholders_in_plain_text(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in placeholders_in(text)] == expected


@pytest.mark.parametrize("text", ["%", "{", "{a, plural,", "{a,plural,{", "%a", "$a", "{{",
                                  "\\", "%(", "<%", "$(", "&a"])
def test_hostile_placeholders_take_little_time(text: str) -> None:
    assert processor_seconds(lambda: list(placeholders_in(text * 5_000))) < 5


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="needs msgfmt of gettext")
def test_msgfmt_accepts_what_a_careless_translator_makes(tmp_path: Path) -> None:
    texts = ["%d of %s\n", "\n%s: %dx%d\n", "%<PRIu64> of %-5.2f%%", "%s%s", "a %*d b %s", "% 5d is it", "x%sy%lu",
             'the %d saw <a href="%s">it</a>']
    entries = "".join(f'#, c-format\nmsgid {json.dumps(text)}\nmsgstr ""\n\n' for text in texts)
    entries += '#, java-format\nmsgid "the user\'\'s {0} and \'{\'x\'}\'"\nmsgstr ""\n\n'
    plurals = '#, c-format\nmsgid "one"\nmsgid_plural "%d of %s"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    header = re.sub('"Plural-Forms: [^"]*"', lambda _: f'"Plural-Forms: {RUSSIAN};\\n"', HEADER)
    document = open_po((header + entries + plurals.replace('"one"', '"file %d of %s"')).encode())
    for change in (in_reverse, fakes.capital_segments, lambda segments: [("100% d",) for _ in segments],
                   lambda segments: [(*segment, " l'ami") for segment in segments]):
        path = tmp_path / "a.po"
        path.write_bytes(document.written(change(list(document.segments))))
        run(["msgfmt", "-c", "--use-fuzzy", "-o", str(tmp_path / "a.mo"), str(path)], check=True, timeout=30)


def test_the_headers_encoding_is_kept() -> None:
    text = HEADER.replace("UTF-8", "ISO-8859-1") + 'msgid "für"\nmsgstr ""\n'
    assert 'msgstr "FÜR"' in translated(text, "latin-1")
    document = open_po(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"U\+201C, which ISO8859-1 cannot encode"):
        document.written([("“",)])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"])
                        | st.sampled_from('\\"\n\t \'')), min_size=1, unique=True))
def test_any_text_comes_back(texts: list[str]) -> None:
    """An identity translation of a file by polib is what polib reads as translations."""
    catalogue = polib.POFile()
    catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    for text in texts:
        if text:
            catalogue.append(polib.POEntry(msgid=text))
    document = open_po(str(catalogue).encode())
    found = polib.pofile(document.written(document.segments).decode())
    assert [(entry.msgid, entry.msgstr) for entry in found] == [(text, text) for text in texts if text]


def test_flags_belong_to_the_entry_that_polib_reads_them_for() -> None:
    text = HEADER + '''#, fuzzy
#~ msgid "obsolete"
#~ msgstr "veraltet"

msgid "done"
msgstr "fertig"

#, c-format
#, fuzzy
msgid "%d files of %s"
msgstr "alt"

#, python-format
#, no-wrap
msgid "%(n)s more"
msgstr ""
'''
    found = {entry.msgid: entry for entry in polib.pofile(translated(text)) if not entry.obsolete}
    before = {entry.msgid: entry for entry in polib.pofile(text) if not entry.obsolete}
    assert {msgid: (entry.msgstr, set(entry.flags)) for msgid, entry in found.items()} == {
        "done": ("fertig", set(before["done"].flags)),
        "%d files of %s": ("%d FILES OF %s", {"c-format", "fuzzy"}),
        "%(n)s more": ("%(n)s MORE", {"python-format", "no-wrap", "fuzzy"})}


@pytest.mark.parametrize(("flags", "expected"), [
    ("#= c-format", "#, fuzzy\n#= c-format"), ("#, no-wrap\n#= c-format", "#, fuzzy, no-wrap\n#= c-format"),
    ("#= c-format\n#, fuzzy", "#= c-format\n#, fuzzy"),
    ("#= no-wrap\n#| msgid \"x\"", "#, fuzzy\n#= no-wrap\n#| msgid \"x\"")])
def test_flags_may_be_on_lines_with_an_equals_sign(flags: str, expected: str) -> None:
    msgid = '\nmsgid "open %s now"\n'
    translation = "OPEN %s NOW" if "c-format" in flags else "OPEN %S NOW"
    assert translated(f'{HEADER}{flags}{msgid}msgstr ""\n') == f'{HEADER}{expected}{msgid}msgstr "{translation}"\n'


def test_escaped_bytes_are_text_in_the_encoding_of_the_header() -> None:
    assert translated(HEADER + r'msgid "sch\303\266n"' + '\nmsgstr ""\n').endswith('msgstr "SCHÖN"\n')


@pytest.mark.parametrize(("content", "sentence"), [
    (b"hello\n", "Line 1: not a valid line of a .po file"),
    *((HEADER.replace("UTF-8", name).encode(), f"declares the encoding {name}, which is unknown, or is not")
      for name in ("KLINGON-1", "rot13", "undefined", "idna", "utf-16")),
    (HEADER.encode() + b'msgid "a\nmsgstr ""\n', "Line 7: not a valid line"),
    (HEADER.encode() + b'msgid "\xff"\nmsgstr ""\n', "not encoded as UTF-8")])
def test_what_is_broken_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        open_po(content)
