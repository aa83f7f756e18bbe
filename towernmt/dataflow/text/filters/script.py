"""The scripts that a text is written in, by Unicode's property of each letter."""

from __future__ import annotations

from functools import cache

import regex  # type: ignore[import-untyped]

from towernmt.core.errors import SettingsError

_LETTER = regex.compile(r"\p{L}")


def share_in_scripts(text: str, scripts: str) -> float:
    """The share of the letters of `text` that are of one of the scripts; 1 where it has no letter.

    Args:
        scripts: names of Unicode, separated by commas: "Latin", "Han,Hiragana,Katakana".
    Raises:
        SettingsError: there is no such script.
    """
    letters = _LETTER.findall(text)
    inside = _pattern(scripts)
    return sum(inside.match(letter) is not None for letter in letters) / len(letters) if letters else 1.0


@cache
def _pattern(scripts: str) -> regex.Pattern[str]:
    names = [name.strip() for name in scripts.split(",")]
    # Letters of all scripts (the prolonged sound mark, modifiers) count as inside.
    parts = [rf"\p{{Script_Extensions={name}}}" for name in names] + [r"\p{Script=Common}", r"\p{Script=Inherited}"]
    for name, part in zip(names, parts, strict=False):
        try:
            regex.compile(part)
        except regex.error:
            raise SettingsError(f"script '{name}': Unicode has no script of that name. Names are like Latin, Cyrillic, "
                                "Greek, Arabic, Devanagari, Han, Hiragana, Katakana, Hangul; several are separated by "
                                "commas.") from None
    return regex.compile("|".join(parts))
