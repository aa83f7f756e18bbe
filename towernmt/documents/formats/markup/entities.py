"""Entities of HTML and XML: read as characters, and written again as the source writes them."""

from __future__ import annotations

import html
import re

_ENTITY = re.compile(r"&(?:#[0-9]{1,7};?|#[xX][0-9a-fA-F]{1,6};?|[a-zA-Z][a-zA-Z0-9]{1,31};?)")
_ALWAYS = {"&": "&amp;", "<": "&lt;"}


class Spelling:
    """How a text writes characters: as entities, or as they are."""

    def __init__(self) -> None:
        self._entities: dict[str, str] = dict(_ALWAYS)

    def read(self, text: str) -> str:
        """The characters of a text, whose entities are remembered."""
        if "&" not in text:
            return text
        return _ENTITY.sub(self._character, text)

    def write(self, text: str, quote: str = "") -> str:
        """Characters as they stand in the source.

        Args:
            quote: around an attribute's value.
        """
        entities = {**self._entities, **({quote: html.escape(quote)} if quote else {})}
        return re.sub(f"[{re.escape(''.join(entities))}]", lambda match: entities[match[0]], text)

    def _character(self, match: re.Match[str]) -> str:
        character = html.unescape(match[0])
        if len(character) == 1 and match[0].endswith(";"):
            self._entities[character] = match[0]
        return character
