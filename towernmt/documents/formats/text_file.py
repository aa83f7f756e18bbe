"""Files of text: their bytes as text and back, in the same encoding."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

from towernmt.core.errors import DataError

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
          (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
"""Byte order marks; that of UTF-32 begins with that of UTF-16."""
_BINARY = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""What no text has; ESC and form feed may be there."""

Encode = Callable[[str], bytes]


def decoded(content: bytes, encoding: str | None = None) -> tuple[str, Encode]:
    """The text of a file, and what makes it bytes again.

    Args:
        encoding: as the file itself says; None: by its byte order mark, else UTF-8. Encodings of one byte a character
            cannot be told apart safely, and are refused.
    Raises:
        DataError: it is no text, or not so encoded.
    """
    mark, encoding = next(((mark, name) for mark, name in _MARKS if content.startswith(mark)),
                          (b"", encoding or "utf-8"))
    try:
        text = content[len(mark):].decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"The file is not encoded as {encoding.upper()} (line {line}): save it as UTF-8, for example "
                        "by `iconv -f WINDOWS-1252 -t UTF-8`.") from None
    if found := _BINARY.search(text):
        raise DataError(f"The file is no text: line {text.count(chr(10), 0, found.start()) + 1} has the character "
                        f"U+{ord(found[0]):04X}.")

    def encode(written: str) -> bytes:
        try:
            return mark + written.encode(encoding)
        except UnicodeEncodeError as error:
            raise DataError(f"The translation has the character U+{ord(written[error.start]):04X}, which "
                            f"{encoding.upper()} has not: save the file as UTF-8 first.") from None

    return text, encode
