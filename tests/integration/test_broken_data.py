"""A corpus that is damaged while a run reads it, or that is empty."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from towernmt.checkpoint.checkpoint_files import checkpoint_steps

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def broken(corpus, module_start, arguments, long_run, tmp_path_factory):
    """Truncate a shard while a run trains; then resume with the shard removed, and restored.

    Return the run's directory, the shard, and for each process its result and its last checkpoint's step.
    """
    place = tmp_path_factory.mktemp("broken")
    data, logdir = place / "data", place / "run"
    shutil.copytree(corpus.prepared, data)
    shard = data / "shard-00002.pairs"
    whole = shard.read_bytes()
    command, results = arguments(data, logdir, *long_run), {}

    def finish(name, process):
        results[name] = process.wait(), checkpoint_steps(logdir / "checkpoints")[-1]

    process = module_start(*command)
    process.wait_for("step 30,")    # the feeders are at most 32 batches ahead; they open it in each epoch
    half = data / "half"
    half.write_bytes(whole[:len(whole) // 2])
    half.replace(shard)
    finish("truncated", process)
    shard.unlink()
    finish("removed", module_start(*command))
    shard.write_bytes(whole)
    finish("mended", module_start(*command))
    return logdir, shard, results


@pytest.mark.parametrize("damage, why", [("truncated", "the shard is truncated"),
                                         ("removed", "No such file or directory")])
def test_a_broken_corpus_ends_training_with_a_sentence_that_names_the_file(broken, damage, why):
    _, shard, results = broken
    result, _ = results[damage]
    assert result.status == 1
    assert str(shard) in result.the_error()
    assert why in result.the_error()


def test_a_corpus_that_breaks_ends_training_with_a_checkpoint_of_what_was_done(broken):
    results = broken[2]
    result, last = results["truncated"]
    steps = [int(step) for step in re.findall(r"step (\d+), nll", result.output)]
    assert 30 < last == steps[-1] < 120
    assert results["removed"][1] == last


def test_a_run_on_a_mended_corpus_equals_the_one_on_a_whole_corpus(broken, uninterrupted, assert_same_end):
    logdir, _, results = broken
    assert results["mended"][0].status == 0
    assert_same_end(logdir, uninterrupted.logdir)


def test_an_empty_corpus_is_an_error_at_once(corpus, start, arguments, tiny, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(corpus.prepared, data)
    manifest = json.loads((data / "manifest.json").read_text())
    manifest["shards"] = []
    (data / "manifest.json").write_text(json.dumps(manifest))
    result = start(*arguments(data, tmp_path / "run", *tiny)).wait()
    assert result.status == 1
    assert "The corpus contains no sentence pair" in result.the_error()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_preparing_files_without_a_pair_is_an_error(start, tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_text("\n\n")
    result = start("prepare", "--source", "source", "--target", "target", "--output", "data").wait()
    assert result.status == 1
    assert "every line is empty" in result.the_error()
