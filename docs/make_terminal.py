"""Draw the terminal output of programs: python docs/make_terminal.py FILE.svg TITLE [-N] RECORDING...

A recording holds the bytes that a program sent to its terminal; `script -c COMMAND RECORDING` makes one. The picture
shows the final screen of each recording, without overwritten text. `-N` before a recording limits it to its last N
lines. An argument that begins with `$` or `...` is shown verbatim. Needs rich.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH = 100
# rich's default frame without the fonts that it downloads
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def last_screen(recording: str) -> list[str]:
    """Return the lines of the final screen, with their colours."""
    lines, row = [""], 0
    for piece in re.findall(r"\r|\n|\x1b\[[0-9;?]*[A-Za-z]|[^\r\n\x1b]+", recording):
        if piece == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\r" or piece.endswith("K"):
            lines[row] = lines[row] if piece == "\r" else ""
        elif piece.endswith("A"):
            row -= int(piece[2:-1] or 1)
        elif piece.endswith("m") or not piece.startswith("\x1b"):
            lines[row] += piece
    return [line for line in lines if line]


def main(output: Path, title: str, arguments: list[str]) -> None:
    """Draw the recordings and lines and write the SVG file."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    count = 0
    for argument in arguments:
        if argument.startswith(("$", "...")):
            console.print(Text(argument, style="bold"))
        elif re.fullmatch(r"-\d+", argument):
            count = int(argument[1:])
        else:
            lines = last_screen(Path(argument).read_bytes().decode())
            for line in lines[-count:]:
                console.print(Text.from_ansi(line))
            count = 0
    svg = console.export_svg(title=title, theme=MONOKAI, code_format=FRAME, unique_id="terminal")
    output.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
