"""Batches and padding of an epoch are estimated without reading the corpus; a shard is checked when it is reached."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.batch_settings import BatchSettings, StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.training_data import make_batches, open_training_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData

SHARD_PAIRS = 250


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 3,000 pairs of 1 to 30 words to `pairs.tsv`."""
    directory, chance = tmp_path_factory.mktemp("text"), random.Random(3)
    with open(directory / "pairs.tsv", "w", encoding="utf-8") as file:
        for _ in range(3000):
            length = min(30, 1 + int(chance.expovariate(0.1)))
            target_length = max(1, length + chance.randint(-2, 3))
            source, target = chance.choices("abcdef", k=length), chance.choices("uvw", k=target_length)
            file.write(f"{' '.join(source)}\t{' '.join(target)}\n")
    return directory


def prepared(text: Path, output: Path, shard_pairs: int) -> PreparedData:
    return prepare(PrepareSettings(str(text / "pairs.tsv"), output=str(output), vocab_kind="word",
                                   shard_pairs=shard_pairs))


@pytest.mark.parametrize("batch_type", ["target", "source+target", "longest", "sentences"])
def test_the_estimate_for_one_shard_is_what_the_shard_holds(text: Path, tmp_path: Path, batch_type: str) -> None:
    batches = Batches(prepared(text, tmp_path / "data", 10_000), BatchSettings(300, batch_type))
    assert batches.estimated_size == batches.padding_waste()


@pytest.mark.parametrize("sort", [True, False])
def test_the_estimate_for_many_shards_is_close(text: Path, tmp_path: Path, sort: bool) -> None:
    batches = Batches(prepared(text, tmp_path / "data", SHARD_PAIRS), BatchSettings(300, sort_by_length=sort))
    estimated, counted = batches.estimated_size, batches.padding_waste()
    assert (estimated.pairs, counted.pairs) == (3000, 3000)
    assert estimated.batches == pytest.approx(counted.batches, rel=0.03)
    assert (estimated.source, estimated.target) == pytest.approx((counted.source, counted.target), abs=0.04)


def test_batches_are_made_without_reading_a_shard_and_damage_is_reported_when_it_is_read(
        text: Path, tmp_path: Path) -> None:
    data = prepared(text, tmp_path / "data", SHARD_PAIRS)
    shards = sorted((tmp_path / "data").glob("*.pairs"))
    contents = {shard: shard.read_bytes() for shard in shards}
    for shard in shards:
        shard.unlink()
    reports: list[str] = []
    batches = make_batches(open_training_data(tmp_path / "data"), StreamBatchSettings(300, shuffle=False), 1,
                           reports.append)
    assert reports[0].startswith("3,000 pairs in about ")
    for shard in shards:
        shard.write_bytes(contents[shard])
    shards[1].write_bytes(contents[shards[1]][:-1] + b"\x77")
    read = batches.read()
    with pytest.raises(DataError, match=f"{shards[1].name}: .*damaged"):
        for position, _ in read:
            assert position.block in (0, 1)
    assert position.block == 1 and data.num_blocks == len(shards)
