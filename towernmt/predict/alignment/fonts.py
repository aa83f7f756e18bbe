"""Which fonts of this machine have the characters of a text, so that Matplotlib writes any script that one has."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

FIRST = "DejaVu Sans"
"""Matplotlib brings it: Latin, Greek, Cyrillic, Arabic, Hebrew and others, but no Chinese or Indian script."""
_LAST_RESORT = "Last Resort High-Efficiency"
"""It has a box for every character."""


def families_of_picture(text: str, path: str | Path) -> list[str]:
    """Font families for a picture with this text; one warning tells the characters that will be boxes in a PNG."""
    families, missing = families_for(text)
    if missing and Path(path).suffix.lower() == ".png":
        log.warning("%s: no font on this machine has the characters %s; they are drawn as boxes. Install a font that "
                    "has them, such as one of the Noto family, or draw an .svg, for which the browser finds fonts.",
                    path, " ".join(missing[:10]) + (" ..." if len(missing) > 10 else ""))
    return families


@contextmanager
def without_font_warnings() -> Iterator[None]:
    """Keep Matplotlib from telling each sign, and each weight, that a font lacks: `families_of_picture` has told."""
    matplotlib_log = logging.getLogger("matplotlib.font_manager")
    matplotlib_log.addFilter(_is_not_of_search)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")
            yield
    finally:
        matplotlib_log.removeFilter(_is_not_of_search)


def _is_not_of_search(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("findfont:")


def families_for(text: str) -> tuple[list[str], list[str]]:
    """Font families, the first before the others, that have the characters of a text between them.

    Returns:
        the families, and the characters that no font has, sorted.
    """
    missing = {character for character in text if character.isprintable() and not character.isspace()}
    families = [FIRST]
    missing -= _characters(_path(FIRST))
    for family, path in _others():
        if not missing:
            break
        found = missing & _characters(path)
        if found:
            families.append(family)
            missing -= found
    return families, sorted(missing)


def _path(family: str) -> str:
    from matplotlib import font_manager

    return str(font_manager.findfont(family))


def _others() -> Iterable[tuple[str, str]]:
    """Name and file of the regular fonts; those without serifs first."""
    from matplotlib import font_manager

    regular = {font.name: font.fname for font in font_manager.fontManager.ttflist
               if font.style == "normal" and str(font.weight) in ("400", "normal", "regular")
               and font.name != _LAST_RESORT}
    return sorted(regular.items(), key=lambda item: ("Sans" not in item[0], item[0]))


@cache
def _characters(path: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # a font that FreeType cannot read has no characters for us
        return frozenset()
