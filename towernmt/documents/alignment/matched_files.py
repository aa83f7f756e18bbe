"""Files that belong together: those of two folders whose names are equal apart from codes and names of languages."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path, PurePath
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.language_codes import (
    NAMES,
    TWO_LETTERS,
    Direction,
    base_code,
    plain_code,
    two_letter_code,
)
from towernmt.documents.alignment.document_sentences import READABLE_SUFFIXES
from towernmt.documents.formats.document_formats import conversion_advice

_SEPARATOR = re.compile(r"[^\w]|_")
_REGION = re.compile(r"[A-Za-z]{2}")
_SCRIPTS = frozenset("""Arab Armn Beng Cans Cyrl Deva Ethi Geor Grek Gujr Guru Hang Hans Hant Hebr Jpan Khmr Knda Kore
    Laoo Latn Mlym Mong Mtei Mymr Olck Orya Sinh Taml Telu Tfng Thaa Thai Tibt""".split())
"""Codes of scripts that follow codes of languages, as in `zh-Hans`."""
_MOST_NAMED = 5
_CODES_BY_NAME = {name.lower(): code for code, name in NAMES.items()}
_LANGUAGES = frozenset((*NAMES, *TWO_LETTERS, *_CODES_BY_NAME))


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

    Files with equal names are matched first. The other files are matched by names that differ only in upper and lower
    case, then by names without suffixes, and then by names without languages. Without `languages`, the code of a
    language counts only at the end of a name, since many codes are also words, such as `my`.

    Args:
        source: folder of the source documents.
        target: folder of their translations. It may be the same if `languages` is specified: then the names of the
            files, or of their subfolders, name their language.
        languages: the languages, of which the names may have the codes; None for any language.

    Raises:
        DataError: no files belong together; the message names the files without a supported suffix, too.
    """
    is_one_folder = languages is not None and Path(source).samefile(target)
    folders = (source, source) if is_one_folder else (source, target)
    files = [list(_files(folder)) for folder in folders]
    unread = sorted({str(path) for side in files for path in side if path.suffix.lower() not in READABLE_SUFFIXES})
    # The path of each document, by its path in the folder.
    sides = [{path.relative_to(folder): path for path in side if path.suffix.lower() in READABLE_SUFFIXES}
             for side, folder in zip(files, folders, strict=True)]
    documents = {str(path) for side in sides for path in side.values()}
    without_documents = list(dict.fromkeys(folder for folder, side in zip((source, target), sides, strict=True)
                                           if not side))
    if languages is not None and is_one_folder:
        sides = _sides_of_folder(sides[0], languages)
    matched: list[MatchedFiles] = []
    keys: list[Callable[[Path], str]] = [
        str, lambda path: str(path.with_suffix("")), lambda path: _without_languages(path, languages)]
    for key, is_folded in product(keys, (False, True)):
        by_key = [_by_key(side, key, is_folded) for side in sides]
        for name in by_key[0].keys() & by_key[1].keys():
            paths_of_sides = [paths_by_key[name] for paths_by_key in by_key]
            if all(len(paths) == 1 for paths in paths_of_sides):
                matched.append(MatchedFiles(*(str(side.pop(paths[0]))
                                              for side, paths in zip(sides, paths_of_sides, strict=True))))
    if not matched:
        problem = (f"{' and '.join(without_documents)} {'contain' if without_documents[1:] else 'contains'} no "
                   "documents in a supported format, such as .docx or .txt." if without_documents else
                   f"{source} and {target} have no documents with the same names: give translated files the same name "
                   "apart from the code of the language at its end, such as brief.de.docx and brief.en.docx"
                   f"{', or pass --languages' if languages is None else ''}.")
        raise DataError(" ".join([problem, *unread_sentences(unread)]))
    return FolderMatch(sorted(matched), sorted(documents.difference(*matched)), unread)


def unread_sentences(names: Sequence[str]) -> list[str]:
    """Return the sentences that say why files of a folder are not read: one for each kind of file."""
    names_by_advice: dict[str, list[str]] = defaultdict(list)
    for name in names:
        names_by_advice[conversion_advice(name)].append(name)
    others = names_by_advice.pop("", [])
    sentences = [f"{listed_names(group)}: {advice}" for advice, group in names_by_advice.items()]
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


def _sides_of_folder(documents: dict[Path, Path], languages: Direction) -> list[dict[Path, Path]]:
    """Return the documents of a folder in each language; the names of two variants of a language need their regions.

    Args:
        documents: the path of each document, by its path in the folder.
        languages: the languages.
    """
    are_variants = two_letter_code(languages.source) == two_letter_code(languages.target)
    shown: Callable[[str], str] = plain_code if are_variants else two_letter_code
    sides: list[dict[Path, Path]] = [{}, {}]
    for name, path in documents.items():
        code = code_of_name(name.name, name.parts[-2::-1], languages)
        for side, language in zip(sides, languages, strict=True):
            if code is not None and shown(code) == shown(language):
                side[name] = path
    return sides


def _by_key(paths: Iterable[Path], key: Callable[[Path], str], is_folded: bool) -> dict[str, list[Path]]:
    """Return the paths with each key.

    Args:
        paths: paths in the folder.
        key: returns the key of a path.
        is_folded: whether upper and lower case, and composed and decomposed letters, are the same.
    """
    paths_by_key: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        text = key(path)
        paths_by_key[unicodedata.normalize("NFC", text.casefold()) if is_folded else text].append(path)
    return paths_by_key


def _without_languages(path: Path, languages: Direction | None) -> str:
    """Return a path without the suffix of the file, and without languages in its names."""
    return "/".join("-".join(_without_language(name, languages)) for name in path.with_suffix("").parts)


def _without_language(name: str, languages: Direction | None) -> Iterator[str]:
    """Yield the words of a name except languages, with the script and region after each.

    Args:
        name: the name.
        languages: the languages; None for all, of which codes are removed only at the end, and names everywhere.
    """
    spellings = _LANGUAGES if languages is None else _spellings(languages)
    words = _words_of_name(name)
    index = 0
    while index < len(words):
        word = words[index].lower()
        after = _end_of_code(words, index, spellings) if word in spellings else index
        if after > index and (languages is not None or after == len(words) or word in _CODES_BY_NAME):
            index = after
        else:
            yield words[index]
            index += 1


def _words_of_name(name: str) -> list[str]:
    return [word for word in _SEPARATOR.split(name) if word]


def _end_of_code(words: Sequence[str], index: int, spellings: frozenset[str]) -> int:
    """Return the index after the language at an index, and after its script and region."""
    after = index + 1
    for is_subtag in (_is_script, _is_region):
        if after < len(words) and (is_subtag(words[after]) or f"{words[index]}-{words[after]}".lower() in spellings):
            after += 1
    return after


def _is_script(word: str) -> bool:
    return word.title() in _SCRIPTS and (word.istitle() or word.lower() not in _LANGUAGES)


def _is_region(word: str) -> bool:
    return _REGION.fullmatch(word) is not None and (word.isupper() or word.lower() not in _LANGUAGES)


@lru_cache
def _spellings(codes: Direction) -> frozenset[str]:
    """Return the codes and names of languages that names of files may have, in lower case."""
    spellings: set[str] = set()
    for code in codes:
        two_letters = two_letter_code(code)
        spellings |= {code.lower(), base_code(code), two_letters, NAMES.get(two_letters, code).lower(),
                      *(three_letters for three_letters, two in TWO_LETTERS.items() if two == two_letters)}
    return frozenset(spellings)


def codes_of_names(files: MatchedFiles, languages: Direction | None = None) -> tuple[str | None, str | None]:
    """Return the code of the language that the names of each file have; see `code_of_name`.

    The folder of a file counts, and so do the folders around it that are not around the other file, too.

    Args:
        files: the files.
        languages: the possible languages; None for all.
    """
    paths = [PurePath(os.path.abspath(path)) for path in files]
    folders = [path.parent.parts for path in paths]
    common = len(os.path.commonprefix(folders))
    source, target = (code_of_name(path.name, parts[min(common, len(parts) - 1):][::-1], languages)
                      for path, parts in zip(paths, folders, strict=True))
    return source, target


def code_of_name(name: str, folders: Sequence[str] = (), languages: Direction | None = None) -> str | None:
    """Return the language at the end of a file's name, or else of the name of a folder; None if none has one.

    Returns:
        The two-letter code, with script and region if the name has them: `pt-br` for `brief.pt_BR.docx`.

    Args:
        name: name of the file. Without `languages`, a name that is nothing but a code names no language.
        folders: names of the folders around it, the innermost first.
        languages: the possible languages; None for all.
    """
    spellings = _LANGUAGES if languages is None else _spellings(languages)
    stem = _words_of_name(PurePath(name).stem)
    for words in (stem, *map(_words_of_name, folders)):
        starts = [index for index, word in enumerate(words)
                  if word.lower() in spellings and _end_of_code(words, index, spellings) == len(words)]
        if starts and (starts[0] or words is not stem or languages is not None):
            language, *subtags = (word.lower() for word in words[starts[0]:])
            return "-".join([two_letter_code(_CODES_BY_NAME.get(language, language)), *subtags])
    return None
