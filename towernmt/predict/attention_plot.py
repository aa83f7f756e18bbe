"""Draw attention as a heat map with the words of both sides, in fonts that have their characters."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import EOS, Vocabulary

log = logging.getLogger(__name__)

DEFAULT_FONT = "DejaVu Sans"
"""Font of Matplotlib with Latin, Greek, Cyrillic, Arabic, Hebrew and others, but no Chinese or Indian script."""
_LAST_RESORT = "Last Resort High-Efficiency"
"""Font with a box for every character."""


def families_of_picture(text: str, path: str | Path) -> list[str]:
    """Return font families for a text, and log a warning with the characters that become boxes in a PNG."""
    families, missing = families_for(text)
    if missing and Path(path).suffix.lower() == ".png":
        log.warning("%s: no font on this machine has the characters %s; they are drawn as boxes. Install a font that "
                    "has them, such as one of the Noto family, or draw an .svg, for which the browser finds fonts.",
                    path, " ".join(missing[:10]) + (" ..." if len(missing) > 10 else ""))
    return families


@contextmanager
def without_font_warnings() -> Iterator[None]:
    """Suppress Matplotlib's warnings about missing glyphs, which `families_of_picture` has logged already."""
    matplotlib_log = logging.getLogger("matplotlib.font_manager")
    matplotlib_log.addFilter(_is_not_about_findfont)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")
            yield
    finally:
        matplotlib_log.removeFilter(_is_not_about_findfont)


def _is_not_about_findfont(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("findfont:")


def families_for(text: str) -> tuple[list[str], list[str]]:
    """Return font families that together contain the characters of a text; earlier families take precedence.

    Returns:
        The families, and the sorted characters that no font contains.
    """
    missing = {character for character in text if character.isprintable() and not character.isspace()}
    families = [DEFAULT_FONT]
    missing -= _characters(_font_file(DEFAULT_FONT))
    for family, path in _installed_fonts():
        if not missing:
            break
        covered = missing & _characters(path)
        if covered:
            families.append(family)
            missing -= covered
    return families, sorted(missing)


def _font_file(family: str) -> str:
    from matplotlib import font_manager

    return str(font_manager.findfont(family))


def _installed_fonts() -> Iterable[tuple[str, str]]:
    """Return name and file of the regular fonts, those without serifs first."""
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
    except (OSError, RuntimeError):  # FreeType cannot read the font
        return frozenset()


MAX_PICTURES = 100
"""Maximum number of pictures of a text."""
_SUFFIXES = (".png", ".svg")
_CELL = 0.32            # inches
_MAX_BAR_HEIGHT = 1.6   # of the scale of weights, in inches
_EDGE = "#b4bcc6"
_MAX_LABEL = 24         # characters
_DPI, _MOST_PIXELS = 150, 10_000
"""Resolution of a PNG in pixels per inch, and maximum number of pixels of the longer side of its heat map. A picture of
more pixels would need gigabytes of memory."""
_MAX_WORDS_WITH_NUMBERS = 15    # words of a side, up to which the weights are written into the cells
_MIN_NUMBER = 0.05


class Picture(NamedTuple):
    """Content of a heat map.

    Attributes:
        weights: float `[rows, columns]`, 0 to 1.
        rows: words or tokens of the translation.
        columns: words or tokens of the source.
    """

    weights: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]


def token_picture(attention: np.ndarray, source: Vocabulary, source_ids: Sequence[int], target: Vocabulary,
                  ids: Sequence[int]) -> Picture:
    """Return the picture of the attention between tokens, EOS included."""
    def labels(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
        return ["</s>" if id == EOS else vocabulary.id_to_piece(id) for id in ids]

    return Picture(attention, labels(target, ids), labels(source, source_ids))


class Pictures:
    """Pictures of the lines of a text, in files: FILE.png of one line, FILE-1.png and so on of several.

    As a context manager it draws the last one, whose name depends on the number of pictures. The number of a line
    without a picture stays unused: a blank line, and a line with an empty translation.

    Args:
        path: path that ends with .png or .svg.

    Raises:
        SettingsError: another suffix, or Matplotlib is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if self._path.suffix.lower() not in _SUFFIXES:
            raise SettingsError(f"--plot {path}: a picture is a file that ends in {' or '.join(_SUFFIXES)}.")
        _matplotlib()
        self._first: Picture | None = None
        self._count = 0

    def add(self, picture: Picture | None) -> None:
        """Draw the picture of the next line; None for a blank line.

        Raises:
            DataError: the file cannot be written.
        """
        picture = None if picture is None or not picture.weights.size else picture
        self._count += 1
        if self._count == 1:
            self._first = picture
            return
        if self._count == 2:
            self._draw_first(self._numbered(1))
        if self._count == MAX_PICTURES + 1:
            log.warning("--plot draws the first %d lines; the others have no pictures.", MAX_PICTURES)
        if picture and self._count <= MAX_PICTURES:
            draw_attention(picture, self._numbered(self._count))

    def __enter__(self) -> Pictures:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._count == 1:
            self._draw_first(self._path)

    def _draw_first(self, path: Path) -> None:
        if self._first:
            draw_attention(self._first, path)
        self._first = None

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.stem}-{number}{self._path.suffix}")


def draw_attention(picture: Picture, path: str | Path) -> None:
    """Draw a picture into a file in the format of its suffix.

    The text of an SVG stays text, so that it can be searched, and a browser selects the fonts.

    Raises:
        DataError: the file cannot be written.
        SettingsError: Matplotlib is not installed.
    """
    matplotlib = _matplotlib()
    rows, columns = [_label(name) for name in picture.rows], [_label(name) for name in picture.columns]
    families = families_of_picture("".join([*rows, *columns]), path)
    with matplotlib.rc_context({"font.family": families, "svg.fonttype": "none", "svg.hashsalt": "towernmt",
                                "text.parse_math": False}), without_font_warnings():
        figure = _figure(picture.weights, rows, columns)
        try:
            # No date in the file, so that equal pictures are equal files. Long labels widen the picture.
            dpi = min(_DPI, _MOST_PIXELS / max(figure.get_size_inches()))
            figure.savefig(path, dpi=dpi, bbox_inches="tight", pad_inches=0.12,
                           metadata={"Date": None} if Path(path).suffix.lower() == ".svg" else None)
        except OSError as error:
            raise DataError(f"{path}: cannot write the picture ({error.strerror}).") from error


def _figure(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Any:
    """Return a figure with the cells, their names and the scale of weights; names may exceed the edges."""
    from matplotlib.figure import Figure

    width, height = _CELL * len(columns), _CELL * len(rows)
    figure_width, bar_height = width + 0.5, min(height, _MAX_BAR_HEIGHT)
    figure = Figure(figsize=(figure_width, height))
    image = _fill(figure.add_axes((0, 0, width / figure_width, 1)), weights, rows, columns)
    bar_axes = figure.add_axes((
        (width + 0.15) / figure_width, 1 - bar_height / height, 0.1 / figure_width, bar_height / height))
    bar = figure.colorbar(image, cax=bar_axes, ticks=[0.0, 0.5, 1.0] if bar_height > 0.5 else [0.0, 1.0])
    bar.outline.set_edgecolor(_EDGE)
    bar_axes.tick_params(length=0, labelsize=8)
    return figure


def _fill(axes: Any, weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Any:
    """Draw the cells and their names, and return the image."""
    image = axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
    axes.grid(which="minor", color="#e1e6ec", linewidth=0.8)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_edgecolor(_EDGE)
    if max(len(rows), len(columns)) <= _MAX_WORDS_WITH_NUMBERS:
        for row, column in zip(*np.nonzero(weights >= _MIN_NUMBER), strict=True):
            weight = float(weights[row, column])
            axes.text(column, row, f"{weight:.2f}".removeprefix("0"), ha="center", va="center", fontsize=7,
                      color="white" if weight > 0.6 else "#304050")
    return image


def _label(name: str) -> str:
    return name if len(name) <= _MAX_LABEL else name[:_MAX_LABEL - 1] + "…"


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure  # noqa: F401 - reports a missing package at once
    except ImportError as error:
        raise SettingsError("Pictures of attention are drawn by Matplotlib: install it with "
                            "pip install 'towernmt[plot]'.") from error
    return matplotlib
