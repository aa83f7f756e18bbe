"""Modifiers of training pairs: capitals, typos, noise and copied spans, so that a model learns to translate them.

OpusTrainer calls such functions modifiers. A modified pair is a pure function of the pair, the next pair with the same
tags (another tag may stand for another target language) and a key of random numbers, so that a resumed run modifies
each pair as an uninterrupted run does.

| modifier | source | target |
|---|---|---|
| `upper` | in capitals | in capitals |
| `title` | with a capital at each word | with a capital at each word |
| `typos` | one typo in about six words: a neighbouring key, a swap, a doubling, an omission | unchanged |
| `noise` | final punctuation missing or doubled, accents missing, other quotes | unchanged |
| `emoji` | with an emoji or a symbol | with the same at the same end |
| `spans` | with an address, a number, or a placeholder | with the same at the corresponding position |
| `join` | with the next pair's source | with the next pair's target |
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import regex  # type: ignore[import-untyped]

from towernmt.core.errors import SettingsError, suggestion
from towernmt.dataflow.text.clean_text import split_tags
from towernmt.dataflow.text.letter_case import has_case, title_case, upper_case
from towernmt.dataflow.text.word_segmentation import LETTERS

TextPair = tuple[str, str]
"""Source and target of a sentence pair."""
_FINAL = re.compile(r"(?<![.!?…。！？])[.!?…。！？]+\s*$")
"""Final marks; the part before them makes the time linear in a long row of them."""
# The words of Indian scripts have marks, which are not in the `\w` of `re`.
_TOKEN = regex.compile(r"[\p{L}\p{N}][\p{L}\p{M}\p{N}]+")
_ROWS = {"": ("qwertyuiop", "asdfghjkl", "zxcvbnm"), "de": ("qwertzuiopü", "asdfghjklöä", "yxcvbnm"),
         "fr": ("azertyuiop", "qsdfghjklm", "wxcvbn")}
_QUOTES = {'"': "“", "'": "’", "“": '"', "”": '"', "„": '"', "’": "'", "‘": "'", "«": '"', "»": '"'}
_EMOJI = ("😀", "😂", "😊", "😍", "😉", "😢", "😡", "🤔", "🙏", "👍", "👋", "💪", "🎉", "🔥", "✨", "❤️", "💯", "✅",
          "❌", "⚠️", "⭐", "☀️", "🇩🇪", "👩‍💻", "👍🏽", "→", "•", "★", "✓", "™", "©")
_NAMES = ("example", "shop", "news", "docs", "mail", "data", "blog", "test", "cloud", "server")
_ENDINGS = (".com", ".org", ".net", ".de", ".eu", ".io", ".co.uk")
_UNITS = ("%", " %", " km", " kg", " m", " €", " MB", " °C", "x", " cm²")
_SEARCHED = 64  # number of pairs after a pair among which `join` looks for one with the same tags


class PairText:
    """The texts that a modifier changes, without the tags of the source, and the next pair.

    Attributes:
        source, target: the present texts.
        following: source and target of the next pair, without tags; None at the end.
        languages: ISO 639-1 codes of source and target, or "".
    """

    def __init__(self, source: str, target: str, following: TextPair | None, languages: tuple[str, str]) -> None:
        self.source, self.target, self.following, self.languages = source, target, following, languages


def _upper(pair: PairText, draw: random.Random) -> None:
    if has_case(pair.source) and has_case(pair.target):
        pair.source = upper_case(pair.source, pair.languages[0])
        pair.target = upper_case(pair.target, pair.languages[1])


def _title(pair: PairText, draw: random.Random) -> None:
    if has_case(pair.source) and has_case(pair.target):
        pair.source = title_case(pair.source, pair.languages[0])
        pair.target = title_case(pair.target, pair.languages[1])


def _typos(pair: PairText, draw: random.Random) -> None:
    count = max(1, round(len(pair.source.split(" ")) / 6))
    pair.source = with_typos(pair.source, count, draw, pair.languages[0], least_letters=3)


def with_typos(text: str, count: int, draw: random.Random, language: str = "", least_letters: int = 2) -> str:
    """Return a text with a typo in each of `count` words, or in all of its words if it has fewer.

    Args:
        text: words with single spaces between them.
        count: number of words.
        draw: random numbers.
        language: ISO 639-1 code, which decides the keyboard.
        least_letters: number of letters of the shortest word that can have a typo.
    """
    words = text.split(" ")
    indices = [index for index, word in enumerate(words) if sum(map(str.isalpha, word)) >= least_letters]
    for index in draw.sample(indices, min(count, len(indices))):
        words[index] = with_typo(words[index], draw, language)
    return " ".join(words)


def with_typo(word: str, draw: random.Random, language: str = "") -> str:
    """Return a word with a typo in one of its letters.

    Args:
        word: a word with at least two letters.
        draw: random numbers.
        language: ISO 639-1 code, which decides the keyboard.
    """
    letters = [index for index, c in enumerate(word) if c.isalpha()]
    index = draw.choice(letters)
    kind = draw.choice(("neighbour", "swap", "double", "omit"))
    if kind == "neighbour" and (near := neighbouring_keys(word[index], language)):
        key = draw.choice(near)
        return word[:index] + (key.upper() if word[index].isupper() else key) + word[index + 1:]
    if kind in ("neighbour", "swap"):
        other = index + 1 if index + 1 < len(word) else index - 1
        first, last = min(index, other), max(index, other)
        if word[first] != word[last]:
            return word[:first] + word[last] + word[first] + word[last + 1:]
    return word[:index] + (word[index] * 2 if kind == "double" else "") + word[index + 1:]


def neighbouring_keys(letter: str, language: str) -> list[str]:
    """Return the keys next to a letter on the keyboard of a language; none for letters of other keyboards."""
    rows = _ROWS.get(language, _ROWS[""])
    for number, row in enumerate(rows):
        column = row.find(letter.lower())
        if column >= 0:
            found = [row[c] for c in (column - 1, column + 1) if 0 <= c < len(row)]
            for other in (number - 1, number + 1):
                if 0 <= other < len(rows) and column < len(rows[other]):
                    found.append(rows[other][column])
            return found
    return []


def _noise(pair: PairText, draw: random.Random) -> None:
    kinds: list[Callable[[str], str]] = [
        lambda text: _FINAL.sub("", text) or text,
        lambda text: _FINAL.sub(lambda match: match[0].strip()[-1] * 2, text),
        without_accents, lambda text: "".join(_QUOTES.get(c, c) for c in text)]
    draw.shuffle(kinds)
    for kind in kinds:      # the first one that changes something
        changed = kind(pair.source)
        if changed != pair.source:
            pair.source = changed
            return


def without_accents(text: str) -> str:
    """Return the text without the accents of Latin letters, as typed on a keyboard without these keys."""
    return "".join(
        unicodedata.normalize("NFD", c)[0] if "LATIN" in unicodedata.name(c, "") and unicodedata.decomposition(c) else c
        for c in text)


def _emoji(pair: PairText, draw: random.Random) -> None:
    symbol = drawn_emoji(draw)
    where = draw.choice(("begin", "end", "before the full stop"))
    pair.source, pair.target = (with_span(text, symbol, where) for text in (pair.source, pair.target))


def drawn_emoji(draw: random.Random) -> str:
    """Return an emoji or a symbol, sometimes twice."""
    return draw.choice(_EMOJI) * draw.choice((1, 1, 1, 2))


def with_span(text: str, span: str, where: str) -> str:
    """Return a text with a span at its `begin`, at its `end`, or `before the full stop`."""
    final = _FINAL.search(text)
    if where == "begin":
        return f"{span} {text}"
    if where == "end" or final is None:
        return f"{text} {span}"
    return f"{text[:final.start()]} {span}{text[final.start():]}"


def _spans(pair: PairText, draw: random.Random) -> None:
    """Replace a word that both sides have, such as a name or a number, or put the span at the end of both."""
    span = draw.choice(_SPANS)(draw)
    source_counts, target_counts = (Counter(LETTERS.findall(text)) for text in (pair.source, pair.target))
    shared = [word for word in dict.fromkeys(_TOKEN.findall(pair.source))
              if source_counts[word] == 1 == target_counts[word]]
    if shared:
        word = draw.choice(shared)
        pair.source, pair.target = (LETTERS.sub(lambda match: span if match[0] == word else match[0], text)
                                    for text in (pair.source, pair.target))
        return
    where = draw.choice(("end", "before the full stop"))
    pair.source, pair.target = (with_span(text, span, where) for text in (pair.source, pair.target))


def _name(draw: random.Random) -> str:
    return draw.choice(_NAMES) + (str(draw.randrange(100)) if draw.random() < 0.3 else "")


def drawn_address(draw: random.Random) -> str:
    """Return a web address."""
    path = "".join(f"/{_name(draw)}" for _ in range(draw.randrange(3)))
    query = f"?{draw.choice('abnqxy')}={draw.randrange(1000)}" if draw.random() < 0.4 else ""
    prefix = draw.choice(("https://", "https://www.", "http://", "www."))
    return f"{prefix}{_name(draw)}{draw.choice(_ENDINGS)}{path}{query}"


def _mail(draw: random.Random) -> str:
    return f"{_name(draw)}{draw.choice(('', '.', '_'))}{_name(draw)}@{_name(draw)}{draw.choice(_ENDINGS)}"


def drawn_number(draw: random.Random) -> str:
    """Return a number, sometimes with separators or a unit."""
    digits = str(draw.randrange(10 ** draw.randint(1, 8)))
    if draw.random() < 0.3:
        digits += draw.choice(".,:/-") + str(draw.randrange(1000))
    return digits + (draw.choice(_UNITS) if draw.random() < 0.2 else "")


def drawn_placeholder(draw: random.Random) -> str:
    """Return a placeholder of a program, or a path."""
    name = draw.choice(_NAMES)
    forms = ("{%s}", "{{%s}}", "%%(%s)s", "$%s", "<%s/>", "@%s", "#%s", "%s.txt", "/home/%s", "C:\\%s")
    return draw.choice(("%s", "%d", *(form % name for form in forms)))


_SPANS = (drawn_address, _mail, drawn_number, drawn_number, drawn_placeholder)


def _join(pair: PairText, draw: random.Random) -> None:
    if pair.following is not None:
        pair.source, pair.target = (f"{one} {other}" for one, other in zip(
            (pair.source, pair.target), pair.following, strict=True))


MODIFIERS: dict[str, Callable[[PairText, random.Random], None]] = {
    "upper": _upper, "title": _title, "typos": _typos, "noise": _noise, "spans": _spans, "emoji": _emoji, "join": _join}
"""Modifiers by name, in the order in which several of them change a pair."""


@dataclass(frozen=True)
class Modifiers:
    """Modifiers with the probability that each one changes a pair.

    Attributes:
        probabilities: by the name of a modifier, in the order of `MODIFIERS`.
        languages: ISO 639-1 codes of source and target, or "".
    """

    probabilities: dict[str, float]
    languages: tuple[str, str] = ("", "")

    @classmethod
    def parse(cls, entries: Sequence[str], languages: tuple[str, str] = ("", "")) -> Modifiers | None:
        """Return the modifiers of `data.modifiers`, such as `["upper=0.05", "typos=0.1"]`; None for none.

        Raises:
            SettingsError: a name is unknown or occurs twice, or a probability is not between 0 and 1.
        """
        found: dict[str, float] = {}
        for entry in entries:
            name, _, number = entry.partition("=")
            if name not in MODIFIERS:
                raise SettingsError(f"data.modifiers={entry}: modifier '{name}' does not exist."
                                    f"{suggestion(name, MODIFIERS, 'modifiers')}")
            try:
                probability = float(number)
            except ValueError:
                probability = -1.0
            if not 0.0 <= probability <= 1.0 or name in found:
                raise SettingsError(f"data.modifiers={entry}: expected each modifier once with a probability from 0 to "
                                    f"1, such as {name}=0.05.")
            found[name] = probability
        chosen = {name: found[name] for name in MODIFIERS if found.get(name)}
        return cls(chosen, languages) if chosen else None

    def draw(self, count: int, key: Sequence[int]) -> list[tuple[int, list[str]]]:
        """Return the indices of the pairs to modify with the names of their modifiers.

        Args:
            count: number of pairs.
            key: whole numbers from 0, the key of the random numbers.
        """
        drawn = np.random.default_rng(list(key)).random((len(self.probabilities), count))
        hits = drawn < np.array(list(self.probabilities.values()))[:, None]
        names = list(self.probabilities)
        return [(pair, [names[row] for row in np.flatnonzero(hits[:, pair])])
                for pair in np.flatnonzero(hits.any(0)).tolist()]

    def modify(self, pair: TextPair, following: Iterable[TextPair], names: Sequence[str], key: Sequence[int]
               ) -> TextPair:
        """Return a modified pair.

        Args:
            pair: source and target. Tags at the beginning of the source, such as `<bt>`, stay there.
            following: the pairs after this one, of which `join` appends the first one with the same tags.
            names: the modifiers, in the order of `MODIFIERS`.
            key: whole numbers from 0, the key of the random numbers.
        """
        tags, source = split_tags(pair[0])
        after = _first_with_tags(tags, following) if "join" in names else None
        text = PairText(source, pair[1], after, self.languages)
        draw = random.Random(":".join(map(str, key)))
        for name in names:
            MODIFIERS[name](text, draw)
        return tags + text.source, text.target


def _first_with_tags(tags: str, pairs: Iterable[TextPair]) -> TextPair | None:
    """Return the first of a few pairs whose source begins with these tags alone, without the tags; None for none."""
    split = ((*split_tags(source), target) for source, target in islice(pairs, _SEARCHED))
    return next(((source, target) for other_tags, source, target in split if other_tags == tags), None)
