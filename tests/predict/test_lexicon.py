"""A lexical table: its entries, its file, and the tables and alignments of other programs."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.preparation.alignment_model import Entries
from towernmt.dataflow.preparation.shards import PairBlock
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.search.lexical_table import (
    Lexicon,
    blocks_of_prepared,
    blocks_of_text,
    entries_of_alignments,
    entries_of_table,
)

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
SOURCE = WordVocabulary([*SPECIAL, "das", "haus", "ist", "klein"])
TARGET = WordVocabulary([*SPECIAL, "the", "house", "is", "small", "little"])
THE, HOUSE, IS, SMALL, LITTLE = range(4, 9)
DAS, HAUS, IST, KLEIN = range(4, 8)


def lexicon(keep: int = 200) -> Lexicon:
    entries = Entries(np.array([KLEIN, DAS, KLEIN, KLEIN, 0, HAUS, HAUS]),
                      np.array([LITTLE, THE, SMALL, IS, THE, HOUSE, 3]),
                      np.array([0.5, 0.9, 0.5, 1e-6, 0.3, 0.7, 0.2]), np.array([9, 9, 9, 9, 5, 1, 7, 0, 5]))
    return Lexicon.of(entries, SOURCE, TARGET, keep)


def written(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def table(entries: Entries) -> dict[tuple[int, int], float]:
    return {(int(s), int(t)): float(p) for s, t, p in zip(entries.source, entries.target, entries.probability,
                                                        strict=True)}


def test_the_likeliest_translations_are_first_and_special_or_improbable_ones_are_left_out() -> None:
    found = lexicon()
    assert found.translations(KLEIN) == [(SMALL, 0.5), (LITTLE, 0.5)]
    assert found.best(3).tolist() == [[0, 0]] * 4 + [[THE, 0], [HOUSE, 0], [0, 0], [SMALL, LITTLE]]
    assert found.best(1)[:, 0].tolist() == [0, 0, 0, 0, THE, HOUSE, 0, SMALL]
    assert lexicon(keep=1).best(3)[KLEIN].tolist() == [SMALL]
    assert found.frequent(3).tolist() == [IS, THE, LITTLE]
    assert found.frequent(9).tolist() == [IS, THE, LITTLE, HOUSE]


def test_a_piece_that_both_languages_write_the_same_may_become_itself() -> None:
    entries = Entries(np.array([HAUS, HAUS, IST]), np.array([HAUS, DAS, KLEIN]), np.array([0.3, 0.7, 1.0]), np.zeros(8))
    found = Lexicon.of(entries, SOURCE, SOURCE)
    assert [[id for id, _ in found.translations(id)] for id in (DAS, HAUS, IST, KLEIN)] == [
        [DAS], [DAS, HAUS], [KLEIN, IST], [KLEIN]]
    assert found.translations(HAUS)[1][1] == pytest.approx(0.3)


def test_a_file_holds_the_table_and_knows_its_vocabularies(tmp_path: Path) -> None:
    before, path = lexicon(), tmp_path / "lexicon.npz"
    before.save(path)
    after = Lexicon.load(path)
    for name in ("starts", "targets", "probabilities", "frequency"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    after.check_vocabularies(SOURCE, TARGET, str(path))
    with pytest.raises(SettingsError, match="made with other vocabularies"):
        after.check_vocabularies(TARGET, SOURCE, str(path))


def test_a_file_that_is_no_table_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing.npz: the file does not exist"):
        Lexicon.load(tmp_path / "nothing.npz")
    with pytest.raises(DataError, match="text.npz: this is not a lexical table"):
        Lexicon.load(written(tmp_path / "text.npz", "das the 0.9"))
    np.savez(tmp_path / "other.npz", other=np.zeros(1))
    with pytest.raises(DataError, match="other.npz: this is not a lexical table"):
        Lexicon.load(tmp_path / "other.npz")


def test_a_file_with_a_changed_byte_is_refused_by_name_if_it_cannot_be_read(tmp_path: Path) -> None:
    lexicon().save(tmp_path / "lexicon.npz")
    content, refused = (tmp_path / "lexicon.npz").read_bytes(), 0
    for index in range(0, len(content), 5):
        path = tmp_path / f"{index}.npz"
        path.write_bytes(content[:index] + bytes([content[index] ^ 8]) + content[index + 1:])
        try:
            Lexicon.load(path)
        except DataError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(content) // 20


def test_text_becomes_blocks_of_ids_and_only_the_first_pairs_are_taken(tmp_path: Path) -> None:
    source = written(tmp_path / "a", "das haus", "", "haus klein")
    target = written(tmp_path / "b", "the house", "is", "house small")
    (block,) = blocks_of_text(source, target, SOURCE, TARGET, 2)
    assert block.source_ids.tolist() == [DAS, HAUS] and block.source_offsets.tolist() == [0, 2, 2]
    assert block.target_ids.tolist() == [THE, HOUSE, IS] and block.target_offsets.tolist() == [0, 2, 3]
    short = written(tmp_path / "c", "the house")
    with pytest.raises(DataError, match="different numbers of lines: .*c ends first"):
        list(blocks_of_text(source, short, SOURCE, TARGET, 9))


@pytest.mark.parametrize(("pairs", "sample"), (
    (5, [0, 2, 4, 6, 8]), (15, [*range(10), 10, 12, 14, 16, 18]), (30, list(range(20)))))
def test_a_sample_of_prepared_data_is_of_the_whole_text(pairs: int, sample: list[int]) -> None:
    """The pairs of a shard have the order of the text, which may be sorted by subject."""
    ids, offsets = np.arange(20), np.arange(11)
    shards = [PairBlock(part, offsets, part, offsets) for part in (ids[:10], ids[10:])]
    data = SimpleNamespace(num_blocks=2, read_block=shards.__getitem__)
    blocks = blocks_of_prepared(data, pairs)  # type: ignore[arg-type]
    assert [id for block in blocks for id in block.source_ids.tolist()] == sample


def test_alignments_are_counted(tmp_path: Path) -> None:
    source = written(tmp_path / "a", "das haus", "das klein", "das klein")
    target = written(tmp_path / "b", "the house", "the small", "the little")
    links = written(tmp_path / "links", "0-0 1-1", "0-0 1-1", "1-0 1-1")
    entries = entries_of_alignments(source, target, links, SOURCE, TARGET)
    assert table(entries) == pytest.approx({
        (DAS, THE): 1.0, (HAUS, HOUSE): 1.0, (KLEIN, SMALL): 1 / 3, (KLEIN, LITTLE): 1 / 3, (KLEIN, THE): 1 / 3})
    assert entries.frequency.tolist() == [0, 0, 0, 0, 3, 1, 0, 1, 1]
    with pytest.raises(DataError, match="links line 2: the word alignment 2-0"):
        entries_of_alignments(source, target, written(tmp_path / "links", "0-0", "2-0", ""), SOURCE, TARGET)
    invisible = written(tmp_path / "a", "das haus", "das \u200b klein", "das klein")    # the cleaned line has two words
    with pytest.raises(DataError, match="links line 2: the word alignment 2-0"):
        entries_of_alignments(invisible, target, str(tmp_path / "links"), SOURCE, TARGET)


def test_a_word_without_its_factor_is_named_with_file_and_line(tmp_path: Path) -> None:
    factored = FactoredVocabulary(SOURCE, [WordVocabulary([*SPECIAL, "N"])])
    source = written(tmp_path / "a", *["das|N"] * 8193, "haus")
    target, links = written(tmp_path / "b", *["the"] * 8194), written(tmp_path / "links", *["0-0"] * 8194)
    with pytest.raises(DataError, match=r"/a line 8194: 'haus' does not have the form word\|factor1"):
        list(blocks_of_text(source, target, factored, TARGET, 9000))
    with pytest.raises(DataError, match=r"/a line 8194: 'haus' does not have the form word\|factor1"):
        entries_of_alignments(source, target, links, factored, TARGET)


def test_a_table_of_probabilities_or_of_logarithms_is_read(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", "das the 0.9", "<eps> is 0.5", "klein small 0.3", "klein little 0.1",
                    "unknown house 1.0", "")
    expected = pytest.approx({(DAS, THE): 1.0, (KLEIN, SMALL): 0.75, (KLEIN, LITTLE): 0.25})
    assert table(entries_of_table(plain, SOURCE, TARGET)) == expected
    assert table(entries_of_table(plain, SOURCE, TARGET, pieces=True)) == expected
    factored = FactoredVocabulary(SOURCE, [WordVocabulary([*SPECIAL, "N"])])
    assert table(entries_of_table(plain, factored, TARGET)) == expected
    logarithms = written(tmp_path / "logs", f"das the {math.log(0.9)}", f"klein small {math.log(0.6)}",
                         f"klein little {math.log(0.2)}")
    assert table(entries_of_table(logarithms, SOURCE, TARGET)) == expected


@pytest.mark.parametrize("line", ["das the", "das the often", "das the 1.5", "das the nan", "das the 0.1 0.2"])
def test_a_line_that_is_not_understood_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError, match="table line 2: expected a source word"):
        entries_of_table(written(tmp_path / "table", "das the 0.9", line), SOURCE, TARGET)


def test_a_table_of_other_languages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no line has words that both vocabularies know"):
        entries_of_table(written(tmp_path / "table", "le the 0.9"), SOURCE, TARGET)
