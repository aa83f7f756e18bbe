"""Batches with modified pairs, of prepared data and of streams: exact positions, and every pair once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towernmt.core.errors import SettingsError
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.batches.training_data import make_batches, open_training_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.sources.source import Pair
from towernmt.dataflow.text.pair_filters import PairFilter
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

LINES = [(f"der hund {number} lief um {'das haus ' * (number % 3)}herum.",
          f"the dog {number} ran around {'the house ' * (number % 3)}there.") for number in range(240)]
UPPER = {(source.upper(), target.upper()) for source, target in LINES}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("modified")
    for side, name in enumerate(("source", "target")):
        (directory / name).write_text("".join(pair[side] + "\n" for pair in [*LINES, *sorted(UPPER)]))
    texts = {"source": str(directory / "source"), "target": str(directory / "target")}
    prepare(PrepareSettings(**texts, output=str(directory / "both"), vocab_size=130, workers=1))
    for side, name in enumerate(("source", "target")):
        (directory / name).write_text("".join(pair[side] + "\n" for pair in LINES))
    prepare(PrepareSettings(**texts, output=str(directory / "data"),
                            source_vocab=str(directory / "both/vocabulary/source.model"), shard_pairs=130, workers=1,
                            target_vocab=str(directory / "both/vocabulary/target.model"), alignments="learn"))
    (directory / "corpora.yaml").write_text(
        f"vocabulary: {directory}/data\nsources:\n  - {{uri: '{directory}/{{source,target}}'}}\n")
    return directory


def settings(*modifiers: str, **changes: Any) -> StreamBatchSettings:
    return StreamBatchSettings(**{"batch_tokens": 150, "window": 50, "max_length": 60, "modifiers": list(modifiers),
                                  **changes})


def texts(data, batches) -> list[tuple[str, str]]:
    """Return the pairs of batches, in their order."""
    pairs = []
    for position, batch in batches:
        assert position is not None
        for row in range(len(batch.source)):
            source, target = ([id for id in ids.tolist() if id > EOS] for ids in (batch.source[row], batch.target[row]))
            pairs.append((data.source_vocabulary.decode(source), data.target_vocabulary.decode(target)))
    return pairs


@pytest.mark.parametrize("name", ["data", "corpora.yaml"])
def test_every_pair_is_read_once_an_epoch_modified_with_its_probability(directory, name):
    data = open_training_data(str(directory / name))
    modified_settings = settings("upper=0.3")
    epochs = []
    for epochs_read in (1, 2):
        stream = make_batches(data, modified_settings, epochs_read)
        epochs.append(texts(data, stream.read()))
    first, two_epochs = epochs
    assert two_epochs[:len(first)] == first and len(first) == len(LINES) and len(two_epochs) == 2 * len(LINES)
    second = two_epochs[len(first):]
    modified = [{pair for pair in epoch if pair in UPPER} for epoch in (first, second)]
    for epoch, changed in zip((first, second), modified, strict=True):
        assert len(changed) == pytest.approx(0.3 * len(LINES), abs=25)
        lowered = [pair if pair not in UPPER else (pair[0].lower(), pair[1].lower()) for pair in epoch]
        assert sorted(lowered) == sorted(LINES)
    assert modified[0] != modified[1]


@pytest.mark.parametrize("name", ["data", "corpora.yaml"])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_resumed_run_reads_what_it_would_have_read(directory, name, sampled):
    data = open_training_data(str(directory / name))
    modified_settings = settings("upper=0.2", "typos=0.3", "join=0.2", "noise=0.2", subword_sampling=sampled)
    uninterrupted = list(itertools.islice(make_batches(data, modified_settings).read(), 40))
    for start in (1, 7, 23):
        resumed = make_batches(data, modified_settings).read(uninterrupted[start - 1][0])
        rest = uninterrupted[start:]
        for (position, batch), (resumed_position, resumed_batch) in zip(
                rest, itertools.islice(resumed, len(rest)), strict=True):
            assert position == resumed_position
            assert all(np.array_equal(a, b) for a, b in zip(batch.arrays(), resumed_batch.arrays(), strict=True))


@pytest.mark.parametrize("name", ["data", "corpora.yaml"])
def test_a_modification_that_is_too_long_or_unknown_leaves_the_pair_as_it_was(directory, name):
    data = open_training_data(str(directory / name))
    assert sorted(texts(data, make_batches(data, settings("emoji=1"), 1).read())) == sorted(LINES)
    joined = texts(data, make_batches(data, settings("join=1", max_length=45), 1).read())
    assert len(joined) == len(LINES)
    if name == "data":      # the stream's default filter accepts up to 200 tokens
        plain = make_batches(data, settings(max_length=45), 1)
        longest = max(batch.target_length.max() for _, batch in plain.read())
        assert max(batch.target_length.max() for _, batch in make_batches(
            data, settings("join=1", max_length=45), 1).read()) <= max(45, longest)


def test_pairs_that_a_filter_drops_are_neither_modified_nor_joined_to_others(memory_source):
    words = WordVocabulary([*SPECIAL_PIECES, *"abcxABC"])
    pairs = [Pair("a b c", "A B C"), Pair("", "x x x"), Pair("b", "B"), Pair("", "x x"), Pair("c", "C")] * 200
    source = memory_source("a", 0)
    source.pairs += pairs
    batches = StreamBatches(Mixture([Ingredient(source, on_end="drop")], seed=3), words, words,
                            settings("join=1", window=1000, shuffle=False), PairFilter(60, 9.0), 1)
    window, _ = batches.maker.make(0, 0, None, None)
    block = window.block
    joined = [tuple(words.decode(ids[offsets[row]:offsets[row + 1]].tolist()) for ids, offsets in (
        (block.source_ids, block.source_offsets), (block.target_ids, block.target_offsets)))
        for row in range(len(block))]
    period = [("a b c b", "A B C B"), ("b c", "B C"), ("c a b c", "C A B C")]
    assert joined == (period * 200)[:-1] + [("c", "C")]
    assert window.dropped == {"empty source": 400} and window.read == 1000


def test_modified_pairs_have_no_links_and_the_others_keep_theirs(directory):
    data = open_training_data(str(directory / "data"))
    counts = {}
    for name, modified_settings in (("plain", settings()), ("some", settings("upper=0.5")),
                                    ("all", settings("upper=1"))):
        counts[name] = sum(int(batch.alignment.sum()) for _, batch in make_batches(
            data, modified_settings, 1, alignments=True).read())
    assert counts["all"] == 0 and counts["some"] == pytest.approx(counts["plain"] / 2, rel=0.2)


def test_modifiers_are_part_of_a_position_and_invalid_ones_are_refused(directory):
    data = open_training_data(str(directory / "data"))
    fewer = make_batches(data, settings("upper=0.2"), 1).position_settings
    more = make_batches(data, settings("upper=0.3"), 1).position_settings
    assert fewer["data.modifiers"] == ["upper=0.2"] != more["data.modifiers"]
    with pytest.raises(SettingsError, match="data.modifier_languages=german"):
        make_batches(data, replace(settings("upper=0.2"), modifier_languages="german"), 1)
    with pytest.raises(SettingsError, match="modifier 'lower' does not exist"):
        make_batches(data, settings("lower=0.2"), 1)


@pytest.mark.parametrize(("written", "languages"), [
    ("", ("", "")), ("tr-en", ("tr", "en")), ("TR-EN", ("tr", "en")), ("tur-eng", ("tr", "en")),
    ("pt_BR-en", ("pt", "en")), ("az-Latn-en-GB", ("az", "en"))])
def test_languages_of_modifiers_may_be_written_in_any_form(written, languages):
    modifiers = settings("upper=0.2", modifier_languages=written).pair_modifiers()
    assert modifiers is not None and modifiers.languages == languages
