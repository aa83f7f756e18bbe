"""Files that belong together: those of two folders whose names are equal apart from codes and names of languages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.language_codes import NAMES, TWO_LETTERS, Direction, base_code, two_letter_code
from towernmt.documents.alignment.document_sentences import (
    READABLE_SUFFIXES,
    TEXT_IS_EXTRACTED_FIRST,
    needs_extraction,
)

_SEPARATOR = re.compile(r"[^\w]|_")
_REGION = re.compile(r"[A-Z]{2}|[A-Z][a-z]{3}")
_MOST_NAMED = 5
_LANGUAGES = frozenset((*NAMES, *TWO_LETTERS, *(name.lower() for name in NAMES.values())))


class MatchedFiles(NamedTuple):
    """The files of a document in both languages."""

    source: str
    target: str

    @property
    def name(self) -> str:
        """The names of both files, for messages."""
        return f"{self.source} and {self.target}"


class FolderMatch(NamedTuple):
    """The files of two folders.

    Attributes:
        matched: files that belong together, in the order of the names.
        unmatched: documents without a counterpart.
        unread: files without a supported suffix.
    """

    matched: list[MatchedFiles]
    unmatched: list[str]
    unread: list[str]


def match_folders(source: str, target: str, languages: Direction | None) -> FolderMatch:
    """Match the files of two folders and their subfolders; hidden ones are ignored.

    Args:
        source: folder of the source documents.
        target: folder of their translations. It may be the same if `languages` is specified: then the names of the
            files name their language.
        languages: the languages, of which the names may have the codes; None for any language.

    Raises:
        DataError: no files belong together; the message names the files without a supported suffix, too.
    """
    files = [list(_files(folder)) for folder in (source, target)]
    unread = sorted({str(path) for side in files for path in side if path.suffix.lower() not in READABLE_SUFFIXES})
    sides = [[path for path in side if path.suffix.lower() in READABLE_SUFFIXES] for side in files]
    without_documents = list(dict.fromkeys(folder for folder, side in zip((source, target), sides, strict=True)
                                           if not side))
    if languages is not None and Path(source).samefile(target):
        sides = [[path for path in side if language_of_name(path, [code]) is not None]
                 for side, code in zip(sides, languages, strict=True)]
    removed = _LANGUAGES if languages is None else _spellings(languages)
    matched: list[MatchedFiles] = []
    keys: list[Callable[[Path], str]] = [
        lambda path: str(path), lambda path: str(path.with_suffix("")), lambda path: _without_languages(path, removed)]
    for key in keys:
        by_key = [_by_key(paths, Path(folder), key) for paths, folder in zip(sides, (source, target), strict=True)]
        for name in by_key[0].keys() & by_key[1].keys():
            paths_of_sides = [side[name] for side in by_key]
            if all(len(paths) == 1 for paths in paths_of_sides):
                matched.append(MatchedFiles(*(str(paths[0]) for paths in paths_of_sides)))
                for side, paths in zip(sides, paths_of_sides, strict=True):
                    side.remove(paths[0])
    if not matched:
        problem = (f"{' and '.join(without_documents)} {'contain' if without_documents[1:] else 'contains'} no "
                   "documents in a supported format, such as .docx or .txt." if without_documents else
                   f"{source} and {target} have no documents with the same names: give translated files the same name "
                   "apart from the code of the language, such as brief.de.docx and brief.en.docx.")
        raise DataError(" ".join([problem, *unread_sentences(unread)]))
    return FolderMatch(sorted(matched), sorted({str(path) for side in sides for path in side}), unread)


def unread_sentences(names: Sequence[str]) -> list[str]:
    """Return the sentences that say why files of a folder are not read: for PDF files and images, and for others."""
    extractable = [name for name in names if needs_extraction(name)]
    others = [name for name in names if not needs_extraction(name)]
    sentences = [f"{listed_names(extractable)}: {TEXT_IS_EXTRACTED_FIRST}"] if extractable else []
    if others:
        sentences.append("These files are not read, because their formats are not supported: "
                         f"{listed_names(others)}.")
    return sentences


def listed_names(names: Sequence[str]) -> str:
    """Return the first names in a list, and the number of further ones."""
    ending = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + ending


def _files(folder: str) -> Iterator[Path]:
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _by_key(paths: Iterable[Path], folder: Path, key: Callable[[Path], str]) -> dict[str, list[Path]]:
    paths_by_key: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        paths_by_key[key(path.relative_to(folder)).casefold()].append(path)
    return paths_by_key


def _without_languages(path: Path, removed: Iterable[str]) -> str:
    """Return a path without the suffix of the file, and without languages in its names."""
    return "/".join("-".join(word for word in _words_of_name(name, frozenset(removed)) if word is not None)
                    for name in path.with_suffix("").parts)


def _words_of_name(name: str, languages: frozenset[str]) -> Iterator[str | None]:
    """Yield the words of a name, and None for each that names one of the languages or the region after it."""
    after_language = False
    for word in filter(None, _SEPARATOR.split(name)):
        is_language = word.lower() in languages
        yield None if is_language or after_language and _REGION.fullmatch(word) else word
        after_language = is_language


def _spellings(codes: Iterable[str]) -> frozenset[str]:
    """Return the codes and names of languages that names of files may have, in lower case."""
    spellings: set[str] = set()
    for code in codes:
        two_letters = two_letter_code(code)
        spellings |= {code.lower(), base_code(code), two_letters, NAMES.get(two_letters, code).lower(),
                      *(three_letters for three_letters, two in TWO_LETTERS.items() if two == two_letters)}
    return frozenset(spellings)


def language_of_name(path: str | Path, codes: Iterable[str] | None = None) -> str | None:
    """Return the language that the last word of a file's name or of its folder's name names; None if neither does.

    Args:
        path: path of the file.
        codes: codes of the possible languages; None for all.
    """
    languages = _LANGUAGES if codes is None else _spellings(codes)
    path = Path(path)
    for name in (path.stem, path.parent.name):
        words = [word for word in _SEPARATOR.split(name) if word]
        while len(words) > 1 and _REGION.fullmatch(words[-1]) and words[-2].lower() in languages:
            words.pop()
        if words and words[-1].lower() in languages and (len(words) > 1 or name != path.stem):
            return two_letter_code(_CODES_BY_NAME.get(words[-1].lower(), words[-1]))
    return None


_CODES_BY_NAME = {name.lower(): code for code, name in NAMES.items()}
