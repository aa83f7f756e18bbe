"""Settings of batches: how a corpus, or a stream of unprepared pairs, is cut into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from towernmt.core.errors import SettingsError
from towernmt.core.settings import setting

if TYPE_CHECKING:
    from towernmt.dataflow.vocabulary.base import Sampling

BATCH_TYPES = ("target", "source+target", "longest", "sentences")


@dataclass
class BatchSettings:
    """How the corpus is cut into batches and ordered."""

    batch_tokens: int = setting(4096, "Size of a global batch, in the unit of batch_type.", at_least=1)
    batch_type: str = setting(
        "target",
        "What batch_tokens counts. target: target tokens with EOS; source+target: sentences x (longest "
        "source + longest target); longest: sentences x longest side; sentences: pairs.", choices=BATCH_TYPES)
    bucket_width: int = setting(8, "Step of the length buckets in target tokens; 0 for no bucketing.", at_least=0)
    max_length: int = setting(
        200, "Target bound of the last bucket, tokens with EOS; it takes longer pairs.", at_least=1)
    sort_by_length: bool = setting(True, "Sort by length inside a bucket, ties at random: least padding.")
    shuffle: bool = setting(True, "Shuffle blocks, pairs and batches; if not, all epochs have one order.")
    seed: int = setting(
        1, "Seed of the order of the data, from 0; in a run, of initial values and dropout too.", at_least=0)


@dataclass
class StreamBatchSettings(BatchSettings):
    """How data become batches: the settings of all batches, and those of windows and drawn segmentations."""

    window: int = setting(
        100_000, "Unprepared sources: pairs that are read, encoded and shuffled together; what resuming reads again "
        "at most. Prepared data with subword_sampling: pairs that are drawn for and shuffled together.", at_least=1)
    subword_sampling: bool = setting(
        False, "Draw the segmentation of each sentence anew in each epoch (SentencePiece's unigram sampling, or "
        "BPE-dropout).")
    subword_alpha: float = setting(
        0.1, "Of the sampling. unigram: exponent of the probabilities, 0 draws evenly and more keeps to the best; "
        "bpe: share of merges that is left out.", at_least=0)
    subword_nbest: int = setting(
        -1, "Unprepared sources, unigram: draw among so many best segmentations; -1 for among all.", at_least=-1,
        at_most=512)

    def sampling(self) -> Sampling | None:
        """The sampling of sub-words, or None for the best segmentation.

        Raises:
            SettingsError: `subword_nbest` is 0 or 1, which draw among nothing.
        """
        from towernmt.dataflow.vocabulary.base import Sampling

        if not self.subword_sampling:
            return None
        if self.subword_nbest != -1 and not 2 <= self.subword_nbest <= 512:
            raise SettingsError(f"subword_nbest={self.subword_nbest}: expected 2 to 512 segmentations, or -1 for all.")
        return Sampling(self.subword_alpha, self.subword_nbest)
