"""OpenDocument text: spans, spaces, fields and notes, written out by hand."""

from __future__ import annotations

import io
import zipfile

import pytest

from tests.documents import fake_translator as fakes
from towernmt.documents.formats.odt import open_odt
from towernmt.documents.segments import Mark, Segment, Shielded
from towernmt.documents.translation import SplitSegments

NAMES = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
                 for name in ("office", "text", "style", "table", "draw")) + (
    ' xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0" xmlns:xlink="http://www.w3.org/1999/xlink"'
    ' xmlns:officeooo="http://openoffice.org/2009/office"')
STYLES = "".join(f'<style:style style:name="{name}" style:family="text"><style:text-properties {look}/></style:style>'
                 for name, look in (("T1", 'fo:font-weight="bold"'), ("T2", 'officeooo:rsid="0012"'),
                                    ("T3", 'fo:font-weight="bold" officeooo:rsid="0034"')))


def document(body: str) -> bytes:
    """Return a text document with this body, and a header."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text", zipfile.ZIP_STORED)
        archive.writestr("content.xml", f"<?xml version='1.0' encoding='UTF-8'?>\n<office:document-content {NAMES}>"
                         f"<office:automatic-styles>{STYLES}</office:automatic-styles><office:body><office:text>{body}"
                         "</office:text></office:body></office:document-content>")
        archive.writestr("styles.xml", f"<office:document-styles {NAMES}><style:header><text:p>Kopf</text:p>"
                                       "</style:header></office:document-styles>")
        archive.writestr("Pictures/1.png", bytes(range(256)))
    return made.getvalue()


def written(body: str, translated: list[Segment] | None = None) -> str:
    """Return the body of the translated document; the translation of the header is identical."""
    content = document(body)
    opened = open_odt(content)
    whole = opened.written(opened.segments if translated is None else [*translated, ("Kopf",)])
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(io.BytesIO(whole)) as after:
        assert after.namelist() == before.namelist() and after.testzip() is None
        assert after.infolist()[0].compress_type == zipfile.ZIP_STORED
        assert after.read("Pictures/1.png") == before.read("Pictures/1.png")
        assert b"<text:p>Kopf</text:p>" in after.read("styles.xml")
        found = after.read("content.xml").decode()
    return found.partition("<office:text>")[2].partition("</office:text>")[0]


def segments(body: str) -> list[Segment]:
    return open_odt(document(body)).segments[:-1]


PARAGRAPH = ('<text:p text:style-name="P1">Das ist ein <text:span text:style-name="T1">fetter</text:span> und ein '
             '<text:a xlink:href="https://example.org">verlinkter <text:span text:style-name="T1">fetter</text:span>'
             "</text:a> Satz.</text:p>")


def test_spans_and_links_are_marks() -> None:
    assert segments(PARAGRAPH) == [(
        "Das ist ein ", Mark("open", 1, 0), "fetter", Mark("close", 1, 0), " und ein ", Mark("open", 3, 2),
        "verlinkter ", Mark("open", 2, 1), "fetter", Mark("close", 2, 1), Mark("close", 3, 2), " Satz.")]
    assert written(PARAGRAPH) == PARAGRAPH


def test_a_translation_has_the_marks_of_its_source() -> None:
    [(_, bold, _, end, _, link, _, inner, _, inner_end, link_end, _)] = segments(PARAGRAPH)
    translated: Segment = (link, inner, "A fat", inner_end, " link", link_end, ", and ", bold, "bold", end, "  <&>")
    assert written(PARAGRAPH, [translated]) == (
        '<text:p text:style-name="P1"><text:a xlink:href="https://example.org"><text:span text:style-name="T1">A fat'
        '</text:span> link</text:a>, and <text:span text:style-name="T1">bold</text:span> <text:s/>&lt;&amp;&gt;'
        "</text:p>")


def test_spans_that_differ_in_revisions_alone_are_one() -> None:
    body = ('<text:p>Ein <text:span text:style-name="T2">Wort</text:span>, <text:span text:style-name="T1">zwei'
            '</text:span><text:span text:style-name="T3"> Worte</text:span>.</text:p>')
    assert segments(body) == [("Ein Wort, ", Mark("open", 1, 0), "zwei Worte", Mark("close", 1, 0), ".")]
    assert written(body) == ('<text:p>Ein Wort, <text:span text:style-name="T1">zwei Worte</text:span>.</text:p>')


def test_spaces_stay_and_tabs_and_breaks_divide_segments() -> None:
    body = ('<text:p><text:s text:c="2"/>Zwei <text:s text:c="3"/>Worte<text:tab/>rechts<text:line-break/>'
            '<text:s/>unten </text:p>')
    assert segments(body) == [("Zwei    Worte",), ("rechts",), ("unten",)]
    assert written(body) == body
    for count in ("zwei", "-1", "9" * 5000):
        assert segments(f'<text:p>Ein<text:s text:c="{count}"/>Wort</text:p>') == [("Ein Wort",)]
    assert written("<text:p>Umbrochen\n   im XML</text:p>") == "<text:p>Umbrochen im XML</text:p>"
    body = ('<text:p>\n  Eingerückt <text:span text:style-name="T1"> im</text:span>\n  <text:span text:style-name="T1">'
            "\n    XML</text:span>\n</text:p>")
    assert written(body) == ('<text:p>Eingerückt <text:span text:style-name="T1">im</text:span> <text:span '
                             'text:style-name="T1">XML</text:span> </text:p>')


def test_notes_boxes_and_cells_are_segments_and_fields_stay() -> None:
    note = ('<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation><text:note-body><text:p>'
            "Fußnote</text:p></text:note-body></text:note>")
    body = ("<text:h>Auf Seite <text:page-number>7</text:page-number> steht<text:bookmark text:name=\"b\"/> es"
            f"{note}, ja.<office:annotation><text:p>Kommentar</text:p></office:annotation></text:h>"
            "<text:p><draw:frame><draw:text-box><text:p>Kasten</text:p></draw:text-box></draw:frame></text:p><table:table><table:table-row><table:table-cell>"
            "<text:p>Zelle</text:p></table:table-cell></table:table-row></table:table>"
            "<text:tracked-changes><text:p>Gelöscht</text:p></text:tracked-changes>")
    assert segments(body) == [
        ("Auf Seite ", Shielded("7", 0), " steht", Mark("open", 1, 1), Mark("close", 1, None), " es",
         Mark("single", 2, 2), ", ja."),
        ("Fußnote",), ("Kasten",), ("Zelle",)]
    assert written(body) == body
    first = segments(body)[0]
    assert written(body, [("On page ", first[1], " it is", first[6], "."), ("Note",), ("Box",), ("Cell",)]) == (
        body.replace("Auf", "On").replace("Seite", "page").replace(' steht<text:bookmark text:name="b"/> es', " it is")
        .replace(", ja.", ".").replace("Fußnote", "Note").replace("Kasten", "Box").replace("Zelle", "Cell"))


@pytest.mark.parametrize("item", [
    "<text:soft-page-break/>", '<text:bookmark-start text:name="b"/>', '<text:bookmark-end text:name="b"/>', "<!--x-->",
    '<text:change text:change-id="c"/>', "<office:annotation><text:p>Kommentar</text:p></office:annotation>"])
def test_invisible_items_do_not_divide_a_word(item: str) -> None:
    body = f"<text:p>Das Haus{item}boot fährt.</text:p>"
    assert written(body) == body
    split = SplitSegments(segments(body), None)
    assert [sentence.text for sentence in split.sentences] == ["Das Hausboot fährt."]
    houseboat = fakes.Fake("The houseboat moves.", [(0, 0), (1, 1), (2, 2)])
    found = written(body, split.segments([houseboat]))
    assert found.count(item) == 1 and found.replace(item, "") == "<text:p>The houseboat moves.</text:p>"


@pytest.mark.parametrize(("start", "end"), [
    ('<text:bookmark-start text:name="b"/>', '<text:bookmark-end text:name="b"/>'),
    ('<text:change-start text:change-id="c"/>', '<text:change-end text:change-id="c"/>'),
    ('<office:annotation office:name="a"><text:p>Kommentar</text:p></office:annotation>',
     '<office:annotation-end office:name="a"/>')])
def test_a_range_surrounds_the_translation_of_its_words(start: str, end: str) -> None:
    body = f"<text:p>Ein {start}rotes Haus{end} brennt.</text:p>"
    assert written(body) == body
    french = fakes.Fake("Une maison rouge brûle.", [(0, 0), (1, 2), (2, 1), (3, 3)])
    assert written(body, SplitSegments(segments(body), None).segments([french])) == (
        f"<text:p>Une {start}maison rouge{end} brûle.</text:p>")


def test_ruby_text_is_left_out() -> None:
    ruby = ('<text:ruby><text:ruby-base><text:span text:style-name="T1">日本</text:span></text:ruby-base>'
            "<text:ruby-text>にほん</text:ruby-text></text:ruby>")
    body = f"<text:p>私は{ruby}人です</text:p>"
    bold = Mark("open", 1, 0), Mark("close", 1, 0)
    assert segments(body) == [("私は", bold[0], "日本", bold[1], "人です")]
    assert written(body, [("I am from ", bold[0], "Japan", bold[1])]) == (
        '<text:p>I am from <text:span text:style-name="T1">Japan</text:span></text:p>')
