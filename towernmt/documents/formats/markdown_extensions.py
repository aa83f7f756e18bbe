"""Extensions of Markdown that are not translated: mathematics, admonitions, footnotes, attributes, templates, MDX.

The parser supports only CommonMark, so lines of extensions are blank in its input, and an inline rule matches
mathematics and other extensions before the parser looks for emphasis in them. Text in admonitions is translated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline

_PREFIX = re.compile(r"[ \t]*(?:>[ \t]?)*[ \t]*")
_FENCE = re.compile(r"(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(`{3,}|~{3,})(.*)")
_ADMONITION = re.compile(r"(?:(?:!!!|\?\?\?\+?)(?:[ \t]+[\w-]+){1,5}(?:[ \t]+\"[^\"]*\")?"
                         r"|===[+!]*[ \t]+\"[^\"]*\")[ \t]*")
"""Blocks of MkDocs: `!!! note "Title"`, `??? note`, `=== "Tab"`. The text after them is indented."""
_ALERT = re.compile(r"\[!\w+\]")
"""An alert of GitHub or Obsidian in a quotation: `> [!NOTE]`."""
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]:")
_LINE = re.compile(r":{3,}.*|\*\[[^\]]+\]:.*|(?:\{:[^{}]*\}|\{%.*%\}|\[\[?_?(?:TOC|toc)_?\]?\]|\{/\*.*\*/\})[ \t]*")
"""A container, an abbreviation, attributes of a block, a tag of a template, a table of contents, a comment of MDX."""
_INTERRUPTS = re.compile(r"#{1,6}\s|[-*+]\s|>|\d{1,9}[.)]\s|`{3}|~{3}|:{3}|\[[^\]]+\]:")
"""Beginning of a line that does not continue the paragraph before it."""
_ENVIRONMENT = re.compile(r"\\begin\{([A-Za-z]{1,30}\*?)\}")
_TEX = re.compile(r"[\\^_={}]")
_WORD = re.compile(r"[^\W\d_]{3,}")
_KEPT = re.compile("|".join((
    r"\$\$(?P<display>(?:\\.|[^$\\]){1,1000})\$\$",
    r"(?<![\\$])\$(?P<dollars>(?!\s)(?:\\.|[^$\\]){1,1000}(?<!\s))\$(?![\d$])",
    r"\\\((?P<round>(?:(?!\\[()]).){1,1000})\\\)", r"\\\[(?P<square>(?:(?!\\[\[\]]).){1,1000})\\\]",
    r"\[\^[^\]\s]{1,100}\]:?", r"\^\[(?:[^\[\]]|\[[^\[\]]*\]){1,1000}\]", r"\[\[[^\[\]\n]{1,100}\]\]",
    r"(?<![\w:]):[a-z0-9+-][a-z0-9_+-]{0,40}:(?![\w:])",                       # :smile:
    r"\{[:#.][^{}\n]{1,100}\}", r"\{%[^\n]{1,200}?%\}", r"\{\{[^{}\n]{1,100}\}\}",
    r"\{/\*[^\n]{1,200}?\*/\}",
    r"(?<=[A-Za-z0-9])~[A-Za-z0-9+-]{1,8}~(?!~)|(?<=[A-Za-z0-9])\^[A-Za-z0-9+-]{1,8}\^")), re.DOTALL)
"""Extensions within a paragraph: mathematics, footnotes, wiki links, names of emoji, attributes, templates."""


def without_extensions(lines: Sequence[str], is_mdx: bool) -> list[str]:
    """Return the lines for the parser, with lines of extensions blank, and text in admonitions without its indent.

    Args:
        lines: the lines of a text, with their ends.
        is_mdx: whether imports, exports and lines with only a component are extensions, too.
    """
    made = list(lines)
    fence = ""
    missing: set[str] = set()       # ends of mathematics that do not occur in later lines
    number = 0
    while number < len(made):
        prefix, text, _ = _divided(made[number])
        match = _FENCE.match(text)
        if fence:
            if match and match[1].startswith(fence) and not match[2].strip():
                fence = ""
            number += 1
            continue
        if match and (match[1][0] == "~" or "`" not in match[2]):
            fence = match[1]
            number += 1
            continue
        last = number
        if end := _end_of_mathematics(text):
            last = _line_with(made, number, end, missing)
            is_kept = last >= 0
            last = max(last, number)
        elif _FOOTNOTE.match(text):
            last, is_kept = _end_of_footnote(made, number), True
        elif is_mdx and not prefix and re.match(r"(?:import|export)\s|<[A-Z][^>]*$", text):
            last, is_kept = _end_of_block(made, number), True
        elif _ADMONITION.fullmatch(text) and number + 1 < len(made):
            is_kept = _take_indent(made, number, len(prefix))
        else:
            is_kept = (_LINE.fullmatch(text) is not None or ">" in prefix and _ALERT.match(text) is not None
                       or is_mdx and re.fullmatch(r"</?[A-Z][^>]*>[ \t]*", text) is not None)
        if is_kept:
            for index in range(number, last + 1):
                before, _, after = _divided(made[index])
                made[index] = (before if ">" in before else "") + after
        number = last + 1
    return made


def keep_extensions(parser: MarkdownIt) -> MarkdownIt:
    """Add the inline rule that makes tokens of the type `kept` from extensions."""
    parser.inline.ruler.before("escape", "kept", _rule)
    return parser


def _rule(state: StateInline, silent: bool) -> bool:
    match = _KEPT.match(state.src, state.pos, state.posMax)
    if match is None or not _is_mathematics(match):
        return False
    if not silent:
        state.push("kept", "", 0).content = match[0]
    state.pos = match.end()
    return True


def _is_mathematics(found: re.Match[str]) -> bool:
    """Return whether a match is mathematics, not amounts in dollars or words in escaped brackets."""
    kind = found.lastgroup
    if kind is None or kind == "display":
        return True
    content = found[kind]
    if "\n\n" in content:
        return False
    if _TEX.search(content):
        return True
    return not _WORD.search(content) or kind == "dollars" and not content[0].isdigit()


def _divided(line: str) -> tuple[str, str, str]:
    """Divide a line into indent with signs of quotations, text, and line end."""
    text = line.rstrip("\r\n")
    match = _PREFIX.match(text)
    begin = match.end() if match else 0
    return text[:begin], text[begin:], line[len(text):]


def _end_of_mathematics(text: str) -> str:
    """Return the end of the mathematics that begins in a line; "" if none begins."""
    text = text.rstrip()
    if text.startswith("$$") and (text.count("$$") == 1 or text.count("$$") == 2 and text.endswith("$$")):
        return "$$"
    if text == "\\[" or text.startswith("\\[") and _TEX.search(text[2:].removesuffix("\\]")) and (
            text.endswith("\\]") or "\\]" not in text):
        return "\\]"
    match = _ENVIRONMENT.match(text)
    return f"\\end{{{match[1]}}}" if match else ""


def _line_with(lines: Sequence[str], first: int, end: str, missing: set[str]) -> int:
    """Return the index of the line in which mathematics ends; -1 if it does not end."""
    if lines[first].rstrip().endswith(end) and lines[first].strip(" \t>\r\n") != end:
        return first
    if end in missing:
        return -1
    for number in range(first + 1, len(lines)):
        if lines[number].rstrip().endswith(end):
            return number
    missing.add(end)
    return -1


def _end_of_footnote(lines: Sequence[str], first: int) -> int:
    """Return the last line of a footnote: its paragraph, and the indented lines after it."""
    last = first
    for number in range(first + 1, len(lines)):
        line = lines[number]
        is_indented = line.startswith(("    ", "\t"))
        if not line.strip():
            continue
        if not is_indented and (number > last + 1 or _INTERRUPTS.match(line)):
            break
        last = number
    return last


def _end_of_block(lines: Sequence[str], first: int) -> int:
    last = first
    while last + 1 < len(lines) and lines[last + 1].strip():
        last += 1
    return last


def _take_indent(lines: list[str], title: int, indent: int) -> bool:
    """Remove the indent of the text after the title of an admonition; return whether there is such text."""
    is_there = False
    for number in range(title + 1, len(lines)):
        before, rest = lines[number][:indent], lines[number][indent:]
        if not lines[number].strip():
            continue
        if before.strip() or not rest.startswith(("    ", "\t")):
            break
        lines[number] = before + (rest[1:] if rest.startswith("\t") else rest[4:])
        is_there = True
    return is_there
