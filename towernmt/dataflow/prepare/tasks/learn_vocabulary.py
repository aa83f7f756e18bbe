"""Learning a vocabulary from the sentences that were drawn. Those of the two sides are learned at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.dataflow.prepare.prepare_settings import LEAST_COVERAGE
from towernmt.dataflow.prepare.running.task import Task, putting
from towernmt.dataflow.prepare.tasks.sample_text import drawn_sentences
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.subword.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.subword.sentence_piece import learn_sentence_piece
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabulary
from towernmt.dataflow.vocabulary.words import learn_words


@dataclass(frozen=True)
class Recipe:
    """How a vocabulary is learned; see the settings of a preparation.

    Attributes:
        kind, size, coverage, byte_fallback, symbols: as there.
        codes: file of codes that are there, whose pieces are taken from the text; None: they are learned, too.
        sentences: to draw, as there.
        lines: that are drawn from.
    """

    kind: str
    size: int
    coverage: float | None
    byte_fallback: bool
    symbols: tuple[str, ...]
    codes: str | None
    sentences: int
    lines: int


@dataclass(frozen=True)
class LearnVocabulary(Task):
    """Attributes:
        names: whose sentences, see `drawn_sentences`; of a shared vocabulary, those of the source first.
        recipe: how.
        samples: files of the sentences, in the order of the text.
    """

    names: tuple[str, ...]
    recipe: Recipe
    samples: tuple[Path, ...]

    @property
    def title(self) -> str:
        return f"learning the vocabulary of the {' and the '.join(self.names)}"

    def run(self) -> None:
        vocabulary = self._learn()
        with putting(self.output) as unfinished:
            unfinished.mkdir()
            vocabulary.save(unfinished / "vocabulary")

    def vocabulary(self) -> Vocabulary:
        """What was learned."""
        return load_vocabulary(self.output / "vocabulary")

    def _learn(self) -> Vocabulary:
        recipe, sentences = self.recipe, self._some()
        if recipe.codes:
            return learn_bpe_codes(sentences, recipe.size, Path(recipe.codes).read_bytes(), origin=recipe.codes)
        if recipe.kind == "word":
            return learn_words(sentences, recipe.size)
        if recipe.kind == "bpe-codes":
            return learn_bpe_codes(sentences, recipe.size)
        coverage = recipe.coverage or self._coverage()
        return learn_sentence_piece(sentences, recipe.kind, recipe.size, coverage, recipe.byte_fallback, recipe.symbols)

    def _sentences(self) -> Iterator[str]:
        return chain.from_iterable(drawn_sentences(self.samples, name) for name in self.names)

    def _some(self) -> Iterator[str]:
        """The same sentences.

        Raises:
            DataError: none was drawn though there are lines."""
        sentences, recipe = self._sentences(), self.recipe
        first = list(islice(sentences, 1))
        if not first and recipe.sentences < recipe.lines:
            raise DataError(f"--vocab-sentences {recipe.sentences}: of {recipe.lines:,} lines, none with text "
                            "was drawn to learn a vocabulary from. Raise it.")
        return chain(first, sentences)

    def _coverage(self) -> float:
        """The share of the text that its characters cover, as many of them as fill half of the vocabulary."""
        characters: Counter[str] = Counter()
        for sentence in self._sentences():
            characters.update(sentence)
        kept = characters.most_common(self.recipe.size // 2)
        if len(kept) == len(characters):
            return 1.0
        return max(sum(count for _, count in kept) / characters.total(), LEAST_COVERAGE)
