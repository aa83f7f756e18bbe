"""The code in pages of the manual."""

from __future__ import annotations

import re


def code_blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def shell_lines(text: str) -> list[str]:
    """Return the commands of a page, one per line."""
    return [line for block in code_blocks(text, "sh") for line in block.replace("\\\n", " ").splitlines()]
