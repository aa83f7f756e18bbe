"""Divide a text of a gettext catalogue into segments, with shielded placeholders, and with HTML tags as marks.

The flags of gettext, such as `c-format`, determine the placeholders that a text can have. Those of the source are
compared with those of the translation, and numbered if their order changes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from towernmt.documents.formats.plain import text_pieces
from towernmt.documents.formats.text_files import Pieces
from towernmt.documents.segments import Mark, Part, Segment, Shielded

_PERCENT = re.compile(
    r"%(?:%|(?:\([^()\n]{1,60}\)|\d{1,2}\$|\d{1,2}:|\[\d{1,2}\])?[-+ #0'I,_]*(?:\d{1,5}|\*(?:\d{1,2}\$)?)?"
    r"(?:\.(?:\d{1,5}|\*(?:\d{1,2}\$)?)?)?"
    r"(?:<[\w .-]{1,40}>(?:[-+ #0]*\d{0,4}(?:\.\d{1,4})?[a-zA-Z])?|\{[^{}\n]{1,60}\}"
    r"|(?:hh|h|ll|l|L|q(?!\b)|j|z|t|w\d{1,2}|wf\d{1,2}|I64|I32)?[a-zA-Z@]|[<>'{}](?![\w])))")
_PRI = re.compile(r"%[-+ #0']*\d{0,5}(?:\.\d{1,5})?<PRI\w{1,20}>")
_PYTHON = re.compile(
    r"%(?:%|(?:\([^()\n]{1,60}\))?[-+ #0]*(?:\d{1,5}|\*)?(?:\.(?:\d{1,5}|\*))?[hlL]?[diouxXeEfFgGcrsa])")
_FIELD = r"\{[^{}\n]{0,80}(?:\{[^{}\n]{0,40}\}[^{}\n]{0,40}){0,4}\}"
_BRACES = re.compile(rf"\{{\{{|\}}\}}|{_FIELD}")
_JAVA = re.compile(rf"''|'[^'{{}}\n]{{0,80}}[{{}}][^'\n]{{0,80}}'|{_FIELD}|[{{}}]")
"""Two apostrophes are one; braces between apostrophes are no placeholder; other single braces are errors."""
_NUMBERS = re.compile(r"%%|%[Ln]?\d{1,2}|%n")
_BOOST = re.compile(r"%%|%\d{1,2}%|%\|[^|\n]{1,40}\||" + _PERCENT.pattern)
_SHELL = re.compile(r"\$\{\w{1,60}\}|\$[A-Za-z_]\w{0,60}")
_TILDE = re.compile(r"~(?:[-+]?\d{1,5}|'.|,|#|v)*[@:]*[a-zA-Z%~&|()\[\]{}<>;^*?/\n]")
_NUMBERED = re.compile(r"%(?:\d{1,2}\$|\[\d)|\{\d|%\d{1,2}:")
_STARS = re.compile(r"\*(?!\d)")


@dataclass(frozen=True)
class FormatStrings:
    """The syntax of a kind of format strings.

    Attributes:
        pattern: matches a placeholder, or an escaped sign such as `%%`.
        sign: the signs that are escaped by doubling them, such as that which begins placeholders; "" for none.
        numbers: syntax of numbered placeholders: "$" (`%1$s`), "{" (`{0}`), or "" if numbers are not supported.
    """

    pattern: re.Pattern[str]
    sign: str = "%"
    numbers: str = ""

    def is_escaped_sign(self, placeholder: str) -> bool:
        """Return whether a match of the pattern is not a placeholder: an escaped sign, or `%m` without an argument."""
        return placeholder in ("%%", "{{", "}}", "''", "~~", "~%", "~\n", "%m", "%<", "%>", "%'")

    def takes_next(self, placeholder: str) -> bool:
        """Return whether a placeholder takes the next argument: it has neither a name nor a number."""
        if self.is_escaped_sign(placeholder) or _NUMBERED.match(placeholder):
            return False
        if self.pattern is _BRACES:
            return placeholder[1:2] in ("}", ":", "!")
        return self.pattern not in (_NUMBERS, _SHELL, _JAVA) and placeholder[1:2] not in ("(", "{") and not (
            placeholder.startswith("%<") and not placeholder.startswith("%<PRI"))

    def ordered(self, source: Sequence[str], order: Sequence[int]) -> list[str] | None:
        """Return the placeholders of a translation, with numbers if their order has changed.

        Args:
            source: the placeholders of the source.
            order: for each placeholder of the translation, its index in the source.

        Returns:
            None if the order has changed and this kind of format strings does not support numbers.
        """
        taking = [index for index in order if self.takes_next(source[index])]
        if taking == sorted(taking):
            return [source[index] for index in order]
        if not self.numbers:
            return None
        numbered, number = list(source), 1
        for index, placeholder in enumerate(source):
            if not self.takes_next(placeholder):
                continue
            if self.numbers == "{":
                numbered[index] = f"{{{number - 1}{placeholder[1:]}"
            else:
                while star := _STARS.search(placeholder):
                    placeholder = f"{placeholder[:star.end()]}{number}${placeholder[star.end():]}"
                    number += 1
                numbered[index] = f"%{number}${placeholder[1:]}"
            number += 1
        return [numbered[index] for index in order]

    def escaped(self, text: str) -> str:
        """Escape text, so that it contains no placeholder."""
        for sign in self.sign:
            text = text.replace(sign, sign * 2)
        return text


_C = FormatStrings(re.compile(f"{_PRI.pattern}|{_PERCENT.pattern}"), numbers="$")
_WITHOUT_NUMBERS = FormatStrings(_PERCENT)
_KINDS = {
    **dict.fromkeys(("c", "objc", "php", "perl", "java-printf", "javascript", "tcl", "awk", "ruby"), _C),
    **dict.fromkeys(("python-brace", "c++", "rust"), FormatStrings(_BRACES, "{}", "{")),
    **dict.fromkeys(("csharp",), FormatStrings(_BRACES, "{}")),
    "java": FormatStrings(_JAVA, "'"), "perl-brace": FormatStrings(_BRACES, ""),
    **dict.fromkeys(("qt", "qt-plural", "kde", "kde-kuit", "ycp", "smalltalk"), FormatStrings(_NUMBERS, "")),
    **dict.fromkeys(("lisp", "scheme"), FormatStrings(_TILDE, "~")),
    "python": FormatStrings(_PYTHON), "boost": FormatStrings(_BOOST, numbers="$"), "sh": FormatStrings(_SHELL, ""),
    **dict.fromkeys(("sh-printf", "lua", "elisp", "librep", "gcc-internal", "gfc-internal", "d", "go", "modula2",
                     "object-pascal", "ocaml"), _WITHOUT_NUMBERS)}


def format_strings(flags: Iterable[str]) -> FormatStrings | None:
    """Return the syntax that the flags of an entry name; None for no format strings, as with `no-c-format`."""
    kinds = (_KINDS.get(flag.removesuffix("-format")) for flag in flags if flag.endswith("-format"))
    return next((kind for kind in kinds if kind is not None), None)


_PLACEHOLDER, _TAG = 0xF0000, 0xF8000
"""First private-use characters for placeholders and tags, which thus are not divided when lines are separated."""
_MOST = 0x7000
"""Maximum number of placeholders of a text, and of tags."""
_FILL = "\U0010fffd"
"""Fills a placeholder's character up to the length of the placeholder, so that wrapped lines keep their width."""
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")
_HELD = re.compile(f"((?:[\U000f0000-\U000f7fff]{_FILL}*)+)|([\U000f8000-\U000fffff]){_FILL}*")
_HELD_TAG = re.compile("[\U000f8000-\U000fffff]")
_ANY_HELD = re.compile(f"([\U000f0000-\U000fffff]){_FILL}*")
_TAGS = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w:-]{0,40})(?P<rest>(?:\s[^<>]{0,400}?)?)(?P<single>/?)>")
_KNOWN = frozenset("""a abbr address article aside b bdi bdo big blockquote br button caption center cite code dd del
    dfn div dl dt em
    figure font footer form h1 h2 h3 h4 h5 h6 header hr i img input ins kbd label li link main mark nav ol option p
    pre q s samp section select small span strike strong sub summary sup table tbody td tfoot th thead tr tt u ul
    var video wbr""".split())
_SINGLE = frozenset(("br", "hr", "img", "input", "wbr", "link"))
_CODE = frozenset(("code", "kbd", "samp", "tt", "var"))
_ENTITY = re.compile(r"&(?:\w{2,31}|#\w{1,8});")
_ACCELERATORS = {
    "&": re.compile(r"(?<!&)&(?!(?<=[A-Z\d]&)[A-Z\d])(?=[^\W_])"), "~": re.compile(r"(?<!~)~(?=[^\W_])"),
    "_": re.compile(r"(?<!\w)_(?=[^\W_])|(?:(?<=\b[A-Z])|(?<=\b[A-Z][a-z])|(?<=\b[A-Z][a-z]{2}))_(?=[a-z])")}
"""By the sign of a keyboard shortcut: the sign before the letter of the shortcut. A sign within a name, as in `A&B` or
`max_size`, marks no letter."""
_LONGEST_LABEL = 60
"""Maximum number of characters of a label; longer texts have no keyboard shortcut."""


class CatalogueText:
    """A text of a catalogue, divided into segments.

    Args:
        text: the text.
        kind: syntax of its format strings; None if the text is not a format string.
        accelerators: signs that mark the letter of a keyboard shortcut in labels, such as "&" in `&File`.

    Attributes:
        kind: the same; None if the text contains private-use characters.
        segments: lines and wrapped paragraphs.
        placeholders: the placeholders, in order.
    """

    def __init__(self, text: str, kind: FormatStrings | None = None, accelerators: str = "&_") -> None:
        has_private = _PRIVATE.search(text) is not None
        self.kind = None if has_private else kind
        self._has_bare_signs = kind is not None and any(sign in kind.pattern.sub("", text) for sign in kind.sign)
        self.placeholders: list[str] = []
        self._tags: list[str] = []
        self._keys: list[int] = []
        self._times: Counter[int] = Counter()
        self._letter: tuple[str, str] | None = None
        self._has_too_many = False
        if not has_private:
            text = self._without_accelerator(text, accelerators)
            text = self._with_tags_held(text)
            text = self._with_placeholders_held(text)
        self._pieces = Pieces(text_pieces(text))
        self.segments = list(self._pieces.segments)
        if not has_private:
            self.segments = [self._parts(segment) for segment in self.segments]

    def written(self, translated: Sequence[Segment]) -> str | None:
        """Return the text with translated segments.

        Returns:
            None if the placeholders differ from those of the source, their order cannot be expressed, or the text has
            too many.
        """
        if self._has_too_many:
            return None
        text = self._pieces.text([(self._flat(segment),) for segment in translated])
        if self.kind is not None:
            found = self._with_placeholders(self._with_tags(text, _FILL), self.kind)
            if found is None:
                return None
            text = found.replace(_FILL, "")
        return self._with_accelerator(self._with_tags(text))

    def _with_tags(self, text: str, around: str = "") -> str:
        """Return the text with tags in place of their characters, and with a string around each tag."""
        return _ANY_HELD.sub(lambda held: f"{around}{self._tags[ord(held[1]) - _TAG]}{around}"
                             if 0 <= ord(held[1]) - _TAG < len(self._tags) else held[0], text)

    def _held(self, first: int, held: list[str], text: str) -> str:
        if len(held) == _MOST:
            self._has_too_many = True
            return text
        held.append(text)
        return chr(first + len(held) - 1) + _FILL * (len(text) - 1)

    def _with_placeholders_held(self, text: str) -> str:
        """Return the text with a private character for each placeholder; `%%` becomes a single sign.

        Placeholders in tags that are held already, such as `<a href="%s">`, count in the order of the text, too.
        """
        kind = self.kind
        if kind is None:
            return text

        def hold(found: re.Match[str]) -> str:
            if _HELD_TAG.match(found[0]):
                number = ord(found[0]) - _TAG
                self._tags[number] = kind.pattern.sub(hold, self._tags[number])
                return found[0]
            is_sign = len(found[0]) == 2 and found[0][0] == found[0][1] and found[0][0] in kind.sign
            return found[0][0] if is_sign and not self._has_bare_signs else self._held(
                _PLACEHOLDER, self.placeholders, found[0])

        return re.sub(f"{kind.pattern.pattern}|{_HELD_TAG.pattern}", hold, text)

    def _with_tags_held(self, text: str) -> str:
        """Return the text with a private character for each tag of HTML."""
        names: dict[str, set[str]] = defaultdict(set)
        for tag in _TAGS.finditer(text):
            names[tag["name"]].add(tag["close"])

        open_tags: list[tuple[str, int]] = []
        keys = iter(range(len(text)))

        def hold(tag: re.Match[str]) -> str:
            name = tag["name"].lower()
            if name not in _KNOWN and len(names[tag["name"]]) < 2 and "=" not in tag["rest"] and not tag["single"]:
                return tag[0]
            key = next(keys)
            if tag["close"]:
                index = next((index for index in reversed(range(len(open_tags))) if open_tags[index][0] == name), None)
                if index is not None:
                    key = open_tags[index][1]
                    del open_tags[index:]
            elif name not in _SINGLE and not tag["single"]:
                open_tags.append((name, key))
            if len(self._tags) < _MOST:
                self._keys.append(key)
            return self._held(_TAG, self._tags, tag[0])

        held = _TAGS.sub(hold, text)
        self._times = Counter(self._keys)
        return held

    def _parts(self, segment: Segment) -> Segment:
        """Return a segment of text, with placeholders as shielded words and tags as marks."""
        [text] = segment
        parts: list[Part] = []
        done = 0
        for held in _HELD.finditer(str(text)):
            if held.start() > done:
                parts.append(str(text)[done:held.start()])
            parts.append(Shielded(held[1], None) if held[1] else self._mark(held[2], held[0]))
            done = held.end()
        if done < len(str(text)):
            parts.append(str(text)[done:])
        return self._with_code_shielded(parts)

    def _mark(self, character: str, held: str) -> Mark:
        number = ord(character) - _TAG
        tag = _TAGS.fullmatch(self._tags[number])
        key = self._keys[number]
        if tag is None or self._times[key] == 1:
            return Mark("single", key, held)
        return Mark("close" if tag["close"] else "open", key, held)

    def _with_code_shielded(self, parts: Sequence[Part]) -> Segment:
        """Return the parts, with each `<code>` or similar element as one shielded part."""
        closed = {part.key for part in parts if isinstance(part, Mark) and part.kind == "close"}
        result: list[Part] = []
        key: int | None = None
        inside: list[str] = []
        for part in parts:
            if key is not None:
                inside.append(part if isinstance(part, str) else self._flat((part,)))
                if isinstance(part, Mark) and part.kind == "close" and part.key == key:
                    result.append(Shielded("".join(inside), None))
                    key = None
            elif isinstance(part, Mark) and part.kind == "open" and self._name(part) in _CODE and (
                    part.key in closed):
                key, inside = part.key, [self._flat((part,))]
            else:
                result.append(part)
        return tuple(result)

    def _name(self, mark: Mark) -> str:
        tag = _TAGS.fullmatch(self._tags[ord(mark.content[0]) - _TAG])
        return "" if tag is None else tag["name"].lower()

    @staticmethod
    def _flat(segment: Segment) -> str:
        return "".join(part if isinstance(part, str) else str(part.content) if isinstance(part, Mark) else part.text
                       for part in segment)

    def _with_placeholders(self, text: str, kind: FormatStrings) -> str | None:
        """Return the text with its placeholders, each of which must occur exactly once.

        Around each tag is `_FILL`, so that no placeholder begins with the sign before a tag, as in `50%<b>`.
        """
        pieces: list[str | int] = []
        done = 0
        for held in _ANY_HELD.finditer(text):
            number = ord(held[1]) - _PLACEHOLDER
            if number < len(self.placeholders):
                pieces += [text[done:held.start()], number]
                done = held.end()
        pieces.append(text[done:])
        free = sorted(set(range(len(self.placeholders))) - {piece for piece in pieces if isinstance(piece, int)})
        pieces = [one for piece in pieces
                  for one in (self._taken(piece, free, kind) if isinstance(piece, str) else [piece])]
        order = [piece for piece in pieces if isinstance(piece, int)]
        if sorted(order) != list(range(len(self.placeholders))):
            return None
        ordered = kind.ordered(self.placeholders, order)
        if ordered is None:
            return None
        rest = iter(ordered)
        escaped = str if self._has_bare_signs else kind.escaped
        written = "".join(next(rest) if isinstance(piece, int) else escaped(piece) for piece in pieces)
        found = [placeholder for placeholder in kind.pattern.findall(written)
                 if not kind.is_escaped_sign(placeholder)]
        wanted = [placeholder for placeholder in ordered if not kind.is_escaped_sign(placeholder)]
        return written if found == wanted else None

    def _taken(self, text: str, free: list[int], kind: FormatStrings) -> list[str | int]:
        """Divide text at the placeholders that the model copied, and insert their numbers."""
        pieces: list[str | int] = []
        done = 0
        for match in kind.pattern.finditer(text):
            number = next((number for number in free if self.placeholders[number] == match[0]), None)
            if number is not None:
                free.remove(number)
                pieces += [text[done:match.start()], number]
                done = match.end()
        return [*pieces, text[done:]]

    def _without_accelerator(self, text: str, accelerators: str) -> str:
        """Return a label without the sign before the letter of its keyboard shortcut."""
        if len(text) > _LONGEST_LABEL or "\n" in text:
            return text
        for sign in accelerators:
            pattern = _ACCELERATORS.get(sign)
            matches = list(pattern.finditer(text)) if pattern is not None else []
            is_label = sign != "_" or text.lstrip("_")[:1].isupper() and text.count("_") == 1
            if len(matches) == 1 and is_label and text.count(sign) == 1 and not _ENTITY.match(text, matches[0].start()):
                index = matches[0].start()
                self._letter = sign, text[index + 1]
                return text[:index] + text[index + 1:]
        return text

    def _with_accelerator(self, text: str) -> str:
        """Return a translated label with a shortcut: the same letter if it occurs, else the first one."""
        if self._letter is None:
            return text
        sign, letter = self._letter
        if not re.search(r"[^\W_]", text):
            return text
        held = [match.span() for pattern in (_TAGS, _ENTITY, *((self.kind.pattern,) if self.kind else ()))
                for match in pattern.finditer(text)]
        free = [index for index, character in enumerate(text)
                if character.isalnum() and not any(start <= index < end for start, end in held)]
        same = [index for index in free if text[index].casefold() == letter.casefold()]
        begins = [index for index in same if index == 0 or not text[index - 1].isalnum()]
        if not same and not any(character.isascii() for character in text if character.isalpha()) and (
                re.search("[\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]", text)):
            end = len(text.rstrip(" .…:"))
            return f"{text[:end]}({sign}{letter.upper()}){text[end:]}"
        index = next(iter([*begins, *same, *free]), None)
        return text if index is None else text[:index] + sign + text[index:]
