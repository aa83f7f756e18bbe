"""Griffe extension that accepts docstring sections without a blank line between them.

Griffe itself reads `Raises:` directly below `Args:` as text of the last argument.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"(?<!\n)\n(?=[ \t]*(?:Args|Attributes|Returns|Yields|Raises):[ \t]*\n)")


class SectionsApart(griffe.Extension):
    """Insert the blank line before each section."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Edit the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub("\n\n", obj.docstring.value)
