"""Vocabularies from the pieces of a foreign model and the files that divide text into them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.subword.bpe_codes import BpeCodesVocabulary
from towernmt.dataflow.vocabulary.words import WordVocabulary
from towernmt.importing.piece_models import PieceModel, language_names
from towernmt.importing.pieces import PieceTable

CODES = (".bpe", ".codes")
"""The suffixes of subword-nmt codes; other files are SentencePiece models."""
WORDS_NOTE = ("Nothing beside the model divides text into pieces: give it text that is divided as it was trained on, "
              "with spaces between the pieces.")


def vocabularies_of(files: tuple[Path, Path] | None, tables: Sequence[PieceTable], one: bool
                    ) -> tuple[Vocabulary, Vocabulary, list[PieceTable]]:
    """Source and target vocabulary, and the rows of their pieces, which may have become more.

    Args:
        files: what divides source and target; None for text that is divided already.
        tables: the pieces of source and target.
        one: both languages have one table.
    Raises:
        DataError: a file cannot be read, or is something else.
    """
    if files is None:
        return WordVocabulary(tables[0].pieces), WordVocabulary(tables[1].pieces), list(tables)
    if files[0].suffix in CODES:
        by_codes = [BpeCodesVocabulary(_content(codes), table.pieces, str(codes))
                    for codes, table in zip(files, tables, strict=True)]
        return by_codes[0], by_codes[1], list(tables)
    models = [PieceModel(file) for file in files]
    known = {piece for model in models for piece in model.pieces}
    languages = language_names(tables[0].pieces, known)
    source_table = tables[0].renamed(languages).with_unknown(models[0].pieces)
    target_table = source_table if one else tables[1]
    source = models[0].in_order(source_table.pieces, list(languages.values()))
    unknown = source_table.pieces[source_table.known:]
    if one and models[0].content == models[1].content and not unknown:
        return source, source, [source_table, source_table]
    return source, models[1].in_order(target_table.pieces, left_out=unknown), [source_table, target_table]


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: it cannot be read ({error.strerror}).") from error
