r"""Find the marks of a line that the model should not see: of Markdown, HTML, forums, subtitles, lists and tables.

- Pairs surround words: `**bold**`, `_x_`, `~~x~~`, `[text](address)`, `<b>x</b>`, `[b]x[/b]`, `[x]`, and rare quotes
  (`»x«`).
- Single marks are tags without a partner (`<br/>`), the codes of subtitles (`{\i1}`, `\N`), entities such as `&nbsp;`,
  and the signs between the cells of a table.
- Marks at the edges are those of lists, quotations and headings (`- `, `a) `, `> `, `## `), and lines such as `---`.

The signs inside an address, a placeholder or a word of a program are neither emphasis nor line breaks of subtitles:
`__init__.py`, `{__name__}`, `C:\WINDOWS\NOTEPAD.EXE`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import regex  # type: ignore[import-untyped]

from towernmt.documents.addresses import addresses_in
from towernmt.documents.shields import Attached, codes_in, placeholders_in

_SIGN_OF_MARK = re.compile(r"[*_~\[<{&\\|»«‚‹›]|``|[-=#]{3}|^\s*(?:[-+#>–—•‣◦▪·/(]|\d+\.\d+\.\d|[A-Za-z]\))")
"""Each mark has one of these signs."""
_EMPHASIS = re.compile(r"(?<![\w*])(?P<star>\*{1,3})(?=[^\s*])[^*\n]{0,300}?(?<=[^\s*])(?P=star)(?![\w*])"
                       r"|(?P<inner>\*\*)(?=[^\s*])[^*\n]{0,300}?(?<=[^\s*])(?P=inner)(?!\*)"
                       r"|(?<![\w])(?P<line>_{1,3})(?=[^\s_])(?:[^_\n]|(?<=\w)_(?=\w)){0,300}?(?<=[^\s_])(?P=line)(?!\w)"
                       r"|(?<!~)(?P<wave>~~)(?=[^\s~])[^~\n]{0,300}?(?<=[^\s~])(?P=wave)(?!~)")
_LINK = re.compile(r"(?P<open>!?\[)(?=[^\]\[]{0,300}\w)[^\]\[\n]{1,300}"
                   r"(?P<close>\](?:\((?:[^()\s]|\([^()\s]{0,100}\)){1,400}(?: +\"[^\"\n]{0,200}\")?\)"
                   r"|\[[^\]\[\n]{0,60}\]))"
                   r"|(?P<open_wiki>\[\[)[^\]\[\n]{1,200}(?P<close_wiki>\]\])")
_TAG = re.compile(r"<(?P<end>/)?(?P<name>[A-Za-z][\w:-]{0,40})"
                  r"(?P<attributes>(?:\s{1,5}[\w:-]{1,40}=(?:\"[^\"<>\n]{0,300}\"|'[^'<>\n]{0,300}'|[\w#%.-]{1,40})){0,10}\s{0,5})(?P<single>/)?>"
                  r"|\[(?P<forum_end>/)?(?P<forum>b|i|u|s|url|quote|code|color|size|img|center|list|B|I|U|URL)"
                  r"(?:=[^\]\[\s]{1,200})?\]")
_TAGS_OF_HTML = frozenset("a abbr b big blockquote br code del div em font h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark "
                          "ol p pre q s small span strong sub sup table tbody td th thead tr tt u ul".split())
_SINGLE = re.compile(r"\{\\[^{}\n]{1,100}\}|(?<![\w:]:)\\[Nh](?![a-z])|&(?!(?:amp|lt|gt);)(?:[A-Za-z]\w{1,30}|#\d{1,7}"
                     r"|#[xX][0-9a-fA-F]{1,6});|(?<=\s)\|(?=\s)")
_BEGIN = regex.compile(r"\s*(?:(?:[-*+–—•‣◦▪·]|>{1,9}|#{1,6}|//|\||[-*=~#]{3,80}|[A-Za-z]\)|\([A-Za-z]\)"
                       r"|\((?=[ivx]{2,4}\))[ivx]{2,4}\)|\d{1,3}(?:\.\d{1,3}){2,4}\.?"
                       r"(?=\s+(?:\p{Georgian}|(?!\p{Ll})[^\W\d_])))"
                       r"\s+(?:\[[ xX]?\]\s+)?)+(?=\S)")
_END = re.compile(r"(?<=\S)\s+(?:[-*=~#|]{3,80}|\||-->|\*/)\s*$")
_BRACKETS = re.compile(r"(?P<open>[(\[])(?=[^()\[\]]*[^\W\d_])[^()\[\]]*+(?P<close>[)\]])(?=[.!?…]*$)")
FILL_IN = r"(?<=[^.!?…\s] )\[\p{Lu}[\w-]{1,30}\](?![\w(])"
"""Regular expression of a word in square brackets that stays: it has a capital and is inside a sentence: `[Name]`."""
_SQUARE_BRACKETS = regex.compile(rf"(?!{FILL_IN})(?<!\w)\[(?=[^\W\d_])[^\[\]\n]{{1,60}}\](?![\w(])")
_QUOTES = re.compile("|".join(
    rf"(?<!\w){opening}(?=\S)[^{opening}{closing}\n]{{1,300}}(?<=\S){closing}(?!\w)" for opening, closing in (
        ("»", "«"), ("«", "»"), ("‚", "‘"), ("‹", "›"), ("›", "‹"), ("``", "''"))))
_QUOTE = re.compile(r"[\"“”„‟«»‘‚‹›「」『』]|(?<!\w)['’]|['’](?!\w)")       # not the apostrophe of "isn't"
_ITEM = re.compile(r"\s*\(?(\d{1,3})[.)](?=\s+\S)")
_CODE = re.compile(r"(?<![\w`])`(?=[^\s`])[^`\n]{1,100}(?<!\s)`(?![\w`])")


class MarkSpan(NamedTuple):
    """A mark of a line.

    Attributes:
        start, end: its position in the line.
        mark: the mark; both marks of a pair have the same key.
    """

    start: int
    end: int
    mark: Attached


class _Containers:
    """Ranges of a text that may contain others.

    Args:
        spans: start and end of each; they may overlap.
    """

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        in_order = sorted(spans)
        self._starts = [start for start, _ in in_order]
        self._last_ends = list(accumulate((end for _, end in in_order), max))

    def contain(self, start: int, end: int) -> bool:
        """Return whether one of the ranges contains another range."""
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and self._last_ends[index] >= end


class LineMarks:
    """The marks of a line.

    Args:
        text: the line.
        unmarked_spans: start and end of the parts of the line that contain no marks, such as program text.

    Attributes:
        spans: the marks in their order, without overlaps.
        begin, end: the marks at the edges of the line, without the spaces around them; "" for none.
    """

    def __init__(self, text: str, unmarked_spans: Sequence[tuple[int, int]] = ()) -> None:
        self.spans: list[MarkSpan] = []
        self.begin = self.end = ""
        self._quotes: set[str] = set()
        self._text = text
        if not _SIGN_OF_MARK.search(text):
            return
        self._occupied_spans = sorted([*unmarked_spans, *(match.span() for match in _CODE.finditer(text))])
        if (match := _BEGIN.match(text)) and self._occupy(match.span()):
            self.begin = match[0].strip()
            self._add("single", -1, 0, match.end())
        if (match := _END.search(text)) and self._occupy(match.span()):
            self.end = match[0].strip()
            self._add("single", -1, *match.span())
        key = 0
        for key, pair in enumerate([*self._links(), *self._tags(), *self._square(), *self._quoted(),
                                    *self._emphasis()]):
            if all(map(self._is_free, pair)):
                for span, kind in zip(pair, ("open", "close") if len(pair) == 2 else ("single",), strict=True):
                    self._occupy(span)
                    self._add(kind, key, *span)
        if (match := _BRACKETS.match(text.strip())) and not (self.begin or self.end):
            for kind in ("open", "close"):
                start, end = match.span(kind)
                if self._occupy((start, end)):
                    self._add(kind, key + 1, start, end)
        for match in _SINGLE.finditer(text):
            is_in_path = match[0][0] == "\\" and self._literal_texts.contain(*match.span())
            if not is_in_path and self._occupy(match.span()):
                self._add("single", key, *match.span())
        self.spans.sort(key=lambda span: span.start)

    def without_marks(self) -> str:
        """Return the line with spaces in place of its marks."""
        pieces, position = [], 0
        for start, end, _ in self.spans:
            pieces += [self._text[position:start], " " * (end - start)]
            position = end
        return "".join(pieces) + self._text[position:]

    def lost(self, translation: str) -> int:
        """Return the number of different marks that a translation has more or less often than the line."""
        if not self.spans:
            return 0
        spans = self.spans[bool(self.begin):len(self.spans) - bool(self.end)]
        inner = {span.mark.text for span in spans}
        if _QUOTE.search(translation):      # which may have other quotes
            inner -= self._quotes
        count = sum(translation.count(mark) != self._text.count(mark) for mark in inner)
        edges = bool(self.begin) and not _starts_with(translation, self.begin)
        return count + edges + bool(self.end and not translation.rstrip().endswith(self.end))

    @cached_property
    def _literal_texts(self) -> _Containers:
        """The addresses, placeholders and words of programs."""
        return _Containers(span for finder in (addresses_in, placeholders_in, codes_in) for span in finder(self._text))

    def _is_free(self, span: tuple[int, int]) -> bool:
        index = bisect_left(self._occupied_spans, span)
        return (index == 0 or self._occupied_spans[index - 1][1] <= span[0]) and (
            index == len(self._occupied_spans) or span[1] <= self._occupied_spans[index][0])

    def _occupy(self, span: tuple[int, int]) -> bool:
        is_free = self._is_free(span)
        if is_free:
            insort(self._occupied_spans, span)
        return is_free

    def _add(self, kind: str, key: int, start: int, end: int) -> None:
        self.spans.append(MarkSpan(start, end, Attached(kind, key, (self._text[start:end],))))  # type: ignore[arg-type]

    def _links(self) -> Iterator[list[tuple[int, int]]]:
        for match in _LINK.finditer(self._text):
            names = ("open", "close") if match["open"] else ("open_wiki", "close_wiki")
            yield [match.span(name) for name in names]

    def _tags(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the pairs of tags, and single tags. A tag without a partner is one if HTML has it."""
        opened: list[re.Match[str]] = []
        open_names: Counter[str] = Counter()
        for match in _TAG.finditer(self._text):
            name = _name_of(match)
            if match["single"]:
                yield [match.span()]
            elif _is_end(match) and open_names[name]:
                index = next(index for index in reversed(range(len(opened)))
                             if _name_of(opened[index]) == name and not _is_end(opened[index]))
                yield [opened[index].span(), match.span()]
                yield from ([tag.span()] for tag in opened[index + 1:] if _is_html(tag))
                open_names.subtract(_name_of(tag) for tag in opened[index:] if not _is_end(tag))
                del opened[index:]
            else:
                opened.append(match)
                open_names[name] += not _is_end(match)
        yield from ([tag.span()] for tag in opened if _is_html(tag))

    def _square(self) -> Iterator[list[tuple[int, int]]]:
        yield from map(_edges, _SQUARE_BRACKETS.finditer(self._text))

    def _quoted(self) -> Iterator[list[tuple[int, int]]]:
        for match in _QUOTES.finditer(self._text):
            size = 1 + match[0].startswith("``")
            self._quotes |= {match[0][:size], match[0][-size:]}
            yield _edges(match, size)

    def _emphasis(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the pairs of Markdown, the outer ones first."""
        waiting_spans = [(0, len(self._text))]
        while waiting_spans:
            start, end = waiting_spans.pop()
            for match in _EMPHASIS.finditer(self._text, start, end):
                size = len(match[match.lastgroup or 0])
                if not self._literal_texts.contain(*match.span()):
                    yield [(match.start(), match.start() + size), (match.end() - size, match.end())]
                waiting_spans.append((match.start() + size, match.end() - size))


def item_number(text: str) -> re.Match[str] | None:
    """Return the match of the number of a list item at the beginning of a text, with the number as group 1."""
    return _ITEM.match(text)


def _name_of(tag: re.Match[str]) -> str:
    return tag["name"] or tag["forum"]


def _is_end(tag: re.Match[str]) -> bool:
    return bool(tag["end"] or tag["forum_end"])


def _is_html(tag: re.Match[str]) -> bool:
    return (tag["name"] or "").lower() in _TAGS_OF_HTML


def _starts_with(translation: str, begin: str) -> bool:
    """Return whether a translation begins with a mark that is not a part of a longer sign."""
    text = translation.lstrip()
    return text.startswith(begin) and not text[len(begin):len(begin) + 1].isalnum()


def _edges(match: re.Match[str], size: int = 1) -> list[tuple[int, int]]:
    """Return the spans of the first and of the last `size` characters of a match."""
    return [(match.start(), match.start() + size), (match.end() - size, match.end())]
