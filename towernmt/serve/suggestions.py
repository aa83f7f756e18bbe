"""Suggestions of better translations: a file with one line for each, which only grows.

A line has five fields, separated by tabs: time (ISO 8601, UTC), model, source, translation, suggestion. The texts are
written to this file alone, and never to a log.
"""

from __future__ import annotations

import errno
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.serve.request_limits import RequestError, unavailable

MAX_BYTES = 1 << 30
"""Maximum size of the file; further suggestions are refused."""


class Suggestions:
    """The file of suggestions. Thread-safe.

    Args:
        file: file to append to; None if the server accepts no suggestions.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file, self._lock = file, threading.Lock()
        if file is not None:
            try:
                os.close(self._open(file))
            except OSError as error:
                raise SettingsError(f"--suggestions {file}: cannot write to the file ({error.strerror}): choose "
                                    "another file.") from error

    @property
    def enabled(self) -> bool:
        """Whether the server accepts suggestions."""
        return self._file is not None

    def add(self, model: str, source: str, translation: str, suggestion: str) -> None:
        """Append a suggestion, and flush it to the disk.

        Texts with equal numbers of lines are written line by line. Lines without a suggestion are left out. Lines
        whose suggestion equals their translation are left out, too, unless no line is changed: then the user confirms
        the translation, and all lines with a suggestion are written.

        Args:
            model: name of the model, for example its path.
            source: source text.
            translation: translation by the model; may be empty if it is not known.
            suggestion: the better translation.

        Raises:
            RequestError: the server accepts no suggestions, a text is empty, or the file is full or cannot be written.
        """
        if self._file is None:
            raise RequestError(403, "Suggestions are disabled on this server.")
        rows = suggestion_rows(source, translation, suggestion)
        if not rows:
            raise RequestError(400, "Invalid request: q and s must contain text")
        timestamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        content = "".join("\t".join([timestamp, clean(model), *row]) + "\n" for row in rows).encode()
        with self._lock:
            try:
                descriptor = self._open(self._file)
                try:
                    size = os.fstat(descriptor).st_size
                    if size and os.pread(descriptor, 1, size - 1) != b"\n":    # an editor removed the last line end
                        content = b"\n" + content
                    if size + len(content) > MAX_BYTES:
                        raise unavailable("The file of suggestions is full.", 3600.0)
                    written = os.write(descriptor, content)
                    if written < len(content):
                        # The next suggestion must begin a line. Another server may have written after the old size.
                        os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR) - written)
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise unavailable(f"The suggestion cannot be stored ({error.strerror}).", 60.0) from error

    @staticmethod
    def _open(file: Path) -> int:
        """Open the file for appending; a new file is readable by its owner only."""
        return os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)


def suggestion_rows(source: str, translation: str, suggestion: str) -> list[tuple[str, str, str]]:
    """Return source, translation and suggestion of each changed line, cleaned; of the whole text if lines do not match.

    Lines without a suggestion are left out. If the suggestion changes no line of the translation, all other lines are
    returned: the user confirms the translation.
    """
    matching = _matching_lines(source, suggestion)
    if matching is None:
        columns = [[" ".join(text.splitlines())] for text in (source, translation, suggestion)]
    else:
        source_lines, suggested_lines = matching
        translated_lines = next((lines for lines in _ways_to_split(translation) if len(lines) == len(source_lines)),
                                [""] * len(source_lines))
        columns = [source_lines, translated_lines, suggested_lines]
    rows = [(clean(row[0]), clean(row[1]), clean(row[2])) for row in zip(*columns, strict=True)]
    rows = [row for row in rows if row[0] and row[2]]
    return [row for row in rows if row[2] != row[1]] or rows


def _matching_lines(source: str, suggestion: str) -> tuple[list[str], list[str]] | None:
    """Return the lines of a source and of its suggestion, or None if their numbers differ.

    The first and the last line of a suggestion may be blank, because a user has removed their text. So blank lines at
    both ends are removed only if the numbers differ otherwise. If the last line is blank, the text ends with the line
    end of the line before.
    """
    lines, stripped_lines, _ = _ways_to_split(source)
    suggested_lines, stripped_suggestion, suggestion_with_last_line = _ways_to_split(suggestion)
    for source_lines, suggestion_lines in ((lines, suggested_lines), (stripped_lines, stripped_suggestion),
                                           (lines, suggestion_with_last_line)):
        if len(source_lines) == len(suggestion_lines):
            return source_lines, suggestion_lines
    return None


def _ways_to_split(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the lines of a text, those without blank lines at both ends, and those with a blank line after the end."""
    return text.splitlines(), text.strip().splitlines(), f"{text}\n".splitlines()
