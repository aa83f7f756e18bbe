"""HTML, whole pages and parts of them: blocks are segments, tags within them are marks.

Not translated: code, scripts, styles, formulas, drawings, what has `translate="no"` or the class `notranslate`.
Translated beside the text: titles, alternative texts, placeholders, labels and descriptions. What is broken is kept as
it is: an end without a beginning, a beginning without an end.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from towernmt.core.errors import DataError
from towernmt.documents.formats.markup.document import MarkupDocument, Piece
from towernmt.documents.formats.markup.entities import Spelling
from towernmt.documents.formats.markup.tokens import Attribute, Token, Tokens

BLOCKS = frozenset("""address article aside base blockquote body button caption center col colgroup dd details dialog
    dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html
    iframe legend li link main menu meta nav noframes noscript object ol optgroup option p param plaintext pre script
    search section select style summary table tbody td template textarea tfoot th thead title tr ul xmp""".split())
"""Elements that begin a segment; all others, unknown ones too, are within one."""
KEPT = frozenset("""applet code iframe kbd math noembed noframes object plaintext samp script style svg tt var
    xmp""".split())
"""Elements that are not translated, as in the translators of browsers."""
VOID = frozenset("area base br col embed frame hr img input link meta param source track wbr".split())
ATTRIBUTES = frozenset(("title", "alt", "placeholder", "aria-label", "aria-description"))
_DESCRIPTIONS = frozenset(("description", "og:title", "og:description", "twitter:title", "twitter:description"))
_BUTTONS = frozenset(("submit", "button", "reset"))
_CHARSET = re.compile(rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?([\w-]{1,40})", re.IGNORECASE)


class HtmlDocument(MarkupDocument):
    """A text of HTML.

    Args:
        text: a page, or a part of one.
        ignored: further elements that are not translated.
        encoding: in which it is written as bytes.
    Raises:
        DataError: it has too many tags.
    """

    def __init__(self, text: str, ignored: Collection[str] = (), encoding: str = "utf-8") -> None:
        super().__init__()
        self._text, self._kept = text, KEPT | {name.lower() for name in ignored}
        self._encoding = encoding
        self._tokens = list(Tokens(text))
        self._ends = _ends(self._tokens)
        self._opened: list[tuple[str, int]] = []        # names and keys, in this segment
        self._names: Counter[str] = Counter()
        self._lines = 0         # how many elements are open that keep their lines
        self._break = False     # whether only white space is behind a line break
        place = 0
        while place < len(self._tokens):
            place = self._take(place)
        self._block(())

    def written(self, translated: Sequence[tuple]) -> bytes:
        """The text in its encoding; what that lacks, as entities."""
        return self.text(translated).encode(self._encoding, "xmlcharrefreplace")

    def _take(self, place: int) -> int:
        """Take a token; the place of the next."""
        token = self._tokens[place]
        source = self._text[token.start:token.end]
        if token.kind == "open" and self._is_kept(token):
            return self._keep(place)
        if token.kind == "text":
            self._take_text(source)
            return place + 1
        if token.name == "pre":
            self._lines = max(self._lines + (1 if token.kind == "open" else -1), 0)
        if token.kind == "other":
            self.add_nothing((source,))
        elif token.name in BLOCKS:
            self._block(self._with_values(token))
            if token.name == "textarea" and self._tokens[place + 1:place + 2] and token.kind == "open":
                text = self._tokens[place + 1]      # what users have written; or the end, where there is none
                self.add_between((self._text[text.start:text.end],))
                return place + 2
        elif token.kind == "close":
            self._close(token.name, source)
        else:
            self._open(token)
        return place + 1

    def _take_text(self, source: str) -> None:
        self._break = self._break and source.isspace()
        for line in source.splitlines(keepends=True) if self._lines else (source,):
            self.add_text(line)
            if self._lines and line[-1:] in "\r\n":
                self._block(())

    def _open(self, token: Token) -> None:
        pieces = self._with_values(token)
        if token.name == "wbr":
            self.add_nothing(pieces)
        elif token.name in VOID:
            self.add_single(pieces)
            if token.name == "br" and self._break:      # two of them are the end of a paragraph
                self._block(())
            self._break = token.name == "br"
        else:
            self._opened.append((token.name, self.open(pieces)))
            self._names[token.name] += 1

    def _close(self, name: str, source: str) -> None:
        if not self._names[name]:
            self.add_nothing((source,))
            return
        while True:
            opened, key = self._opened.pop()
            self._names[opened] -= 1
            if opened == name:
                self.close(key, (source,))
                return
            self.close(key)

    def _block(self, pieces: Sequence[Piece]) -> None:
        """The end of a segment, and a tag that is in none."""
        while self._opened:
            self.close(self._opened.pop()[1])
        self._names.clear()
        self._break = False
        self.add_between(pieces)

    def _is_kept(self, token: Token) -> bool:
        if token.name in self._kept:
            return True
        return any(attribute.name == "translate" and self._given(attribute).lower() == "no"
                   or attribute.name == "class" and "notranslate" in self._given(attribute).split()
                   for attribute in token.attributes)

    def _keep(self, place: int) -> int:
        """Take an element that is not translated, as a word if it is within a segment; the place behind it."""
        token = self._tokens[place]
        is_block = token.name in BLOCKS
        end = place if token.name in VOID else self._ends.get(place, -1)
        if end < 0:     # it never ends: up to the next block, or to the end if it is one itself
            end = next((number - 1 for number in range(place + 1, len(self._tokens))
                        if not is_block and self._tokens[number].name in BLOCKS), len(self._tokens) - 1)
        inside = self._tokens[place:end + 1]
        source = self._text[token.start:inside[-1].end]
        if is_block or any(one.name in BLOCKS for one in inside):
            self._block((source,))
        elif words := Spelling().read("".join(self._text[one.start:one.end] for one in inside if one.kind == "text")):
            self.add_shielded(words, source)
        else:
            self.add_single((source,))
        return end + 1

    def _given(self, attribute: Attribute) -> str:
        return self._text[attribute.start:attribute.end]

    def _with_values(self, token: Token) -> list[Piece]:
        """A tag; values of attributes that are translated are segments."""
        pieces: list[Piece] = []
        place = token.start
        translated = self._translated(token)
        for attribute in token.attributes:
            value = self._given(attribute)
            if attribute.name in translated and any(map(str.isalpha, value)):
                quote = self._text[attribute.start - 1]
                pieces += [self._text[place:attribute.start], self.value(value, quote if quote in "\"'" else "")]
                place = attribute.end
        return [*pieces, self._text[place:token.end]]

    def _translated(self, token: Token) -> Collection[str]:
        """The attributes of a tag that are translated."""
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
    """A file of HTML, in the encoding that it names, or UTF-8.

    Raises:
        DataError: it is not in this encoding, or has too many tags.
    """
    named = _CHARSET.search(content[:4096])
    encoding = "utf-8-sig" if content.startswith(b"\xef\xbb\xbf") else named[1].decode() if named else "utf-8"
    try:
        return HtmlDocument(content.decode(encoding), encoding=encoding)
    except (UnicodeDecodeError, LookupError):
        raise DataError(f"The file is not text in the encoding {encoding}: save it as UTF-8.") from None


def _ends(tokens: Sequence[Token]) -> dict[int, int]:
    """The places of the tags that close others, by the places of these."""
    opened: dict[str, list[int]] = defaultdict(list)
    ends = {}
    for place, token in enumerate(tokens):
        if token.kind == "open":
            opened[token.name].append(place)
        elif token.kind == "close" and opened[token.name]:
            ends[opened[token.name].pop()] = place
    return ends
