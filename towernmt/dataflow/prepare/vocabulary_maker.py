"""Making the vocabularies of a preparation: from files that exist, or from a sample of the text."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np

from towernmt.core.errors import DataError
from towernmt.dataflow.prepare.annotations import source_chunks
from towernmt.dataflow.prepare.prepare_settings import LEAST_COVERAGE, PrepareSettings
from towernmt.dataflow.text.chunks import Chunk, read_chunks
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.text.line_hash import line_hash
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import FactorError, factored, split_factors
from towernmt.dataflow.vocabulary.subword.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.subword.sentence_piece import learn_sentence_piece
from towernmt.dataflow.vocabulary.vocabulary_files import load_factors, load_vocabulary
from towernmt.dataflow.vocabulary.words import WordVocabulary, learn_words


class VocabularyMaker:
    """Makes the two vocabularies that the settings ask for.

    Raises:
        DataError: a vocabulary file that the settings name cannot be read.
    """

    def __init__(self, settings: PrepareSettings) -> None:
        self._settings = settings
        self._files = {"source": settings.source_vocab, "target": settings.target_vocab}
        if settings.shared_vocab:
            file = settings.source_vocab or settings.target_vocab
            self._files = {"source": file, "target": file}
        self._factors = self._factors_from_files()
        for path in self._files.values():
            if path and not Path(path).is_file():
                raise DataError(f"{path}: there is no such vocabulary file. Check the path.")

    def file_checksums(self) -> dict[str, str]:
        """SHA-256 of the vocabulary files that the settings name."""
        checksums = {}
        for side, path in self._files.items():
            if path:
                checksum = hashlib.sha256(Path(path).read_bytes())
                pieces = Path(path).with_suffix(".pieces")
                if pieces.is_file():
                    checksum.update(pieces.read_bytes())
                checksums[f"{side}_vocab"] = checksum.hexdigest()
        for number, vocabulary in enumerate(self._factors or (), 1):
            content = b"".join(vocabulary.files().values())
            checksums[f"source_factor_{number}_vocab"] = hashlib.sha256(content).hexdigest()
        return checksums

    def _factors_from_files(self) -> list[WordVocabulary] | None:
        """The word lists next to the source vocabulary's file; None: they are to be learned."""
        path, wanted = self._files["source"], self._settings.factors
        found = load_factors(Path(path).parent) if path and wanted else []
        if found and len(found) != wanted:
            raise DataError(f"{path}: {len(found)} source factors have their word lists next to it, but the text has "
                            f"{wanted}: give the vocabulary of such text.")
        return found or None

    def make(self, lines: int) -> tuple[Vocabulary, Vocabulary, list[str]]:
        """The source vocabulary (with its factors), the target vocabulary, and notes for the user.

        Args:
            lines: number of lines of each text.
        Raises:
            DataError: a vocabulary cannot be learned from this text, or the files are not vocabularies.
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
        file = self._files["source"]
        if file and not settings.factors and (word_lists := len([*Path(file).parent.glob("source_factor_*.words")])):
            notes.append(f"{word_lists} source factors have their word lists next to {file}, but the text was read "
                         f"without: if its words have them behind them, pass --source-factors {word_lists}")
        factors = self._factors or [learn_words(values, settings.vocab_size) for values in self._factor_samples(lines)]
        return factored(vocabularies["source"], factors), vocabularies["target"], notes

    def _make_one(self, path: str | None, texts: list[str], lines: int) -> Vocabulary:
        settings = self._settings
        sentences = self._some(self._sample(texts, lines), lines * len(texts))
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

    def _some(self, sentences: Iterator[str], lines: int) -> Iterator[str]:
        """The same sentences.

        Raises:
            DataError: none was drawn though there are lines."""
        first = list(islice(sentences, 1))
        if not first and self._settings.vocab_sentences < lines:
            raise DataError(f"--vocab-sentences {self._settings.vocab_sentences}: of {lines:,} lines, none with text "
                            "was drawn to learn a vocabulary from. Raise it.")
        return chain(first, sentences)

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
        for text in texts:
            factors = self._settings.source_factors if text == self._settings.source else 0
            for chunk in read_chunks(text):
                for number, sentence in self._chosen(chunk, share):
                    cleaned = clean(sentence)
                    if cleaned and factors:
                        cleaned = " ".join(_split(cleaned, factors, chunk.path, number)[0])
                    if cleaned:
                        yield cleaned

    def _chosen(self, chunk: Chunk, share: float) -> Iterator[tuple[int, str]]:
        """The lines of the sample, with their numbers."""
        lines = chunk.decode()
        if share >= 1:
            yield from enumerate(lines, chunk.first_line)
            return
        limit = np.uint64(share * (2**64 - 2**11))
        numbers = chunk.first_line + np.arange(chunk.lines, dtype=np.int64)
        for index in np.flatnonzero(line_hash(numbers, self._settings.seed ^ 0x5EED) <= limit).tolist():
            yield chunk.first_line + index, lines[index]

    def _factor_samples(self, lines: int) -> Iterator[Iterator[str]]:
        """For each factor its values in about `vocab_sentences` lines, a line each."""
        settings = self._settings
        for factor in range(settings.factors):
            yield (" ".join(_split(clean(line), settings.factors, chunk.path, number)[1][factor])
                   for chunk in source_chunks(settings)
                   for number, line in self._chosen(chunk, settings.vocab_sentences / lines))


def _split(text: str, factors: int, path: str, number: int) -> tuple[list[str], list[list[str]]]:
    try:
        return split_factors(text, factors)
    except FactorError as error:
        raise error.at(path, number) from None
