"""Lexical tables: likely translations of each word, learned from prepared data, text or alignments (IBM model 1)."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from towernmt.checkpoint.package_reader import packaged_shortlist
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.files import replacing
from towernmt.dataflow.preparation.alignment_model import Entries
from towernmt.dataflow.preparation.shards import PairBlock, offsets_of_lengths, pair_range, select_pairs
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.pharaoh_alignments import link_tokens, parse_links
from towernmt.dataflow.text.text_lines import Chunk, read_chunks, read_lines
from towernmt.dataflow.vocabulary.base import PAD, SPECIAL_PIECES, UNK, Vocabulary
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary, FactorError

if TYPE_CHECKING:
    from towernmt.dataflow.preparation.prepared_data import PreparedData

_FIELDS = ("starts", "targets", "probabilities", "frequency", "vocabularies")


@dataclass(frozen=True)
class Lexicon:
    """Sparse table of p(target piece | source piece).

    Attributes:
        starts: int64 `[source vocabulary + 1]`; the translations of piece s are entries `starts[s]` to `starts[s + 1]`.
        targets: int32 `[entries]`, ids of the translations of each piece, most probable first.
        probabilities: float32 `[entries]`.
        frequency: float64 `[target vocabulary]`, frequency of each target piece, in any unit.
        vocabularies: fingerprint of both vocabularies.
    """

    starts: NDArray[np.int64]
    targets: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    frequency: NDArray[np.float64]
    vocabularies: str

    @classmethod
    def of(cls, entries: Entries, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, keep: int = 200,
           threshold: float = 1e-4) -> Lexicon:
        """Return the table of entries, without special pieces.

        A piece of both vocabularies, such as a name or a number, always has itself as a translation.

        Args:
            entries: probabilities of pairs of pieces.
            source_vocabulary: vocabulary of the source.
            target_vocabulary: vocabulary of the target.
            keep: maximum number of translations of a piece.
            threshold: minimum probability of an entry.
        """
        source, target, probability, frequency = _with_copies(entries, source_vocabulary, target_vocabulary, threshold)
        likely = (probability >= threshold) & (source >= len(SPECIAL_PIECES)) & (target >= len(SPECIAL_PIECES))
        source, target, probability = source[likely], target[likely], probability[likely]
        order = np.lexsort((target, -probability, source))
        source, target, probability = source[order], target[order], probability[order]
        size = source_vocabulary.size
        first_entry = np.searchsorted(source, np.arange(size))
        is_kept = np.arange(len(source)) - first_entry[source] < keep
        starts = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(source[is_kept], minlength=size), out=starts[1:])
        return cls(starts, target[is_kept].astype(np.int32), probability[is_kept].astype(np.float32),
                   np.asarray(frequency, np.float64), vocabularies_fingerprint(source_vocabulary, target_vocabulary))

    @property
    def source_size(self) -> int:
        """Number of pieces of the source vocabulary."""
        return len(self.starts) - 1

    @property
    def target_size(self) -> int:
        """Number of pieces of the target vocabulary."""
        return len(self.frequency)

    def best(self, count: int) -> NDArray[np.int32]:
        """Return the most probable translations, int32 `[source vocabulary, up to count]`, padded with PAD."""
        counts = np.diff(self.starts)
        width = int(min(count, counts.max(initial=0)))
        column = np.arange(width)
        exists = column < counts[:, None]
        table = np.full([self.source_size, width], PAD, np.int32)
        table[exists] = self.targets[(self.starts[:-1, None] + column)[exists]]
        return table

    def frequent(self, count: int) -> NDArray[np.int32]:
        """Return the most frequent target pieces without special pieces, int32 `[up to count]`."""
        order = np.argsort(-self.frequency[len(SPECIAL_PIECES):], kind="stable") + len(SPECIAL_PIECES)
        return order[:count][self.frequency[order[:count]] > 0].astype(np.int32)

    def translations(self, source: int) -> list[tuple[int, float]]:
        """Return the translations of a source piece with their probabilities, most probable first."""
        row = slice(self.starts[source], self.starts[source + 1])
        return list(zip(self.targets[row].tolist(), self.probabilities[row].tolist(), strict=True))

    def save(self, path: str | Path) -> None:
        """Write the table to a file, which is replaced if it exists."""
        with replacing(Path(path)) as file:
            np.savez_compressed(file, allow_pickle=False, **{name: np.asarray(getattr(self, name)) for name in _FIELDS})

    @classmethod
    def load(cls, path: str | Path) -> Lexicon:
        """Read a lexical table from a file.

        Args:
            path: a file of `towernmt lexicon`, or a package with a shortlist.

        Raises:
            CheckpointError: the package is damaged, or has no shortlist.
            DataError: the file does not exist, or has no lexical table.
        """
        try:
            stat = Path(path).stat()
            return _load(str(path), stat.st_mtime_ns, stat.st_size)
        except FileNotFoundError:
            raise DataError(f"{path}: the file does not exist: make it with `towernmt lexicon`.") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}). Check the file.") from error

    def check_vocabularies(self, source: Vocabulary, target: Vocabulary, name: str) -> None:
        """Check that the table belongs to these vocabularies.

        Args:
            source: source vocabulary.
            target: target vocabulary.
            name: name of the file, for the message.

        Raises:
            SettingsError: the table belongs to other vocabularies.
        """
        if self.vocabularies != vocabularies_fingerprint(source, target):
            raise SettingsError(f"{name} was made with other vocabularies than those of the model: make it again with "
                                "`towernmt lexicon --model RUN`.")


def _with_copies(entries: Entries, source: Vocabulary, target: Vocabulary, probability: float) -> Entries:
    """Return the entries, with each piece of both vocabularies as a translation of itself."""
    ids = np.arange(len(SPECIAL_PIECES), source.size)
    target_ids = np.array([target.piece_to_id(source.id_to_piece(id)) for id in ids.tolist()], np.int64)
    ids, target_ids = ids[target_ids != target.unk_id], target_ids[target_ids != target.unk_id]
    known_pairs = entries.source.astype(np.int64) * target.size + entries.target
    is_new = ~np.isin(ids * target.size + target_ids, known_pairs)
    return entries._replace(source=np.concatenate([entries.source, ids[is_new]]),
                            target=np.concatenate([entries.target, target_ids[is_new]]),
                            probability=np.concatenate([entries.probability, np.full(is_new.sum(), probability)]))


@lru_cache(maxsize=4)
def _load(path: str, modified: int, size: int) -> Lexicon:
    """Read a file; time of modification and size are keys of the cache."""
    try:
        content = packaged_shortlist(path)
        with np.load(path if content is None else BytesIO(content), allow_pickle=False) as arrays:
            starts, targets, probabilities, frequency, vocabularies = (arrays[name] for name in _FIELDS)
    except (OSError, MemoryError, TowerNMTError):
        raise
    except Exception as error:      # zipfile, zlib and NumPy raise errors of many kinds for a damaged file
        raise DataError(f"{path}: this is not a lexical table, or it is damaged: make it with `towernmt lexicon`."
                        ) from error
    return Lexicon(starts, targets, probabilities, frequency, str(vocabularies))


def vocabularies_fingerprint(source: Vocabulary, target: Vocabulary) -> str:
    """Return 32 hexadecimal digits that identify both vocabularies."""
    digest = hashlib.sha256()
    for vocabulary in (source, target):
        for suffix, content in sorted(vocabulary.files().items()):
            digest.update(suffix.encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()[:32]


@contextmanager
def _naming_lines(chunk: Chunk) -> Iterator[None]:
    """Add the file and the number of the line to the error about a word that lacks a factor."""
    try:
        yield
    except FactorError as error:
        raise error.at(chunk.path, chunk.first_line + error.index) from None


_PAIRS_PER_BLOCK = 8192
_EMPTY_WORD = ("<eps>", "NULL")
"""Names of the empty word in the output of aligners."""


def blocks_of_prepared(data: PreparedData, pairs: int) -> Iterator[PairBlock]:
    """Yield a sample of prepared data: the pairs of the first shards, and of the last of these at equal distances.

    Each shard is a random sample of the text, but its pairs have the order of the text.
    """
    for index in range(data.num_blocks):
        block = data.read_block(index)
        if len(block) > pairs:
            block = select_pairs(block, np.arange(pairs) * len(block) // pairs)
        for first in range(0, len(block), _PAIRS_PER_BLOCK):
            yield pair_range(block, first, min(first + _PAIRS_PER_BLOCK, len(block)))
        pairs -= len(block)
        if pairs <= 0:
            return


def blocks_of_text(source: str, target: str, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                   pairs: int) -> Iterator[PairBlock]:
    """Yield the first pairs of two text files with one sentence per line.

    Raises:
        DataError: a file is missing or not UTF-8, a source word lacks a factor, or the numbers of lines differ.
    """
    for source_chunk, target_chunk in _parallel([source, target]):
        with _naming_lines(source_chunk):
            sides = [source_vocabulary.encode_batch(source_chunk.decode()[:pairs]),
                     target_vocabulary.encode_batch(target_chunk.decode()[:pairs])]
        (source_ids, source_offsets), (target_ids, target_offsets) = map(_flat, sides)
        yield PairBlock(source_ids, source_offsets, target_ids, target_offsets)
        pairs -= len(sides[0])
        if pairs <= 0:
            return


def entries_of_alignments(source: str, target: str, alignments: str, source_vocabulary: Vocabulary,
                          target_vocabulary: Vocabulary) -> Entries:
    """Return the relative frequencies of aligned pieces; all pieces of a word are aligned to all of the other word.

    Args:
        source: text file with one sentence per line.
        target: text file of the translations.
        alignments: file of word alignments `i-j`, in the format of fast_align and eflomal.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.

    Raises:
        DataError: a file is missing, a source word lacks a factor, the numbers of lines differ, or a word alignment is
            not valid.
    """
    size, frequency = target_vocabulary.size, np.zeros(target_vocabulary.size, np.int64)
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.float64)
    for source_chunk, target_chunk, links_chunk in _parallel([source, target, alignments]):
        with _naming_lines(source_chunk):
            source_ids, source_words = source_vocabulary.encode_with_words(source_chunk.decode())
        target_ids, target_words = target_vocabulary.encode_with_words(target_chunk.decode())
        links = parse_links(links_chunk, *([len(clean(line).split()) for line in chunk.decode()]
                                           for chunk in (source_chunk, target_chunk)))
        pair_keys = [keys]
        for line, line_links in enumerate(links):
            token_links = link_tokens(line_links, source_words[line], target_words[line])
            pair_keys.append(_first_stream(source_ids[line])[token_links[0]] * size
                             + np.asarray(target_ids[line], np.int64)[token_links[1]])
        frequency += np.bincount(_flat(target_ids)[0], minlength=size)
        weights = np.concatenate([counts, np.ones(sum(map(len, pair_keys[1:])))])
        keys, key_index = np.unique(np.concatenate(pair_keys), return_inverse=True)
        counts = np.bincount(key_index, weights).astype(np.float64)
    return _normalised(keys // size, keys % size, counts, frequency)


def entries_of_table(path: str | Path, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                     pieces: bool = False) -> Entries:
    """Return the entries of a table of another program, with lines of `source target probability`.

    If any number is negative, all are logarithms, as in tables of fast_align. The table does not contain the frequency
    of target pieces, so their sum of probabilities is used instead.

    Args:
        path: the file.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.
        pieces: whether source and target are pieces of the vocabularies. Otherwise they are words without factors, and
            all pieces of a word translate all pieces of the other word.

    Raises:
        DataError: the file is missing, or a line is not valid.
    """
    weight: defaultdict[tuple[int, int], float] = defaultdict(float)
    rows = list(table_lines(path))
    logarithms = any(number < 0 for _, _, number in rows)
    for source, target, number in rows:
        value = math.exp(number) if logarithms else number
        for source_id in _ids(source, source_vocabulary, pieces):
            for target_id in _ids(target, target_vocabulary, pieces):
                weight[source_id, target_id] += value
    if not weight:
        raise DataError(f"{path}: no line has words that both vocabularies know: is it the table of another language "
                        "pair, or, with --pieces, of words?")
    pairs = np.array(list(weight), np.int64)
    values = np.array(list(weight.values()))
    frequency = np.bincount(pairs[:, 1], weights=values, minlength=target_vocabulary.size)
    return _normalised(pairs[:, 0], pairs[:, 1], values, frequency)


def table_lines(path: str | Path) -> Iterator[tuple[str, str, float]]:
    """Yield source word, target word and number of each line of a table, without unaligned words.

    Raises:
        DataError: the file is missing, or a line is not valid.
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
        if source not in _EMPTY_WORD and target not in _EMPTY_WORD:
            yield source, target, value


def _ids(word: str, vocabulary: Vocabulary, pieces: bool) -> list[int]:
    if not pieces:
        of_words = vocabulary.words if isinstance(vocabulary, FactoredVocabulary) else vocabulary
        return [id for id in of_words.encode(word) if id != UNK]
    id = vocabulary.piece_to_id(word)
    return [] if id == UNK else [id]


def _normalised(source: NDArray[np.int64], target: NDArray[np.int64], weight: NDArray[np.floating],
                frequency: NDArray[np.number]) -> Entries:
    total = np.bincount(source, weights=weight)[source]
    return Entries(source, target, weight / np.where(total > 0, total, 1.0), frequency)


def _parallel(paths: list[str]) -> Iterator[tuple[Chunk, ...]]:
    """Yield chunks of several files with the same lines."""
    chunks: Iterable[tuple[Chunk | None, ...]] = zip_longest(*(read_chunks(path, _PAIRS_PER_BLOCK) for path in paths))
    for row in chunks:
        last_lines = [0 if chunk is None else chunk.first_line + chunk.lines - 1 for chunk in row]
        present = [chunk for chunk in row if chunk is not None]
        if len(set(last_lines)) > 1 or len(present) < len(row):
            shortest = paths[int(np.argmin(last_lines))]
            raise DataError(f"{' and '.join(paths)} have different numbers of lines: {shortest} ends first. Pass "
                            "files whose lines belong together.")
        yield tuple(present)


def _first_stream(ids: list[int]) -> NDArray[np.int64]:
    """Return the pieces of a sentence without factors."""
    array = np.asarray(ids, np.int64)
    return array if array.ndim == 1 else array[:, 0]


def _flat(sentences: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the concatenated ids of sentences, and the offset of each sentence, with the end of the last one."""
    offsets = offsets_of_lengths(np.array([len(sentence) for sentence in sentences], np.int64))
    arrays = [_first_stream(sentence) for sentence in sentences if sentence]
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64), offsets
