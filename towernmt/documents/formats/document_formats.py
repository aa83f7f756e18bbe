"""The formats of documents: the suffixes of each, the function that opens it, and the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from pkgutil import resolve_name
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.documents.segments import Document

Opener = Callable[[bytes], Document]
"""A function that returns the content of a file as a document. It raises DataError if the content is invalid or too
large."""


class DocumentFormat(NamedTuple):
    """A format of documents.

    Attributes:
        opener: "module:function" of the `Opener`; the module is imported on first use.
        suffixes: the suffixes of its files, in lower case, separated by spaces.
        keeps_suffix: whether a translation must have the suffix of its source, because the content names the kind of
            the file, and programs compare it with the suffix. Word does not open a document with macros as `.docx`.
    """

    opener: str
    suffixes: str
    keeps_suffix: bool = False


PLAIN_TEXT = DocumentFormat("plain:open_text", ".txt .text .log")
FORMATS = (
    PLAIN_TEXT, DocumentFormat("subtitles:open_srt", ".srt"), DocumentFormat("subtitles:open_vtt", ".vtt"),
    DocumentFormat("gettext:open_po", ".po .pot"),
    DocumentFormat("markdown:open_markdown", ".md .markdown .mdown .mkdn .mkd .mdwn .rmd .qmd"),
    DocumentFormat("markdown:open_mdx", ".mdx"),
    DocumentFormat("html:open_html", ".html .htm .xhtml .xht .shtml .shtm"),
    DocumentFormat("docx:open_docx", ".docx .docm .dotx .dotm", keeps_suffix=True),
    DocumentFormat("odt:open_odt", ".odt .ott", keeps_suffix=True))
_FORMAT_OF_SUFFIX = {suffix: kind for kind in FORMATS for suffix in kind.suffixes.split()}
SUFFIXES = tuple(_FORMAT_OF_SUFFIX)
TEXT_IS_EXTRACTED_FIRST = ("PDF files and images are not read: convert them to .docx or .txt first, and scanned pages "
                           "by text recognition (OCR).")
"""The advice about PDF files, whatever their suffix is."""
_OF_OLD_WORD = "Files in the old Word format and RTF files are not read: save them as .docx first."
_CONVERSIONS = {
    **dict.fromkeys((".doc", ".rtf"), _OF_OLD_WORD),
    **dict.fromkeys((".pdf", ".djvu", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp"),
                    TEXT_IS_EXTRACTED_FIRST)}
"""The advice about files whose text another program can convert, by suffix."""


def conversion_advice(name: str) -> str:
    """Return why a file with this name is not read, and how to convert it, in a sentence; "" for other files."""
    return _CONVERSIONS.get(_suffix(name), "")


def opener_of(name: str) -> Opener:
    """Return the function from the bytes of a file with this name to a `Document`.

    Raises:
        DataError: no format has the suffix.
    """
    suffix = _suffix(name)
    if advice := conversion_advice(name):
        raise DataError(advice)
    if suffix not in _FORMAT_OF_SUFFIX:
        kind = f"of the kind '{suffix[:20]}'" if suffix else "without a suffix"
        raise DataError(f"Files {kind} cannot be translated: the supported suffixes are {', '.join(SUFFIXES)}.")
    opener: Opener = resolve_name(f"towernmt.documents.formats.{_FORMAT_OF_SUFFIX[suffix].opener}")
    return opener


def is_plain_text(name: str) -> bool:
    """Return whether a file with this name is plain text, without markup."""
    return _FORMAT_OF_SUFFIX.get(_suffix(name)) is PLAIN_TEXT


def have_same_format(name: str, other: str) -> bool:
    """Return whether a file may have both names: suffixes of one format, such as `.pot` and `.po`."""
    suffix, other_suffix = _suffix(name), _suffix(other)
    kind = _FORMAT_OF_SUFFIX.get(suffix)
    return suffix == other_suffix or kind is not None and not kind.keeps_suffix and (
        kind is _FORMAT_OF_SUFFIX.get(other_suffix))


LARGEST_FILE = 200_000_000
"""Maximum number of bytes of a document."""


def file_content(name: str) -> bytes:
    """Return the content of a document's file.

    Raises:
        DataError: the file cannot be read, or is too large.
    """
    try:
        with open(name, "rb") as file:
            content = file.read(LARGEST_FILE + 1)   # the size of a device is unknown
    except OSError as error:
        raise DataError(f"cannot read it ({error.strerror}).") from error
    if len(content) > LARGEST_FILE:
        size = max(os.path.getsize(name), len(content))
        raise DataError(f"The file has {size // 1_000_000} MB: more than {LARGEST_FILE // 1_000_000} MB are not read.")
    return content


@contextmanager
def naming_document(name: str) -> Iterator[None]:
    """Add the name of a document to errors in the block."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def _suffix(name: str) -> str:
    return PurePath(name.replace("\\", "/")).suffix.lower()
