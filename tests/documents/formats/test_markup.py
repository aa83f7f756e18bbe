"""HTML and XML: what is translated, what is kept, and that nothing else changes."""

from __future__ import annotations

import html
import importlib.util
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.documents.formats.html import ATTRIBUTES, KEPT, HtmlDocument, open_html
from towernmt.documents.formats.markup.tokens import Tokens
from towernmt.documents.formats.xml import XmlDocument, XmlSettings
from towernmt.documents.segments import plain_text
from towernmt.documents.translation import translate_segments

pytest.importorskip("sentencex")
ROOT = Path(__file__).parents[3]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("documents_fakes", ROOT / "tests/documents/fake_translator.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fakes = _load()


def loud(document: HtmlDocument | XmlDocument) -> str:
    """The document by a translator that writes capitals."""
    return document.text(translate_segments(document.segments, fakes.capitals, "de"))


def marked(document: HtmlDocument | XmlDocument) -> str:
    """The document by a translator that changes each sentence by a sign, without these signs."""
    def translate(sentences):
        return [fakes.Fake(one.text + "\u00a7", one.given) for one in fakes.identity(sentences)]

    found = translate_segments(document.segments, translate, "de")
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


def test_xml_that_declares_entities_is_refused() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;">]><a>&c;</a>'
    with pytest.raises(DataError, match="declares entities"):
        XmlDocument(bomb)


class _Events(HTMLParser):
    """What Python's own parser sees: the tags as they are written, and the text that is translated in capitals."""

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
        assert document.text(translate_segments(document.segments, fakes.identity, "de")) == text
        translated = translate_segments(document.segments, fakes.permuted(seed), "de")
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
    with pytest.raises(DataError, match="encoding utf-8"):
        open_html(b"\xff\xfe")


HOSTILE: dict[str, Callable[[int], str]] = {
    "bare": lambda n: "<" * (100 * n), "begun": lambda n: "<a " * n, "nested": lambda n: "<b>" * n + "x y" + "</b>" * n,
    "blocks": lambda n: "<div>" * n + "x", "ends": lambda n: "</b>" * n, "quotes": lambda n: '<a b="' * n,
    "quoted": lambda n: '<a b=">" ' * n, "comments": lambda n: "<!--" * n, "sections": lambda n: "<![CDATA[" * n,
    "declared": lambda n: "<!DOCTYPE [" * n, "entities": lambda n: "&a" * n, "scripts": lambda n: "<script>" * n,
    "code": lambda n: "<p><code>x" * n, "crossed": lambda n: "<b><i>x</b></i>" * n, "equals": lambda n: "<a " + "=" * n,
    "space": lambda n: "<a" + " " * n + "x", "images": lambda n: '<img alt="x">' * n}


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_markup_takes_time_that_grows_with_its_length(name: str) -> None:
    def seconds(n: int) -> float:
        begun = time.process_time()
        for document in (HtmlDocument(HOSTILE[name](n)), XmlDocument(HOSTILE[name](n))):
            document.text(translate_segments(document.segments, fakes.without_links, "de"))
        return time.process_time() - begun

    # Four times the text; by its square it would take sixteen times as long. A busy processor may be half as fast.
    assert seconds(20_000) < 10 * seconds(5_000) + 1


def test_more_tags_than_anybody_writes_are_refused() -> None:
    with pytest.raises(DataError, match="more than 300000 tags"):
        HtmlDocument("<b>" * 300_001)
