"""Making the vocabularies of a preparation: from files that exist, or from a sample of the text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.prepare.tasks.learn_vocabulary import LearnVocabulary, Recipe
from towernmt.dataflow.prepare.tasks.sample_text import Draw, drawn_sentences
from towernmt.dataflow.prepare.vocabulary_plan import VocabularyPlan
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import factored
from towernmt.dataflow.vocabulary.vocabulary_files import load_factors, load_vocabulary
from towernmt.dataflow.vocabulary.words import WordVocabulary, learn_words


def check_vocabulary_files(settings: PrepareSettings) -> None:
    """Raises:
        DataError: a file that the settings name is not there.
    """
    for path in (settings.source_vocab, settings.target_vocab):
        if path and not Path(path).is_file():
            raise DataError(f"{path}: there is no such vocabulary file. Check the path.")


class VocabularyMaker:
    """Makes the two vocabularies of a preparation.

    Args:
        settings: of the preparation.
        plan: what they are like.
    Raises:
        DataError: a vocabulary file that the settings name cannot be read.
    """

    def __init__(self, settings: PrepareSettings, plan: VocabularyPlan) -> None:
        self._settings, self._plan = settings, plan
        self._files = {"source": settings.source_vocab, "target": settings.target_vocab}
        if plan.shared:
            file = settings.source_vocab or settings.target_vocab
            self._files = {"source": file, "target": file}
        self._factors = self._factors_from_files()

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

    def draw(self, lines: int) -> Draw | None:
        """The sentences that are needed of a text of so many lines; None: of none."""
        settings = self._settings
        sides = tuple(side for side in self._texts() if self._is_learned(side))
        factors = 0 if self._factors else settings.factors
        if not sides and not factors:
            return None
        if self._plan.shared and sides:
            sides = ("source", "target")
        texts = 2 if self._plan.shared else 1
        return Draw(sides, settings.vocab_sentences / (lines * texts), settings.vocab_sentences / lines,
                    settings.source_factors, factors, settings.seed)

    def learning(self, lines: int, samples: Sequence[Path], work: Path) -> dict[str, LearnVocabulary]:
        """The vocabularies that are to be learned: side to task.

        Args:
            lines: number of lines of each text.
            samples: files of the sentences that `draw` asks for.
            work: where the tasks write.
        """
        settings = self._settings
        tasks = {}
        for side in self._texts():
            if not self._is_learned(side):
                continue
            names = ("source", "target") if self._plan.shared else (side,)
            recipe = Recipe(
                settings.vocab_kind, self._plan.size, settings.character_coverage, settings.byte_fallback,
                tuple((settings.vocab_symbols or "").split(",")), self._files[side], settings.vocab_sentences,
                lines * len(names))
            tasks[side] = LearnVocabulary(work / f"{side}-vocabulary", lines, names, recipe, tuple(samples))
        return tasks

    def make(self, learned: Mapping[str, LearnVocabulary], samples: Sequence[Path]
             ) -> tuple[Vocabulary, Vocabulary, list[str]]:
        """The source vocabulary (with its factors), the target vocabulary, and notes for the user.

        Args:
            learned: the tasks of `learning`, done.
            samples: as there.
        Raises:
            DataError: the files are not vocabularies.
        """
        settings, plan, notes = self._settings, self._plan, []
        found = {side: learned[side].vocabulary() if side in learned else load_vocabulary(self._files[side] or "")
                 for side in self._texts()}
        for side, vocabulary in found.items():
            if not self._files[side] and vocabulary.size != plan.size:
                name, wanted = "shared" if plan.shared else side, "chosen" if plan.chosen else "asked for"
                notes.append(f"the {name} vocabulary has {vocabulary.size} ids rather than the {plan.size} {wanted}: "
                             "the text has no more pieces than that")
        file = self._files["source"]
        if file and not settings.factors and (word_lists := len([*Path(file).parent.glob("source_factor_*.words")])):
            notes.append(f"{word_lists} source factors have their word lists next to {file}, but the text was read "
                         f"without: if its words have them behind them, pass --source-factors {word_lists}")
        factors = self._factors or [
            learn_words(drawn_sentences(samples, f"factor_{number}"), plan.size)
            for number in range(1, settings.factors + 1)]
        return factored(found["source"], factors), found.get("target", found["source"]), notes

    def _texts(self) -> tuple[str, ...]:
        """The sides that have a vocabulary of their own."""
        return ("source",) if self._plan.shared else ("source", "target")

    def _is_learned(self, side: str) -> bool:
        path = self._files[side]
        return not path or (path.endswith(".codes") and not Path(path).with_suffix(".pieces").is_file())
