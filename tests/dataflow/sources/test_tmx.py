"""Translation memories: the text of a unit in a language, resuming at any unit, and damaged or malicious files."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.sources.source import Pair

LANGUAGES = "source_language=de&target_language=en"
TEXTS = st.text(st.sampled_from("aß漢<>&]\"' \u2028\U0001f600") | st.characters(
    codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=6)
HEAD = '<tmx version="1.4"><header srclang="de"/><body>'
TAIL = "</body></tmx>"


def unit(source: str, target: str) -> str:
    return (f'<tu><tuv xml:lang="de"><seg>{source}</seg></tuv>\n<tuv xml:lang="en"><seg>{target}</seg></tuv></tu>\n')


def write(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_bytes(text.encode(encoding))
    return f"{path}?{LANGUAGES}"


def pairs(uri: str) -> list[Pair]:
    source = open_source(uri)
    return [pair for _, pair in source.read(source.begin())]


@settings(max_examples=120, deadline=None)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=6), compressed=st.booleans(),
       encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "iso-8859-1", "windows-1252"]),
       indent=st.booleans())
def test_units_written_by_elementtree_are_read_unchanged_from_any_cursor(
        rows: list[tuple[str, str]], compressed: bool, encoding: str, indent: bool,
        tmp_path_factory: pytest.TempPathFactory) -> None:
    root = ElementTree.Element("tmx", version="1.4")
    ElementTree.SubElement(root, "header", srclang="de")
    body = ElementTree.SubElement(root, "body")
    for row in rows:
        unit = ElementTree.SubElement(body, "tu")
        for language, text in zip(("de-AT", "EN_us"), row, strict=True):
            variant = ElementTree.SubElement(unit, "tuv", {"xml:lang": language})
            ElementTree.SubElement(variant, "seg").text = text
    if indent:
        ElementTree.indent(root)
    declared = {"utf-8-sig": "utf-8", "utf-16-be": "utf-16"}.get(encoding, encoding)
    text = f'<?xml version="1.0" encoding="{declared}"?>\n{ElementTree.tostring(root, "unicode")}'
    data = text.encode(encoding, "xmlcharrefreplace")
    path = tmp_path_factory.mktemp("tmx") / ("x.tmx.gz" if compressed else "x.tmx")
    path.write_bytes(gzip.compress(data) if compressed else data)
    source = open_source(f"{path}?{LANGUAGES}")
    items = list(source.read(source.begin()))
    assert [pair for _, pair in items] == rows
    assert source.count() == len(rows)
    for number, (cursor, _) in enumerate(items, 1):
        assert list(source.read(json.loads(json.dumps(cursor)))) == items[number:]


@pytest.mark.parametrize(("segment", "text"), [
    ('Ein <hi type="x">fettes <hi>Wort</hi></hi>.', "Ein fettes Wort."),
    ('Ein <bpt i="1">&lt;b&gt;</bpt>W<ept i="1">&lt;/b&gt;</ept>ort', "Ein Wort"),
    ("Klick <ph x='1'>{0}</ph>!", "Klick !"),
    ("eins<ph type='lb'/>zwei", "eins zwei"), ("eins<ph>&lt;br/&gt;</ph>zwei", "eins zwei"),
    ("a<it pos='begin'>&lt;i&gt;<sub>eine <ph>x</ph> Fußnote</sub></it>b", "ab"),
    ("a &amp; b &#228; <![CDATA[<c>]]><!-- d --><?e f?>", "a & b ä <c>"),
    ("  zwei\nZeilen ", "  zwei\nZeilen "), ("", ""),
])
def test_a_segment_is_its_words_without_the_codes(segment: str, text: str, tmp_path: Path) -> None:
    assert pairs(write(tmp_path / "x.tmx", HEAD + unit(segment, "y") + TAIL)) == [(text, "y")]


def test_a_language_is_the_same_or_the_beginning_of_the_variants(tmp_path: Path) -> None:
    def variants(*languages: str) -> str:
        return "".join(f'<tuv xml:lang="{language}"><seg>{language}</seg></tuv>' for language in languages)

    units = "".join(f"<tu>{variants(*languages)}</tu>" for languages in
                    [("DE-at", "en-GB"), ("en-US", "den", "de-CH", "de", "en"), ("en", "de_DE", "de-AT")])
    old = '<tu><note>x</note><tuv lang="de"><prop>p</prop><seg>alt</seg></tuv><tuv lang="en"><seg>old</seg></tuv></tu>'
    path = tmp_path / "x.tmx"
    assert pairs(write(path, HEAD + units + old + TAIL)) == [
        ("DE-at", "en-GB"), ("de", "en"), ("de_DE", "en"), ("alt", "old")]
    assert pairs(f"{path}?source_language=de-at&target_language=en&missing=skip") == [
        ("DE-at", "en-GB"), ("de-AT", "en")]


def test_a_unit_without_a_language_is_an_error_with_its_line_or_passed_over(tmp_path: Path) -> None:
    text = f"{HEAD}\n{unit('a', 'b')}<tu><tuv xml:lang='fr'><seg>c</seg></tuv>\n</tu>\n{unit('d', 'e')}{TAIL}"
    uri = write(tmp_path / "x.tmx", text)
    source = open_source(uri)
    items = source.read(source.begin())
    cursor, pair = next(items)
    assert pair == ("a", "b")
    for iterator in (items, source.read(cursor)):
        with pytest.raises(DataError, match=r"x.tmx line 5: .* no text in 'de' \(its languages: fr\)"):
            next(iterator)
    assert pairs(f"{uri}&missing=skip") == [("a", "b"), ("d", "e")]


LAUGHS = ('<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;">]>')


@pytest.mark.parametrize(("text", "message"), [
    (LAUGHS + HEAD + unit("&c;", "x") + TAIL, "line 1: .*declares the entity 'a'"),
    ('<!DOCTYPE tmx [<!ENTITY a SYSTEM "/etc/passwd">]>' + HEAD + unit("&a;", "x") + TAIL, "line 1: .*the entity 'a'"),
    ('<!DOCTYPE tmx [<!ENTITY % a SYSTEM "http://127.0.0.1:9/x"> %a;]>' + HEAD + TAIL, "line 1: .*the entity 'a'"),
    ('<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n' + HEAD + unit("&nbsp;", "x") + TAIL, "line 2: .*'&nbsp;' is not one"),
    (HEAD + unit("&nbsp;", "x") + TAIL, "line 1: .*undefined entity"),
    (HEAD + unit("a", "b"), "line 3: .*no element found"),
    (HEAD + "<tu><tuv></tu>" + TAIL, "line 1: .*mismatched tag"),
    ("<html><body/></html>", "line 1: .*begins with <html>"),
    ('<?xml version="1.0" encoding="klingon"?>' + HEAD + TAIL, "line 1: .*unknown encoding"),
    ('<?xml version="1.0" encoding="shift-jis"?>' + HEAD + TAIL, "line 1: .*"),
    ("", "line 1: .*no element found"),
    (HEAD + "\n<tu \xff", "line 2: .*not well-formed"),
])
def test_an_unreadable_file_is_refused_with_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"x.tmx {message}"):
        pairs(write(tmp_path / "x.tmx", text, "latin-1"))


def test_a_doctype_that_names_its_dtd_is_well_and_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "tmx14.dtd").write_text("this is no DTD")
    text = f'<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "{tmp_path}/tmx14.dtd">{HEAD}{unit("a", "b")}{TAIL}'
    assert pairs(write(tmp_path / "x.tmx", text)) == [("a", "b")]


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tmx"
    with path.open("w") as file:
        file.write(HEAD)
        file.writelines(unit(f"Satz {i}", f"sentence {i}") * 10 for i in range(2000))
        file.write(TAIL)
    source = open_source(f"{path}?{LANGUAGES}")
    tracemalloc.start()
    count = sum(1 for _ in source.read(source.begin()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000 and peak < 4 << 20 < path.stat().st_size + (3 << 20)


def test_a_unit_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.tmx"
    path.write_text(HEAD + "<tu><tuv xml:lang='de'><seg>" + "x" * (17 << 20))
    with pytest.raises(DataError, match="no unit ends within 16 MiB"):
        pairs(f"{path}?{LANGUAGES}")


def test_both_languages_must_be_named() -> None:
    with pytest.raises(SettingsError, match="the source or target language is missing"):
        open_source("x.tmx?source_language=de")
    with pytest.raises(SettingsError, match="source_language=d/e: expected a language"):
        open_source("x.tmx?source_language=d/e&target_language=en")
