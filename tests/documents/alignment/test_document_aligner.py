"""The alignment of documents: matching sentences, the quality of the scores, and texts that are not translations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.documents.alignment.parallel_texts import Links, parallel_sentences, with_changes
from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.alignment_model import ExpectedCounts
from towernmt.dataflow.preparation.shards import PairBlock
from towernmt.documents.alignment import document_aligner, word_gains
from towernmt.documents.alignment.document_aligner import (
    AlignedSentences,
    KnownPairs,
    SentenceTexts,
    align_in_orders,
    align_sentences,
    check_size,
)
from towernmt.documents.alignment.document_pairs import (
    DEFAULT_THRESHOLD,
    AlignedDocument,
    read_review,
    review_lines,
)
from towernmt.documents.alignment.matched_files import MatchedFiles
from towernmt.documents.alignment.sentence_paths import Bead

FILES = MatchedFiles("a.txt", "b.txt")


def links_of(aligned: AlignedSentences, threshold: float = 0.0) -> Links:
    return {(i, j) for bead, score in zip(aligned.beads, aligned.scores, strict=True) if score >= threshold
            for i in range(bead.source_first, bead.source_after)
            for j in range(bead.target_first, bead.target_after)}


def precision_and_recall(found: Links, gold: Links) -> tuple[float, float]:
    return len(found & gold) / len(found), len(found & gold) / len(gold)


@pytest.fixture(scope="module")
def text() -> tuple[SentenceTexts, Links, AlignedSentences]:
    """A text with joined and dropped sentences, its gold links, and its alignment."""
    texts, gold = with_changes(parallel_sentences(200))
    return texts, gold, align_sentences([texts])[0]


def test_joined_and_dropped_sentences_are_found(text: tuple[SentenceTexts, Links, AlignedSentences]) -> None:
    texts, gold, aligned = text
    precision, recall = precision_and_recall(links_of(aligned, DEFAULT_THRESHOLD), gold)
    assert precision > 0.98 and recall > 0.95
    assert {(1, 2), (2, 1), (1, 0), (0, 1)} <= {bead.shape for bead in aligned.beads}
    assert sum(bead.shape[0] for bead in aligned.beads) == len(texts.source)


def test_a_document_with_its_copy_is_refused(text: tuple[SentenceTexts, Links, AlignedSentences]) -> None:
    texts, _, aligned = text
    AlignedDocument(FILES, texts, aligned).check()
    same = SentenceTexts(texts.source, texts.source)
    with pytest.raises(DataError, match="have the same text"):
        AlignedDocument(FILES, same, align_sentences([same])[0]).check()


def test_short_documents_gain_by_other_documents_and_by_known_pairs() -> None:
    pairs = parallel_sentences(12, seed=3)
    short, gold = SentenceTexts(*(list(side) for side in zip(*pairs, strict=True))), {(n, n) for n in range(12)}
    alone = links_of(align_sentences([short])[0], 0.3)
    with_known = links_of(align_sentences([short], parallel_sentences(150))[0], 0.3)
    with_others = links_of(align_sentences([with_changes(parallel_sentences(150))[0], short])[1], 0.3)
    for found in (with_known, with_others):
        assert precision_and_recall(found, gold) == (1.0, 1.0)
    assert len(alone) < 12 or alone == gold


def test_translations_of_known_pairs_are_learned_once_for_all_documents_and_orders(monkeypatch: pytest.MonkeyPatch
                                                                                   ) -> None:
    learned: list[int] = []
    count = word_gains.count_by_model_1

    def counting(blocks: Iterable[PairBlock], *args: Any, **options: Any) -> ExpectedCounts:
        blocks = list(blocks)
        learned.append(sum(map(len, blocks)))
        return count(blocks, *args, **options)

    monkeypatch.setattr(word_gains, "count_by_model_1", counting)
    known, short = KnownPairs(parallel_sentences(70)), SentenceTexts(*zip(*parallel_sentences(12, seed=3), strict=True))
    align_sentences([short] * 5, known)
    assert learned.count(70) == 2       # in two directions
    learned.clear()
    orders = [list(range(12)), [*range(6, 12), *range(6)], list(range(11, -1, -1))]
    aligned = align_in_orders(short, orders, known)
    assert max(learned) <= 12
    for order, found in zip(orders, aligned, strict=True):
        expected, = align_sentences([SentenceTexts(short.source, [short.target[index] for index in order])],
                                    known.pairs)
        assert found.beads == expected.beads and found.scores == pytest.approx(expected.scores, abs=0.15)


def excerpt(first: int, count: int = 40, book: int = 800, of: int = 1) -> tuple[SentenceTexts, Links]:
    """Return source sentences of a text next to the target sentences of text 1, and the links if it is the same."""
    source, target = (parallel_sentences(book, seed=seed) for seed in (of, 1))
    texts = SentenceTexts([pair[0] for pair in source[first:first + count]], [pair[1] for pair in target])
    return texts, {(number, first + number) for number in range(count)}


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("first", [20, 700])
def test_an_excerpt_is_found_anywhere_in_a_book(first: int, is_swapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_aligner, "MIN_HALF_WIDTH", 50)     # as narrow as the usual band is in a longer book
    monkeypatch.setattr(document_aligner, "HALF_WIDTH", 10)
    texts, gold = excerpt(first, count=80)
    known = parallel_sentences(150, seed=2)
    if is_swapped:
        texts, gold = SentenceTexts(texts.target, texts.source), {(j, i) for i, j in gold}
        known = [(target, source) for source, target in known]
    aligned, = align_sentences([texts], known)
    precision, recall = precision_and_recall(links_of(aligned, DEFAULT_THRESHOLD), gold)
    assert precision > 0.95 and recall > 0.95
    AlignedDocument(FILES, texts, aligned).check(known)


def test_the_lengths_of_an_excerpt_are_compared_with_equally_many_sentences() -> None:
    texts, gold = excerpt(500, count=200)      # without known pairs, only lengths lead to the position
    aligned, = align_sentences([texts])
    precision, recall = precision_and_recall(links_of(aligned, DEFAULT_THRESHOLD), gold)
    assert precision > 0.95 and recall > 0.9


@pytest.mark.parametrize("known", [0, 150])
def test_an_excerpt_of_another_text_is_refused_with_what_to_do(known: int) -> None:
    texts, _ = excerpt(300, of=5)
    known_pairs = parallel_sentences(known, seed=2)
    aligned, = align_sentences([texts], known_pairs)
    with pytest.raises(DataError, match="If the shorter one translates a part of the other, cut the other to this "
                                        "part, or pass --known or --model. Otherwise, pass documents that belong"):
        AlignedDocument(FILES, texts, aligned).check(known_pairs)


def test_pairs_of_an_excerpt_count_in_runs_and_by_their_words() -> None:
    beads = [*(Bead(i, i + 1, i, i + 1) for i in range(3)), Bead(3, 3, 3, 9), *(
        Bead(i, i + 1, i + 6, i + 7) for i in range(3, 8))]
    by_words = np.array([0.5, 0.5, 0.5, 0.0, 0.5, 0.0, 0.5, 0.05, 0.5], np.float32)
    aligned = AlignedSentences(beads, np.full(9, 0.9, np.float32), by_words)
    assert aligned.share_in_runs(0.1, 1) == pytest.approx(6 / 8)
    assert aligned.share_in_runs(0.1, 4) == pytest.approx(3 / 8)
    assert aligned.share_in_runs(0.1, 6) == 0.0


def test_a_model_finds_an_excerpt_and_no_other_text() -> None:
    dictionary = dict(parallel_sentences(800)) | dict(parallel_sentences(800, seed=5))

    def translate(sentences: Sequence[str]) -> list[str]:
        """Return translations without every third word."""
        words = [dictionary[sentence].split() for sentence in sentences]
        return [" ".join(word for number, word in enumerate(each) if number % 3) or each[0] for each in words]

    texts, gold = excerpt(300, count=80)
    aligned, = align_sentences([texts], translate=translate)
    assert precision_and_recall(links_of(aligned, DEFAULT_THRESHOLD), gold) > (0.95, 0.95)
    AlignedDocument(FILES, texts, aligned).check()
    texts, _ = excerpt(300, count=80, of=5)
    aligned, = align_sentences([texts], translate=translate)
    with pytest.raises(DataError, match="probably no translations"):
        AlignedDocument(FILES, texts, aligned).check()


def test_documents_whose_alignment_does_not_fit_into_memory_are_refused() -> None:
    check_size(SentenceTexts(["a"] * 90_000, ["b"] * 92_000))
    check_size(SentenceTexts(["a"] * 300_000, ["b"] * 1_000))
    sentence = r"have 300,000 and 290,000 sentences, .* 10\.5 GB of memory, and at most 1\.1 GB .*: divide both"
    with pytest.raises(DataError, match=sentence):
        align_sentences([SentenceTexts(["a"] * 300_000, ["b"] * 290_000)])


def test_a_model_aligns_what_lengths_and_words_cannot() -> None:
    """Sentences of equal lengths with few, distinct words: only the translations show the matching sentences."""
    pairs = [(f"quelle {chr(97 + number) * 6}", f"target {chr(122 - number) * 6}") for number in range(20)]
    texts = SentenceTexts([source for source, _ in pairs], [target for _, target in pairs[4:]])
    gold = {(number + 4, number) for number in range(16)}
    translated = dict(pairs)
    aligned, = align_sentences([texts], translate=lambda sentences: [translated[one] for one in sentences])
    assert precision_and_recall(links_of(aligned, 0.3), gold) == (1.0, 1.0)


def test_a_reviewed_table_keeps_what_people_kept(text: tuple[SentenceTexts, Links, AlignedSentences]) -> None:
    texts, _, aligned = text
    quoted = SentenceTexts(['"Ja", sagte er.', *texts.source[1:]], texts.target)
    document = AlignedDocument(FILES, quoted, aligned)
    table = "\n".join(review_lines(document.rows(0.5)))
    pairs = list(document.pairs(0.5))
    assert [(pair.source, pair.target) for pair in read_review(table, "r.tsv")] == [
        (pair.source, pair.target) for pair in pairs]
    head, first, *others = table.split("\n")
    kept = [line for line in others if line.startswith("yes")]
    changed = "\r\n".join([head, first.replace("yes", "no"), kept[0].replace("yes", " Y "), *[
        line.replace("yes", "n") for line in others[1:]], ""])
    assert len(list(read_review(changed, "r.tsv"))) == 1


@pytest.mark.parametrize(("table", "sentence"), [
    ("source\ttarget\na\tb\n", "line 1: the columns keep are missing"),
    ("keep\tsource\ttarget\nyes\ta\n", "line 2: 2 columns where 3 were expected"),
    ("keep\tsource\ttarget\nmaybe\ta\tb\n", "line 2: keep is 'maybe'"),
    ("keep\tsource\ttarget\nno\ta\t\nyes\ta\t\n", "line 3: the pair is kept, but has no target"),
    ('keep\tsource\ttarget\nyes\t"a\nb"\tc\nmaybe\ta\tb\n', "line 4: keep is 'maybe'"),
    ('keep\tsource\ttarget\nyes\t"a\tb\n', "the quotes do not match"),
])
def test_damaged_tables_are_refused(table: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        list(read_review(table, "r.tsv"))
