"""Settings of batches: how a corpus or a stream of unprepared pairs is divided into batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from towernmt.core.errors import SettingsError
from towernmt.core.settings import setting
from towernmt.dataflow.text.language_codes import parse_direction, two_letter_code

if TYPE_CHECKING:
    from towernmt.dataflow.text.modifiers import Modifiers
    from towernmt.dataflow.vocabulary.base import Sampling

BATCH_TYPES = ("target", "source+target", "longest", "sentences")


@dataclass
class BatchSettings:
    """Settings of the size and order of batches: settings `data.*` of a run."""

    batch_tokens: int = setting(4096, "Size of a global batch, in the unit of batch_type.", at_least=1)
    batch_type: str = setting(
        "target",
        "Unit of batch_tokens. target: target tokens including EOS; source+target: sentences x (longest "
        "source + longest target); longest: sentences x longest side; sentences: pairs.", choices=BATCH_TYPES)
    bucket_width: int = setting(
        8, "Step of the length buckets in target tokens; 0 for no bucketing.", at_least=0, at_most=1_000_000)
    max_length: int = setting(
        200, "Target bound of the last bucket, in tokens including EOS. Longer pairs go to the last bucket.",
        at_least=1, at_most=1_000_000)
    sort_by_length: bool = setting(
        True, "Sort by length inside a bucket, with ties in random order, which gives the least padding.")
    shuffle: bool = setting(True, "Shuffle blocks, pairs and batches. If false, all epochs have the same order.")
    seed: int = setting(
        1, "Seed of the order of the data, from 0. A run also uses it for initial values and dropout.", at_least=0)

    def position_settings(self) -> dict[str, Any]:
        """Return the settings that a position inside an epoch depends on, by their full names."""
        return {f"data.{name}": getattr(self, name) for name in BatchSettings.__dataclass_fields__}


@dataclass
class StreamBatchSettings(BatchSettings):
    """Settings of all batches, and of windows and sampled segmentations: settings `data.*` of a run."""

    window: int = setting(
        100_000, "Unprepared sources: number of pairs that are read, encoded and shuffled together; a resumed run "
        "reads at most these again. Prepared data with subword_sampling: number of pairs that are segmented and "
        "shuffled together.", at_least=1)
    subword_sampling: bool = setting(
        False, "Sample a new segmentation of each sentence in each epoch (SentencePiece's unigram sampling, or "
        "BPE-dropout).")
    subword_alpha: float = setting(
        0.1, "Strength of the sampling. unigram: exponent of the probabilities; 0 samples uniformly, larger values "
        "favour the best segmentation. bpe: probability of leaving out a merge.", at_least=0)
    subword_nbest: int = setting(
        -1, "Unprepared sources, unigram: sample among this number of best segmentations; -1 for all.", at_least=-1,
        at_most=512)

    modifiers: list[str] = setting(
        [], "Changes of training pairs, each with the probability of a pair: upper, title, typos, noise, spans, emoji, "
        "join (such as upper=0.05,typos=0.1); prepared data are then read in windows. See the guide, \"Robustness\".")
    modifier_languages: str = setting(
        "", "Languages of source and target for the modifiers, such as tr-en: they decide the letter case (Turkish, "
        "Greek) and the keyboard of typos.")

    general_share: float = setting(
        0.5, "Share of general pairs (--general) among all pairs of an epoch; 0: only the validation text of --general "
        "is used.", at_least=0, below=1)

    def window_settings(self) -> dict[str, Any]:
        """Return the additional settings that a position depends on if pairs are read in windows."""
        sampling = ("subword_alpha", "subword_nbest") if self.subword_sampling else ()
        languages = ("modifier_languages",) if self.modifiers else ()
        return {f"data.{name}": getattr(self, name)
                for name in ("window", "subword_sampling", *sampling, "modifiers", *languages)}

    def pair_modifiers(self) -> Modifiers | None:
        """Return the modifiers of the pairs; None for none.

        Raises:
            SettingsError: a modifier, a probability or a language is invalid.
        """
        from towernmt.dataflow.text.modifiers import Modifiers

        if not self.modifier_languages:
            return Modifiers.parse(self.modifiers)
        try:
            source, target = map(two_letter_code, parse_direction(self.modifier_languages))
        except SettingsError as error:
            raise SettingsError(f"data.modifier_languages={self.modifier_languages}: expected the codes of the source "
                                "and the target language, such as tr-en or pt_BR-en.") from error
        return Modifiers.parse(self.modifiers, (source, target))

    def sampling(self) -> Sampling | None:
        """Return the sampling of subwords, or None for the best segmentation.

        Raises:
            SettingsError: `subword_nbest` is 0 or 1, which leaves no choice.
        """
        from towernmt.dataflow.vocabulary.base import Sampling

        if not self.subword_sampling:
            return None
        if self.subword_nbest != -1 and not 2 <= self.subword_nbest <= 512:
            raise SettingsError(f"subword_nbest={self.subword_nbest}: expected 2 to 512 segmentations, or -1 for all.")
        return Sampling(self.subword_alpha, self.subword_nbest)
