"""Prepared data with general data mixed in: which pairs an epoch has, the same after a resume, and refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from towernmt.core.errors import SettingsError
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.mixed_data import MixedBatches, MixedData, has_only_general_sets
from towernmt.dataflow.batches.training_data import make_batches, with_general_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData, ReversedData
from towernmt.dataflow.vocabulary.base import BOS, EOS
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

NEW, GENERAL = ([f"{letter}{number}" for number in range(count)] for letter, count in (("n", 30), ("g", 50)))
SETTINGS = StreamBatchSettings(batch_tokens=16, seed=3)


def make_data(directory: Path, name: str, words: list[str], **further_settings: object) -> PreparedData:
    """Prepare a pair for each word: the word three times, and twice; in shards of about 15 pairs by default."""
    vocabulary = directory / "vocabulary.words"
    if not vocabulary.exists():
        WordVocabulary(["<pad>", "<s>", "</s>", "<unk>", *NEW, *GENERAL]).save(directory / "vocabulary")
    for side, repeated in (("source", 3), ("target", 2)):
        (directory / f"{name}.{side}").write_text("".join(f"{' '.join([word] * repeated)}\n" for word in words))
    source, target = (str(directory / f"{name}.{side}") for side in ("source", "target"))
    settings = {"source_vocab": str(vocabulary), "target_vocab": str(vocabulary), "shard_pairs": 15,
                "valid_source": source, "valid_target": target, **further_settings}
    return prepare(PrepareSettings(
        source=source, target=target, output=str(directory / name), workers=1, **settings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the data `new` and `general`."""
    directory = tmp_path_factory.mktemp("mixed")
    make_data(directory, "new", NEW)
    make_data(directory, "general", GENERAL, shard_pairs=25)
    return directory


@pytest.fixture
def data(directory: Path) -> MixedData:
    """The new data with the general data."""
    return MixedData(PreparedData(directory / "new"), PreparedData(directory / "general"))


def words_of_epochs(data: MixedData, settings: StreamBatchSettings, epochs: int) -> list[Counter[str]]:
    """Return how often each word's pair is in each epoch."""
    counts = [Counter[str]() for _ in range(epochs)]
    for position, batch in MixedBatches(data, settings, epochs).read():
        epoch = position.epoch - (position.block == position.batch == 0)
        for source, target in zip(batch.source, batch.target, strict=True):
            assert source[0] == source[2] == target[0] == target[1]
            counts[epoch][data.source_vocabulary.id_to_piece(int(source[0]))] += 1
    return counts


@pytest.mark.parametrize(("share", "general"), [(0.5, 30), (0.25, 10), (0.0, 0), (0.75, 90)])
def test_an_epoch_has_each_new_pair_once_and_its_share_of_general_pairs(data: MixedData, share: float, general: int
                                                                       ) -> None:
    settings = replace(SETTINGS, general_share=share)
    for epoch in words_of_epochs(data, settings, 2):
        assert {word: epoch[word] for word in NEW} == dict.fromkeys(NEW, 1)
        assert sum(epoch[word] for word in GENERAL) == pytest.approx(general, abs=len(NEW) / 15)
        assert share > 0.5 or max((epoch[word] for word in GENERAL), default=0) <= 2     # once in a block


def test_each_epoch_has_other_general_pairs_and_the_same_seed_the_same(data: MixedData) -> None:
    epochs = words_of_epochs(data, SETTINGS, 4)
    samples = [tuple(sorted(word for word in epoch if word in GENERAL)) for epoch in epochs]
    assert len(set(samples)) == 4 and epochs == words_of_epochs(data, SETTINGS, 4)
    assert len(set().union(*samples)) > 40
    assert epochs != words_of_epochs(data, replace(SETTINGS, seed=4), 4)


def test_reading_resumes_at_any_position_with_the_same_batches(data: MixedData) -> None:
    everything = list(MixedBatches(data, SETTINGS, 2).read())
    for number in range(0, len(everything), 3):
        remaining = list(MixedBatches(data, SETTINGS, 2).read(everything[number][0]))
        assert [position for position, _ in remaining] == [position for position, _ in everything[number + 1:]]
        for (_, batch), (_, expected) in zip(remaining, everything[number + 1:], strict=True):
            np.testing.assert_array_equal(batch.source, expected.source)
            np.testing.assert_array_equal(batch.target, expected.target)


def test_the_size_of_an_epoch_is_estimated_by_that_of_the_new_data(data: MixedData) -> None:
    batches = make_batches(data, SETTINGS)
    assert isinstance(batches, MixedBatches)
    assert batches.estimated_size.pairs == 60
    assert batches.estimated_size.batches == pytest.approx(batches.batches_per_epoch(), rel=0.2)


def test_both_validation_sets_are_there_under_their_names(data: MixedData) -> None:
    assert [validation_set.name for validation_set in data.validation_sets] == ["", "general"]
    assert data.valid_source == data.new.valid_source
    assert data.validation_sets[1].source == data.general.valid_source


def test_two_validation_sets_with_one_name_are_refused(directory: Path, data: MixedData) -> None:
    named = make_data(directory, "named", NEW, valid_name=["general"])
    with pytest.raises(SettingsError, match="validation set that training names 'general', which is also the name of "
                                            "a set of .*named: prepare that data again with another --valid-name"):
        MixedData(named, data.general)


def test_validation_text_of_general_data_alone_is_distinguished(directory: Path, data: MixedData) -> None:
    blind = make_data(directory, "blind", NEW, valid_source=None, valid_target=None)
    mixed = MixedData(blind, data.general)
    assert [validation_set.name for validation_set in mixed.validation_sets] == ["general"]
    assert [has_only_general_sets(any_data) for any_data in (mixed, data, MixedData(data.new, blind),
                                                             MixedData(blind, blind), data.new)] == [
        True, False, False, False, False]


def test_the_fingerprint_and_the_position_depend_on_both_data(data: MixedData) -> None:
    swapped = MixedData(data.general, data.new)
    assert len({data.fingerprint, swapped.fingerprint, data.new.fingerprint, data.general.fingerprint}) == 4
    settings = MixedBatches(data, SETTINGS).position_settings
    assert settings.items() > {"number of general sentence pairs": 50, "data.general_share": 0.5}.items()
    assert settings.keys() > Batches(data.new, SETTINGS).position_settings.keys()


def test_incompatible_data_are_refused(directory: Path, tmp_path: Path) -> None:
    new = PreparedData(directory / "new")
    assert with_general_data(new, None) is new
    incompatible = make_data(tmp_path, "other", GENERAL, source_vocab=None, target_vocab=None, vocab_kind="word")
    with pytest.raises(SettingsError, match="--general .*other has another vocabulary than .*new: prepare both with"):
        with_general_data(new, incompatible.directory)
    with pytest.raises(SettingsError, match=r"mixes prepared data, but .*new.\{source,target\} is unprepared text"):
        with_general_data(new, f"{directory}/new.{{source,target}}")
    mixed = with_general_data(new, directory / "general")
    for name, value, setting_text in (("subword_sampling", True, "data.subword_sampling=true"),
                                      ("modifiers", ["upper=0.1"], "data.modifiers=upper=0.1")):
        message = f"{setting_text} changes pairs as they are read, which --general does not"
        with pytest.raises(SettingsError, match=message):
            make_batches(mixed, replace(SETTINGS, **{name: value}))


@pytest.mark.parametrize("aligned", ["new", "general"])
def test_the_data_without_word_alignments_are_named(tmp_path: Path, aligned: str) -> None:
    data = {name: make_data(tmp_path, name, words, alignments="learn" if name == aligned else None)
            for name, words in (("new", NEW), ("general", GENERAL))}
    (unaligned,) = data.keys() - {aligned}
    with pytest.raises(SettingsError, match=f"above 0, but {data[unaligned].directory} has no word alignments"):
        make_batches(MixedData(data["new"], data["general"]), SETTINGS, alignments=True)


def test_general_data_without_a_share_of_the_pairs_need_no_word_alignments(tmp_path: Path) -> None:
    data = MixedData(make_data(tmp_path, "new", NEW, alignments="learn"), make_data(tmp_path, "general", GENERAL))
    (*_, (_, batch)) = make_batches(data, replace(SETTINGS, general_share=0.0), 1, alignments=True).read()
    assert batch.alignment is not None


def test_general_sources_begin_with_the_tag_and_new_ones_do_not(data: MixedData) -> None:
    tagged = MixedData(data.new, data.general, BOS)
    assert tagged.fingerprint != data.fingerprint
    words, sources = tagged.source_vocabulary, set()
    for _, batch in MixedBatches(tagged, SETTINGS, 1).read():
        for source, target in zip(batch.source.tolist(), batch.target.tolist(), strict=True):
            is_general = words.id_to_piece(target[0]) in GENERAL
            assert source[:4] == ([BOS, target[0], target[0], target[0]] if is_general else [target[0]] * 3 + [EOS])
            sources.add(is_general)
    assert sources == {True, False}


def test_reversed_data_have_source_and_target_exchanged(data: MixedData) -> None:
    backward = ReversedData(data.new)
    assert backward.pairs == data.new.pairs and backward.fingerprint != data.new.fingerprint
    assert backward.target_tokens == 3 * len(NEW) and data.new.target_tokens == 2 * len(NEW)
    assert {tuple(batch.source.shape[1:]) for _, batch in Batches(backward, SETTINGS, 1).read()} == {(3,)}    # with EOS
    assert {tuple(batch.target.shape[1:]) for _, batch in Batches(backward, SETTINGS, 1).read()} == {(4,)}
    assert backward.valid_source == data.new.valid_target and backward.valid_target == data.new.valid_source
    assert backward.pair_lengths.sample(5)[0].tolist() == [2] * 5
    assert ReversedData(backward).read_block(1).source_ids.tolist() == data.new.read_block(1).source_ids.tolist()
