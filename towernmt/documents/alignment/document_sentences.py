"""The sentences of a document in one language: of the formats that are translated, and of TMX, XLIFF and catalogues.

Files with two languages contribute only the text of the wanted one. A catalogue contributes its translations, and a
template its messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from shlex import quote

from lxml import etree

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.message_catalogues import parse_po
from towernmt.dataflow.sources.translation_memory import LINE_BREAK, variant_in, variants_of_units
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.language_codes import Direction, base_code, plain_code, two_letter_code
from towernmt.documents.formats.document_formats import (
    SUFFIXES,
    TEXT_IS_EXTRACTED_FIRST,
    conversion_advice,
    file_content,
    is_plain_text,
    naming_document,
    opener_of,
)
from towernmt.documents.formats.office_archive import parse_xml
from towernmt.documents.formats.text_files import decode_file, has_words
from towernmt.documents.segments import spaced_text
from towernmt.documents.source_sentences import sentences_of

DEFAULT_LANGUAGE = "en"
"""Language for the rules of sentence segmentation if it is unknown: many languages share most of them."""
_LINE = re.compile(r"[^\r\n]+")
_PASS_LANGUAGES = "The file has several languages: pass --languages, such as --languages de-en."


def document_sentences(path: str, language: str | None, by_line: bool = False,
                       report: Callable[[], None] = lambda: None) -> list[str]:
    """Return the sentences of a document, each cleaned and with at least one letter.

    Args:
        path: path of the file.
        language: code of the wanted language; None if it is unknown.
        by_line: whether each line of a plain text, and each segment of another format, is one sentence.
        report: called after each sentence.

    Raises:
        DataError: the file cannot be read, or has no sentence.
        SettingsError: the library that splits sentences is not installed.
    """
    with naming_document(path):
        content = file_content(path)
        if advice := TEXT_IS_EXTRACTED_FIRST if content.startswith(b"%PDF") else conversion_advice(path):
            raise DataError(advice)
        suffix = PurePath(path).suffix.lower()
        if suffix not in READABLE_SUFFIXES:
            raise DataError(f"Files {f'with the suffix {suffix[:20]}' if suffix else 'without a suffix'} are not read: "
                            f"the supported suffixes are {', '.join(READABLE_SUFFIXES)}.")
        texts: Iterable[str] = _texts(path, content, suffix, language, by_line)
        if not by_line:
            texts = (sentence for text in texts for sentence in sentences_of(text, language or DEFAULT_LANGUAGE))
        sentences = []
        for text in texts:
            if has_words(cleaned := clean(text)):
                sentences.append(cleaned)
                report()
        if not sentences:
            raise DataError("The document has no text: check that it is the right file, and that its text is not an "
                            "image.")
    return sentences


def check_both_sides(path: str, languages: Direction | None) -> None:
    """Check that both sides of a document can be read from one file, which is possible for XLIFF files.

    Args:
        path: path of the file.
        languages: the languages; None if they are unknown.

    Raises:
        DataError: the file has one language, or its languages are unknown, or `towernmt prepare` reads its pairs.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix in (".tmx", ".po"):
        source, target = languages or ("SOURCE", "TARGET")
        options = f"?source_language={source}&target_language={target}" if suffix == ".tmx" else ""
        raise DataError(f"{path} already contains sentence pairs: pass it to `towernmt prepare --source "
                        f"{quote(path + options)}`.")
    if _EXCHANGE_FORMATS.get(suffix) is not _xliff_texts:
        raise DataError(f"{path} and {path} are the same file: pass a document and its translation.")
    if languages is None:
        raise DataError(f"{path}: {_PASS_LANGUAGES}")


def _texts(path: str, content: bytes, suffix: str, language: str | None, by_line: bool) -> Iterator[str]:
    if suffix in _EXCHANGE_FORMATS:
        if language is None:
            raise DataError(_PASS_LANGUAGES)
        yield from _EXCHANGE_FORMATS[suffix](content, PurePath(path).name, language)
    elif suffix in (".po", ".pot"):
        yield from _catalogue_texts(content, PurePath(path).name)
    elif by_line and is_plain_text(path):
        yield from _LINE.findall(decode_file(content)[0])
    else:
        for segment in opener_of(path)(content).segments:
            yield spaced_text(segment)


def _catalogue_texts(content: bytes, name: str) -> Iterator[str]:
    """Yield the translations of a catalogue, or its messages with their plurals if none has a translation."""
    messages = parse_po(content, name).messages
    if any(text for message in messages for text in message.translations):
        for message in messages:
            yield from message.translations
    else:
        for message in messages:
            yield from filter(None, (message.text, message.plural))


def _tmx_texts(content: bytes, name: str, language: str) -> Iterator[str]:
    """Yield the text of each unit of a TMX file in a language."""
    units = list(variants_of_units(content, name))
    texts = [text for variants in units if (text := variant_in(variants, language)) is not None]
    if units and not texts:
        languages = ", ".join(sorted({code for variants in units for code, _ in variants})) or "none"
        raise DataError(f"No unit has a text in the language {language} (the file has {languages}): pass the right "
                        "--languages.")
    yield from texts


_UNITS = ("trans-unit", "segment")
"""Elements that contain a source and a target, in XLIFF 1 and 2."""
_UNTRANSLATED = ("new", "needs-translation", "initial")
"""States of units that are not translated yet, in XLIFF 1 and 2. Their target is often a copy of the source."""
_CODES = ("bpt", "ept", "it", "ph", "ut")
"""Elements that contain markup instead of text."""
_DISPLAYS = ("equiv-text", "disp")
"""Attributes of inline elements with the markup that they stand for, in XLIFF 1 and 2."""


def _xliff_texts(content: bytes, name: str, language: str) -> Iterator[str]:
    """Yield the text of each unit of an XLIFF file (1.0 to 2.1) in a language, except untranslated targets."""
    try:
        root = parse_xml(content)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise DataError(f"The file is not XML ({error}): save it again as XLIFF.") from None
    if _local_name(root) != "xliff":
        raise DataError(f"The file begins with <{_local_name(root)}> instead of <xliff>: save it again as XLIFF.")
    other_languages: set[str] = set()
    has_language = False
    for file in root.iter("{*}file"):
        language_of_side = {"source": file.get("source-language") or root.get("srcLang"),
                            "target": file.get("target-language") or root.get("trgLang")}
        side = _side_in(language_of_side, language)
        if side is None:
            other_languages |= {code for code in language_of_side.values() if code}
            continue
        has_language = True
        for unit in file.iter(*(f"{{*}}{unit}" for unit in _UNITS)):
            for child in unit:
                if _local_name(child) == side and not (
                        side == "target" and child.get("state", unit.get("state")) in _UNTRANSLATED):
                    yield "".join(_text_of(child))
    if not has_language:
        languages = ", ".join(sorted(other_languages)) or "none"
        raise DataError(f"The file has no text in the language {language} (it has {languages}): pass the right "
                        "--languages.")


def _side_in(language_of_side: Mapping[str, str | None], language: str) -> str | None:
    """Return the side in a language, otherwise in the language without a region, otherwise in another variant of it.

    Raises:
        DataError: both sides have the language equally.
    """
    codes = {side: code for side, code in language_of_side.items() if code}
    for spelling, requested in ((plain_code, plain_code(language)), (plain_code, base_code(language)),
                                (two_letter_code, two_letter_code(language))):
        sides = [side for side, code in codes.items() if spelling(code) == requested]
        if len(sides) == 1:
            return sides[0]
        if sides:
            raise DataError(f"The file has the languages {' and '.join(codes.values())}, which both match {language}: "
                            "pass their exact codes, such as --languages pt_BR-pt_PT.")
    return None


def _local_name(element: etree._Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _text_of(element: etree._Element) -> Iterator[str]:
    """Yield the text in an element, without codes of file formats. A space is at line breaks, and between sentences."""
    if not isinstance(element.tag, str):
        return      # a comment
    if _is_line_break(element) or element.get("mtype") == "seg":
        yield " "
    if _local_name(element) not in _CODES:
        yield element.text or ""
        for child in element:
            yield from _text_of(child)
            yield child.tail or ""


def _is_line_break(element: etree._Element) -> bool:
    content = element.itertext() if _local_name(element) in _CODES else ()
    markup = [*content, *(element.get(name, "") for name in _DISPLAYS)]
    return (element.get("ctype") == "lb" or element.get("subType") == "xlf:lb"
            or LINE_BREAK.search("".join(markup)) is not None)


_EXCHANGE_FORMATS: dict[str, Callable[[bytes, str, str], Iterator[str]]] = {
    ".tmx": _tmx_texts, ".xlf": _xliff_texts, ".xliff": _xliff_texts}
READABLE_SUFFIXES = (*SUFFIXES, *_EXCHANGE_FORMATS)
"""The suffixes of files whose sentences can be read."""
