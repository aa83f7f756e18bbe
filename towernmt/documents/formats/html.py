"""HTML, complete pages and fragments: blocks are segments, tags within them are marks.

Not translated: code, scripts, styles, formulas, drawings, elements with `translate="no"` or the class `notranslate`.
Translated in addition to the text: titles, alternative texts, placeholders, labels and descriptions. A translation does
not have the ruby text (furigana) of its source. Invalid markup, such as an end tag without a start tag, is kept.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence

from towernmt.core.errors import DataError
from towernmt.documents.formats.markup_document import MarkupDocument, Piece
from towernmt.documents.formats.markup_tokens import Attribute, Spelling, Token, Tokens
from towernmt.documents.formats.text_files import declared_encoding, line_of_error

BLOCKS = frozenset("""address article aside base blockquote body button caption center col colgroup dd details dialog
    dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html
    iframe legend li link main menu meta nav noframes noscript object ol optgroup option p param plaintext pre script
    search section select style summary table tbody td template textarea tfoot th thead title tr ul xmp""".split())
"""Elements that begin a segment; all others, including unknown ones, are inside a segment."""
KEPT = frozenset("""applet code iframe kbd math noembed noframes object plaintext samp script style svg tt var
    xmp""".split())
"""Elements that are not translated; browsers' translators do the same."""
VOID = frozenset("area base br col embed frame hr img input link meta param source track wbr".split())
_READINGS = frozenset(("rt", "rp", "rtc"))
"""Elements of ruby text (furigana) with the reading of the words before them."""
_RUBY = _READINGS | {"ruby", "rb"}
ATTRIBUTES = frozenset(("title", "alt", "placeholder", "aria-label", "aria-description"))
_DESCRIPTIONS = frozenset(("description", "og:title", "og:description", "twitter:title", "twitter:description"))
_BUTTONS = frozenset(("submit", "button", "reset"))
_XHTML = re.compile(r"\s*<\?xml\s|[^<]{0,100}<(?:!DOCTYPE\s[^>]{0,100}XHTML|html\s[^>]{0,300}xmlns\s*=)", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"<\?xml\s[^>]{0,100}?encoding\s*=\s*[\"']([\w-]{1,40})")
_CHARSET = re.compile(rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?([\w-]{1,40})", re.IGNORECASE)

_WEB_ENCODINGS = {"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
                  "tis-620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"}
"""Encodings that browsers read as others, which have more characters (Encoding Standard of the WHATWG)."""


class HtmlDocument(MarkupDocument):
    """An HTML page or fragment.

    Args:
        text: the page or fragment.
        ignored: further elements that are not translated.
        encoding: encoding of the written document.
        by_line: whether a line break in the text ends a segment; None for line breaks inside `<pre>` only.

    Raises:
        DataError: the text has too many tags, or is XHTML and declares an entity that is a file or contains entities.
    """

    def __init__(self, text: str, ignored: Collection[str] = (), encoding: str = "utf-8",
                 by_line: bool | None = None) -> None:
        super().__init__()
        self._by_line = by_line
        self._text, self._kept = text, KEPT | {name.lower() for name in ignored}
        self._encoding = encoding
        self._is_xhtml = _XHTML.match(text) is not None
        self._tokens = list(Tokens(text, xhtml=self._is_xhtml))
        if self._is_xhtml:
            self.declare_entities(text, self._tokens)
        self._ends = _ends(self._tokens, self._is_xhtml)
        self._lines = 0         # number of open elements in which line breaks are significant
        self._break = False     # whether only white space follows the last line break
        index = 0
        while index < len(self._tokens):
            index = self._take(index)
        self.add_block(())

    def written(self, translated: Sequence[tuple]) -> bytes:
        """Return the translated text in its encoding; characters that the encoding lacks become entities."""
        return self.text(translated).encode(self._encoding, "xmlcharrefreplace")

    def _take(self, index: int) -> int:
        """Process a token, and return the index of the next one."""
        token = self._tokens[index]
        source = self._text[token.start:token.end]
        if token.kind == "open" and self._is_kept(token):
            return self._keep(index)
        if token.name in _RUBY:
            return self._leave_out_ruby(index)
        if token.kind == "text":
            self._take_text(source)
            return index + 1
        if token.name == "pre":
            self._lines = max(self._lines + (1 if token.kind == "open" else -1), 0)
        if token.kind == "other":
            self.add_nothing((source,))
        elif token.name in BLOCKS:
            self.add_block(self._with_values(token))
            if token.name == "textarea" and self._tokens[index + 1:index + 2] and token.kind == "open":
                text = self._tokens[index + 1]      # text of the user, or the end tag
                self.add_between((self._text[text.start:text.end],))
                return index + 2
        elif token.kind == "close":
            self.close_element(token.name, source)
        else:
            self._open(token)
        return index + 1

    def _take_text(self, source: str) -> None:
        self._break = self._break and source.isspace()
        by_line = bool(self._lines) if self._by_line is None else self._by_line
        for line in source.splitlines(keepends=True) if by_line else (source,):
            if self.entities:
                self.add_text_with_entities(line)
            else:
                self.add_text(line)
            if by_line and line[-1:] in "\r\n":
                self.add_block(())

    def _open(self, token: Token) -> None:
        pieces = self._with_values(token)
        if token.name == "wbr" or self._is_xhtml and token.is_empty and token.name not in VOID:
            self.add_nothing(pieces)
        elif token.name in VOID:
            self.add_single(pieces)
            if token.name == "br" and self._break:      # two line breaks end a paragraph
                self.add_block(())
            self._break = token.name == "br"
        else:
            self.open_element(pieces, token.name)

    def add_block(self, source: Sequence[Piece]) -> None:
        """Add a block as `MarkupDocument` does; a line break before it no longer counts."""
        self._break = False
        super().add_block(source)

    def _is_kept(self, token: Token) -> bool:
        if token.name in self._kept:
            return True
        return any(attribute.name == "translate" and self._given(attribute).lower() == "no"
                   or attribute.name == "class" and "notranslate" in self._given(attribute).split()
                   for attribute in token.attributes)

    def _keep(self, index: int) -> int:
        """Process an element that is not translated, and return the index of the token after it."""
        token = self._tokens[index]
        is_block = token.name in BLOCKS
        end = self._last_token(index, () if is_block else BLOCKS)
        inside = self._tokens[index:end + 1]
        source = self._text[token.start:inside[-1].end]
        if is_block or any(one.name in BLOCKS for one in inside):
            self.add_block((source,))
        elif words := Spelling().read("".join(self._text[one.start:one.end] for one in inside if one.kind == "text")):
            self.add_shielded(words, source)
        else:
            self.add_single((source,))
        return end + 1

    def _last_token(self, index: int, following: Collection[str]) -> int:
        """Return the index of the last token of an element.

        Args:
            index: index of the start tag.
            following: names of the tags before which an element without an end tag ends; otherwise, it ends at the end
                of the text.
        """
        token = self._tokens[index]
        if token.name in VOID or self._is_xhtml and token.is_empty:
            return index
        end = self._ends.get(index, -1)
        return end if end >= 0 else next((number - 1 for number in range(index + 1, len(self._tokens))
                                          if self._tokens[number].name in following), len(self._tokens) - 1)

    def _leave_out_ruby(self, index: int) -> int:
        """Leave out a tag of ruby text with the reading in it, and return the index of the token after it."""
        token = self._tokens[index]
        has_reading = token.kind == "open" and token.name in _READINGS
        end = self._last_token(index, _RUBY | BLOCKS) if has_reading else index
        self.add_left_out(self._text[token.start:self._tokens[end].end])
        return end + 1

    def _given(self, attribute: Attribute) -> str:
        return self._text[attribute.start:attribute.end]

    def _with_values(self, token: Token) -> list[Piece]:
        """Return the pieces of a tag; the values of translated attributes become segments."""
        pieces: list[Piece] = []
        index = token.start
        translated = self._translated(token)
        for attribute in token.attributes:
            value = self._given(attribute)
            if attribute.name in translated and any(map(str.isalpha, value)):
                quote = self._text[attribute.start - 1]
                pieces += [self._text[index:attribute.start], self.value(value, quote if quote in "\"'" else "")]
                index = attribute.end
        return [*pieces, self._text[index:token.end]]

    def _translated(self, token: Token) -> Collection[str]:
        """Return the names of a tag's attributes that are translated."""
        if token.name == "meta":
            named = {self._given(one).lower() for one in token.attributes if one.name in ("name", "property")}
            return ("content",) if named & _DESCRIPTIONS else ()
        if token.name == "input":
            kinds = {self._given(one).lower() for one in token.attributes if one.name == "type"}
            return {*ATTRIBUTES, "value"} if kinds & _BUTTONS else ATTRIBUTES
        if token.name in ("option", "optgroup", "track"):
            return {*ATTRIBUTES, "label"}
        return ATTRIBUTES


def open_html(content: bytes) -> HtmlDocument:
    """Return an HTML file as a document; its encoding is the one that it declares, or UTF-8.

    Raises:
        DataError: the encoding is unknown, the file is not in this encoding, or see `HtmlDocument`.
    """
    encoding = "utf-8"
    if content.startswith(b"\xef\xbb\xbf"):
        encoding = "utf-8-sig"
    elif in_xml := _XML_ENCODING.match(content):
        encoding = declared_encoding(in_xml[1].decode())
    elif in_html := _CHARSET.search(content[:4096]):
        encoding = declared_encoding(in_html[1].decode())
        encoding = _WEB_ENCODINGS.get(encoding, encoding)
    try:
        return HtmlDocument(content.decode(encoding), encoding=encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"The file is not valid text in the encoding {encoding} (line {line_of_error(error)}): save it "
                        "as UTF-8.") from None


def _ends(tokens: Sequence[Token], is_xhtml: bool) -> dict[int, int]:
    """Return the indices of end tags, by the indices of their start tags."""
    open_tags: dict[str, list[int]] = defaultdict(list)
    ends = {}
    for index, token in enumerate(tokens):
        if token.kind == "open" and not (is_xhtml and token.is_empty):
            open_tags[token.name].append(index)
        elif token.kind == "close" and open_tags[token.name]:
            ends[open_tags[token.name].pop()] = index
    return ends
