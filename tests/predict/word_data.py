"""Replaces prepared data in tests that write runs: only its vocabularies, which are lists of words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

WORDS = [f"w{i}" for i in range(16)]
SIZE = len(SPECIAL_PIECES) + len(WORDS)
"""Size of the vocabulary of `WORDS`."""


class WordData:
    """The vocabularies of a corpus.

    Args:
        target: words of the target vocabulary; those of the source are `WORDS`.
    """

    directory = "data"
    validation_sets = ()

    def __init__(self, target: Sequence[str] = WORDS) -> None:
        self.source_vocabulary = WordVocabulary([*SPECIAL_PIECES, *WORDS])
        self.target_vocabulary = WordVocabulary([*SPECIAL_PIECES, *target])

    def copy_vocabularies(self, directory: Path) -> None:
        save_vocabularies(self.source_vocabulary, self.target_vocabulary, directory)
