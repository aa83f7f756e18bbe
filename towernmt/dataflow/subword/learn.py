"""Making the vocabularies of a preparation: from files that exist, or from a sample of the text."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from towernmt.dataflow.line_hash import line_hash
from towernmt.dataflow.prepare_settings import LEAST_COVERAGE, PrepareSettings
from towernmt.dataflow.subword.bpe_codes import learn_bpe_codes
from towernmt.dataflow.subword.sentence_piece import learn_sentence_piece
from towernmt.dataflow.subword.words import learn_words
from towernmt.dataflow.text import clean, read_chunks
from towernmt.dataflow.vocabulary import Vocabulary, load_vocabulary
from towernmt.errors import DataError


class VocabularyMaker:
    """Makes the two vocabularies that the settings ask for.

    Raises:
        DataError: a vocabulary file that was given cannot be read.
    """

    def __init__(self, settings: PrepareSettings) -> None:
        self._settings = settings
        self._files = {"source": settings.source_vocab, "target": settings.target_vocab}
        if settings.shared_vocab:
            given = settings.source_vocab or settings.target_vocab
            self._files = {"source": given, "target": given}
        for path in self._files.values():
            if path and not Path(path).is_file():
                raise DataError(f"{path}: there is no such vocabulary file. Check the path.")

    def given_checksums(self) -> dict[str, str]:
        """SHA-256 of the vocabulary files that were given."""
        checksums = {}
        for side, path in self._files.items():
            if path:
                checksum = hashlib.sha256(Path(path).read_bytes())
                pieces = Path(path).with_suffix(".pieces")
                if pieces.is_file():
                    checksum.update(pieces.read_bytes())
                checksums[f"{side}_vocab"] = checksum.hexdigest()
        return checksums

    def make(self, lines: int) -> tuple[Vocabulary, Vocabulary, list[str]]:
        """The source vocabulary, the target vocabulary, and what the user should know of them.

        Args:
            lines: number of lines of each text.
        Raises:
            DataError: a vocabulary cannot be learned from this text, or the given files are not vocabularies.
        """
        settings, notes = self._settings, []
        texts = {"source": settings.source, "target": settings.target}
        if settings.shared_vocab:
            shared = self._make_one(self._files["source"], list(texts.values()), lines)
            vocabularies = {"source": shared, "target": shared}
        else:
            vocabularies = {side: self._make_one(self._files[side], [text], lines)
                            for side, text in texts.items()}
        sides = ["source"] if settings.shared_vocab else ["source", "target"]
        for side in sides:
            size = vocabularies[side].size
            if not self._files[side] and size != settings.vocab_size:
                name = "shared" if settings.shared_vocab else side
                notes.append(f"the {name} vocabulary has {size} ids rather than the {settings.vocab_size} "
                             "asked for: the text has no more pieces than that")
        return vocabularies["source"], vocabularies["target"], notes

    def _make_one(self, path: str | None, texts: list[str], lines: int) -> Vocabulary:
        settings = self._settings
        sentences = self._sample(texts, lines)
        if path and not (path.endswith(".codes") and not Path(path).with_suffix(".pieces").is_file()):
            return load_vocabulary(path)
        if path:
            return learn_bpe_codes(sentences, settings.vocab_size, Path(path).read_bytes(), origin=path)
        if settings.vocab_kind == "word":
            return learn_words(sentences, settings.vocab_size)
        if settings.vocab_kind == "bpe-codes":
            return learn_bpe_codes(sentences, settings.vocab_size)
        coverage = settings.character_coverage or self._coverage(self._sample(texts, lines))
        return learn_sentence_piece(sentences, settings.vocab_kind, settings.vocab_size, coverage,
                                    settings.byte_fallback, (settings.vocab_symbols or "").split(","))

    def _coverage(self, sentences: Iterator[str]) -> float:
        """The share of the text that its characters cover, as many of them as fill half of the vocabulary."""
        characters: Counter[str] = Counter()
        for sentence in sentences:
            characters.update(sentence)
        kept = characters.most_common(self._settings.vocab_size // 2)
        if len(kept) == len(characters):
            return 1.0
        return max(sum(count for _, count in kept) / characters.total(), LEAST_COVERAGE)

    def _sample(self, texts: list[str], lines: int) -> Iterator[str]:
        """About `vocab_sentences` cleaned sentences of the texts; the same lines of each."""
        share = self._settings.vocab_sentences / (lines * len(texts))
        limit = np.uint64(min(share, 1.0) * (2**64 - 2**11))
        for text in texts:
            for chunk in read_chunks(text):
                sentences = chunk.decode()
                if share < 1:
                    numbers = chunk.first_line + np.arange(chunk.lines, dtype=np.int64)
                    chosen = np.flatnonzero(line_hash(numbers, self._settings.seed ^ 0x5EED) <= limit)
                    sentences = [sentences[i] for i in chosen.tolist()]
                for sentence in sentences:
                    cleaned = clean(sentence)
                    if cleaned:
                        yield cleaned
