"""Prepared data that are mixed with general data, so that a trained model does not forget what it has learned.

An epoch is one pass over the new data. Each of its blocks also contains a random sample of the general data, which
differs in each epoch and is a function of (seed, epoch, block) alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.block_plan import EpochSize, permutation
from towernmt.dataflow.preparation.manifest import vocabulary_files
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.preparation.shards import PairBlock, join_blocks, select_pairs, with_source_prefix
from towernmt.dataflow.text.validation_set import ValidatedData, ValidationSet
from towernmt.dataflow.vocabulary.base import Vocabulary

GENERAL = "general"
"""Name of the validation set of the general data; with several sets the beginning of their names."""
GENERAL_PAIRS = "number of general sentence pairs"
"""The name of this number in `position_settings`, which only mixed data have."""
_SAMPLE = 6  # end of a key of random numbers, different from the keys of plans and windows


class MixedData(ValidatedData):
    """Prepared data of a new domain, and the general data that are mixed with them.

    Args:
        new: prepared data of the new domain.
        general: prepared data with the same vocabularies.
        tag: id of a token that is put before each source of the general data; None for no token.
        translated: whether `general` is monolingual text with machine translations, instead of text of the domain that
            the model must not forget.

    Attributes:
        translated: the argument.
        directory, source_vocabulary, target_vocabulary, shared_vocabulary, pairs, target_tokens, num_blocks,
        length_ratio: those of the new data; see `PreparedData`.

    Raises:
        SettingsError: the vocabularies differ, or a validation set of each has the same name in training.
    """

    def __init__(self, new: PreparedData, general: PreparedData, tag: int | None = None, translated: bool = False
                 ) -> None:
        theirs, ours = (vocabulary_files(data.source_vocabulary, data.target_vocabulary) for data in (general, new))
        if theirs != ours:
            raise SettingsError(f"--general {general.directory} has another vocabulary than {new.directory}: prepare "
                                "both with --vocabulary-of and the same model.")
        self.new, self.general, self._tag, self.translated = new, general, tag, translated
        self._refuse_equal_names()
        self.directory: Path | str = new.directory
        self.source_vocabulary: Vocabulary = new.source_vocabulary
        self.target_vocabulary: Vocabulary = new.target_vocabulary
        self.shared_vocabulary: bool = new.shared_vocabulary
        self.pairs, self.target_tokens, self.num_blocks = new.pairs, new.target_tokens, new.num_blocks
        self.length_ratio = new.length_ratio

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that identify the ids of both data and the vocabularies."""
        tag = "" if self._tag is None else f" {self._tag}"
        return hashlib.sha256(f"{self.new.fingerprint} {self.general.fingerprint}{tag}".encode()).hexdigest()[:32]

    @property
    def position_settings(self) -> dict[str, Any]:
        """The sizes on which a position in the data depends."""
        return {**self.new.position_settings, GENERAL_PAIRS: self.general.pairs}

    @cached_property
    def validation_sets(self) -> list[ValidationSet]:
        """The validation sets of the new data, then those of the general data."""
        general_sets = zip(self.general.validation_sets, self._general_names(), strict=True)
        return [*self.new.validation_sets, *(replace(general_set, name=name) for general_set, name in general_sets)]

    def _general_names(self) -> list[str]:
        """Return the names of the validation sets of the general data."""
        names = [info["name"] for info in self.general.manifest["validation_sets"]]
        return [GENERAL] if len(names) == 1 else [f"{GENERAL}-{name}" for name in names]

    def _refuse_equal_names(self) -> None:
        """Refuse a validation set of the new data with the name of one of the general data: their scores would mix.

        Raises:
            SettingsError: two sets have the same name.
        """
        new_names = [info["name"] for info in self.new.manifest["validation_sets"]]
        for name in self._general_names():
            if name in new_names:
                raise SettingsError(f"--general {self.general.directory} has a validation set that training names "
                                    f"'{name}', which is also the name of a set of {self.new.directory}: prepare that "
                                    "data again with another --valid-name.")

    def copy_vocabularies(self, directory: str | Path) -> None:
        """Write the vocabularies into another directory."""
        self.new.copy_vocabularies(directory)

    def read_block(self, index: int) -> PairBlock:
        """Return a block of the new data."""
        return self.new.read_block(index)

    def mixed_block(self, epoch: int, index: int, share: float, seed: int) -> PairBlock:
        """Return a block of the new data, followed by general pairs.

        The general pairs are drawn without repetition from one shard, each time from the next one. If that shard has
        too few pairs, the following shards contribute, too.

        Args:
            epoch: number of the epoch, from 0.
            index: number of the block.
            share: share of the general pairs among all pairs of the block, 0 to below 1.
            seed: seed of the sample, from 0.
        """
        block = self.new.read_block(index)
        remaining, shard_number = round(len(block) * share / (1 - share)), epoch * self.num_blocks + index
        while remaining:
            shard = self.general.read_block(shard_number % self.general.num_blocks)
            indices = np.sort(permutation([seed, epoch, index, shard_number, _SAMPLE], len(shard))[:remaining])
            general_pairs = select_pairs(shard, indices)
            if self._tag is not None:
                general_pairs = with_source_prefix(general_pairs, self._tag)
            block = join_blocks(block, general_pairs)
            remaining, shard_number = remaining - len(indices), shard_number + 1
        return block


def has_only_general_sets(data: object) -> bool:
    """Return whether all validation sets of training data are those of general data.

    On these sets, the unchanged model may be the best, because the new data are of another domain.
    """
    return isinstance(data, MixedData) and not data.new.validation_sets and bool(data.general.validation_sets)


def check_mixable(settings: StreamBatchSettings) -> None:
    """Refuse settings that change pairs during reading, which general data do not support.

    Raises:
        SettingsError: names the first such setting.
    """
    for name in ("subword_sampling", "modifiers"):
        if value := getattr(settings, name):
            value_text = "true" if value is True else ",".join(value)
            raise SettingsError(f"data.{name}={value_text} changes pairs as they are read, which --general does not "
                                "support: leave out one of them.")


class MixedBatches(Batches):
    """Batches of mixed data.

    Args:
        data: the data.
        settings: size and order of the batches, and the share of general pairs.
        epochs, alignments: see `Batches`.

    Raises:
        SettingsError: a setting has an impossible value, or is for unmixed data.
    """

    def __init__(self, data: MixedData, settings: StreamBatchSettings, epochs: int | None = None,
                 alignments: bool = False) -> None:
        check_mixable(settings)
        super().__init__(data, settings, epochs, alignments)
        self._mixed, self._share = data, settings.general_share

    @property
    def position_settings(self) -> dict[str, Any]:
        """The settings of `Batches`, and the share of general pairs."""
        return {**super().position_settings, "data.general_share": self._share}

    @cached_property
    def estimated_size(self) -> EpochSize:
        """The size of an epoch, estimated by that of the new data."""
        return Batches(self._mixed.new, self._settings).estimated_size.times(1 / (1 - self._share))

    def _read_block(self, epoch: int, index: int) -> PairBlock:
        return self._mixed.mixed_block(epoch, index, self._share, self._settings.seed)
