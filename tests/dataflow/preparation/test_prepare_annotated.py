"""Preparation with source factors and alignments: from text to batches, and all errors of the input."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.batch_settings import BatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.preparation.inspect_sources import inspect_prepared, report_table
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import SEPARATOR
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies

Word = tuple[str, str, str]
PAIRS = 60


def corpus(seed: int = 5) -> list[tuple[list[Word], list[str], set[tuple[int, int]]]]:
    """Return source words with two factors, target words, and links of words."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(PAIRS):
        source = [("".join(draw.choices("abcdä", k=draw.randint(1, 5))), draw.choice("NVA"), draw.choice("xy"))
                  for _ in range(draw.randint(1, 7))]
        target = ["".join(draw.choices("klmn", k=draw.randint(1, 5))) for _ in range(draw.randint(1, 7))]
        links = {(draw.randrange(len(source)), draw.randrange(len(target))) for _ in range(draw.randint(0, 6))}
        pairs.append((source, target, links))
    return pairs


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


@pytest.fixture
def text(tmp_path: Path) -> dict[str, str]:
    """Write the files of the corpus, and return them by name."""
    pairs = corpus()
    files = {
        "plain": [" ".join(word for word, _, _ in source) for source, _, _ in pairs],
        "source": [" ".join("|".join(word) for word in source) for source, _, _ in pairs],
        "factor_1": [" ".join(word[1] for word in source) for source, _, _ in pairs],
        "factor_2": ["  ".join(word[2] for word in source) + " " for source, _, _ in pairs],
        "target": [" ".join(target) for _, target, _ in pairs],
        "links": [" ".join(f"{source_index}-{target_index}" for source_index, target_index in links)
                  for _, _, links in pairs]}
    return {name: write(tmp_path / name, lines) for name, lines in files.items()}


def settings(text: dict[str, str], **options: Any) -> PrepareSettings:
    return replace(PrepareSettings(
        source=text["source"], target=text["target"], source_factors=2, alignments=text["links"],
        output=str(Path(text["source"]).parent / "out"), vocab_size=40, max_length_ratio=99.0, shard_pairs=20,
        workers=1), **options)


def spelt(data: PreparedData) -> set[Any]:
    """Return all pairs as subwords, each source subword with its factors, and the links of subwords."""
    words, target = data.source_vocabulary, data.target_vocabulary
    pairs = []
    for index in range(data.num_blocks):
        block = data.read_block(index)
        assert block.source_factors is not None and block.links is not None and block.link_offsets is not None
        for row in range(len(block)):
            pieces = slice(*block.source_offsets[row:row + 2])
            source = [(words.id_to_piece(id), *(words.factors[k].id_to_piece(ids[k]) for k in range(2)))
                      for id, *ids in zip(block.source_ids[pieces], *block.source_factors[:, pieces], strict=True)]
            ids = block.target_ids[slice(*block.target_offsets[row:row + 2])]
            links = block.links[:, slice(*block.link_offsets[row:row + 2])].T.tolist()
            pairs.append((tuple(source), tuple(map(target.id_to_piece, ids)), frozenset(map(tuple, links))))
    assert len(pairs) == len(set(pairs))
    return set(pairs)


def cut_by_spelling(vocabulary: Vocabulary, words: list[str]) -> list[list[int]]:
    """Return the subwords of each word: the next subwords of the text that spell the word."""
    remaining, cut = vocabulary.encode(" ".join(words)), []
    for word in words:
        count = next(count for count in range(len(remaining) + 1) if vocabulary.decode(remaining[:count]) == word)
        cut.append(remaining[:count])
        remaining = remaining[count:]
    return cut


def expected(data: PreparedData) -> set[Any]:
    """Return the result that `spelt` should have, computed word by word and link by link from the corpus."""
    result = set()
    for source, target, links in corpus():
        cut = [cut_by_spelling(data.source_vocabulary.words, [word for word, _, _ in source]),
               cut_by_spelling(data.target_vocabulary, target)]
        owner = [[number for number, ids in enumerate(side) for _ in ids] for side in cut]
        pieces = tuple((data.source_vocabulary.id_to_piece(id), *source[number][1:])
                       for number, ids in enumerate(cut[0]) for id in ids)
        result.add((pieces, tuple(data.target_vocabulary.id_to_piece(id) for ids in cut[1] for id in ids),
                    frozenset((i, j) for i, source_word in enumerate(owner[0]) for j, target_word in enumerate(owner[1])
                              if (source_word, target_word) in links)))
    return result


@pytest.mark.parametrize("kind", ("unigram", "bpe", "bpe-codes", "word"))
def test_every_pair_keeps_its_factors_and_links_through_the_shards(kind: str, text: dict[str, str]) -> None:
    data = prepare(settings(text, vocab_kind=kind, vocab_size=900 if kind == "word" else 40))
    assert (data.num_blocks, data.pairs, data.has_alignments, data.source_vocabulary.streams) == (3, PAIRS, True, 3)
    assert spelt(data) == expected(data)
    if kind == "bpe-codes":
        assert any(SEPARATOR in piece[0] for source, _, _ in spelt(data) for piece in source)


def test_factors_of_parallel_files_are_those_of_the_text_form(text: dict[str, str], tmp_path: Path) -> None:
    prepare(settings(text))
    files = [text["factor_1"], text["factor_2"]]
    prepare(settings(text, source=text["plain"], source_factors=0, source_factor_files=files,
                     output=str(tmp_path / "other")))
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and path.name != "manifest.json":
            assert path.read_bytes() == (tmp_path / "other" / path.relative_to(tmp_path / "out")).read_bytes(), path


def test_workers_change_nothing(text: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(settings(text))
    monkeypatch.setattr("towernmt.dataflow.preparation.task_runners._POOL_BYTES", 0)
    prepare(settings(text, workers=2, output=str(tmp_path / "other")))
    for path in (tmp_path / "out").glob("shard-*"):
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def test_another_number_of_factors_than_in_the_vocabulary_is_refused_before_the_text_is_read(
        text: dict[str, str], tmp_path: Path) -> None:
    prepare(settings(text))
    vocabulary = str(tmp_path / "out/vocabulary/source.model")
    with pytest.raises(DataError, match="2 source factors have their word lists next to it, but the text has 1"):
        prepare(settings(text, source=str(tmp_path / "missing"), source_factors=1, source_vocab=vocabulary,
                         output=str(tmp_path / "other")))


@pytest.mark.parametrize("without", ({}, {"source_factors": 2}, {"alignments": True}))
def test_annotations_that_are_not_requested_are_not_stored(without: dict[str, Any], text: dict[str, str]) -> None:
    changes = {"source": text["source" if "source_factors" in without else "plain"],
               "source_factors": without.get("source_factors", 0),
               "alignments": text["links"] if "alignments" in without else None}
    data = prepare(settings(text, **changes))
    block = data.read_block(0)
    assert (block.source_factors is not None, block.links is not None) == (
        "source_factors" in without, "alignments" in without)
    manifest = json.loads((Path(data.directory) / "manifest.json").read_text())
    factors = without.get("source_factors", 0)
    assert len(manifest["vocabularies"]["source_factors"]) == manifest["shards"][0]["factors"] == factors
    assert (manifest["shards"][0]["links"] is not None) == ("alignments" in without)
    assert without or "factor" not in json.dumps(data.statistics)


def test_batches_resume_with_the_same_factors_and_links(text: dict[str, str]) -> None:
    data = prepare(settings(text))
    batches = Batches(data, BatchSettings(batch_tokens=60), epochs=2, alignments=True)
    complete = list(batches.read())
    assert all(batch.source.shape[2] == 3 and batch.alignment is not None for _, batch in complete)
    for start in (0, len(complete) // 2):
        batches = Batches(data, BatchSettings(batch_tokens=60), epochs=2, alignments=True)
        resumed = list(batches.read(complete[start][0]))
        assert len(resumed) == len(complete) - start - 1
        for (_, batch), (_, expected_batch) in zip(resumed, complete[start + 1:], strict=True):
            assert all(np.array_equal(*arrays) for arrays in zip(batch.arrays(), expected_batch.arrays(), strict=True))
    linked = sum(int(batch.alignment.sum()) for _, batch in complete if batch.alignment is not None)
    assert linked == 2 * data.statistics["alignments"]["links"]


def test_statistics_and_inspection_tell_of_them(text: dict[str, str]) -> None:
    data = prepare(settings(text))
    links = sum(len(links) for _, _, links in spelt(data))
    pairs = sum(bool(links) for _, _, links in spelt(data))
    assert data.statistics["alignments"] == {"links": links, "pairs": pairs}
    assert [factor["unknown"] for factor in data.statistics["source_factors"]] == [0, 0]
    for table in (data.statistics_table, report_table([inspect_prepared(data)])):
        assert "source factor 1: 7 values, 0.000 % unknown" in table
        assert f"alignments: {links:,} links of tokens in {pairs:,} pairs" in table


def test_different_factors_or_links_give_a_different_preparation(text: dict[str, str], tmp_path: Path) -> None:
    prepare(settings(text))
    prepare(settings(text))     # kept
    with pytest.raises(DataError, match="source_factors 2 there, 0 now"):
        prepare(settings(text, source_factors=0))
    with pytest.raises(DataError, match="another alignments file"):
        prepare(settings(text, alignments=None))
    without_annotations = prepare(settings(text, source=text["plain"], source_factors=0, alignments=None,
                                           overwrite=True))
    assert not list((tmp_path / "out" / "vocabulary").glob("source_factor*")) and not without_annotations.has_alignments


def test_the_vocabularies_of_a_run_are_used_with_their_factors(text: dict[str, str], tmp_path: Path) -> None:
    first = prepare(settings(text))
    first.copy_vocabularies(tmp_path / "run")
    short = {name: write(tmp_path / f"{name}.short", Path(path).read_text().splitlines()[:5])
             for name, path in text.items()}
    second = prepare(settings(short, source_vocab=str(tmp_path / "run" / "source.model"), output=str(tmp_path / "2")))
    assert second.source_vocabulary.encode("ab|V|y c|N|?") == first.source_vocabulary.encode("ab|V|y c|N|?")
    (tmp_path / "run" / "source_factor_2.words").unlink()
    with pytest.raises(DataError, match="source.model: 1 source factors .* but the text has 2"):
        prepare(settings(short, source_vocab=str(tmp_path / "run" / "source.model"), output=str(tmp_path / "3")))


def test_a_vocabulary_with_factors_for_text_without_them_is_reported(text: dict[str, str], tmp_path: Path) -> None:
    prepare(settings(text))
    unfactored = prepare(settings(text, output=str(tmp_path / "again"), source_factors=0, alignments=None,
                                  source_vocab=f"{tmp_path}/out/vocabulary/source.model"))
    assert unfactored.source_vocabulary.streams == 1
    assert "2 source factors have their word lists next to " in " ".join(unfactored.manifest["notes"])


def spoil(path: str, line: int, text: str) -> None:
    lines = Path(path).read_text().splitlines()
    lines[line - 1] = text
    write(Path(path), lines)


@pytest.mark.parametrize(("file", "spoilt", "options", "message"), [
    ("source", "ab|N|x cd|N", {}, r"source line 4: 'cd\|N' does not have the form word\|factor1\|factor2"),
    ("links", "0-0 0-99", {}, r"links line 4: the word alignment 0-99 .* refers to a missing word"),
    ("links", "0-0 hm", {}, r"links line 4: 'hm' is not a word alignment"),
    ("factor_1", "N", {"files": 1}, r"factor_1 line 4: 1 factors, but the source has 3 words there"),
    ("factor_2", "x y|z x", {"files": 1}, r"factor_2 line 4: the factor 'y\|z' contains '\|'"),
])
def test_invalid_annotations_are_reported_with_file_and_line(
        file: str, spoilt: str, options: dict[str, int], message: str, text: dict[str, str]) -> None:
    spoil(text["plain"], 4, "ab cd a")
    spoil(text["factor_1"], 4, "N N V")
    spoil(text["factor_2"], 4, "x y x")
    spoil(text["source"], 4, "ab|N|x cd|N|y a|V|x")
    spoil(text["links"], 4, "2-0")
    spoil(text[file], 4, spoilt)
    wrong_settings = settings(text)
    if options:
        wrong_settings = replace(wrong_settings, source=text["plain"], source_factors=0,
                                 source_factor_files=[text["factor_1"], text["factor_2"]])
    with pytest.raises(DataError, match=message):
        prepare(wrong_settings)
    assert not (Path(wrong_settings.output) / "manifest.json").exists()


def test_files_of_other_lengths_and_validation_text_without_factors_are_refused(text: dict[str, str], tmp_path: Path
                                                                                ) -> None:
    write(Path(text["links"]), ["0-0"])
    with pytest.raises(DataError, match="links has 1 lines, but .*source has 60"):
        prepare(settings(text))
    with pytest.raises(DataError, match="missing: the file does not exist"):
        prepare(settings(text, alignments=str(tmp_path / "missing")))
    with pytest.raises(DataError, match=r"plain line 1: '.*' does not have the form word\|factor1\|factor2"):
        prepare(settings(text, alignments=None, valid_source=text["plain"], valid_target=text["target"]))


def test_validation_text_keeps_its_factors(text: dict[str, str]) -> None:
    data = prepare(settings(text, valid_source=text["source"], valid_target=text["target"]))
    assert data.valid_source == Path(text["source"]).read_text().splitlines()
    assert load_vocabularies(Path(data.directory) / "vocabulary")[0].encode(data.valid_source[0])


@pytest.mark.parametrize(("options", "message"), [
    ({"source_factors": -1}, "--source-factors -1"),
    ({"source_factor_files": ["a"]}, "pass one of them"),
    ({"target": ""}, "--alignments belongs to text files"),
    ({"target": "", "alignments": None, "source_factors": 0, "source_factor_files": ["a"]},
     "--source-factor-files belongs to text files"),
    ({"max_length": 70_000}, "links can point into 65535 tokens"),
])
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], message: str, text: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=message):
        prepare(settings(text, **options))
