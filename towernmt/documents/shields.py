r"""Find words and symbols in plain text that a translation must not change, and make placeholders for the model.

- Addresses: see `addresses`.
- Placeholders of programs: `%s`, `{name}`, `${HOME}`, `&nbsp;`, `\n`, `<b>`. A per cent sign before letters is
  ambiguous. It belongs to a number before it (`50 %ige`), and begins a placeholder otherwise. Lower-case letters after
  a placeholder without width or precision belong to it (`%dpx`), since `%description` must not become `%d` and another
  word. Adjacent placeholders are one match, so they keep their order.
- Codes: bank accounts, keys and versions whose letters and digits alternate (`DE89 3704 0044 0532 0130 00`,
  `550e8400-e29b-41d4`, `0x1F4A`), addresses of devices (`fe80::1`), times as in `2024-05-17T10:30Z`, mathematics as in
  LaTeX (`$x^2$`), program text between backticks, and words of programs (`get_name()`, `MAX_VALUE`, `--help`, `x=5`).
  A dash before a capital at the beginning of a sentence, as in `-I know.` and `--Bonjour`, introduces direct speech.
- Symbols: emoji, emoticons, musical notes, arrows, bullets, trademarks. The model does not see them, because most
  vocabularies lack them and they do not influence the translation.
- Words of the user: matches of regular expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import regex  # type: ignore[import-untyped]

from towernmt.core.errors import SettingsError
from towernmt.documents.addresses import addresses_in
from towernmt.documents.emoticons import emoticons_in
from towernmt.documents.segments import UNSPACED, Mark, Shielded, plain_text

_WIDTH = r"(?:\d{1,4}|\*(?:\d{1,2}\$)?)"
_SIZE = r"(?:hh|h|ll|l|L|q|j|z|t|I64|I32|w\d{1,2})"
_NOT_OF_A_NUMBER = r"(?<![\d٪](?:[ \u00a0\u202f]?))"
_PERCENT = "|".join((
    "%%",
    rf"%\([^()\n]{{1,60}}\)[-#0+ ]{{0,4}}{_WIDTH}?(?:\.{_WIDTH})?[hlL]?[a-zA-Z]",                   # %(name)s
    r"%[-#0+']{0,4}\d{0,4}(?:\.\d{1,4})?<PRI\w{1,20}>", r'%[-#0+]{0,4}\d{0,4}"PRI\w{1,20}"',         # %<PRIu64>
    r"%<\w{1,60}>[-#0+]{0,4}\d{0,4}(?:\.\d{1,4})?[a-zA-Z]", r"%\{[^{}\n]{1,100}\}",                 # %<name>s, %{name}
    r"(?<![\w%])%[A-Za-z_]\w{1,40}%(?![\w%])", r"(?<!\d)%\d{1,2}%(?![\w%])",                        # %NAME%, %1%
    rf"{_NOT_OF_A_NUMBER}%[a-z]{{2,}}(?!\p{{Ll}})",                                                 # %s, with letters
    rf"{_NOT_OF_A_NUMBER}%[a-zA-Z@](?!\p{{Ll}})",                                                   # %s, %B
    r"%[sdu@](?!\w)",
    rf"{_NOT_OF_A_NUMBER}%{_SIZE}[diouxXeEfFgGaAcsn]",
    rf"%\d{{1,2}}\$[-#0+']{{0,4}}{_WIDTH}?(?:\.{_WIDTH}?)?{_SIZE}?[a-zA-Z@]",                        # %1$s
    rf"{_NOT_OF_A_NUMBER}%(?=[-#0+'*.\d])[-#0+']{{0,4}}{_WIDTH}?(?:\.{_WIDTH}?)?{_SIZE}?"
    r"[diouxXeEfFgGaAcsp@](?!\p{Ll}{3})"))
_NUMBERED = r"(?<![\d%])%[L]?[1-9](?![\d%]|[.,]\d)"
"""Placeholders of Qt (`%1`). They are found in texts with `%1` alone, because Turkish writes `%50` for a number."""
_TWO_LEVELS = r"\{(?:[^{}]{1,300}+|\{[^{}]{0,300}\}){0,40}+\}"
_TAGS = ("a|abbr|b|big|blockquote|br|code|del|div|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|ol|p|pre|q|s|small|span|"
         "strong|sub|sup|table|tbody|td|th|thead|tr|tt|u|ul|A|B|BR|I|P|U")
_ATTRIBUTES = r"(?:\s{1,5}[\w:-]{1,40}=(?:\"[^\"<>\n]{0,300}\"|'[^'<>\n]{0,300}')){0,10}\s{0,5}"
_OTHER_PLACEHOLDERS = "|".join((
    r"\{\{\{?[^{}\n]{1,100}\}?\}\}", r"\{%[^{}\n]{1,100}%\}", r"<%[^<>\n]{1,100}%>",                # templates
    r"\{\s*[\w.-]{1,60}\s*,\s*(?:plural|select|selectordinal|number|date|time|choice|spellout|ordinal|duration)\b"
    rf"(?:[^{{}}]{{1,300}}+|{_TWO_LEVELS}){{0,40}}+\}}",                                               # ICU messages
    r"[$#@!]\{[^{}\n]{1,100}\}",                                                                    # ${NAME}
    r"(?<![^\s(\"'>]):[a-z][A-Za-z_]{2,30}(?![\w:])",                                                 # :name
    r"\{ ?\$?[\w.-]{1,60} ?\}", r"\{[\w.]{0,40}:%[^{}\n]{1,60}\}",
    r"\{(?:[^{}\s]|\{[^{}\s]{0,40}\}){0,80}\}",                                                     # {}, {0}, {x:>{n}}
    r"(?<![\w$])\$[A-Za-z_]?\w{0,60}\([^()\n]{1,100}\)",                                            # $t(key), $(NAME)
    r"(?<![\w$])\$[A-Z_]{2,60}\$(?!\w)", r"(?<![\w$])(?:\$[A-Za-z_]\w{0,60})+",                     # $NAME$, $NAME
    r"&(?:[A-Za-z]\w{1,30}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});",                                       # &nbsp;
    r"(?<![\w\\])[A-Za-z]:\\[^\s<>\"|?*]{0,199}[^\s<>\"|?*.,;:!]",                                   # C:\path
    r"\\(?:[nrt]|[abfv0\\](?![A-Za-z])|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})",                           # \n
    r"</?\d{1,3} ?/?>",                                                                             # <0/>
    rf"</?(?:{_TAGS}){_ATTRIBUTES}>|<[A-Za-z][\w:-]{{0,40}}{_ATTRIBUTES}/>"))                         # <b>, <br/>
_PLACEHOLDERS = regex.compile(f"(?:{_OTHER_PLACEHOLDERS}|{_PERCENT})+")
_PLACEHOLDERS_OF_QT = regex.compile(f"(?:{_OTHER_PLACEHOLDERS}|{_PERCENT}|{_NUMBERED})+")
_FIRST_OF_QT = regex.compile(r"%L?1(?![\d%]|[.,]\d)")
_SIGN_OF_PLACEHOLDER = re.compile(r"[{<$&\\%]|:[a-z]")
"""Each placeholder has one of these signs."""


def placeholders_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of placeholders in a text."""
    if not _SIGN_OF_PLACEHOLDER.search(text):
        return
    pattern = _PLACEHOLDERS_OF_QT if _FIRST_OF_QT.search(text) else _PLACEHOLDERS
    for match in pattern.finditer(text):
        yield match.span()


_SEEN_BY_MODELS = "\u00b0\u2103\u2109\u2116\u2e80-\u2fd5"
"""Degrees and the sign for a number, which read as words and which translations may spell out; and radicals, which are
read as Chinese characters."""
_SYMBOL = (r"[\p{Extended_Pictographic}\p{So}\p{EMod}\u2190-\u21ff\u27f0-\u27ff\u2900-\u297f\u2b00-\u2bff"
           r"\u00a7\u00b6\u2020\u2021\u2022\u2023\u2043\u2219\u00b9\u00b2\u00b3\u2070\u2074-\u208e]")
_CHANGED = r"(?:[\ufe0e\ufe0f\u20e3\U000e0020-\U000e007f]|\p{EMod})*"
"""Selectors of a presentation, skin tones, and the letters of flags of regions."""
_SEQUENCE = rf"{_SYMBOL}{_CHANGED}(?:\u200d{_SYMBOL}{_CHANGED})*"
_ONE_SYMBOL = rf"(?![{_SEEN_BY_MODELS}])(?:\p{{RI}}{{2}}|{_SEQUENCE})|[0-9#*]\ufe0f?\u20e3"
_SYMBOLS = regex.compile(rf"(?:{_ONE_SYMBOL})+")
_RAISED = "\u00b2\u00b3\u00b9\u2070\u2074-\u208e"
_FORMULA = regex.compile(rf"(?<![\w{_RAISED}])(?=\w{{1,30}}[{_RAISED}]{{1,9}}\p{{L}})"
                         rf"[\w{_RAISED}]{{1,60}}(?![\w{_RAISED}])")


def symbols_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of symbols."""
    return ((match.start(), match.end()) for match in _SYMBOLS.finditer(text)) if not text.isascii() else iter(())


def formulas_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each word with raised or lowered digits inside, such as `H\u2082O`."""
    return ((match.start(), match.end()) for match in _FORMULA.finditer(text)) if not text.isascii() else iter(())


_WORD_OF_CODE = r"[A-Za-z_][A-Za-z0-9_]{0,60}"
_CODES = regex.compile("|".join((
    r"(?<![\w-])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![\w-])",                     # IBAN
    r"(?<![\w-])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![\w-])",                       # UUID
    r"(?<![\w:-])\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?(?![\w-])",      # a time
    r"(?<![\w:.])(?=[0-9A-Fa-f:]{0,40}::|(?:[0-9A-Fa-f]{1,4}:){7})(?:[0-9A-Fa-f]{1,4}|::?)(?::?:[0-9A-Fa-f]{1,4}){1,7}"
    r"(?:::)?(?:/\d{1,3})?(?![\w:])",                                                                 # fe80::1
    r"(?<![\w:-])(?=[\w:-]{0,80}?(?:\d[:_-]?[A-Za-z]{1,3}[:_-]?\d{1,20}[:_-]?[A-Za-z]"              # 0x1F4A, R2D2
    r"|[A-Za-z][:_-]?\d{1,20}[:_-]?[A-Za-z]{1,3}[:_-]?\d))"
    r"(?:\d++|[A-Za-z]{1,3}+(?![A-Za-z])|[:_-](?=[A-Za-z\d]))++(?![\w-])",
    rf"(?<![\w.\\/&$])(?:{_WORD_OF_CODE}(?:\.|::|->)){{0,5}}{_WORD_OF_CODE}\(\)(?!\w)",                   # get_name()
    r"(?<![\w.\\/&$-])(?=[A-Za-z_]{0,60}[A-Za-z0-9]_[A-Za-z0-9])(?!\w{1,60}[a-z]_in(?:nen)?(?!\w))"       # MAX_VALUE
    r"[A-Za-z_][A-Za-z0-9_]{3,60}(?![\w-])",
    rf"(?<![\w.\\/&$-])(?:{_WORD_OF_CODE}(?:\.|::|->)){{1,5}}[a-z]{{1,30}}[A-Z][A-Za-z0-9]{{0,40}}(?!\w)",       # a.b
    r"(?<![\w-])--[a-z][A-Za-z0-9]{1,30}(?:-[A-Za-z0-9]{1,30}){0,6}(?:=[^\s,;!?()]{1,80}(?<!\.))?"
    r"(?![\w-])",                                                                                      # --help
    r"(?<![^\s(\[])-(?:[a-z]|(?<=[\w,] -|[(\[]-)[A-Z]|[A-Z](?=[\])]|$))(?![\w-])",                      # -v
    rf"(?<![^\s(\[])(?:{_WORD_OF_CODE}=(?=[^\s=]))(?:[\w.*/^+\u00b2\u00b3-]{{1,40}})(?<![.-])(?![\w(])",   # E=mc\u00b2
    r"(?<![\w$\\])\$(?=[^\s$])(?=[^$\n]{0,100}[\\^_={}])[^$\n]{1,100}(?<![\s\\])\$(?![\w$])",        # $x^2$
    r"(?<![\w`])`(?=[^\s`])[^`\n]{1,100}(?<!\s)`(?![\w`])")))                                        # `ls`
_SIGN_OF_CODE = re.compile(r"[\d$`_:=]|[.>][a-z]+[A-Z]|\(\)|(?<![\w-])--?[A-Za-z]")


def codes_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each code, address of a device, formula in LaTeX, and word of a program."""
    return (match.span() for match in _CODES.finditer(text)) if _SIGN_OF_CODE.search(text) else iter(())


class PlainShielded(Shielded):
    """Protected words that were found in plain text, and are written as plain text."""

    __slots__ = ()


class Attached(Mark):
    """A symbol, or a sign next to a word, that the model does not see; it is treated as a single mark.

    Attributes:
        content: the parts of the segment that form the symbol.
    """

    __slots__ = ()

    @property
    def text(self) -> str:
        """The characters that readers see."""
        return "".join(part.text if isinstance(part, Attached) else plain_text((part,)) for part in self.content)


WORD = r"[\p{L}\p{N}_][\p{L}\p{M}\p{N}_\u200c\u200d]*+"
"""A word for a pattern of the module `regex`: letters with their marks and joiners, digits and underscores."""
_WORD = regex.compile(rf"(?<!\w){WORD}(?!\w)")
_USUAL_PLACEHOLDER = re.compile(r"X(\d+)", re.IGNORECASE)
_QUANTITY = re.compile(r"[-−]?(?:[€$£¥₹][ \u00a0]?)?"
                       r"(?:\d{1,3}(?:[., \u00a0\u202f]\d{3})+(?:[.,]\d{1,2})?|\d+(?:[.,]\d+)?)"
                       r"(?:[ \u00a0\u202f]?[^\W\d_/]{1,4}(?:/[hs])?[\u00b2\u00b3]?|[ \u00a0\u202f]?[%‰°€$£¥₹]C?)?")
"""A number with its unit, but no date, time or telephone number."""


@dataclass(frozen=True)
class Protection:
    """The words and symbols of plain text that a translation must not change.

    Attributes:
        is_on: whether addresses, formulas, placeholders, codes and symbols are protected.
        patterns: regular expressions of further words.
        words: further words, of any length. Unlike a pattern, a word is not compiled: the `regex` module prepares its
            search for a word of repeated letters in cubic time.
        joined_words: further words, of which several with single spaces between them are protected together.

    Raises:
        SettingsError: a pattern is not a regular expression.
    """

    is_on: bool = True
    patterns: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    joined_words: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            compiled_pattern(pattern)

    def spans(self, text: str) -> Iterator[tuple[int, int, bool]]:
        """Yield start and end of each protected span in order, without overlaps, and whether it is a symbol."""
        spans = [(*match.span(), False) for pattern in self.patterns
                 for match in compiled_pattern(pattern).finditer(text) if match[0].strip()]
        spans += [(start, end, False) for start, end in self._spans_of_words(text)]
        end_of_last = 0
        if self.is_on:
            spans += [(start, end, False) for finder in (addresses_in, formulas_in, placeholders_in, codes_in)
                      for start, end in finder(text)]
            spans += [(start, end, True) for finder in (symbols_in, emoticons_in) for start, end in finder(text)]
        for start, end, is_symbol in sorted(spans, key=lambda span: (span[0], span[2], -span[1])):
            if start >= end_of_last:
                yield start, end, is_symbol
                end_of_last = end

    def _spans_of_words(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each of the words, and of each run of the joined words."""
        if not (self.words or self.joined_words):
            return []
        spans: list[tuple[int, int]] = []
        runs: list[tuple[int, int]] = []
        for match in _WORD.finditer(text):
            if match[0] in self.words:
                spans.append(match.span())
            if match[0] in self.joined_words:
                is_next = bool(runs) and runs[-1][1] + 1 == match.start() and text[match.start() - 1] == " "
                runs.append((runs.pop()[0] if is_next else match.start(), match.end()))
        return spans + runs


EVERYTHING, NOTHING = Protection(), Protection(False)


_LONGEST_LITERAL = 500
_LONG_LITERAL = re.compile(rf"(?:[^|()\[\]{{}}.*+?\\^$]|\\\W){{{_LONGEST_LITERAL + 1}}}")
"""Literal text of a pattern for which the `regex` module could prepare its search for too long."""


@lru_cache(256)
def compiled_pattern(pattern: str) -> regex.Pattern[str]:
    """Return a regular expression of words to protect.

    Raises:
        SettingsError: it is not a regular expression, or it contains too long a literal text.
    """
    if _LONG_LITERAL.search(pattern):
        raise SettingsError(f"protect '{pattern[:40]}...': the pattern has a text of more than {_LONGEST_LITERAL} "
                            "characters without alternatives or repetitions, whose search takes too long: shorten it.")
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise SettingsError(f"protect '{pattern}': this is not a regular expression ({error}): correct it, and write a "
                            "backslash before each sign that stands for itself.") from None


def with_shields(text: str, protection: Protection = EVERYTHING) -> Iterator[str | PlainShielded | Attached]:
    """Yield plain text, and the protected words and symbols in it."""
    end_of_last = 0
    for start, end, is_symbol in protection.spans(text):
        if start > end_of_last:
            yield text[end_of_last:start]
        yield Attached("single", -1, (text[start:end],)) if is_symbol else PlainShielded(text[start:end], None)
        end_of_last = end
    if end_of_last < len(text):
        yield text[end_of_last:]


def make_placeholders(shielded: Sequence[str], text: str, known_words: Sequence[str] = ()) -> list[str]:
    """Return placeholders for shielded words, which do not occur in a text.

    A placeholder is a name or a number that the model knows, or a capital letter with a number, like the name of a
    variable or vitamin: vocabularies contain such words, and many models copy them.

    Args:
        shielded: the shielded words.
        text: text without the shielded words.
        known_words: names, and numbers for quantities, that the model copies.
    """
    used = set(_USUAL_PLACEHOLDER.findall(text))
    folded_text = text.casefold()
    words = [word for word in known_words if word.casefold() not in folded_text] if shielded else []
    numbers, names = (iter([word for word in words if word.isdigit() == is_number]) for is_number in (True, False))
    usual = (f"X{index}" for index in count(1) if str(index) not in used)
    return [next(numbers if _QUANTITY.fullmatch(word) else names, None) or next(usual) for word in shielded]


def number_of_usual_placeholder(name: str) -> str | None:
    """Return the digits of a placeholder such as `X1`; None for a known name or number."""
    match = _USUAL_PLACEHOLDER.fullmatch(name)
    return None if match is None else match[1]


def placeholder_pattern(placeholders: Iterable[str]) -> re.Pattern[str]:
    """Return a regular expression that matches placeholders, in any case, and further words like them.

    A name may have an ending of up to two letters, which does not belong to the placeholder: `Toms` in German.

    Args:
        placeholders: the placeholders of a sentence.
    """
    return _pattern_with(tuple(word for word in placeholders if number_of_usual_placeholder(word) is None))


@lru_cache(256)
def _pattern_with(words: tuple[str, ...]) -> re.Pattern[str]:
    letter = rf"[^\W\d_{UNSPACED}]"
    patterns = [rf"(?<![\d.,]){word}(?!\d|[.,]\d)" if word.isdigit() else rf"{word}(?!{letter}{{3}})"
                for word in words]
    return re.compile(rf"(?<!{letter})(?:{'|'.join([*patterns, _USUAL_PLACEHOLDER.pattern])})", re.IGNORECASE)


def find_placeholders(names: Mapping[str, int], pattern: re.Pattern[str], text: str) -> list[tuple[int, int, int]]:
    """Return value, start and end of each placeholder in a translation.

    Args:
        names: the values of the placeholders, by placeholder.
        pattern: their regular expression, from `placeholder_pattern`.
        text: the translation.
    """
    matches = ((names.get(match[0].capitalize()), match) for match in (pattern.finditer(text) if names else ()))
    return [(number, match.start(), match.end()) for number, match in matches if number is not None]
