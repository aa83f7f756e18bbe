"""Word documents: runs, links, fields, tables and text boxes, written by hand."""

from __future__ import annotations

import io
import re
import zipfile

import pytest

from tests.documents import fake_translator as fakes
from towernmt.documents.formats.docx import open_docx
from towernmt.documents.segments import Mark, Segment, Shielded
from towernmt.documents.translation import SplitSegments

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
KIND = "application/vnd.openxmlformats-officedocument.wordprocessingml."
OTHERS = {"word/media/image1.png": bytes(range(256)), "docProps/app.xml": b"<Properties/>", "word/styles.xml": b"<a />"}


def document(body: str, **members: str) -> bytes:
    """Return a Word document with this body, and further members by kind."""
    parts = {"document.main": body, **members}
    types = "".join(f'<Override PartName="/word/{kind}.xml" ContentType="{KIND}{kind}+xml"/>' for kind in parts)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/'
                                                f'content-types">{types}</Types>')
        for kind, content in parts.items():
            archive.writestr(f"word/{kind}.xml", tree(content))
        for name, data in OTHERS.items():
            archive.writestr(name, data)
    return made.getvalue()


def tree(content: str) -> str:
    return (f"<?xml version='1.0' encoding='UTF-8' standalone='yes'?>\n<w:document xmlns:w=\"{W}\" xmlns:r=\"urn:r\">"
            f"<w:body>{content}</w:body></w:document>")


def written(content: bytes, translated: list[Segment] | None = None, kind: str = "document.main") -> str:
    """Return the body of the translated document."""
    opened = open_docx(content)
    whole = opened.written(opened.segments if translated is None else translated)
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(io.BytesIO(whole)) as after:
        assert after.namelist() == before.namelist() and after.testzip() is None
        assert {name: after.read(name) for name in OTHERS} == OTHERS
        found = after.read(f"word/{kind}.xml").decode()
    assert found.startswith("<?xml version='1.0' encoding='UTF-8' standalone='yes'?>\n<w:document xmlns:w")
    return found.partition("<w:body>")[2].partition("</w:body>")[0]


def with_translation(body: str, translation: fakes.Fake) -> str:
    """Return the body of a document with one sentence after its translation."""
    split = SplitSegments(open_docx(document(body)).segments, None)
    return written(document(body), split.segments([translation]))


def run(text: str, look: str = "") -> str:
    space = ' xml:space="preserve"' if text != text.strip() else ""
    return f"<w:r>{f'<w:rPr>{look}</w:rPr>' if look else ''}<w:t{space}>{text}</w:t></w:r>"


BOLD, RED = "<w:b/>", '<w:color w:val="FF0000"/>'
PARAGRAPH = ('<w:p><w:pPr><w:jc w:val="center"/></w:pPr>' + run("Das ist ein ") + run("fetter", BOLD) + run(" und ein ")
             + '<w:hyperlink r:id="rId1">' + run("roter", RED) + "</w:hyperlink>" + run(" Satz.") + "</w:p>")


def test_looks_and_links_are_marks() -> None:
    assert open_docx(document(PARAGRAPH)).segments == [(
        "Das ist ein ", Mark("open", 1, 0), "fetter", Mark("close", 1, 0), " und ein ", Mark("open", 2, 1), "roter",
        Mark("close", 2, 1), " Satz.")]
    assert written(document(PARAGRAPH)) == PARAGRAPH


def test_a_translation_has_the_looks_of_its_source() -> None:
    [(_, bold, _, end, _, link, _, link_end, _)] = open_docx(document(PARAGRAPH)).segments
    translated: Segment = (link, "A red", link_end, " sentence, ", bold, "bold", end, " & <good>.")
    assert written(document(PARAGRAPH), [translated]) == (
        '<w:p><w:pPr><w:jc w:val="center"/></w:pPr><w:hyperlink r:id="rId1">' + run("A red", RED) + "</w:hyperlink>"
        + run(" sentence, ") + run("bold", BOLD) + run(" &amp; &lt;good&gt;.") + "</w:p>")


def test_runs_of_one_look_are_one() -> None:
    parts = ('<w:p w:rsidR="1"><w:r w:rsidR="2"><w:t>Ein </w:t></w:r><w:proofErr w:type="spellStart"/><w:r w:rsidR="3">'
             '<w:rPr><w:lang w:val="de-DE"/></w:rPr><w:t>Wo</w:t></w:r><w:r><w:lastRenderedPageBreak/><w:t>rt</w:t>'
             '<w:softHyphen/></w:r><w:proofErr w:type="spellEnd"/><w:r><w:t>-</w:t><w:noBreakHyphen/></w:r></w:p>')
    assert open_docx(document(parts)).segments == [("Ein Wort--",)]
    assert written(document(parts)) == f'<w:p w:rsidR="1">{run("Ein Wort--")}</w:p>'


def test_a_paragraph_all_of_one_look_has_no_marks() -> None:
    body = "<w:p>" + run("Alles fett", BOLD) + "</w:p>"
    assert open_docx(document(body)).segments == [("Alles fett",)]
    assert written(document(body)) == body


def test_ruby_text_is_left_out() -> None:
    ruby = f"<w:r><w:ruby><w:rubyPr/><w:rt>{run('にほん')}</w:rt><w:rubyBase>{run('日本')}</w:rubyBase></w:ruby></w:r>"
    body = "<w:p>" + run("私は") + ruby + run("人です") + "</w:p>"
    assert open_docx(document(body)).segments == [("私は日本人です",)]
    assert written(document(body), [("I am Japanese",)]) == f"<w:p>{run('I am Japanese')}</w:p>"


@pytest.mark.parametrize(("value", "is_hidden"), [
    ("", True), ('w:val="1"', True), ('w:val="true"', True), ('w:val="0"', False), ('w:val="false"', False),
    ('w:val="off"', False)])
def test_hidden_text_is_not_translated_unless_its_value_shows_it(value: str, is_hidden: bool) -> None:
    body = "<w:p>" + run("das Handbuch", f"<w:vanish {value}/>".replace(" /", "/")) + "</w:p>"
    assert open_docx(document(body)).segments == ([] if is_hidden else [("das Handbuch",)])
    assert written(document(body)) == body


@pytest.mark.parametrize("items", [
    ('<w:bookmarkStart w:id="0" w:name="_GoBack"/>', '<w:bookmarkEnd w:id="0"/>'), ("<!--x-->",),
    ("<w:del><w:r><w:delText>es</w:delText></w:r></w:del>",), (run("es", "<w:vanish/>"),),
    ('<w:commentRangeEnd w:id="1"/>', '<w:r><w:commentReference w:id="1"/></w:r>'),
    ('<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> XE "Haus" </w:instrText></w:r>'
     '<w:r><w:fldChar w:fldCharType="end"/></w:r>',)])
def test_invisible_items_do_not_divide_a_word(items: tuple[str, ...]) -> None:
    def without_runs(text: str) -> str:
        return re.sub("</?w:r>", "", text)

    body = f"<w:p>{run('Das Haus')}{''.join(items)}{run('boot fährt.')}</w:p>"
    assert without_runs(written(document(body))) == without_runs(body)
    split = SplitSegments(open_docx(document(body)).segments, None)
    assert [sentence.text for sentence in split.sentences] == ["Das Hausboot fährt."]
    houseboat = fakes.Fake("The houseboat moves.", [(0, 0), (1, 1), (2, 2)])
    found = without_runs(with_translation(body, houseboat))
    for item in map(without_runs, items):
        assert found.count(item) == 1
        found = found.replace(item, "")
    assert re.sub("<[^>]*>", "", found) == "The houseboat moves."


COMMENT = '<w:commentRangeStart w:id="1"/>', '<w:commentRangeEnd w:id="1"/>'
BOOKMARK = '<w:bookmarkStart w:id="1" w:name="x"/>', '<w:bookmarkEnd w:id="1"/>'


def test_a_comment_surrounds_the_translation_of_its_words() -> None:
    start, end = COMMENT
    body = f"<w:p>{run('Das ')}{start}{run('kleine rote ')}{run('Haus', BOLD)}{end}{run(' brennt.')}</w:p>"
    assert written(document(body)) == body
    french = fakes.Fake("La petite maison rouge brûle.", [(0, 0), (1, 1), (2, 3), (3, 2), (4, 4)])
    assert with_translation(body, french) == (
        f"<w:p>{run('La ')}{start}{run('petite ')}{run('maison', BOLD)}{run(' rouge')}{end}{run(' brûle.')}</w:p>")
    assert written(document(body), [("Rien.",)]) == f"<w:p>{run('Rien.')}{start}{end}</w:p>"


def test_a_comment_at_an_edge_of_a_paragraph_surrounds_the_translation_of_its_words() -> None:
    start, end = COMMENT
    body = f"<w:p>{start}{run('Das rote Haus')}{end}{run(' brennt.')}</w:p>"
    assert written(document(body)) == body
    french = fakes.Fake("La maison rouge brûle.", [(0, 0), (1, 2), (2, 1), (3, 3)])
    assert with_translation(body, french) == (
        f"<w:p>{start}{run('La maison rouge')}{end}{run(' brûle.')}</w:p>")
    body = f"<w:p>{run('Da ist ')}{start}{run('rotes Haus')}{end}</w:p>"
    assert written(document(body)) == body
    french = fakes.Fake("Voilà une maison rouge", [(0, 0), (1, 1), (2, 3), (3, 2)])
    assert with_translation(body, french) == (
        f"<w:p>{run('Voilà une ')}{start}{run('maison rouge')}{end}</w:p>")


def test_the_start_and_the_end_of_a_range_that_crosses_another_are_separate() -> None:
    body = (f"<w:p>{run('Eins ')}{COMMENT[0]}{run('zwei ')}{BOOKMARK[0]}{run('drei')}{COMMENT[1]}{run(' vier')}"
            f"{BOOKMARK[1]}{run(' fünf')}</w:p>")
    assert open_docx(document(body)).segments == [(
        "Eins ", Mark("open", 1, 0), "zwei ", Mark("open", 2, 1), Mark("close", 2, None), "drei", Mark("close", 1, 2),
        " vier", Mark("open", 4, 3), Mark("close", 4, None), " fünf")]
    assert written(document(body)) == body


def test_tabs_and_breaks_divide_and_edges_stay() -> None:
    body = ('<w:p><w:bookmarkStart w:id="1"/><w:r><w:t xml:space="preserve">1. </w:t><w:tab/>'
            '<w:t>Links</w:t><w:br/><w:t>Unten</w:t></w:r>'
            '<w:bookmarkEnd w:id="1"/></w:p>')
    assert open_docx(document(body)).segments == [("Links",), ("Unten",)]
    assert written(document(body)) == body


FIELD = ('<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> {} </w:instrText></w:r>'
         '<w:r><w:fldChar w:fldCharType="separate"/></w:r>{}<w:r><w:fldChar w:fldCharType="end"/></w:r>')


def test_fields_keep_their_results_and_links_do_not() -> None:
    page = FIELD.format("PAGE", run("7"))
    link = FIELD.format('HYPERLINK "https://example.org"', run("das Haus", RED))
    body = "<w:p>" + run("Auf Seite ") + page + run(" ist ") + link + run(".") + "</w:p>"
    [segment] = open_docx(document(body)).segments
    assert segment == ("Auf Seite ", Shielded("7", 0), " ist ", Mark("open", 1, 1), "das Haus", Mark("close", 1, 1),
                       ".")
    squeezed = re.sub(r"</w:r><w:r>(?!<w:rPr>)", "", body)      # text without a different look is one run
    found = written(document(body), [(segment[3], "The house", segment[5], " is on page ", segment[1], ".")])
    assert re.sub(r"</w:r><w:r>(?!<w:rPr>)", "", written(document(body))) == squeezed
    assert re.sub("<[^>]*>", " ", found).split() == [
        "HYPERLINK", '"https://example.org"', "The", "house", "is", "on", "page", "PAGE", "7", "."]
    assert found.count('"begin"') == found.count('"end"') == found.count('"separate"') == 2


def test_a_formula_is_a_word_that_is_not_translated() -> None:
    formula = ('<m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><m:sSup><m:e><m:r><m:t>x'
               "</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup></m:oMath>")
    body = f"<w:p>{run('Für ')}{formula}{run(' gilt das nicht.')}</w:p>"
    assert open_docx(document(body)).segments == [("Für ", Shielded("x2", 0), " gilt das nicht.")]
    assert written(document(body)) == body
    split = SplitSegments(open_docx(document(body)).segments, None)
    assert [sentence.text for sentence in split.sentences] == ["Für X1 gilt das nicht."]
    english = fakes.Fake("This is not true for X1.", [(0, 4), (1, 5), (2, 1), (3, 0), (4, 2)])
    assert with_translation(body, english) == (
        f"<w:p>{run('This is not true for ')}{formula}{run('.')}</w:p>")


def test_a_field_over_several_paragraphs_stays_where_it_is() -> None:
    begin, end = FIELD.format("TOC", "|").split("|")
    body = f"<w:p>{begin}{run('Erstes Kapitel')}</w:p><w:p>{run('Zweites')}{end}</w:p>"
    assert open_docx(document(body)).segments == [("Erstes Kapitel",), ("Zweites",)]
    assert re.sub(r"</w:r><w:r>", "", written(document(body))) == re.sub(r"</w:r><w:r>", "", body)


def test_cells_text_boxes_notes_and_headers_are_translated_and_what_was_deleted_is_not() -> None:
    box = f"<w:r><w:drawing><w:txbxContent><w:p>{run('Im Kasten')}</w:p></w:txbxContent></w:drawing></w:r>"
    body = (f"<w:p>{run('Vor ')}{box}{run('dem')}<w:del><w:r><w:delText>alt</w:delText></w:r></w:del>"
            f"<w:ins>{run(' neuen')}</w:ins>{run(' Kasten')}<w:r><w:footnoteReference w:id=\"2\"/></w:r></w:p>"
            f"<w:tbl><w:tr><w:tc><w:p>{run('Zelle')}</w:p></w:tc><w:tc><w:p>{run('12,50')}</w:p></w:tc></w:tr></w:tbl>"
            f"<w:sdt><w:sdtPr/><w:sdtContent><w:p><w:sdt><w:sdtPr/><w:sdtContent>{run('Feld')}</w:sdtContent></w:sdt></w:p>"
            "</w:sdtContent></w:sdt>")
    content = document(body, header=f"<w:p>{run('Kopf')}</w:p>", footnotes=f"<w:p>{run('Fußnote')}</w:p>",
                       comments=f"<w:p>{run('Kommentar')}</w:p>")
    texts = ["".join(part for part in segment if isinstance(part, str)) for segment in open_docx(content).segments]
    assert texts == ["Vor dem neuen Kasten", "Im Kasten", "Zelle", "Feld", "Kopf", "Fußnote"]
    assert written(content) == body
    capitals: list[Segment] = [tuple(part.upper() if isinstance(part, str) else part for part in segment)
                               for segment in open_docx(content).segments]
    shouted = re.sub("(?<=>)[^<]+", lambda text: text[0] if text[0] == "alt" else text[0].upper(), body)
    assert written(content, capitals) == shouted
    assert written(content, capitals, "footnotes") == f"<w:p>{run('FUSSNOTE')}</w:p>"
    assert written(content, capitals, "comments") == f"<w:p>{run('Kommentar')}</w:p>"


def test_the_type_of_a_member_may_be_that_of_its_suffix() -> None:
    """Programs with .NET's class WordprocessingDocument write such files."""
    types = f'<Default Extension="XML" ContentType="{KIND}document.main+xml"/>' + "".join(
        f'<Override PartName="/word/{name}.xml" ContentType="{KIND}{name}+xml"/>' for name in ("header", "styles"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/'
                                                f'content-types">{types}</Types>')
        for name in ("document", "header", "styles"):
            archive.writestr(f"word/{name}.xml", tree(f"<w:p>{run(name)}</w:p>"))
    opened = open_docx(made.getvalue())
    assert opened.segments == [("header",), ("document",)]
    with zipfile.ZipFile(io.BytesIO(opened.written([("Kopf",), ("Text",)]))) as archive:
        assert [run(text) in archive.read(f"word/{name}.xml").decode() for text, name in (
            ("Kopf", "header"), ("Text", "document"), ("styles", "styles"))] == [True] * 3
