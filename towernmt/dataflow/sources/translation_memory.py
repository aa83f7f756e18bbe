"""Translation memories (TMX): the units of an XML file, read by a parser that holds one unit in memory.

A position is (lines before, byte) of a unit's end tag. To resume there, the parser gets the tags that are open at
that position, and then the file from that byte on.

The parser is expat. Of entities, only XML's own five are known: declared ones can make a small file huge, or read
other files, so they are refused. A DTD that a DOCTYPE names is not fetched. The format is TMX 1.4b (LISA, 2005).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple
from xml.parsers import expat

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.source import Cursor, FileSource, Group, Pair
from towernmt.dataflow.storage.stored_files import Storage, StoredFile, UnreadableError, read_bytes
from towernmt.dataflow.text.language_codes import plain_code

LONGEST_UNIT = 1 << 24
_UNIT = ["tmx", "body", "tu"]
_OPEN = "<tmx><body><tu>"
_CODES = ("bpt", "ept", "it", "ph", "ut")   # they hold the markup of a file format, not words
LINE_BREAK = re.compile(r"(?i)<br\b|\n")
"""A line break in the content of an inline code, which separates words."""


class TranslationMemory(FileSource):
    """The units of TMX files that have both languages.

    A variant (`tuv`) matches a language if its code is the same, or begins with it: "de-AT" matches "de". An equal
    code is preferred to a longer one, and an earlier variant to a later one.

    Args:
        name: see `Source`.
        storage: gives access to the files.
        pattern: path or URL of the files, possibly with wildcards.
        source_language, target_language: language codes as in `xml:lang`.
        missing: "error" to refuse, or "skip" to skip units that lack a language.
    """

    start = (0, 0)

    def __init__(self, name: str, storage: Storage, pattern: str, source_language: str, target_language: str,
                 missing: str = "error") -> None:
        super().__init__(name, storage, pattern)
        self.languages = source_language, target_language
        self.skips = missing == "skip"

    def _read(self, head: Sequence[object], group: Group, position: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        for unit in self._units(group[0], *position):
            texts = [variant_in(unit.variants, language) for language in self.languages]
            source, target = texts
            if source is not None and target is not None:
                yield [*head, unit.lines, unit.byte], Pair(source, target)
            elif not self.skips:
                languages = ", ".join(language for language, _ in unit.variants) or "none"
                raise DataError(f"{group[0].name} line {unit.lines + 1}: the unit that ends here has no text in "
                                f"'{self.languages[texts.index(None)]}' (its languages: {languages}). Set other "
                                "languages with source_language= and target_language=, or skip such units with "
                                "missing=skip.")

    def _units(self, file: StoredFile, lines: int, byte: int) -> Iterator[_TranslationUnit]:
        parser = _UnitParser(file.name, _encoding(self._beginning(file)), lines, byte)
        try:
            for data in read_bytes(self.storage, file, byte):
                yield from parser.feed(data)
        except UnreadableError as error:
            raise error.at(f"{file.name} near line {parser.line}") from error
        yield from parser.feed(b"", final=True)

    def _beginning(self, file: StoredFile) -> bytes:
        try:
            return next(read_bytes(self.storage, file), b"")[:1024]
        except UnreadableError as error:
            raise error.at(f"{file.name} line 1") from error


class _TranslationUnit(NamedTuple):
    """A translation unit: its texts with their languages, and the position of its end tag (lines before, byte)."""

    variants: list[tuple[str, str]]
    lines: int
    byte: int


def variants_of_units(content: bytes, name: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the texts of each unit of a TMX file, with their languages.

    Args:
        content: content of the file.
        name: name of the file, for messages.

    Raises:
        DataError: the content is not a TMX file.
    """
    parser = _UnitParser(name, _encoding(content[:1024]), 0, 0)
    for unit in chain(parser.feed(content), parser.feed(b"", final=True)):
        yield unit.variants


class _UnitParser:
    """A parser of bytes to units. An error is raised after the units before it have been yielded."""

    def __init__(self, name: str, encoding: str, lines: int, byte: int) -> None:
        self._name, self._lines = name, lines
        self._path: list[str] = []
        self._language = ""
        self._variants: list[tuple[str, str]] = []
        self._text: list[str] | None = None     # of the current segment
        self._code: list[str] | None = None     # content of the current inline code
        self._units: list[_TranslationUnit] = []
        self._before = byte         # bytes of the file before the parser's first byte
        self._fed, self._last = 0, 0
        self._reopened = byte > 0
        try:
            self._parser = expat.ParserCreate(encoding)
        except (ValueError, LookupError):
            raise self._malformed(f"the encoding {encoding} is unknown", 1) from None
        self._parser.buffer_text = self._parser.specified_attributes = True
        if byte:
            self._parser.Parse(_OPEN.encode(encoding), False)
            self._before -= len(_OPEN.encode(encoding))
            self._path = list(_UNIT)
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._refuse_entity_declaration
        self._parser.SkippedEntityHandler = self._refuse_entity

    @property
    def line(self) -> int:
        """Current line of the parser, from 1."""
        return int(self._lines + self._parser.CurrentLineNumber)

    def feed(self, data: bytes, final: bool = False) -> Iterator[_TranslationUnit]:
        """Yield the units that end in the next bytes."""
        error = None
        try:
            self._parser.Parse(data, final)
        except expat.ExpatError as problem:
            error = self._malformed(expat.ErrorString(problem.code), self._lines + problem.lineno)
        except DataError as refused:
            error = refused
        except (ValueError, LookupError) as problem:    # raised by Python for an unknown encoding
            error = self._malformed(str(problem), self.line)
        self._fed += len(data)
        if error is None and self._fed - self._last > LONGEST_UNIT:
            error = self._malformed(f"no unit ends within {LONGEST_UNIT >> 20} MiB", self.line)
        units, self._units = self._units, []
        yield from units
        if error is not None:
            raise error

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) == 1 and tag != "tmx":
            raise self._malformed(f"it begins with <{tag}> instead of <tmx>", self.line)
        if tag == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif tag == "seg" and self._path[:3] == _UNIT:
            self._text = []
        elif tag in _CODES and self._text is not None and self._code is None:
            self._code = ["\n" if attributes.get("type") == "lb" else ""]

    def _end(self, tag: str) -> None:
        if tag == "seg" and self._text is not None:
            self._variants.append((self._language, "".join(self._text)))
            self._text = None
        elif tag in _CODES and self._code is not None and not any(open_tag in _CODES for open_tag in self._path[:-1]):
            if self._text is not None and LINE_BREAK.search("".join(self._code)):
                self._text.append(" ")      # a line break separates words
            self._code = None
        elif self._path == _UNIT:
            self._last = self._parser.CurrentByteIndex
            if not self._reopened:      # a reopened unit was already yielded
                self._units.append(_TranslationUnit(self._variants, self.line - 1, self._before + self._last))
            self._variants, self._reopened = [], False
        self._path.pop()

    def _characters(self, text: str) -> None:
        if self._code is not None:
            self._code.append(text)
        elif self._text is not None:
            self._text.append(text)

    def _refuse_entity_declaration(self, name: str, *declaration: object) -> None:
        raise self._malformed(f"it declares the entity '{name}', and entities are not expanded", self.line)

    def _refuse_entity(self, name: str, parameter: bool) -> None:
        if not parameter:
            raise self._malformed(f"the entity '&{name};' is not one of XML's own", self.line)

    def _malformed(self, problem: str, line: int) -> DataError:
        return DataError(f"{self._name} line {line}: the file cannot be read as TMX ({problem}). Fix the file.")


def variant_in(variants: Sequence[tuple[str, str]], language: str) -> str | None:
    """Return the text in a language, otherwise in one of its regional variants, or None.

    Args:
        variants: (language code, text) of a unit.
        language: language code, such as "en" or "en-GB".
    """
    requested = plain_code(language)
    texts = [(plain_code(code), text) for code, text in variants]
    exact = [text for code, text in texts if code == requested]
    regional = [text for code, text in texts if code.startswith(f"{requested}-")]
    return next(iter([*exact, *regional]), None)


def _encoding(beginning: bytes) -> str:
    """Return the encoding of an XML file, by its first bytes (XML 1.0, appendix F)."""
    for mark, encoding in ((b"\xef\xbb\xbf", "UTF-8"), (b"\xff\xfe", "UTF-16LE"), (b"\xfe\xff", "UTF-16BE"),
                           (b"<\0", "UTF-16LE"), (b"\0<", "UTF-16BE")):
        if beginning.startswith(mark):
            return encoding
    declared = re.match(rb"""\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)["']""", beginning)
    return declared[1].decode() if declared else "UTF-8"
