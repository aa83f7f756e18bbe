r"""Find the numbers of a line that its translation must have, and compare them by their values.

- Numbers are those with three digits or more, with separators, or with a unit: `1,000.5`, `10–20`, `12 €`, `-5 °C`,
  `1920x1080`, `(030) 123 45 67`, `52°31′12″N`. Times of the twelve-hour clock may change, so they are not found.
- Small numbers have one or two digits and no unit, or are two of these: `3`, `3-4`, `1/2`.
- Names with digits, such as `CO2`, `A4` and `12a`, are words. In some languages, `2a` is an ordinal number.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher

_GROUPED = r"\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)(?:[.,]\d+)?"
_PHONE = (r"\+\d{1,3}(?:[ \u00a0/-]?(?:\(\d{1,6}\)|\d{2,12})){1,6}(?!\d)"
          r"|(?:\(0\d{1,5}\)|(?=0(?:\D?\d){7})0\d{1,5})(?:[ \u00a0/-]{1,3}\d{2,12}){1,6}(?!\d)"
          r"|\(\d{3}\) ?\d{3}[ -]\d{4}(?!\d)")
_ANGLE = r"\d{1,3}° ?\d{1,2}(?:[.,]\d+)?[′'’](?: ?\d{1,2}(?:[.,]\d+)?(?:[″\"”]|''))?(?: ?[NSWEO]\b)?"
_SEPARATOR = r"(?:[.,:/'’\u066b\u066c–-]|(?: ?× ?| ?x (?=\d)|x)(?=\d))"
_DIGITS = rf"{_PHONE}|{_ANGLE}|{_GROUPED}|\d+(?:{_SEPARATOR}\d+)*(?:[eE][+-]?\d+)?"
_CURRENCIES = "EUR USD GBP CHF JPY CNY CAD AUD SEK NOK DKK PLN CZK HUF INR BRL".split()
_UNITS = ("% ‰ °C °F ° € $ £ ¥ ₹ km/h m/s km² m² cm² km cm mm µm nm m kg mg g ml cl l kB KB MB GB "
          "TB Mbit/s Hz kHz MHz GHz kWh kW MW px dpi x").split()
_CASED_UNITS = ["W", "V", "mA", "ms", *_CURRENCIES]
"""Units that are words in another case: `5 w domu`, `5 v Praze`, `5 ma non`, `in 2015 Ms Miller`, `5 Sek.`"""
_UNIT = "|".join([*map(re.escape, sorted(_UNITS, key=len, reverse=True)), f"(?-i:{'|'.join(_CASED_UNITS)})"]).replace(
    "%", r"%(?!\()")    # not of %(name)s
_CLITIC = r"['’]\w|-(?-i:[a-z])"
"""Signs after a letter that is another word, not a unit: `nel 2015 l'azienda`, `în 2015 m-am mutat`."""
_CURRENCY = rf"[€$£¥₹][ \u00a0]?|(?<!\w)(?-i:{'|'.join(_CURRENCIES)})[ \u00a0]"
_SIGN = r"(?<![^\s(\[\"'„“»])[-−]"
_NUMBER = re.compile(rf"(?:{_SIGN})?(?P<before>{_CURRENCY})?(?<![\w.,])(?:[vV](?=\d+(?:\.\d+)+(?!\.?\w)))?"
                     rf"(?P<digits>{_DIGITS})(?P<unit>[ \u00a0\u202f]?(?:{_UNIT})(?!{_CLITIC}))?"
                     r"(?![\w%])(?!\s?[ap]\.?m\b)", re.IGNORECASE)
_SMALL_NUMBER = re.compile(r"(?<![\w.,:/–-])\d{1,2}(?:[/–-]\d{1,2})?(?![\w%]|[.,:/–-]\d)")
_SHORT_RANGE = re.compile(r"\d{1,2}[/–-]\d{1,2}")
_RUN_OF_DIGITS = re.compile(_DIGITS)
_GROUP = re.compile(r"\d+")
_THOUSANDS = re.compile(r"(?<![\d:])(\d{1,3}(?:\.\d{3})+)(?![\d:])")
_SHORT_GROUP = re.compile(r"(?<!\d)\d{1,2}(?!\d)")
_AFTER_A_NUMBER = re.compile(r"[ \u00a0\u202f]?(?:[^\W\d_]|[%‰°€$£¥₹×])")
_BEFORE_A_NUMBER = re.compile(r"(?:[€$£¥₹]|\b[A-Z]{3})[ \u00a0\u202f]?$")
_NEGATIVE = re.compile(r"[-−–] ?(?:[€$£¥₹][ \u00a0]?)?$")
_BEFORE = 5
"""Maximum number of characters before a number that these two expressions read."""
_NAME = re.compile(r"(?<![\w-])(?=[A-Za-z]*\d)(?:[A-Za-z]{0,4}[A-Z][A-Za-z]?\d{1,4}[A-Za-z]{0,3}|\d{1,4}[A-Z]{1,3}"
                   r"|\d{1,4}[a-dfi-knp-rt-uyz])(?![\w-]|[.,]\d)")
"""Letters with a digit. `1st`, `90s`, `3x`, `8h`, and ordinal numbers such as `19e` and `5o` are spelled out."""
_SPELLED_OUT = re.compile(r"\d{1,4}(?:ST|ND|RD|TH|S|X|H|E|ER|O)")
"""The same in a line in capitals."""
_SPELLED_OUT_LETTERS = {"af": "u", "ca": "anrt", "eo": "a", "es": "a", "fr": "d", "gl": "a", "it": "a", "nl": "u",
                        "oc": "a", "pt": "a", "sv": "a"}
"""Letters after a number that is spelled out in a language: ordinal numbers such as `la 2a edizione`, `el 4t pis` and
`le 2d tour`, and hours such as `om 20u`."""
_OPERAND = r"(?:[-−]?\d[\d.,]*(?<=\d)[\u00b2\u00b3\u00b9\u2070-\u2079]*|[A-Za-z](?!\w)[\u00b2\u00b3]?)"
_EQUATION = re.compile(rf"(?<![\w.,]){_OPERAND}(?: ?[-−+*<>=≤≥≠≈×÷·^] ?{_OPERAND})+(?!\w)"
                       r"|(?<!\w)(?:\d+ ?)?[¼-¾⅐-⅞](?!\w)")
_OPERATOR = re.compile(r"[+*<>=≤≥≠≈×÷·^¼-¾⅐-⅞]")
_HOURS = 24
_CLOCK = re.compile(r"(?<![\d.:])(\d{1,2})[:.][0-5]\d(?![\d.:])")
_SIMILAR = 0.5
"""Minimum similarity of the digits of two numbers, 0 to 1, at which one is a damaged copy of the other."""
_COMPARED = 200
"""Maximum number of digits that are compared: the time is the square of their number."""


def numbers_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each number that a translation must keep, with its sign and unit."""
    for match in _NUMBER.finditer(text):
        digits = match["digits"]
        unit = (match["unit"] or "").strip().lower()
        has_unit = bool(match["before"] or unit and unit != "x")      # `3x` may be "thrice"
        if has_unit or sum(map(str.isdigit, digits)) > 2 or (
                not digits.isdigit() and not _SHORT_RANGE.fullmatch(digits)):
            yield match.span()


def names_with_digits_in(text: str, language: str = "") -> Iterator[tuple[int, int]]:
    """Yield start and end of each short name of letters and digits that a translation must keep.

    Args:
        text: the text.
        language: ISO 639-1 code of its language, in which `2a` may be an ordinal number; "" if it is unknown.
    """
    is_upper = text.isupper()
    letters = _SPELLED_OUT_LETTERS.get(language, "")
    for match in _NAME.finditer(text):
        name = match[0].lower() if is_upper else match[0]
        is_spelled_out = name[-1] in letters and name[:-1].isdigit()
        if not is_spelled_out and not (is_upper and _SPELLED_OUT.fullmatch(match[0])):
            yield match.span()


def equations_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each equation of numbers and variables (`2 + 2 = 4`) and of fractions such as `½`."""
    return (match.span() for match in _EQUATION.finditer(text) if _OPERATOR.search(match[0]))


def small_numbers_in(text: str) -> Iterator[tuple[int, int, list[int]]]:
    """Yield start, end and values of each small number, or of two that form a range or a fraction."""
    return ((*match.span(), [int(value) for value in _GROUP.findall(match[0])]) for match in
            _SMALL_NUMBER.finditer(text))


def number_value(text: str) -> str:
    """Return the digits of a number as those of ASCII, without separators of thousands and with a point for others.

    A colon and a slash do not separate thousands: `4:340` is not `4,340`.
    """
    groups = ["".join(str(unicodedata.digit(c)) for c in group) for group in _GROUP.findall(text)]
    separators = [":" if {":", "/"} & set(separator) else "." for separator in _GROUP.split(text)[1:-1]]
    value = "".join(part for pair in zip(groups, [*separators, ""], strict=True) for part in pair)
    return _THOUSANDS.sub(lambda match: match[0].replace(".", ""), value).replace(":", ".")


def runs_of_digits(text: str) -> Iterator[re.Match[str]]:
    """Yield the numbers of a text, of any size, without signs and units."""
    return _RUN_OF_DIGITS.finditer(text)


def number_counts(text: str) -> Counter[str]:
    """Return how often the text has each number, by its value."""
    return Counter(number_value(match[0]) for match in runs_of_digits(text))


def values_with_units(text: str) -> set[str]:
    """Return the values of the numbers with units in a text. Any word after a number may be a unit."""
    return {number_value(match[0]) for match in runs_of_digits(text)
            if _AFTER_A_NUMBER.match(text, match.end()) or _BEFORE_A_NUMBER.search(_text_before(match))}


def units_of_values(text: str) -> set[tuple[str, str]]:
    """Return the value and the unit of each number that has a unit, such as `("12", "€")`."""
    pairs = ((number_value(match["digits"]), (match["unit"] or match["before"] or "").strip().lower())
             for match in _NUMBER.finditer(text))
    return {(value, unit) for value, unit in pairs if unit and unit != "x"}


def negative_values(text: str) -> set[str]:
    """Return the values of the numbers after a minus sign in a text."""
    return {number_value(match[0]) for match in runs_of_digits(text) if _NEGATIVE.search(_text_before(match))}


def _text_before(match: re.Match[str]) -> str:
    """Return the characters before a number that show its currency or its sign."""
    return match.string[max(match.start() - _BEFORE, 0):match.start()]


def lost_values(source: str, small_counts: Counter[int], translation: str) -> list[int]:
    """Return the different small numbers of a line that its translation lacks.

    An hour may be that of the other clock (`14` and `2`), or the one before it (`halb 8` and `7:30`).

    Args:
        source: the line.
        small_counts: frequency of its small numbers, by value.
        translation: the translation.
    """
    line_counts, translation_counts = (Counter(map(int, _SHORT_GROUP.findall(text))) for text in (source, translation))
    hours = {(hour + 12) % _HOURS for hour in translation_counts if hour <= _HOURS and not line_counts[hour]}
    hours |= {(int(match[1]) + later) % _HOURS for match in _CLOCK.finditer(translation) for later in (1, 13)}
    return [value for value, count in small_counts.items()
            if translation_counts[value] < count and not (value <= _HOURS and value % _HOURS in hours)]


def are_similar(number: str, other_number: str) -> bool:
    """Return whether two numbers have equally many groups of digits, and most of their (first) digits in common."""
    groups, other_groups = _GROUP.findall(number), _GROUP.findall(other_number)
    return len(groups) == len(other_groups) and SequenceMatcher(
        None, "".join(groups)[:_COMPARED], "".join(other_groups)[:_COMPARED], autojunk=False).ratio() >= _SIMILAR
