"""Vocabularies on disk: the kind of a file, both languages in one directory, and word lists of source factors.

A vocabulary is stored as one or two files that share a prefix:

| kind              | files                                                        |
|-------------------|--------------------------------------------------------------|
| unigram, bpe      | `PREFIX.model` (SentencePiece)                               |
| bpe-codes         | `PREFIX.codes` (subword-nmt), `PREFIX.pieces` (one a line)   |
| word              | `PREFIX.words` (one a line)                                  |

The values of source factors are word lists, `source_factor_1.words` and so on, next to `source.*`.
"""

from __future__ import annotations

from pathlib import Path

from towernmt.core.errors import DataError, remedy
from towernmt.dataflow.vocabulary.base import SUFFIXES, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import BpeCodesVocabulary
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.source_factors import add_factors, factor_file, factors_of
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary


def load_vocabulary(path: str | Path) -> Vocabulary:
    """Load a vocabulary from its main file, or from its prefix (`DIRECTORY/source` finds `source.model`).

    Raises:
        DataError: the file is missing or is not a vocabulary.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        candidates = [candidate for suffix in SUFFIXES if (candidate := Path(f"{path}{suffix}")).is_file()]
        if not candidates:
            raise DataError(f"{path}: no vocabulary found. Name a file with the suffix .model (SentencePiece), .codes "
                            "(subword-nmt codes) or .words (one word a line), or its path without the suffix.")
        path = candidates[0]
    try:
        if path.suffix == ".model":
            return SentencePieceVocabulary(path.read_bytes(), origin=str(path))
        if path.suffix == ".words":
            return WordVocabulary.parse(path.read_bytes(), origin=str(path))
        pieces = path.with_suffix(".pieces")
        return BpeCodesVocabulary.parse(path.read_bytes(), pieces.read_bytes(), origin=str(path))
    except OSError as error:
        raise DataError(f"{error.filename or path}: cannot read the vocabulary ({error.strerror}). "
                        f"{remedy(error, 'Check the path.')}") from error


def save_vocabularies(source: Vocabulary, target: Vocabulary, directory: str | Path) -> None:
    """Write both vocabularies as `DIRECTORY/source.*` and `DIRECTORY/target.*`, and replace existing ones.

    A shared vocabulary is written twice; `load_vocabularies` recognises that both are equal. The vocabularies of source
    factors are written as `DIRECTORY/source_factor_1.words` and so on.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    written = {path.name for path in source.save(directory / "source") + target.save(directory / "target")}
    for suffix in (*SUFFIXES, ".pieces"):
        for name in (f"source{suffix}", f"target{suffix}"):
            if name not in written:
                (directory / name).unlink(missing_ok=True)
    save_factors(source, directory)


def load_vocabularies(directory: str | Path) -> tuple[Vocabulary, Vocabulary, bool]:
    """Return the source vocabulary, the target vocabulary, and whether they are shared.

    If the source has factors, its vocabulary is a `FactoredVocabulary` around the source or shared vocabulary.

    Raises:
        DataError: a vocabulary is missing in the directory.
    """
    source = load_vocabulary(Path(directory) / "source")
    target = load_vocabulary(Path(directory) / "target")
    shared = dict(source.files()) == dict(target.files())
    return add_factors(source, load_factors(directory)), source if shared else target, shared


def same_pieces(source: Vocabulary, target: Vocabulary) -> bool:
    """Return whether each id is the same subword in both vocabularies, so that they can share an embedding table."""
    return source.size == target.size and all(
        source.id_to_piece(id) == target.id_to_piece(id) for id in range(source.size))


def save_factors(source: Vocabulary, directory: str | Path) -> None:
    """Write the word lists of the factors of `source`, and remove other word lists of factors."""
    written = set()
    for number, vocabulary in enumerate(factors_of(source), 1):
        written |= {path.name for path in vocabulary.save(Path(directory) / f"source_factor_{number}")}
    for path in Path(directory).glob("source_factor_*.words"):
        if path.name not in written:
            path.unlink()


def load_factors(directory: str | Path) -> list[WordVocabulary]:
    """Return the vocabularies of the source factors in a directory; may be empty.

    Raises:
        DataError: a vocabulary cannot be read.
    """
    factors: list[WordVocabulary] = []
    while (path := Path(directory) / factor_file(len(factors) + 1)).is_file():
        vocabulary = load_vocabulary(path)
        if isinstance(vocabulary, WordVocabulary):
            factors.append(vocabulary)
    return factors


def open_vocabularies(source: str | Path, target: str | Path | None = None, factors: int | None = None
                      ) -> tuple[Vocabulary, Vocabulary, bool]:
    """Return the source and target vocabulary, and whether they are shared: from a directory, one file, or two.

    Args:
        source: a directory with both (of vocabularies, of prepared data, or of a run), or the file of the source side.
        target: the file of the target side; None for that of the source side.
        factors: number of factors of the source text, whose word lists are in the directory, or next to the file of
            the source side. None for all factors of a directory, or for no factors with files.

    Raises:
        DataError: a vocabulary is missing, or the number of factors differs.
    """
    if target in (None, source) and Path(source).is_dir():
        vocabularies = _open_directory(Path(source))
    else:
        vocabularies = _open_files(Path(source), Path(target or source), factors or 0)
    if factors is not None and vocabularies[0].streams != 1 + factors:
        raise DataError(f"{source}: the vocabulary has {vocabularies[0].streams - 1} source factors, but the text has "
                        f"{factors} (source_factors). Name a vocabulary that was learned from such text (towernmt "
                        "prepare --source-factors).")
    return vocabularies


def _open_directory(path: Path) -> tuple[Vocabulary, Vocabulary, bool]:
    inside = path / "vocabulary"
    return load_vocabularies(inside if inside.is_dir() else path)


def _open_files(source_file: Path, target_file: Path, factors: int) -> tuple[Vocabulary, Vocabulary, bool]:
    source = load_vocabulary(source_file)
    target = source if target_file == source_file else load_vocabulary(target_file)
    shared = dict(source.files()) == dict(target.files())
    word_lists = load_factors(source_file.parent) if factors else []
    return add_factors(source, word_lists), source if shared else target, shared
