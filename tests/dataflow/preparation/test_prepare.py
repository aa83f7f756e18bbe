"""Preparation: from two text files to a directory, either complete or missing."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.directory_contents import contents
from towernmt.core.errors import DataError, SettingsError, UnfinishedError
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.preparation.vocabulary_learning import VocabularyMaker
from towernmt.dataflow.preparation.vocabulary_plan import VocabularyPlan
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.text_lines import line_hash
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.dataflow.vocabulary.base import UNK
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies, load_vocabulary

Pair = tuple[str, str]


def _sentence(draw: random.Random, letters: str) -> str:
    return " ".join("".join(draw.choice(letters) for _ in range(draw.randint(1, 4)))
                    for _ in range(draw.randint(1, 8)))


def _corpus(pairs: int, seed: int = 3) -> list[Pair]:
    draw = random.Random(seed)
    return [(_sentence(draw, "abcdeäß"), _sentence(draw, "klmnop")) for _ in range(pairs)]


def _write(directory: Path, corpus: list[Pair], **options: object) -> PrepareSettings:
    """Write the corpus as text, and return the settings to prepare it."""
    directory.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("train.de", "train.en")):
        (directory / name).write_bytes("".join(pair[side] + "\n" for pair in corpus).encode())
    settings = PrepareSettings(source=str(directory / "train.de"), target=str(directory / "train.en"),
                               output=str(directory / "out"), vocab_size=100, max_length_ratio=99.0,
                               workers=1)
    return replace(settings, **options)  # type: ignore[arg-type]


def _pairs(data: PreparedData) -> list[list[Pair]]:
    """Return the text of the pairs of all blocks."""
    blocks = []
    for index in range(data.num_blocks):
        block = data.read_block(index)
        blocks.append([
            (data.source_vocabulary.decode(_sentence_ids(block.source_ids, block.source_offsets, i)),
             data.target_vocabulary.decode(_sentence_ids(block.target_ids, block.target_offsets, i)))
            for i in range(len(block))])
    return blocks


def _sentence_ids(ids: np.ndarray, offsets: np.ndarray, index: int) -> list[int]:
    sentence: list[int] = ids[offsets[index]:offsets[index + 1]].tolist()
    return sentence


@pytest.mark.parametrize("shared", (False, True))
@pytest.mark.parametrize("kind", ("unigram", "bpe", "bpe-codes", "word"))
def test_prepared_pairs_are_the_pairs_of_the_text(kind: str, shared: bool, tmp_path: Path) -> None:
    corpus = _corpus(300)
    size = 5000 if kind == "word" else 100
    data = prepare(_write(tmp_path, corpus, vocab_kind=kind, shared_vocab=shared, vocab_size=size))
    assert _pairs(data) == [corpus]
    assert (data.pairs, data.num_blocks, data.shared_vocabulary) == (300, 1, shared)
    assert (data.source_vocabulary is data.target_vocabulary) == shared
    assert data.valid_source == data.valid_target == []


def test_pairs_are_spread_over_shards_by_chance_and_none_is_lost(tmp_path: Path) -> None:
    corpus = _corpus(10_000)
    data = prepare(_write(tmp_path, corpus, shard_pairs=1000))
    blocks = _pairs(data)
    assert data.num_blocks == len(blocks) == 10
    assert sorted(pair for block in blocks for pair in block) == sorted(corpus)
    assert all(850 < len(block) < 1150 for block in blocks)
    line = {pair: number for number, pair in enumerate(corpus)}
    repeated = {pair for pair, count in Counter(corpus).items() if count > 1}
    for block in blocks:
        lines = [line[pair] for pair in block if pair not in repeated]
        assert lines == sorted(lines)
        assert 4_400 < np.mean(lines) < 5_600  # a sample of the whole file


def test_the_seed_and_nothing_else_decides_the_shards(tmp_path: Path) -> None:
    settings = _write(tmp_path, _corpus(400), shard_pairs=100)
    first = _pairs(prepare(settings))
    assert _pairs(prepare(replace(settings, output=str(tmp_path / "b")))) == first
    assert _pairs(prepare(replace(settings, output=str(tmp_path / "c"), seed=2))) != first


@pytest.mark.thorough
def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.dataflow.preparation.task_runners._POOL_BYTES", 0)
    settings = _write(tmp_path, _corpus(9_000), shard_pairs=2_500, max_length=14)
    outputs = []
    for workers in (1, 3):
        output = tmp_path / f"workers-{workers}"
        prepare(replace(settings, workers=workers, output=str(output)))
        outputs.append(contents(output))
    assert outputs[0] == outputs[1]


def test_workers_also_run_where_tensorflow_forbids_a_fork(tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.dataflow.preparation.task_runners._POOL_BYTES", 0)
    if "tensorflow" not in sys.modules:
        monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    corpus = _corpus(50)
    assert _pairs(prepare(_write(tmp_path, corpus, workers=2))) == [corpus]


def test_a_worker_that_dies_is_an_error_and_not_a_hang(tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.dataflow.preparation.task_runners._POOL_BYTES", 0)
    monkeypatch.setattr("towernmt.dataflow.preparation.task_runners._start_method", lambda: "fork")
    monkeypatch.setattr("towernmt.dataflow.preparation.chunk_encoder.ChunkEncoder.__call__", lambda *_: os._exit(9))
    with pytest.raises(UnfinishedError, match="a worker process of the preparation died with status 9 .encoding lines"):
        prepare(_write(tmp_path, _corpus(50), workers=2))


def test_text_is_normalised_before_it_is_encoded(tmp_path: Path) -> None:
    corpus = [("  a\u0308\u00a0b\tc\u2003 ", "k\u3000 l"), *_corpus(200)]
    data = prepare(_write(tmp_path, corpus))
    assert _pairs(data)[0][0] == ("ä b c", "k l") == (clean(corpus[0][0]), clean(corpus[0][1]))


def test_dropped_pairs_are_counted_by_reason_with_their_lines(tmp_path: Path) -> None:
    good = _corpus(100)
    bad = [("", "k l"), ("a b", " \u2003"), ("", ""), ("a " * 31, "k l"), ("a b", "k " * 40),
           ("a", "k " * 10), ("a " * 9, "k l")]
    corpus = [*good[:50], *bad, *good[50:], *[("", "k")] * 7]
    data = prepare(_write(tmp_path, corpus, vocab_kind="word", vocab_size=3000, max_length=30,
                          max_length_ratio=9.0))
    assert _pairs(data) == [[*good[:50], ("a a a a a a a a a", "k l"), *good[50:]]]
    assert data.statistics["lines"] == 114 and data.statistics["pairs"] == data.pairs == 101
    assert data.statistics["dropped"] == {
        "empty source": {"pairs": 9, "first_lines": [51, 53, 108, 109, 110]},
        "empty target": {"pairs": 1, "first_lines": [52]},
        "long source": {"pairs": 1, "first_lines": [54]},
        "long target": {"pairs": 1, "first_lines": [55]},
        "length ratio": {"pairs": 1, "first_lines": [56]},
    }
    assert "9 empty source: the source has only white space (lines 51, 53, 108, 109, 110, ...)" \
        in data.statistics_table


def test_statistics_agree_with_a_count_by_hand(tmp_path: Path) -> None:
    corpus = _corpus(500)
    data = prepare(_write(tmp_path, corpus, vocab_kind="word", vocab_size=60))
    lengths = np.array([[len(text.split()) for text in pair] for pair in corpus])
    ratios = lengths[:, 0] / lengths[:, 1]
    assert data.statistics["length_ratio"] == {
        "mean": pytest.approx(ratios.mean()), "deviation": pytest.approx(ratios.std())}
    assert data.length_ratio == pytest.approx(ratios.mean())
    for side, (name, vocabulary) in enumerate((("source", data.source_vocabulary),
                                               ("target", data.target_vocabulary))):
        statistics = data.statistics[name]
        words = [word for pair in corpus for word in pair[side].split()]
        unknown = sum(vocabulary.piece_to_id(word) == UNK for word in words)
        assert statistics["tokens"] == lengths[:, side].sum()
        assert (statistics["unknown"], statistics["unknown_rate"]) == (unknown, unknown / statistics["tokens"])
        assert statistics["length_histogram"] == np.bincount(lengths[:, side]).tolist()
        assert statistics["length_mean"] == pytest.approx(lengths[:, side].mean())
        assert statistics["length_deviation"] == pytest.approx(lengths[:, side].std())
        assert statistics["length_quantiles"] == {
            f"{q:g}": np.quantile(lengths[:, side], q, method="inverted_cdf") for q in (0.5, 0.9, 0.99, 1.0)}


def test_a_limit_that_no_sentence_reaches_needs_no_memory(tmp_path: Path) -> None:
    limited = prepare(_write(tmp_path / "a", _corpus(50), max_length=200))
    unlimited = prepare(_write(tmp_path / "b", _corpus(50), max_length=10**18))
    assert unlimited.statistics == limited.statistics and unlimited.fingerprint == limited.fingerprint
    assert unlimited.pair_lengths.to_text() == limited.pair_lengths.to_text()


def test_validation_text_is_kept_raw(tmp_path: Path) -> None:
    settings = _write(tmp_path, _corpus(100), valid_source=str(tmp_path / "v.de"),
                      valid_target=str(tmp_path / "v.en"))
    (tmp_path / "v.de").write_bytes("\ufeffa\u0308  b\r\n\r\nc\u2028d".encode())
    (tmp_path / "v.en").write_bytes("k\u0308  l \r\nm\u2028n\r\n\r\n".encode())
    data = prepare(settings)
    assert data.valid_source == ["ä b", "", "c d"]
    assert data.valid_target == ["k\u0308  l ", "m\u2028n", ""]
    (tmp_path / "v.en").write_bytes(b"k\n")
    with pytest.raises(DataError, match="v.en ends at line 1, but .*v.de has 3 lines"):
        prepare(replace(settings, overwrite=True))


def test_several_validation_sets_and_references_are_kept_under_their_names(tmp_path: Path) -> None:
    paths = {name: str(tmp_path / name) for name in ("news.de", "talks.de", "n1", "n2", "t1", "t2")}
    for name, text in {"news.de": "a  b\nc\n", "talks.de": "d\n", "n1": "k\nl\n", "n2": "m\nn \n", "t1": "o\n",
                       "t2": "p\n"}.items():
        Path(paths[name]).write_text(text)
    settings = _write(tmp_path, _corpus(100), valid_source=[paths["news.de"], paths["talks.de"]],
                      valid_target=[paths[name] for name in ("n1", "n2", "t1", "t2")])
    expected = [ValidationSet("news", ["a b", "c"], [["k", "l"], ["m", "n "]]),
                ValidationSet("talks", ["d"], [["o"], ["p"]])]
    data = prepare(settings)
    assert data.validation_sets == expected
    assert (data.valid_source, data.valid_target) == (["a b", "c"], ["k", "l"])
    assert (tmp_path / "out/valid-2.target-2").read_text() == "p\n"
    output = io.StringIO()
    prepare(settings, output)
    assert "kept" in output.getvalue()
    with pytest.raises(DataError, match="another valid_2_target_2 file"):
        Path(paths["t2"]).write_text("q\n")
        prepare(settings)
    renamed = prepare(replace(settings, valid_name=["x", "y"], overwrite=True))
    assert [validation_set.name for validation_set in renamed.validation_sets] == ["x", "y"]
    single = prepare(replace(settings, valid_source=paths["talks.de"], valid_target=paths["t1"], overwrite=True))
    assert single.validation_sets == [ValidationSet("", ["d"], [["o"]])]
    assert sorted(path.name for path in (tmp_path / "out").glob("valid*")) == ["valid.source", "valid.target"]
    assert single.manifest["validation_sets"] == [{"name": "", "pairs": 1, "references": 1}]


def test_existing_vocabularies_are_used_as_they_are(tmp_path: Path) -> None:
    first = prepare(_write(tmp_path / "a", _corpus(300), vocab_kind="bpe"))
    files = {f"{side}_vocab": str(first.directory / "vocabulary" / f"{side}.model")
             for side in ("source", "target")}
    second = prepare(_write(tmp_path / "b", _corpus(50, seed=9), vocab_size=None, **files))
    for old, new in ((first.source_vocabulary, second.source_vocabulary),
                     (first.target_vocabulary, second.target_vocabulary)):
        assert dict(old.files()) == dict(new.files())
    shared = prepare(_write(tmp_path / "c", _corpus(50), vocab_size=None, shared_vocab=True,
                            source_vocab=files["source_vocab"]))
    assert shared.shared_vocabulary
    by_target = prepare(_write(tmp_path / "d", _corpus(50), vocab_size=None, shared_vocab=True,
                               target_vocab=files["target_vocab"]))
    infos = by_target.manifest["vocabularies"]
    assert infos["source"] == infos["target"] == {"kind": "sentencepiece", "size": first.target_vocabulary.size}
    assert set(first.source_text.words) <= set(by_target.source_text.words)


@pytest.mark.parametrize(("option", "value"), (("--vocab-size", 500), ("--split-digits", True),
                                               ("--vocab-symbols", "<a>"), ("--vocab-kind", "bpe"),
                                               ("--vocab-sentences", 500)))
def test_options_for_learning_a_vocabulary_are_refused_if_none_is_learned(option: str, value: object,
                                                                          tmp_path: Path) -> None:
    (tmp_path / "a.model").touch()
    files = {name: str(tmp_path / "a.model") for name in ("source_vocab", "target_vocab")}
    options = {"vocab_size": None, option.removeprefix("--").replace("-", "_"): value}
    settings = _write(tmp_path, _corpus(10), **files, **options)
    with pytest.raises(SettingsError, match=f"^{option} has no effect, because all vocabularies are files"):
        prepare(settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--split-digits", "--byte-fallback", "--vocab-symbols"])
def test_options_for_learning_codes_are_refused_if_only_their_subwords_are_learned(option: str, tmp_path: Path) -> None:
    (tmp_path / "a.codes").write_text("#version: 0.2\na b\n")
    files = {name: str(tmp_path / "a.codes") for name in ("source_vocab", "target_vocab")}
    value = "<a>" if option == "--vocab-symbols" else True
    settings = _write(tmp_path, _corpus(10), **files, **{option.removeprefix("--").replace("-", "_"): value})
    with pytest.raises(SettingsError, match=f"^{option} has no effect, because all vocabularies are files"):
        prepare(settings)
    assert not (tmp_path / "out").exists()


def test_existing_codes_of_both_languages_are_used(tmp_path: Path) -> None:
    first = prepare(_write(tmp_path / "a", _corpus(300), vocab_kind="bpe-codes"))
    corpus, files = [(source, source) for source, _ in _corpus(300)], {}      # equal letters, which would share
    for side, vocabulary in (("source", first.source_vocabulary), ("target", first.target_vocabulary)):
        files[f"{side}_vocab"] = str(tmp_path / f"{side}.codes")
        (tmp_path / f"{side}.codes").write_bytes(vocabulary.files()[".codes"])
    second = prepare(_write(tmp_path / "b", corpus, vocab_size=None, **files))
    assert not second.shared_vocabulary
    for old, new in ((first.source_vocabulary, second.source_vocabulary),
                     (first.target_vocabulary, second.target_vocabulary)):
        assert new.files()[".codes"] == old.files()[".codes"]


def test_existing_codes_without_pieces_get_them_from_the_text(tmp_path: Path) -> None:
    first = prepare(_write(tmp_path / "a", _corpus(300), vocab_kind="bpe-codes"))
    codes = tmp_path / "mine.codes"
    codes.write_bytes(first.source_vocabulary.files()[".codes"])
    second = prepare(_write(tmp_path / "a", _corpus(300), output=str(tmp_path / "b"), vocab_kind="bpe-codes",
                            source_vocab=str(codes)))
    assert dict(second.source_vocabulary.files()) == dict(first.source_vocabulary.files())


def test_a_task_on_another_machine_needs_no_file_of_codes(tmp_path: Path) -> None:
    corpus = _corpus(300)
    first = prepare(_write(tmp_path, corpus, vocab_kind="bpe-codes"))
    codes, samples = tmp_path / "mine.codes", tmp_path / "samples"
    codes.write_bytes(first.source_vocabulary.files()[".codes"])
    samples.write_text(json.dumps({"source": [source for source, _ in corpus]}))
    maker = VocabularyMaker(_write(tmp_path, corpus, source_vocab=str(codes)), VocabularyPlan(100, shared=False))
    task = maker.learning(300, [samples], tmp_path)["source"]
    codes.unlink()
    task.run()
    assert dict(task.vocabulary().files()) == dict(first.source_vocabulary.files())


def test_a_vocabulary_larger_than_the_text_allows_is_reported(tmp_path: Path) -> None:
    data = prepare(_write(tmp_path, _corpus(50), vocab_size=30_000))
    note = f"source vocabulary has {data.source_vocabulary.size} ids rather than the 30000 requested"
    assert note in data.manifest["notes"][0] and note in data.statistics_table


def test_rare_characters_fill_at_most_half_of_a_vocabulary(tmp_path: Path) -> None:
    rare = [(f"a b {chr(0x4E00 + n)}", "k") for n in range(200)]
    data = prepare(_write(tmp_path, [*_corpus(2000), *rare], vocab_size=100))
    assert UNK not in [data.source_vocabulary.piece_to_id(character) for character in "abcdeäß"]
    han = sum("\u4e00" <= data.source_vocabulary.id_to_piece(id) <= "\u9fff" for id in range(4, 100))
    assert 20 < han <= 50
    assert UNK not in prepare(_write(tmp_path / "b", _corpus(300))).source_vocabulary.encode("äß")


def test_a_vocabulary_is_learned_from_a_sample_of_a_large_text(tmp_path: Path) -> None:
    corpus = [*_corpus(300), *[("y", "z")] * 3000]
    settings = _write(tmp_path, corpus, vocab_kind="word", vocab_size=5000, vocab_sentences=500)
    sampled = prepare(settings).source_vocabulary.size
    complete = prepare(replace(settings, vocab_sentences=10**6, output=str(tmp_path / "all")))
    assert 20 < sampled < complete.source_vocabulary.size / 2


@pytest.mark.parametrize("kind", ("unigram", "bpe", "bpe-codes", "word"))
def test_a_sample_without_text_is_not_an_empty_text(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--vocab-sentences 1: of 1,040 lines, none with text was drawn.* Raise it"):
        prepare(_write(tmp_path, [*_corpus(40), *[("", "")] * 1000], vocab_kind=kind, vocab_sentences=1))


@pytest.mark.parametrize("text", ["\u2581", "\x01 \x01"])
def test_text_that_a_vocabulary_leaves_out_is_not_called_empty(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="or has only (characters that SentencePiece ignores|control characters)"):
        prepare(_write(tmp_path, [(text, "k l")] * 3))


def test_the_same_again_is_kept_and_anything_else_is_refused(tmp_path: Path) -> None:
    settings = _write(tmp_path, _corpus(100))
    prepare(settings)
    manifest = tmp_path / "out" / "manifest.json"
    before, stream = manifest.stat().st_mtime_ns, io.StringIO()
    prepare(replace(settings, workers=2), stream)
    assert "was already prepared" in stream.getvalue() and manifest.stat().st_mtime_ns == before
    with pytest.raises(DataError, match=r"vocab_size 100 there, 90 now.*--overwrite"):
        prepare(replace(settings, vocab_size=90))
    assert manifest.exists()
    assert prepare(replace(settings, vocab_size=90, overwrite=True)).source_vocabulary.size == 90
    _write(tmp_path, _corpus(99))
    with pytest.raises(DataError, match="another source file; another target file"):
        prepare(replace(settings, vocab_size=90))


def test_split_digits_are_recorded_and_an_earlier_manifest_without_them_is_accepted(
        tmp_path: Path) -> None:
    corpus = [(f"{source} {number}", f"{target} {number}")
              for number, (source, target) in enumerate(_corpus(100), 1900)]
    settings = _write(tmp_path, corpus)
    prepare(settings)
    manifest = tmp_path / "out" / "manifest.json"
    content = json.loads(manifest.read_text())
    assert content["settings"].pop("split_digits") is False
    manifest.write_text(json.dumps(content))
    prepare(settings)
    with pytest.raises(DataError, match=r"split_digits False there, True now.*--overwrite"):
        prepare(replace(settings, split_digits=True))
    data = prepare(replace(settings, split_digits=True, overwrite=True))
    assert json.loads(manifest.read_text())["settings"]["split_digits"] is True
    for vocabulary in (data.source_vocabulary, data.target_vocabulary):
        assert [vocabulary.id_to_piece(id) for id in vocabulary.encode("1999")] == ["\u2581", *"1999"]


def test_a_preparation_that_did_not_finish_is_not_read_and_is_done_again(tmp_path: Path) -> None:
    settings = _write(tmp_path, _corpus(100), shard_pairs=40)
    prepare(settings)
    out = tmp_path / "out"
    complete = contents(out)
    (out / "manifest.json").unlink()
    (out / "shard-00000.pairs").write_bytes(b"half")
    (out / "shard-00077.pairs.p2").write_bytes(b"left over")
    (out / "notes.md").write_text("the user's own")
    with pytest.raises(DataError, match="preparation did not finish"):
        PreparedData(out)
    prepare(settings)
    assert contents(out) == complete | {"notes.md": b"the user's own"}


def test_an_interrupted_preparation_leaves_what_was_there(tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _write(tmp_path, _corpus(100))
    prepare(settings)
    before = contents(tmp_path / "out")

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("towernmt.dataflow.preparation.passes.WriteShard.run", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(replace(settings, overwrite=True))
    assert contents(tmp_path / "out") == before
    with pytest.raises(KeyboardInterrupt):
        prepare(replace(settings, output=str(tmp_path / "parents" / "new")))
    assert not (tmp_path / "parents").exists()


def test_damaged_prepared_data_is_refused_by_file(tmp_path: Path) -> None:
    prepare(_write(tmp_path, _corpus(100)))
    shard = tmp_path / "out" / "shard-00000.pairs"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match="shard-00000.pairs.*truncated"):
        PreparedData(tmp_path / "out").read_block(0)
    for content, message in ((b"{", "cannot be read"), (b"[]", "not the manifest"),
                             (b'{"format": "towernmt-prepared", "version": 99}', "version 99")):
        (tmp_path / "out" / "manifest.json").write_bytes(content)
        with pytest.raises(DataError, match=message):
            PreparedData(tmp_path / "out")
    with pytest.raises(DataError, match="the directory does not exist"):
        PreparedData(tmp_path / "nowhere")


def test_text_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    settings = _write(tmp_path, [("a b c", "k l m"), ("", "k")], vocab_kind="word", max_length=2)
    with pytest.raises(DataError, match=r"dropped: 1 empty source \(line 2\), 1 long source \(line 1\)"):
        prepare(settings)
    assert not list((tmp_path / "out").glob("*.*"))
    messages = io.StringIO()
    with pytest.raises(DataError, match="are empty: there is nothing to prepare"):
        prepare(_write(tmp_path / "b", []), messages)
    assert "Automatic setting" not in messages.getvalue()
    with pytest.raises(DataError, match="source text has no words .* every line is empty .* Pass text as --source"):
        prepare(_write(tmp_path / "c", [("", "")]))


def test_a_target_that_is_the_source_is_reported(tmp_path: Path) -> None:
    for name, target, count in (("same", "a b", 1), ("other", "a c", 0)):
        messages = io.StringIO()
        prepare(_write(tmp_path / name, [("a b", target)], vocab_kind="word"), messages)
        assert messages.getvalue().count("are the same text, so a model would learn to copy its input") == count


@pytest.mark.parametrize(("options", "message"), (
    ({"source": ""}, "--source is missing"),
    ({"valid_source": "x"}, "--valid-source and --valid-target belong together"),
    ({"valid_source": ["x", "y"], "valid_target": ["a", "b", "c"]}, "names 3 files for 2 validation sets"),
    ({"valid_source": "x", "valid_target": "a", "valid_name": ["n", "m"]}, "gives 2 names for 1 validation sets"),
    ({"valid_source": ["x", "y"], "valid_target": ["a", "b"], "valid_name": ["n", "n"]}, "two validation sets have"),
    ({"vocab_kind": "wordpiece"}, "--vocab-kind wordpiece is not one of unigram"),
    ({"vocab_size": 4}, "--vocab-size 4 must be at least 5"),
    ({"vocab_size": -1}, "--vocab-size -1"),
    ({"max_length_ratio": float("nan")}, "--max-length-ratio nan"),
    ({"shard_pairs": 0}, "--shard-pairs 0"),
    ({"workers": -1}, "--workers -1"),
    ({"character_coverage": 1.5}, "--character-coverage 1.5"),
    ({"character_coverage": 0.5}, "--character-coverage 0.5"),
    ({"shared_vocab": True, "source_vocab": "a", "target_vocab": "b"}, "--shared-vocab with two different"),
    ({"split_digits": True, "vocab_kind": "word"}, "--split-digits with --vocab-kind word"),
    ({"byte_fallback": True, "vocab_kind": "word"}, "--byte-fallback with --vocab-kind word: only Sentence"),
    ({"character_coverage": 0.99, "vocab_kind": "bpe-codes"}, "--character-coverage with --vocab-kind bpe-codes"),
    ({"vocab_symbols": "<a>", "vocab_kind": "word"}, "--vocab-symbols with --vocab-kind word"),
    ({"alignments": ""}, "--alignments is empty: pass a value, or leave out --alignments"),
    ({"source_vocab": ""}, "--source-vocab is empty"),
    ({"source_script": ""}, "--source-script is empty"),
    ({"valid_source": [""], "valid_target": ["a"]}, "--valid-source is empty"),
    ({"source_factor_files": ["a", ""]}, "--source-factor-files is empty"),
    ({"vocab_symbols": "<a>,b c"}, "--vocab-symbols b c: a token cannot contain white space"),
    ({"vocab_symbols": "<a>,<s>"}, "--vocab-symbols <s>: this token is reserved"),
))
def test_settings_that_cannot_work_are_refused(options: dict[str, object], message: str,
                                               tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        prepare(_write(tmp_path, _corpus(10), **options))


def test_symbols_may_be_repeated_and_have_spaces_around_them(tmp_path: Path) -> None:
    data = prepare(_write(tmp_path, _corpus(50), vocab_symbols=" <a>, <b>,,<a> "))
    assert UNK not in map(data.source_vocabulary.piece_to_id, ("<a>", "<b>"))


def test_files_that_are_missing_are_refused_before_any_work(tmp_path: Path) -> None:
    settings = _write(tmp_path, _corpus(10))
    for options in ({"source": str(tmp_path / "no.de")},
                    {"valid_source": str(tmp_path / "no.de"), "valid_target": str(tmp_path / "no.en")}):
        with pytest.raises(DataError, match=r"no\.de: the file does not exist"):
            prepare(replace(settings, **options))
    (tmp_path / "folder.model").mkdir()
    for name, reason in (("no.model", "No such file"), ("folder.model", "Is a directory")):
        with pytest.raises(DataError, match=rf"{name}: cannot read the vocabulary \({reason}"):
            prepare(replace(settings, source_vocab=str(tmp_path / name)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "content", "message"), (
    ("spm.vocab", b"a\t-1\n", r"spm\.vocab: no vocabulary found\. Name a file with the suffix \.model"),
    ("damaged.model", b"damaged", r"damaged\.model: not a SentencePiece model, or damaged"),
    ("three.codes", b"#version: 0.2\na b c\n", r"three\.codes: not a file of subword-nmt codes")))
def test_a_file_that_is_no_vocabulary_is_refused_before_the_text_is_read(name: str, content: bytes, message: str,
                                                                         tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    settings = _write(tmp_path, [], source=str(tmp_path / "missing"), source_vocab=str(tmp_path / name))
    with pytest.raises(DataError, match=message):
        prepare(settings)


def test_a_missing_package_is_reported_before_the_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                               ) -> None:
    for module in ("subword_nmt", "subword_nmt.apply_bpe", "subword_nmt.learn_bpe"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"pip install 'towernmt\[bpe\]'"):
        prepare(_write(tmp_path, [], source=str(tmp_path / "missing"), vocab_kind="bpe-codes"))


def test_vocabularies_can_be_taken_along_with_a_run(tmp_path: Path) -> None:
    data = prepare(_write(tmp_path, _corpus(100)))
    data.copy_vocabularies(tmp_path / "run" / "vocabulary")
    source, target, shared = load_vocabularies(tmp_path / "run" / "vocabulary")
    assert dict(source.files()) == dict(data.source_vocabulary.files()) and not shared
    assert target.size == load_vocabulary(tmp_path / "run" / "vocabulary" / "target").size


def test_progress_is_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    prepare(_write(tmp_path, _corpus(100)), stream)
    assert "encoding: 100 of 100 lines" in stream.getvalue()
    assert "\r" not in stream.getvalue() and "\x1b" not in stream.getvalue()


def test_line_hashes_are_uniform_and_keyed_by_the_seed() -> None:
    lines = np.arange(1, 100_001)
    hashes, other_hashes = line_hash(lines, 1), line_hash(lines, 2)
    assert len(np.unique(hashes)) == 100_000 and not (hashes == other_hashes).any()
    counts = np.bincount((hashes % np.uint64(16)).astype(int), minlength=16)
    assert np.abs(counts - 6250).max() < 5 * np.sqrt(6250)
    np.testing.assert_array_equal(line_hash(lines[500:600], 1), hashes[500:600])
