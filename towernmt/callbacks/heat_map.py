"""Draw a matrix of weights as a picture with row and column labels.

Imports Pillow, which is optional: import this module inside functions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_CELL = 24          # pixels
_MARGIN = 12
_FONT = 15          # pixels high
_LONGEST_LABEL = 24  # characters
_PALE, _DARK = np.array([247, 251, 255.0]), np.array([8, 48, 107.0])
_INK, _GRID = (40, 40, 40), (225, 230, 236)


def heat_map(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str) -> bytes:
    """Return a PNG in which a darker cell has a larger weight.

    Args:
        weights: float `[rows, columns]`, from 0 to 1.
        rows: labels of the rows, from top to bottom.
        columns: labels of the columns.
        title: text above the picture.
    """
    font = _font()
    rows, columns = [_shortened_label(name) for name in rows], [_shortened_label(name) for name in columns]
    left = _MARGIN + max(int(font.getlength(name)) for name in rows) + 8
    top = _MARGIN + _FONT + 14 + max(int(font.getlength(name)) for name in columns) + 8
    right = left + _CELL * len(columns)
    scale = right + 18                                      # left edge of the scale of weights
    width = max(scale + 52, _MARGIN * 2 + int(font.getlength(title)))
    bottom = top + max(_CELL * len(rows), 4 * _CELL)
    picture = Image.new("RGB", (width, bottom + _MARGIN), (255, 255, 255))
    draw = ImageDraw.Draw(picture)
    draw.text((_MARGIN, _MARGIN), title, _INK, font)
    picture.paste(_cells(weights), (left, top))
    _rule(draw, left, top, *weights.shape)
    for number, name in enumerate(rows):
        draw.text((left - 8, top + _CELL * number + _CELL // 2), name, _INK, font, anchor="rm")
    for number, name in enumerate(columns):
        _write_upwards(picture, name, left + _CELL * number + _CELL // 2, top - 8, font)
    _draw_scale(picture, draw, scale, top, 4 * _CELL, font)
    with BytesIO() as file:
        picture.save(file, "PNG")
        return file.getvalue()


def _cells(weights: np.ndarray) -> Image.Image:
    share = np.clip(np.nan_to_num(weights), 0.0, 1.0)[:, :, None]
    colours = (_PALE + share * (_DARK - _PALE)).round().astype(np.uint8)
    return Image.fromarray(colours.repeat(_CELL, 0).repeat(_CELL, 1))


def _rule(draw: Any, left: int, top: int, rows: int, columns: int) -> None:
    for number in range(rows + 1):
        draw.line((left, top + _CELL * number, left + _CELL * columns, top + _CELL * number), _GRID)
    for number in range(columns + 1):
        draw.line((left + _CELL * number, top, left + _CELL * number, top + _CELL * rows), _GRID)


def _write_upwards(picture: Image.Image, text: str, centre: int, bottom: int, font: Any) -> None:
    """Draw `text` rotated to read upwards, starting at `bottom`."""
    strip = Image.new("RGB", (int(font.getlength(text)) + 2, _CELL), (255, 255, 255))
    ImageDraw.Draw(strip).text((0, _CELL // 2), text, _INK, font, anchor="lm")
    strip = strip.rotate(90, expand=True)
    picture.paste(strip, (centre - _CELL // 2, bottom - strip.height))


def _draw_scale(picture: Image.Image, draw: Any, left: int, top: int, height: int, font: Any) -> None:
    shares = np.linspace(1.0, 0.0, height)[:, None, None]
    colours = (_PALE + shares * (_DARK - _PALE)).round().astype(np.uint8).repeat(12, 1)
    picture.paste(Image.fromarray(colours), (left, top))
    draw.text((left + 18, top), "1", _INK, font, anchor="lt")
    draw.text((left + 18, top + height), "0", _INK, font, anchor="lb")


def _shortened_label(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else name[:_LONGEST_LABEL - 1] + "…"


def _font() -> Any:
    """Return DejaVu Sans, which covers most scripts, if it is installed; else Pillow's Latin font."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", _FONT)
    except OSError:
        return ImageFont.load_default(_FONT)
