"""An extension of griffe: sections of docstrings that follow each other without a blank line are sections all the same.

griffe takes `Raises:` below the lines of `Args:` for text, unless a blank line stands between.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"(?<!\n)\n(?=[ \t]*(?:Args|Attributes|Returns|Yields|Raises):[ \t]*\n)")


class SectionsApart(griffe.Extension):
    """Puts the blank line there."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of each object that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub("\n\n", obj.docstring.value)
