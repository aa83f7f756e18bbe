"""Cleaning of text: one Unicode form, one line, one space between words."""

from __future__ import annotations

import re
import unicodedata

_SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters, and what str.splitlines or an editor would take for the end of a line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def clean(text: str) -> str:
    """Unicode NFC, every run of whitespace or control characters one space, none at the ends (see `one_line`)."""
    if not text.isprintable():      # the only white space that is printable is the space
        text = one_line(text)
    elif "  " not in text and len(text.strip(" ")) == len(text):    # the quick way for nearly all texts
        return text if text.isascii() else unicodedata.normalize("NFC", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


def one_line(text: str) -> str:
    """`text` with a space for every run of control characters (NUL is one) and line separators.

    Surrogates that stand alone (they have no UTF-8 form) become U+FFFD, so that the result can always
    be written.
    """
    if text.isprintable():      # the quick way for nearly all texts: neither of the two is printable
        return text
    return _CONTROL.sub(" ", _SURROGATE.sub("\ufffd", text))
