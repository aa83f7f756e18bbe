"""Which format a file has, by its suffix."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import PurePath

from towernmt.core.errors import DataError
from towernmt.documents.segments import Document

Opener = Callable[[bytes], Document]
"""Takes a file apart.

Raises:
    DataError: it is broken, or too large.
"""

_OPENERS = {".txt": "plain.open_text", ".srt": "subtitles.srt.open_srt", ".vtt": "subtitles.vtt.open_vtt",
            ".po": "gettext.open_po", ".md": "markdown.open_markdown",
            ".html": "html.open_html", ".htm": "html.open_html",
            ".docx": "office.docx.open_docx", ".odt": "office.odt.open_odt"}
"""The function of each suffix; its module is imported when it is asked for."""
SUFFIXES = tuple(_OPENERS)


def opener_of(name: str) -> Opener:
    """What opens a file of this name.

    Raises:
        DataError: no format has its suffix.
    """
    suffix = PurePath(name.replace("\\", "/")).suffix.lower()
    if suffix not in _OPENERS:
        kind = f"of the kind '{suffix[:20]}'" if suffix else "without a suffix"
        raise DataError(f"Files {kind} are not translated here: there are {', '.join(SUFFIXES)}.")
    module, _, function = _OPENERS[suffix].rpartition(".")
    opener: Opener = getattr(importlib.import_module(f"towernmt.documents.formats.{module}"), function)
    return opener
