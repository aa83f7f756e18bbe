"""Make the vocabularies of a preparation: learn them from a sample of the text, or load them from files.

The vocabularies of the two languages are learned at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from towernmt.core.errors import DataError, SettingsError, remedy
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.tasks import Task, atomic_output
from towernmt.dataflow.preparation.text_tasks import SampleSpec, sampled_sentences
from towernmt.dataflow.preparation.vocabulary_plan import VocabularyPlan, files_by_side, is_learned, learned_sides
from towernmt.dataflow.sources.corpora import check_tags
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import BpeCodesVocabulary, check_subword_nmt, learn_bpe_codes
from towernmt.dataflow.vocabulary.character_coverage import automatic_coverage
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.source_factors import add_factors, split_factors
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.dataflow.vocabulary.vocabulary_files import load_factors, load_vocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary, learn_words

_SEGMENTATION_SETTINGS = ("character_coverage", "byte_fallback", "split_digits", "vocab_symbols")
_LEARNING_SETTINGS = ("vocab_kind", "vocab_size", *_SEGMENTATION_SETTINGS, "vocab_sentences")
"""Settings of `prepare` that have an effect only if a vocabulary is learned. The first ones have none on the list of
subwords of existing codes, or on the values of factors."""


def check_vocabularies(settings: PrepareSettings) -> None:
    """Check the vocabulary files of the settings, and that the other vocabularies can be learned.

    Raises:
        DataError: a file is missing, cannot be read or is not a vocabulary, or a package is missing.
        SettingsError: no vocabulary is learned, but a setting is for learning one.
    """
    files = [path for path in (settings.source_vocab, settings.target_vocab) if path]
    for path in files:
        try:
            open(path, "rb").close()
        except OSError as error:
            raise DataError(f"{path}: cannot read the vocabulary ({error.strerror}). "
                            f"{remedy(error, 'Check the path.')}") from error
    sides = learned_sides(settings)
    unused: tuple[str, ...] = ()
    if all(files_by_side(settings, bool(settings.shared_vocab)).values()):
        # If a file of codes has no list of subwords, this list is learned. The values of factors are always learned.
        unused = _SEGMENTATION_SETTINGS if sides or settings.factors else _LEARNING_SETTINGS
    for name in unused:
        if getattr(settings, name) != getattr(PrepareSettings, name):
            option = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{option} has no effect, because all vocabularies are files: leave out {option}, "
                                "or --source-vocab and --target-vocab.")
    for path in files:
        if is_learned(path):        # codes without the list of their subwords
            BpeCodesVocabulary(Path(path).read_bytes(), SPECIAL_PIECES, path)
        else:
            load_vocabulary(path)
    if sides and settings.vocab_kind == "bpe-codes":
        check_subword_nmt()


def check_known_tags(settings: PrepareSettings, tags: Sequence[str]) -> None:
    """Check that an existing source vocabulary knows the tags of the sources.

    Args:
        settings: settings whose source is a `corpora.yaml`, or the URI of a source.
        tags: the tags. Each word is followed by its factors.

    Raises:
        SettingsError: a tag has an unknown word or factor.
        DataError: the vocabulary cannot be read.
    """
    path = files_by_side(settings, bool(settings.shared_vocab))["source"]
    if not path or is_learned(path) or not any(tags):
        return
    vocabulary, word_lists = load_vocabulary(path), load_factors(Path(path).parent) if settings.factors else []
    if len(word_lists) == settings.factors:
        vocabulary = add_factors(vocabulary, word_lists)
    else:       # the values of the factors are learned from the text
        tags = [" ".join(split_factors(tag, settings.factors)[0]) for tag in tags]
    check_tags(tags, vocabulary, settings.source)


def load_factor_lists(settings: PrepareSettings) -> list[WordVocabulary] | None:
    """Return the word lists of the factors next to the file of the source vocabulary, or None if they must be learned.

    Raises:
        DataError: the text has another number of factors.
    """
    path = files_by_side(settings, bool(settings.shared_vocab))["source"]
    word_lists = load_factors(Path(path).parent) if path and settings.factors else []
    if word_lists and len(word_lists) != settings.factors:
        raise DataError(f"{path}: {len(word_lists)} source factors have their word lists next to it, but the text has "
                        f"{settings.factors}: pass a vocabulary with that number of factors.")
    return word_lists or None


@dataclass(frozen=True)
class VocabularyRecipe:
    """The options for learning a vocabulary; see the settings of a preparation.

    Attributes:
        kind: kind of vocabulary.
        size: number of ids.
        coverage: share of the characters that become subwords; None for the automatic share.
        byte_fallback: whether other characters are encoded as bytes.
        symbols: tokens that are always subwords.
        split_digits: whether each digit is a separate subword.
        codes: content of a file of BPE codes, whose subwords are taken from the text; None to learn the codes, too.
        sentences: number of sentences of the sample.
        lines: number of lines from which they are sampled.
    """

    kind: str
    size: int
    coverage: float | None
    byte_fallback: bool
    symbols: tuple[str, ...]
    split_digits: bool
    codes: bytes | None
    sentences: int
    lines: int


@dataclass(frozen=True)
class LearnVocabulary(Task):
    """Learns a vocabulary from sampled sentences.

    Attributes:
        names: sides of the sentences (see `sampled_sentences`); for a shared vocabulary, the source first.
        recipe: options.
        samples: files of the sentences, in the order of the text.
    """

    names: tuple[str, ...]
    recipe: VocabularyRecipe
    samples: tuple[Path, ...]

    @property
    def title(self) -> str:
        return f"learning the vocabulary of the {' and the '.join(self.names)}"

    def run(self) -> None:
        vocabulary = self._learn()
        with atomic_output(self.output) as unfinished:
            unfinished.mkdir()
            vocabulary.save(unfinished / "vocabulary")

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, after the task is done."""
        return load_vocabulary(self.output / "vocabulary")

    def _learn(self) -> Vocabulary:
        recipe, sentences = self.recipe, self._checked_sentences()
        if recipe.codes is not None:
            return learn_bpe_codes(sentences, recipe.size, recipe.codes)
        if recipe.kind == "word":
            return learn_words(sentences, recipe.size)
        if recipe.kind == "bpe-codes":
            return learn_bpe_codes(sentences, recipe.size, split_digits=recipe.split_digits)
        coverage = recipe.coverage or automatic_coverage(self._sentences(), recipe.size)
        return learn_sentence_piece(sentences, recipe.kind, recipe.size, coverage, recipe.byte_fallback, recipe.symbols,
                                    recipe.split_digits)

    def _sentences(self) -> Iterator[str]:
        return chain.from_iterable(sampled_sentences(self.samples, name) for name in self.names)

    def _checked_sentences(self) -> Iterator[str]:
        """Return the sentences, of which there is at least one.

        Raises:
            DataError: the sample or the text contains no sentence.
        """
        sentences, recipe = self._sentences(), self.recipe
        first = list(islice(sentences, 1))
        if not first and recipe.sentences < recipe.lines:
            raise DataError(f"--vocab-sentences {recipe.sentences}: of {recipe.lines:,} lines, none with text "
                            "was drawn to learn a vocabulary from. Raise it.")
        if not first:
            raise DataError(f"The {' and the '.join(self.names)} text has no words to learn a vocabulary from: "
                            "every line is empty or has only control characters. Pass text as "
                            f"{' and '.join(f'--{name}' for name in self.names)}.")
        return chain(first, sentences)


class VocabularyMaker:
    """Makes the two vocabularies of a preparation.

    Raises:
        DataError: a vocabulary file of the settings cannot be read.
    """

    def __init__(self, settings: PrepareSettings, plan: VocabularyPlan) -> None:
        self._settings, self._plan = settings, plan
        self._files = files_by_side(settings, plan.shared)
        self._factors = load_factor_lists(settings)

    def file_checksums(self) -> dict[str, str]:
        """Return the SHA-256 of the vocabulary files of the settings."""
        checksums = {}
        for side, path in self._files.items():
            if path:
                checksum = hashlib.sha256(Path(path).read_bytes())
                subwords = Path(path).with_suffix(".pieces")
                if subwords.is_file():
                    checksum.update(subwords.read_bytes())
                checksums[f"{side}_vocab"] = checksum.hexdigest()
        for number, vocabulary in enumerate(self._factors or (), 1):
            content = b"".join(vocabulary.files().values())
            checksums[f"source_factor_{number}_vocab"] = hashlib.sha256(content).hexdigest()
        return checksums

    def draw(self, lines: int) -> SampleSpec | None:
        """Return the sample of sentences for a text with `lines` lines; None if no sentences are needed."""
        settings = self._settings
        sides = tuple(side for side in self._texts() if is_learned(self._files[side]))
        factors = 0 if self._factors else settings.factors
        if not sides and not factors:
            return None
        if self._plan.shared and sides:
            sides = ("source", "target")
        texts = 2 if self._plan.shared else 1
        return SampleSpec(sides, settings.vocab_sentences / (lines * texts), settings.vocab_sentences / lines,
                    settings.source_factors, factors, settings.seed)

    def learning(self, lines: int, samples: Sequence[Path], work: Path) -> dict[str, LearnVocabulary]:
        """Return the tasks that learn vocabularies, by side.

        Args:
            lines: number of lines of each text.
            samples: files of the sentences of the sample of `draw`.
            work: directory for the output of the tasks.
        """
        settings = self._settings
        tasks = {}
        for side in self._texts():
            path = self._files[side]
            if not is_learned(path):
                continue
            names = ("source", "target") if self._plan.shared else (side,)
            recipe = VocabularyRecipe(
                settings.vocab_kind, self._plan.size, settings.character_coverage, settings.byte_fallback,
                settings.symbols, settings.split_digits, Path(path).read_bytes() if path else None,
                settings.vocab_sentences, lines * len(names))
            tasks[side] = LearnVocabulary(work / f"{side}-vocabulary", lines, names, recipe, tuple(samples))
        return tasks

    def make(self, learned: Mapping[str, LearnVocabulary], samples: Sequence[Path]
             ) -> tuple[Vocabulary, Vocabulary, list[str]]:
        """Return the source vocabulary with its factors, the target vocabulary, and notes for the user.

        Args:
            learned: the tasks of `learning`, after they are done.
            samples: files of the sampled sentences.

        Raises:
            DataError: the files are not vocabularies.
        """
        settings, plan, notes = self._settings, self._plan, []
        vocabularies = {
            side: learned[side].vocabulary() if side in learned else load_vocabulary(self._files[side] or "")
            for side in self._texts()}
        for side, vocabulary in vocabularies.items():
            if not self._files[side] and vocabulary.size != plan.size:
                name, adjective = "shared" if plan.shared else side, "chosen" if plan.automatic else "requested"
                notes.append(f"the {name} vocabulary has {vocabulary.size} ids rather than the {plan.size} "
                             f"{adjective}: the text does not have more entries")
        file = self._files["source"]
        if file and not settings.factors and (word_lists := len([*Path(file).parent.glob("source_factor_*.words")])):
            notes.append(f"{word_lists} source factors have their word lists next to {file}, but the text was read "
                         f"without factors: if its words are followed by factors, pass --source-factors {word_lists}")
        factors = self._factors or [
            learn_words(sampled_sentences(samples, f"factor_{number}"), plan.size)
            for number in range(1, settings.factors + 1)]
        return add_factors(vocabularies["source"], factors), vocabularies.get("target", vocabularies["source"]), notes

    def source_text(self) -> SourceText:
        """Return the facts next to the file of the source vocabulary about the text of its model; may be empty."""
        path = self._files["source"]
        return SourceText.load(path) if path else SourceText()

    def _texts(self) -> tuple[str, ...]:
        """Return the sides that have a separate vocabulary."""
        return ("source",) if self._plan.shared else ("source", "target")
