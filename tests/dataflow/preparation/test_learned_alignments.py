"""`towernmt prepare --alignments learn`: from text to shards with links."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.batch_settings import BatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.preparation import alignment_tasks, passes, preparation
from towernmt.dataflow.preparation.alignment_model import AlignmentModel, aligned_pairs, count_cells
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.shards import reversed_block

WORDS = {f"w{number}": f"v{number}" for number in range(40)}


@pytest.fixture
def settings(tmp_path: Path) -> PrepareSettings:
    """Return the settings for 900 pairs whose target has the words of the source in reverse order."""
    draw = random.Random(3)
    lines = [draw.sample(sorted(WORDS), draw.randint(2, 7)) for _ in range(900)]
    (tmp_path / "source").write_text("".join(" ".join(line) + "\n" for line in lines))
    (tmp_path / "target").write_text("".join(" ".join(WORDS[w] for w in reversed(line)) + "\n" for line in lines))
    return PrepareSettings(source=str(tmp_path / "source"), target=str(tmp_path / "target"), vocab_kind="word",
                           output=str(tmp_path / "out"), shard_pairs=400, workers=1, alignments="learn")


def test_the_links_of_all_shards_are_those_of_the_words(settings):
    data = prepare(settings)
    assert data.has_alignments and data.num_blocks == 3
    right = links = words = 0
    for index in range(data.num_blocks):
        block = data.read_block(index)
        assert block.links is not None and block.link_offsets is not None
        for row in range(len(block)):
            source, target = (ids[slice(*offsets[row:row + 2])] for ids, offsets in (
                (block.source_ids, block.source_offsets), (block.target_ids, block.target_offsets)))
            for i, j in block.links[:, slice(*block.link_offsets[row:row + 2])].T.tolist():
                right += WORDS[data.source_vocabulary.id_to_piece(int(source[i]))] == \
                    data.target_vocabulary.id_to_piece(int(target[j]))
            words += len(target)
        links += block.links.shape[1]
    assert right / links > 0.99 and right / words > 0.98
    counted = data.statistics["alignments"]
    assert counted == {"links": links, "pairs": counted["pairs"]} and counted["pairs"] > 890
    batch = next(iter(Batches(data, BatchSettings(batch_tokens=200), alignments=True).read()))[1]
    assert batch.alignment is not None and batch.alignment.sum() > 0.9 * batch.target_length.sum() - len(batch.source)


def test_the_result_is_the_same_for_any_number_of_workers_and_depends_on_the_setting(settings):
    with_one_worker = prepare(settings)
    with_two_workers = prepare(replace(settings, output=settings.output + "2", workers=2))
    assert with_one_worker.fingerprint == with_two_workers.fingerprint
    with pytest.raises(DataError, match="alignments learn there, None now"):
        prepare(replace(settings, alignments=None))
    without_alignments = prepare(replace(settings, alignments=None, overwrite=True))
    assert not without_alignments.has_alignments and without_alignments.fingerprint != with_one_worker.fingerprint


def test_a_sample_is_learned_from_if_the_text_is_large(settings, monkeypatch):
    pair_counts = []
    learn = AlignmentModel.learn.__func__

    def counting(cls, blocks, target_size):
        blocks = list(blocks)
        pair_counts.append(sum(map(len, blocks)))
        return learn(cls, blocks, target_size)

    monkeypatch.setattr(AlignmentModel, "learn", classmethod(counting))
    monkeypatch.setattr(alignment_tasks, "LARGEST_SAMPLE", 3000)
    data = prepare(settings)
    assert pair_counts[0] == pair_counts[1] and 60 < pair_counts[0] < 200
    assert sum(1 for index in range(data.num_blocks) for _ in range(len(data.read_block(index)))) == 900


def test_pairs_are_aligned_in_ranges_with_a_limited_number_of_pairs_of_tokens(settings, monkeypatch):
    expected, cells = prepare(settings), []

    def counting(forward, backward, block):
        cells.append(count_cells(block.source_lengths, block.target_lengths))
        return aligned_pairs(forward, backward, block)

    monkeypatch.setattr(alignment_tasks, "aligned_pairs", counting)
    monkeypatch.setattr(alignment_tasks, "_LARGEST_RANGE", 500)
    data = prepare(replace(settings, output=settings.output + "-ranges"))
    assert 300 < max(cells) < 500 + 8 * 8
    links = [each.statistics["alignments"]["links"] for each in (data, expected)]
    assert links[0] == pytest.approx(links[1], rel=0.01)    # sums of ranges are rounded differently
    assert [data.read_block(index).source_ids.tolist() for index in range(3)] == [
        expected.read_block(index).source_ids.tolist() for index in range(3)]


def test_pairs_of_a_source_that_is_read_once_are_aligned_too(settings, tmp_path):
    lines = zip(*(Path(path).read_text().splitlines() for path in (settings.source, settings.target)), strict=True)
    (tmp_path / "pairs.tsv").write_text("".join("\t".join(pair) + "\n" for pair in lines))
    (tmp_path / "corpora.yaml").write_text(f"sources:\n  - {{uri: {tmp_path}/pairs.tsv}}\n")
    data = prepare(replace(settings, source=str(tmp_path / "corpora.yaml"), target=""))
    assert data.has_alignments


def test_the_links_are_those_of_models_of_all_pairs(settings):
    data = prepare(replace(settings, shard_pairs=1000))
    block = data.read_block(0)
    forward = AlignmentModel.learn([block], data.target_vocabulary.size)
    backward = AlignmentModel.learn([reversed_block(block)], data.source_vocabulary.size)
    links, counts = aligned_pairs(forward, backward, block)
    assert np.array_equal(links, block.links) and np.array_equal(np.cumsum(counts), block.link_offsets[1:])


def test_an_interruption_after_the_removal_of_empty_shards_loses_no_work(settings, monkeypatch):
    for path in map(Path, (settings.source, settings.target)):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:12]))
    settings = replace(settings, shard_pairs=1)
    whole = prepare(replace(settings, output=settings.output + "-whole"))
    assert whole.num_blocks < 12

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(passes, "_RESUMABLE_LINES", 0)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "statistics_table", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(settings)
    assert prepare(settings).fingerprint == whole.fingerprint


def test_a_text_of_which_no_pair_is_left_is_refused(settings):
    with pytest.raises(DataError, match="no pair is left"):
        prepare(replace(settings, max_length=1))
