"""Cleaning of text: Unicode NFC, common forms of letters and digits, no control or invisible characters."""

from __future__ import annotations

import re
import unicodedata

_SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters, and characters that str.splitlines or an editor takes for the end of a line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# Characters that show nothing: soft hyphens, zero-width spaces, word joiners, marks of direction, byte order marks.
_INVISIBLE = re.compile("[\xad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]+")
# Joiners that follow neither an emoji, a combining mark, nor a letter of a script that needs joiners (Arabic, Indic,
# Khmer, Mongolian).
_STRAY_JOINER = re.compile("(?<![\u0300-\u036f\u0600-\u08ff\u0900-\u109f\u1780-\u18af\u2190-\u2bff\ufe0f"
                           "\U0001f000-\U0001faff\u200c\u200d])[\u200c\u200d]+")
_WIDE = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uff9f\ufb00-\ufb06\ufb50-\ufdff"
                   "\ufe70-\ufefe\U0001d400-\U0001d7ff\u2e80-\u2fd5]+")
"""Compatibility forms of letters and digits: full width, half width, ligatures, Arabic presentation forms,
mathematical alphabets, radicals in place of Chinese characters, as in text that was copied from PDF files."""


def clean(text: str) -> str:
    """Return text as models read it: in Unicode NFC, with single spaces between words, without invisible characters.

    Control characters become spaces (see `one_line`). Invisible characters are removed, such as zero-width spaces and
    soft hyphens, but joiners stay in the scripts that need them and in emoji. Compatibility forms of letters and
    digits, such as those of full width, become the common ones.
    """
    if not text.isprintable():      # the only white space that is printable is the space
        text = _without_invisible(one_line(text))
    elif "  " not in text and len(text.strip(" ")) == len(text):    # the fast path, for nearly all texts
        return text if text.isascii() else _composed(text)
    if not text.isascii():
        text = _composed(text)
    return " ".join(text.split())


def _without_invisible(text: str) -> str:
    text, before = _INVISIBLE.sub("", text), ""
    while text != before:       # characters that compose may leave a joiner without the mark that it followed
        before = text
        text = _STRAY_JOINER.sub("", _composed(text))
    return text


def _composed(text: str) -> str:
    """Return the text in NFC, with the common forms of letters and digits."""
    if _WIDE.search(text):
        text = " ".join(_WIDE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text).split())
    return unicodedata.normalize("NFC", text)


def one_line(text: str) -> str:
    """Return `text` with a space for every run of control characters (including NUL) and line separators.

    Lone surrogates, which have no UTF-8 form, become U+FFFD, so that the result can always be written.
    """
    if text.isprintable():      # the fast path, for nearly all texts: the replaced characters are not printable
        return text
    return _CONTROL.sub(" ", _SURROGATE.sub("\ufffd", text))


_LEADING_TAGS = re.compile(r"(?:(?:<[^<>\s]+>|>>[^<>\s]+<<)\s+)*")


def split_tags(text: str) -> tuple[str, str]:
    """Return the tags at the beginning of a text, such as `<bt> ` and `>>deu<< <crawl> `, and the rest."""
    tags = _LEADING_TAGS.match(text)
    end = tags.end() if tags else 0
    return text[:end], text[end:]


def with_tag(tag: str, text: str) -> str:
    """Return a source sentence after a tag, such as `<2de>`, and a space. Without tag or text, nothing is added.

    A text of invisible and control characters alone counts as no text: a filter must still recognise it as empty.
    """
    return f"{tag} {text}" if tag and clean(text) else text
