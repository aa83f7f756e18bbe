"""HTML and XML: translated text, excluded text, and unchanged markup."""

from __future__ import annotations

import html
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.documents import fake_translator as fakes
from tests.processor_time import processor_seconds
from towernmt.core.errors import DataError
from towernmt.documents.formats.html import ATTRIBUTES, KEPT, HtmlDocument, open_html
from towernmt.documents.formats.markup_tokens import Tokens
from towernmt.documents.formats.xml import XmlDocument, XmlSettings
from towernmt.documents.segments import plain_text

pytest.importorskip("sentencex")
ROOT = Path(__file__).parents[3]


def loud(document: HtmlDocument | XmlDocument) -> str:
    """Return the document, translated into capitals."""
    return document.text(fakes.translate_segments(document.segments, fakes.capitals, "de"))


def marked(document: HtmlDocument | XmlDocument) -> str:
    """Return the document after each sentence got a sign, which is removed again."""
    def translate(sentences):
        return [fakes.Fake(one.text + "\u00a7", one.alignment) for one in fakes.identity(sentences)]

    found = fakes.translate_segments(document.segments, translate, "de")
    is_changed = any("\u00a7" in str(part) for segment in found for part in segment)
    assert is_changed or not any(map(str.isalpha, "".join(map(plain_text, document.segments)).replace("%s", "")))
    return document.text(found).replace("\u00a7", "")


HTML = [
    ("<p>das ist <b>alt</b>, ja.</p>", "<p>DAS IST <b>ALT</b>, JA.</p>"),
    ("das <code>x = 1</code> <span translate=no>bleibt <i>so</i></span> da",
     "DAS <code>x = 1</code> <span translate=no>bleibt <i>so</i></span> DA"),
    ("<div class='a notranslate'>nicht<p>so</p></div> ja", "<div class='a notranslate'>nicht<p>so</p></div> JA"),
    ("<script>if (a<b) 'x'</script>da<style>p {}</style>", "<script>if (a<b) 'x'</script>DA<style>p {}</style>"),
    ("<p title='ein titel'>da <img alt=\"ein 'hund'\" src=hund> so</p>",
     "<p title='EIN TITEL'>DA <img alt=\"EIN 'HUND'\" src=hund> SO</p>"),
    ("<a title=wort href=x>da</a>", "<a title=\"WORT\" href=x>DA</a>"),
    ("<input placeholder='dein name' value='x'><input type=submit value='los jetzt'>",
     "<input placeholder='DEIN NAME' value='x'><input type=submit value='LOS JETZT'>"),
    ("<meta name=description content='eine seite'><meta name=author content='anna'>",
     "<meta name=description content='EINE SEITE'><meta name=author content='anna'>"),
    ("<title>a & b</title><textarea placeholder='wie'>wie <b></textarea>",
     "<title>A &amp; B</title><textarea placeholder='WIE'>wie <b></textarea>"),
    ("t&uuml;r&nbsp;auf &amp; zu &lt;da&gt; &#8211; &quot;x&quot;",
     "TÜR&nbsp;AUF &amp; ZU &lt;DA&gt; &#8211; &quot;X&quot;"),
    ("<!DOCTYPE html><!-- eins -->da<!-- zwei -->so<![CDATA[ drei ]]>",
     "<!DOCTYPE html><!-- eins -->DA<!-- zwei -->SO<![CDATA[ drei ]]>"),
    ("<p><b>eins<p>zwei</b> drei", "<p><b>EINS<p>ZWEI</b> DREI"),
    ("<b><i>eins</b></i> zwei", "<b><i>EINS</b></i> ZWEI"),
    ("a < b und c", "A &lt; B UND C"),
    ("<pre>eins\n  zwei</pre>", "<pre>EINS\n  ZWEI</pre>"),
    ("eins<br>zwei<wbr>drei", "EINS<br>ZWEI<wbr>DREI"),
    ("<P TITLE=\"x1\">gross</P >", "<P TITLE=\"X1\">GROSS</P >"),
    ("das <ruby>haus<rp>(</rp><rt>h<i>au</i>s</rt><rp>)</rp></ruby> da", "DAS HAUS DA"),
    ("<p><ruby><rb>ha<rt>h<rb>us<rt>u</ruby>tür<p>da", "<p>HAUSTÜR<p>DA"),
    ("<p><ruby>haus<rt>haus<p>da</ruby>", "<p>HAUS<p>DA"), ("<ruby>haus<rt/>haus</ruby> da", "HAUS DA"),
    ("das <ruby translate=no>haus<rt>haus</rt></ruby>", "DAS <ruby translate=no>haus<rt>haus</rt></ruby>"),
    ("<p>http://a.de/b?c=d, {name}!</p>", "<p>http://a.de/b?c=d, {name}!</p>"),
    ("siehe http://a.de/b?c=d, {name}!", "SIEHE http://a.de/b?c=d, {name}!"),
]


@pytest.mark.parametrize(("source", "expected"), HTML, ids=[source for source, _ in HTML])
def test_what_of_html_is_translated(source: str, expected: str) -> None:
    assert loud(HtmlDocument(source)) == expected


XML = [
    ("<d><t>ein titel</t><p>das <b>alte</b> haus</p><p><b>nur das</b></p></d>", XmlSettings(),
     "<d><t>EIN TITEL</t><p>DAS <b>ALTE</b> HAUS</p><p><b>NUR DAS</b></p></d>", 3),
    ("eins <x/>zwei <c>drei</c>", XmlSettings(ignored=["c"]), "EINS <x/>ZWEI <c>drei</c>", 1),
    ("<a>eins <s>zwei</s> drei</a>", XmlSettings(splitting=["s"]), "<a>EINS <s>ZWEI</s> DREI</a>", 3),
    ("<a><s>eins</s><t>zwei</t></a>", XmlSettings(by_structure=False), "<a><s>EINS</s><t>ZWEI</t></a>", 1),
    ("<a><s>eins</s><t>zwei</t></a>", XmlSettings(joining=["t"]), "<a><s>EINS</s><t>ZWEI</t></a>", 2),
    ("<?x y?><a n='eins'>&eigen; &amp; &#228; <![CDATA[x < y]]> da</a>", XmlSettings(),
     "<?x y?><a n='eins'>&eigen; &amp; Ä <![CDATA[x < y]]> DA</a>", 1),
    ("<a><B>eins</B><b>zwei", XmlSettings(), "<a><B>EINS</B><b>ZWEI", 1),
    ("<a>eins <b translate='no'>zwei</b></a>", XmlSettings(), "<a>EINS <b translate='no'>zwei</b></a>", 1),
]


@pytest.mark.parametrize(("source", "elements", "expected", "segments"), XML, ids=[case[2] for case in XML])
def test_what_of_xml_is_translated(source: str, elements: XmlSettings, expected: str, segments: int) -> None:
    document = XmlDocument(source, elements)
    assert loud(document) == expected and len(document.segments) == segments


@pytest.mark.parametrize("declared", [
    '<!ENTITY b "x"><!ENTITY c "&b;&b;">', '<!ENTITY c SYSTEM "file:///etc/passwd">',
    '<!ENTITY x "]>"><!ENTITY c "&x;&x;">', '<!ENTITY c PUBLIC "-" "http://x.de">',
    '<!ENTITY % p "x">', '<!ENTITY % p SYSTEM "http://x.de/p.dtd"> %p;', '<!ENTITY c "<b>">',
    f'<!ENTITY c "{"x" * 201}">'])
def test_entities_by_which_others_attack_are_refused(declared: str) -> None:
    with pytest.raises(DataError, match="The XML declares (the entity c, which contains|entities that refer to)"):
        XmlDocument(f"<!DOCTYPE a [{declared}]><a>&c;</a>")


ENTITIES = [    # a text, its translated segments, and the text by a translator that writes capitals
    ("<a>das caf&eacute;&nbsp;ist sch&ouml;n</a>", "das café\xa0ist schön", "<a>DAS CAFÉ&nbsp;IST SCHÖN</a>"),
    ("<a>&Uuml;ber &hellip; &ndash; &copy; da</a>", "Über … – © da", "<a>&Uuml;BER &hellip; &ndash; &copy; DA</a>"),
    ("<a>&amp; &lt; &gt; &quot; &apos; &#228; &#xe4; x</a>", "& < > \" ' ä ä x",
     "<a>&amp; &lt; &gt; &quot; &apos; Ä Ä X</a>"),
    ('<!DOCTYPE a [<!ENTITY ae "&#228;"><!ENTITY firma "Haus &amp; Hof">]><a>&ae;rger mit &firma; da</a>',
     "ärger mit Haus & Hof da",
     '<!DOCTYPE a [<!ENTITY ae "&#228;"><!ENTITY firma "Haus &amp; Hof">]><a>ÄRGER MIT &firma; DA</a>'),
    ("<!DOCTYPE a SYSTEM 'http://x.invalid/a.dtd'><a>da &eigen; so</a>", "da &eigen; so",
     "<!DOCTYPE a SYSTEM 'http://x.invalid/a.dtd'><a>DA &eigen; SO</a>"),
]


@pytest.mark.parametrize(("source", "text", "expected"), ENTITIES, ids=[source for source, _, _ in ENTITIES])
def test_entities_of_xml_are_read_as_characters(source: str, text: str, expected: str) -> None:
    document = XmlDocument(source)
    assert [plain_text(segment) for segment in document.segments] == [text]
    assert document.text(fakes.translate_segments(document.segments, fakes.identity, None)) == source
    assert document.text(fakes.translate_segments(document.segments, fakes.capitals, None)) == expected


def test_entities_that_xhtml_declares_are_read_as_characters() -> None:
    page = ('<?xml version="1.0"?><!DOCTYPE html [<!ENTITY ae "&#228;"><!ENTITY firma "Haus &amp; Hof">]><html '
            'xmlns="http://www.w3.org/1999/xhtml"><body><p>&ae;rger mit &firma; da</p></body></html>')
    document = HtmlDocument(page)
    assert [plain_text(segment) for segment in document.segments] == ["ärger mit Haus & Hof da"]
    assert document.text(document.segments) == page
    assert loud(document) == page.replace("&ae;rger mit &firma; da", "ÄRGER MIT &firma; DA")
    with pytest.raises(DataError, match="entities that refer to files"):
        HtmlDocument(page.replace('firma "Haus &amp; Hof"', 'firma SYSTEM "file:///etc/passwd"'))


def test_empty_elements_of_xhtml_are_empty() -> None:
    page = ('<?xml version="1.0" encoding="iso-8859-1"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/>'
            '<script src="x"/></head><body><p>sch\u00f6n <a id="x"/>ist <code/>das<br/>da</p></body></html>')
    document = open_html(page.encode("latin-1"))
    assert document.written(document.segments) == page.encode("latin-1")
    found = document.written(fakes.translate_segments(document.segments, fakes.capitals, "de")).decode("latin-1")
    assert found.partition("<body>")[2].startswith('<p>SCH\u00d6N <a id="x"/>IST <code/>DAS<br/>DA</p>')


class _Events(HTMLParser):
    """Collects tags and text with Python's parser; translated text is in capitals."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._kept = 0

    def handle_starttag(self, tag, attrs):
        self.found.append(f"<{tag} {[pair for pair in attrs if pair[0] not in ATTRIBUTES]}")
        self._kept += tag in KEPT | {"textarea"}

    def handle_endtag(self, tag):
        self.found.append(f"</{tag}")
        self._kept -= tag in KEPT | {"textarea"}

    def handle_comment(self, data):
        self.found.append(data)

    def handle_data(self, data):
        words = " ".join(data.split())
        self.found += [words if self._kept else words.upper()] if words else []


def _events(text: str) -> list[str]:
    parser = _Events()
    parser.feed(text)
    parser.close()
    return parser.found


PAGES = sorted((ROOT / "towernmt").rglob("*.html"))


@pytest.mark.parametrize("path", PAGES, ids=[path.name for path in PAGES])
def test_pages_come_back_byte_for_byte_but_for_their_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert html.unescape(marked(HtmlDocument(text))) == html.unescape(text)
    plain = text.replace("<!--title-->", "a")
    assert _events(loud(HtmlDocument(plain))) == _events(plain)
    assert HtmlDocument(text).segments


PIECES = ("<b>", "</b>", "<p>", "</p>", "<i class=x>", "</i>", "<br>", "<code>", "</code>", "<!-- x -->", " ", "wort",
          "zwei. ", "\n", "<img alt='ein bild'>", "<pre>", "</pre>", "<div translate=no>", "</div>", "<script>",
          "</script>", "<x/>", "%s", "<a title='da'>", "</a>", "<li>", "&amp;")
BROKEN = (*PIECES, "<", ">", "&", "<a b=\"", "'", "<!--", "-->", "</", "<!", "<?", "]]>", "<![CDATA[", "\x00", "\u00df",
          "<textarea>")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_markup_is_as_it_was_but_for_its_words(text: str) -> None:
    for document in (HtmlDocument(text), XmlDocument(text)):
        assert document.text(document.segments) == text
        assert loud(document).lower() == text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(BROKEN), max_size=30).map("".join), st.integers())
def test_broken_markup_is_kept_and_breaks_nothing(text: str, seed: int) -> None:
    for xml in (False, True):
        assert "".join(text[token.start:token.end] for token in Tokens(text, xml)) == text
    for document in (HtmlDocument(text), XmlDocument(text)):
        assert document.text(fakes.translate_segments(document.segments, fakes.identity, "de")) == text
        translated = fakes.translate_segments(document.segments, fakes.permuted(seed), "de")
        assert bool(document.text(translated)) == bool(text)
        for before, after in zip(document.segments, translated, strict=True):
            assert fakes.parents(before) == fakes.parents(after)


def test_a_file_keeps_its_encoding() -> None:
    page = "<meta charset=iso-8859-1><p>schön €"
    content = page.replace("€", "&euro;").encode("latin-1")
    document = open_html(content)
    assert document.written(document.segments) == content
    other = [tuple("ж" if isinstance(part, str) else part for part in segment) for segment in document.segments]
    assert document.written(other) == b"<meta charset=iso-8859-1><p>&#1078;"


def test_a_page_in_latin_1_has_the_characters_that_browsers_read() -> None:
    content = "<meta charset=iso-8859-1><p>Er sagte „Hallo“ – 5 €".encode("cp1252")
    document = open_html(content)
    assert document.segments == [("Er sagte „Hallo“ – 5 €",)] and document.written(document.segments) == content
    assert document.written([("He said “hello” ж",)]) == (
        b"<meta charset=iso-8859-1><p>He said \x93hello\x94 &#1078;")


@pytest.mark.parametrize(("name", "encoding", "text"), [
    ("gb2312", "gb18030", "朱镕基"), ("GBK", "gb18030", "镕"), ("Shift_JIS", "cp932", "①髙"), ("euc-kr", "cp949", "똠"),
    ("iso-8859-9", "cp1254", "“ş”"), ("tis-620", "cp874", "“ก”")])
def test_a_page_has_the_characters_that_browsers_read_in_its_encoding(name: str, encoding: str, text: str) -> None:
    content = f"<meta charset={name}><p>{text}".encode(encoding)
    document = open_html(content)
    assert document.segments == [(text,)] and document.written(document.segments) == content


@pytest.mark.parametrize("name", ["klingon", "utf-16", "rot13", "undefined"])
def test_an_encoding_that_cannot_be_that_of_its_declaration_is_refused(name: str) -> None:
    page = f"<meta charset={name}><p>schön"
    with pytest.raises(DataError, match=f"declares the encoding {name}, which is unknown, or is not"):
        open_html((page + "!" * (len(page.encode()) % 2)).encode())
    with pytest.raises(DataError, match=r"encoding utf-8-sig \(line 2\): save it as UTF-8"):
        open_html(b"\xef\xbb\xbf<p>a\n\xff")
    with pytest.raises(DataError, match="encoding utf-8"):
        open_html(b"\xff\xfe")


HOSTILE: dict[str, Callable[[int], str]] = {
    "bare": lambda n: "<" * (100 * n), "begun": lambda n: "<a " * n, "nested": lambda n: "<b>" * n + "x y" + "</b>" * n,
    "blocks": lambda n: "<div>" * n + "x", "ends": lambda n: "</b>" * n, "quotes": lambda n: '<a b="' * n,
    "quoted": lambda n: '<a b=">" ' * n, "comments": lambda n: "<!--" * n, "sections": lambda n: "<![CDATA[" * n,
    "declared": lambda n: "<!DOCTYPE [" * n, "entities": lambda n: "&a" * n, "scripts": lambda n: "<script>" * n,
    "code": lambda n: "<p><code>x" * (2 * n // 3), "crossed": lambda n: "<b><i>x</b></i>" * (n // 4),
    "equals": lambda n: "<a " + "=" * n, "space": lambda n: "<a" + " " * n + "x",
    "images": lambda n: '<img alt="x">' * (n // 4)}


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_markup_takes_time_that_grows_with_its_length(name: str) -> None:
    def translate(n: int) -> None:
        for document in (HtmlDocument(HOSTILE[name](n)), XmlDocument(HOSTILE[name](n))):
            document.text(fakes.translate_segments(document.segments, fakes.without_links, "de"))

    # Quadratic time would be 16 times as long for 4 times the text. A busy processor may be half as fast.
    short, long = (processor_seconds(lambda n=n: translate(n)) for n in (3_000, 12_000))
    assert long < 10 * short + 0.15


@pytest.mark.thorough
def test_more_tags_than_anybody_writes_are_refused() -> None:
    with pytest.raises(DataError, match="more than 300000 tags"):
        HtmlDocument("<b>" * 300_001)
