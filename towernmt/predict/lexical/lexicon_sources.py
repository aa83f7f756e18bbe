"""What a lexical table is made from: prepared data, text, alignments that other programs made, or their tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.dataflow.text.alignment import link_pieces, parse_links
from towernmt.dataflow.text.chunks import Chunk, read_chunks, read_lines
from towernmt.dataflow.vocabulary.base import UNK, Vocabulary
from towernmt.predict.lexical.lexicon import Entries

_PAIRS_PER_BLOCK = 8192
_NO_WORD = ("<eps>", "NULL")
"""What aligners write for the word that translates nothing."""


def blocks_of_prepared(data: PreparedData, pairs: int) -> Iterator[PairBlock]:
    """The first pairs of prepared data, which are in random order there."""
    for index in range(data.num_blocks):
        block = data.read_block(index)
        for first in range(0, len(block), _PAIRS_PER_BLOCK):
            part = _part(block, first, min(first + _PAIRS_PER_BLOCK, len(block), first + pairs))
            pairs -= len(part)
            yield part
            if pairs <= 0:
                return


def blocks_of_text(source: str, target: str, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                   pairs: int) -> Iterator[PairBlock]:
    """The first pairs of two text files, one sentence a line.

    Raises:
        DataError: a file is missing or not UTF-8, or they have not the same number of lines.
    """
    for source_chunk, target_chunk in _parallel([source, target]):
        sides = [source_vocabulary.encode_batch(source_chunk.decode()[:pairs]),
                 target_vocabulary.encode_batch(target_chunk.decode()[:pairs])]
        (source_ids, source_offsets), (target_ids, target_offsets) = map(_flat, sides)
        yield PairBlock(source_ids, source_offsets, target_ids, target_offsets)
        pairs -= len(sides[0])
        if pairs <= 0:
            return


def entries_of_alignments(source: str, target: str, alignments: str, source_vocabulary: Vocabulary,
                          target_vocabulary: Vocabulary) -> Entries:
    """Relative frequencies of aligned pieces: all pieces of a word are aligned to all of the other.

    Args:
        source, target: text files, one sentence a line.
        alignments: links `i-j` between the words of each line, as fast_align and eflomal write them.
    Raises:
        DataError: a file is missing, they have not the same number of lines, or a link is not understood.
    """
    size, frequency = target_vocabulary.size, np.zeros(target_vocabulary.size, np.int64)
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.float64)
    for source_chunk, target_chunk, links_chunk in _parallel([source, target, alignments]):
        source_ids, source_words = source_vocabulary.encode_with_words(source_chunk.decode())
        target_ids, target_words = target_vocabulary.encode_with_words(target_chunk.decode())
        links = parse_links(links_chunk, *([len(line.split()) for line in chunk.decode()]
                                           for chunk in (source_chunk, target_chunk)))
        found = [keys]
        for line, line_links in enumerate(links):
            places = link_pieces(line_links, source_words[line], target_words[line])
            found.append(_first_stream(source_ids[line])[places[0]] * size
                         + np.asarray(target_ids[line], np.int64)[places[1]])
        frequency += np.bincount(_flat(target_ids)[0], minlength=size)
        weights = np.concatenate([counts, np.ones(sum(map(len, found[1:])))])
        keys, place = np.unique(np.concatenate(found), return_inverse=True)
        counts = np.bincount(place, weights).astype(np.float64)
    return _normalised(keys // size, keys % size, counts, frequency)


def entries_of_table(path: str | Path, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                     pieces: bool = False) -> Entries:
    """The table that another program wrote: `source target probability` a line.

    If any number is negative, they are logarithms, as fast_align writes them. How frequent a target piece is, is not in
    such a table: it is taken as the sum of its probabilities.

    Args:
        pieces: source and target are pieces of the vocabularies; else words, all pieces of which translate each other.
    Raises:
        DataError: the file is missing, or a line is not understood; with file and line.
    """
    weight: defaultdict[tuple[int, int], float] = defaultdict(float)
    rows = list(table_lines(path))
    logarithms = any(number < 0 for _, _, number in rows)
    for source, target, number in rows:
        value = math.exp(number) if logarithms else number
        for one in _ids(source, source_vocabulary, pieces):
            for other in _ids(target, target_vocabulary, pieces):
                weight[one, other] += value
    if not weight:
        raise DataError(f"{path}: no line has words that both vocabularies know: is it the table of another language "
                        "pair, or, with --pieces, of words?")
    pairs = np.array(list(weight), np.int64)
    values = np.array(list(weight.values()))
    frequency = np.bincount(pairs[:, 1], weights=values, minlength=target_vocabulary.size)
    return _normalised(pairs[:, 0], pairs[:, 1], values, frequency)


def table_lines(path: str | Path) -> Iterator[tuple[str, str, float]]:
    """Source word, target word and number of each line of a table; words that translate nothing are left out.

    Raises:
        DataError: the file is missing, or a line is not understood; with file and line.
    """
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split()
        if not fields:
            continue
        try:
            source, target, value = fields[0], fields[1], float(fields[2])
        except (IndexError, ValueError):
            value = math.nan
        if len(fields) != 3 or not math.isfinite(value) or value > 1:
            raise DataError(f"{path} line {number}: expected a source word, a target word and a probability (or its "
                            f"logarithm), not '{line[:60]}'.")
        if source not in _NO_WORD and target not in _NO_WORD:
            yield source, target, value


def _ids(word: str, vocabulary: Vocabulary, pieces: bool) -> list[int]:
    if not pieces:
        return [id for id in _first_stream(vocabulary.encode(word)).tolist() if id != UNK]
    id = vocabulary.piece_to_id(word)
    return [] if id == UNK else [id]


def _normalised(source: NDArray[np.int64], target: NDArray[np.int64], weight: NDArray[np.floating],
                frequency: NDArray[np.number]) -> Entries:
    total = np.bincount(source, weights=weight)[source]
    return Entries(source, target, weight / np.where(total > 0, total, 1.0), frequency)


def _parallel(paths: list[str]) -> Iterator[tuple[Chunk, ...]]:
    """Chunks of several files, each time the same lines of all."""
    chunks: Iterable[tuple[Chunk | None, ...]] = zip_longest(*(read_chunks(path, _PAIRS_PER_BLOCK) for path in paths))
    for row in chunks:
        lines = [0 if chunk is None else chunk.first_line + chunk.lines - 1 for chunk in row]
        whole = [chunk for chunk in row if chunk is not None]
        if len(set(lines)) > 1 or len(whole) < len(row):
            ended = paths[int(np.argmin(lines))]
            raise DataError(f"{' and '.join(paths)} have not the same number of lines: {ended} ends first. Give files "
                            "whose lines belong together.")
        yield tuple(whole)


def _first_stream(ids: list[int]) -> NDArray[np.int64]:
    """Of pieces with factors, the pieces."""
    array = np.asarray(ids, np.int64)
    return array if array.ndim == 1 else array[:, 0]


def _flat(sentences: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All ids one after another, and where each sentence begins, with the end of the last."""
    offsets = np.zeros(len(sentences) + 1, np.int64)
    np.cumsum([len(sentence) for sentence in sentences], out=offsets[1:])
    parts = [_first_stream(sentence) for sentence in sentences if sentence]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64), offsets


def _part(block: PairBlock, first: int, last: int) -> PairBlock:
    """Pairs `first` to `last` of a block."""
    source, target = block.source_offsets[first:last + 1], block.target_offsets[first:last + 1]
    return PairBlock(block.source_ids[source[0]:source[-1]], source - source[0],
                     block.target_ids[target[0]:target[-1]], target - target[0])
