"""Initial embeddings from the co-occurrence of subwords.

Subwords that are in the same sentence pairs, such as a word and its translation, begin with similar vectors. If the
softmax shares the table, attention to a source word then already makes its translation probable. A short training would
spend most of its time on learning this. Subwords with the same neighbours, such as two verbs of one language, also
begin with similar vectors.

One half of a vector is made from pairs, whose features are the other subwords of both sentences (Levy et al. 2017, "A
strong baseline for learning cross-lingual word embeddings from sentence alignments"), and the other half from windows
of a few subwords. Both halves are truncated singular value decompositions of the positive pointwise mutual information
with smoothed contexts (Levy et al. 2015, "Improving distributional similarity with lessons learned from word
embeddings"), computed by random projections (Halko et al. 2011).

In a Transformer, the map to the values of a cross-attention and its output map begin as transposes of each other, so
their product is the identity: attention adds the vectors of source words to the target side, in which they are similar
to their translations. (Trockman and Kolter 2023, "Mimetic initialization of self-attention layers", begin with such
products in self-attention.) The gains are in docs/notes/defaults.md ("Initial embeddings").
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tensorpack.tfutils.sessinit import SessionInit
from tensorpack.utils import logger
from threadpoolctl import threadpool_limits

from towernmt.checkpoint.embedding_rows import TABLES
from towernmt.core.tensors import Session, Variable
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.batches.mixed_data import MixedData
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.preparation.shards import PairBlock
from towernmt.dataflow.vocabulary.base import UNK
from towernmt.optim.optimizer import averages

MAX_CONTEXTS = 4096
"""Maximum number of subwords, the most frequent ones, whose co-occurrence with each subword is counted."""
MAX_VALUES = 128 * 2 ** 20
"""Maximum number of counts, of 4 bytes each: large vocabularies have fewer contexts."""
MAX_COUNTS = 100_000_000
"""Number of co-occurrences after which counting ends: about 250,000 pairs with 20 different subwords."""
WINDOW = 3
"""Maximum distance of two tokens of a window."""
SMOOTHING = 0.75
"""Exponent of the frequencies of contexts (Levy et al. 2015)."""
VALUES, OUTPUT = "source_attention/kv/kernel", "source_attention/output/kernel"
"""Ends of the names of the kernels of a cross-attention: keys and values, and output."""
_PAIRS_PER_CHUNK = 4096
_ROWS_PER_SLAB = 1024
_MIN_LENGTH = 1e-6
"""Length below which a vector is round-off."""
_EXTRA_DIRECTIONS, _POWER_ITERATIONS = 20, 2
"""The random projection has more directions than are needed, and is multiplied by the matrix and its transpose."""


class SubwordVectors(NamedTuple):
    """Vectors of the subwords of both languages.

    Attributes:
        source, target: float32 `[vocabulary, depth]`, of length 1; 0 for a subword without vector. The same array for
            a shared vocabulary.
        pairs: number of pairs that were counted.
    """

    source: NDArray[np.float32]
    target: NDArray[np.float32]
    pairs: int


def cooccurrence_vectors(data: PreparedData | MixedData, depth: int, seed: int) -> SubwordVectors:
    """Return vectors of subwords by their co-occurrence in sentence pairs and in windows.

    NumPy computes them in one thread, because their last bits depend on the number of threads.

    Args:
        data: the pairs. If they have more than `MAX_COUNTS` co-occurrences, a sample of them is counted.
        depth: length of a vector.
        seed: seed of the random projections and of the rotation.
    """
    shift = 0 if data.shared_vocabulary else data.source_vocabulary.size
    size, random = shift + data.target_vocabulary.size, np.random.default_rng(seed)
    chunks = _counted_chunks(data, size, shift)
    frequencies = sum((np.bincount(chunk.tokens, minlength=size) for chunk in chunks), np.zeros(size, np.int64))
    contexts = np.argsort(-frequencies, kind="stable")[:min(MAX_CONTEXTS, MAX_VALUES // size)]
    columns = np.full(size, -1)
    columns[contexts] = np.arange(len(contexts))
    with threadpool_limits(1):
        halves = []
        for count, length in ((_count_in_pairs, depth - depth // 2), (_count_in_windows, depth // 2)):
            counts = np.zeros((size, len(contexts)), np.float32)
            for chunk in chunks:
                count(chunk, counts, columns)
            halves.append(_normalised(_decomposed(_associations(counts), length, random)))
            del counts      # half a gigabyte
        vectors = _centred_and_rotated(np.concatenate(halves, 1), {0, shift}, random)
    return SubwordVectors(vectors[:data.source_vocabulary.size], vectors[shift:],
                          sum(chunk.pairs for chunk in chunks))


def _centred_and_rotated(vectors: NDArray[np.float32], begins: Collection[int], random: np.random.Generator
                         ) -> NDArray[np.float32]:
    """Subtract the mean vector, set special tokens to 0, scale to length 1, and rotate at random.

    The first dimensions have the largest values; a rotation gives each attention head its share of them.

    Args:
        vectors: vectors of both languages.
        begins: the first row of each vocabulary.
        random: random numbers.
    """
    used = _has_values(vectors)
    for first in begins:
        used[first:first + UNK + 1] = False
    if used.any():
        vectors = vectors - vectors[used].mean(0)
    vectors[~used] = 0
    depth = vectors.shape[1]
    rotation = np.linalg.qr(random.standard_normal((depth, depth), np.float32))[0]
    return np.asarray(_normalised(vectors) @ rotation, np.float32)


class _Chunk(NamedTuple):
    """Sentence pairs whose subwords are counted together.

    Attributes:
        tokens: int64 `[tokens]`, the subwords of the source sentences, then those of the target sentences.
        sentences: int64 `[tokens]`, the number of the sentence of each token; target sentence i is `pairs + i`.
        pairs: number of pairs.
    """

    tokens: NDArray[np.int64]
    sentences: NDArray[np.int64]
    pairs: int


def _counted_chunks(data: PreparedData | MixedData, size: int, shift: int) -> list[_Chunk]:
    """Return the pairs that are counted: the first blocks, and random chunks of the last of these.

    A block is a random sample of the text, but its pairs have the order of the text.

    Args:
        data: the pairs.
        size: number of subwords of both languages.
        shift: number of the first target subword; 0 for a shared vocabulary.
    """
    chunks: list[_Chunk] = []
    counts = 0
    for index in range(data.num_blocks):
        if counts >= MAX_COUNTS:
            break
        block = data.read_block(index)
        counted: dict[int, _Chunk] = {}
        for number in np.random.default_rng(index).permutation(-(-len(block) // _PAIRS_PER_CHUNK)).tolist():
            if counts >= MAX_COUNTS:
                break
            counted[number] = chunk = _chunk(block, number * _PAIRS_PER_CHUNK, shift)
            counts += int((np.bincount(chunk.sentences % chunk.pairs, minlength=chunk.pairs) ** 2).sum())
        chunks += [counted[number] for number in sorted(counted)]
    return chunks


def _chunk(block: PairBlock, first: int, shift: int) -> _Chunk:
    """Return the pairs of a block from the pair `first` on, with target subwords from the number `shift` on."""
    pairs = min(_PAIRS_PER_CHUNK, len(block) - first)
    tokens, sentences = [], []
    for ids, offsets, begin, number in ((block.source_ids, block.source_offsets, 0, 0),
                                        (block.target_ids, block.target_offsets, shift, pairs)):
        bounds = offsets[first:first + pairs + 1]
        tokens.append(ids[bounds[0]:bounds[-1]].astype(np.int64) + begin)
        sentences.append(np.repeat(np.arange(number, number + pairs), np.diff(bounds)))
    return _Chunk(np.concatenate(tokens), np.concatenate(sentences), pairs)


def _count_in_pairs(chunk: _Chunk, counts: NDArray[np.float32], columns: NDArray[np.int64]) -> None:
    """Add the number of pairs with both subwords, float32 `[subwords, contexts]`, for each pair of different ones."""
    size = len(counts)
    different = np.unique(chunk.sentences % chunk.pairs * size + chunk.tokens)
    pairs, subwords = np.divmod(different, size)
    ends = np.cumsum(np.bincount(pairs, minlength=chunk.pairs))[pairs]
    left = ends - np.arange(len(subwords))      # number of subwords from here to the end of the pair
    for distance in range(1, int(left.max(initial=0))):
        first = np.flatnonzero(left > distance)
        _add(counts, columns, subwords[first], subwords[first + distance], 1.0)


def _count_in_windows(chunk: _Chunk, counts: NDArray[np.float32], columns: NDArray[np.int64]) -> None:
    """Add the reciprocal distances of the tokens of a sentence that are at most `WINDOW` apart."""
    for distance in range(1, WINDOW + 1):
        first = np.flatnonzero(chunk.sentences[:-distance] == chunk.sentences[distance:])
        _add(counts, columns, chunk.tokens[first], chunk.tokens[first + distance], 1.0 / distance)


def _add(counts: NDArray[np.float32], columns: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64],
         weight: float) -> None:
    for subwords, contexts in ((first, columns[second]), (second, columns[first])):
        counted = contexts >= 0
        np.add.at(counts.reshape(-1), subwords[counted] * counts.shape[1] + contexts[counted], np.float32(weight))


def _associations(counts: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace counts by their positive pointwise mutual information, and return them."""
    contexts = counts.sum(0, dtype=np.float64) ** SMOOTHING
    contexts /= max(contexts.sum(), 1.0)
    for first in range(0, len(counts), _ROWS_PER_SLAB):
        slab = counts[first:first + _ROWS_PER_SLAB]
        expected = slab.sum(1, dtype=np.float64)[:, None] * contexts
        ratio = np.divide(slab, expected, out=np.ones_like(slab), where=slab > 0, casting="unsafe")
        slab[:] = np.maximum(np.log(ratio), 0)
    return counts


def _decomposed(associations: NDArray[np.float32], depth: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Return a vector for each row of a matrix, by its largest singular values: `[rows, depth]`."""
    rows, columns = associations.shape
    directions = min(depth + _EXTRA_DIRECTIONS, rows, columns)
    basis = associations @ random.standard_normal((columns, directions), np.float32)
    for _ in range(_POWER_ITERATIONS):
        basis = associations @ (associations.T @ np.linalg.qr(basis)[0])
    basis = np.linalg.qr(basis)[0]
    left, values, _ = np.linalg.svd(basis.T @ associations, full_matrices=False)
    kept = min(depth, directions)
    vectors = np.zeros((rows, depth), np.float32)
    vectors[:, :kept] = (basis @ left[:, :kept]) * np.sqrt(values[:kept])
    return np.where(_has_values(associations)[:, None], vectors, np.float32(0))


def _has_values(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return bool `[rows]`: whether a row has a value other than 0."""
    return np.asarray(rows.any(axis=1))


def _normalised(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows of length 1; rows of zeros do not change."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > _MIN_LENGTH)


def _are_values_and_output(keys_and_values: Variable, output: Variable) -> bool:
    """Return whether the kernels have the shapes of a Transformer; those of a custom model may differ."""
    depth = output.shape[0]
    return bool(output.shape == [depth, depth] and keys_and_values.shape == [depth, 2 * depth])


class CooccurrenceEmbeddings(SessionInit):
    """A tensorpack `SessionInit` that sets the embedding tables to vectors of co-occurrence.

    Subwords without vector keep their random values. A vector has the expected length of a random one, which is 1.
    The cross-attentions of a Transformer get values that their output maps turn back (see above).

    Args:
        data: the training data.
        seed: seed of the vectors.
    """

    def __init__(self, data: PreparedData | MixedData, seed: int) -> None:
        self._data, self._seed = data, seed
        self._tables: list[tuple[Variable, str]] = []
        self._attentions: list[list[tuple[Variable, Variable]]] = []

    def _setup_graph(self) -> None:
        averaged, weights = averages(), {v.op.name: v for v in tf1.trainable_variables()}
        sizes = {"source": self._data.source_vocabulary.size, "target": self._data.target_vocabulary.size}
        tables = [(v, TABLES[last]) for v in weights.values()
                  if (last := v.op.name.split("/")[-1]) in TABLES and v.shape.rank == 2
                  and v.shape[0] == sizes[TABLES[last]]]
        if not tables:       # of a custom model
            logger.warning("init.embeddings=cooccurrence: the model has no embedding table [vocabulary, depth] with "
                           f"one of the names {', '.join(TABLES)}, so its parameters begin with their usual values.")
        self._tables = [*tables, *((averaged[v.op.name], side) for v, side in tables if v.op.name in averaged)]
        for name in weights if tables else ():
            output = name.removesuffix(VALUES) + OUTPUT
            if name.endswith(VALUES) and output in weights and _are_values_and_output(weights[name], weights[output]):
                self._attentions.append([(variables[name], variables[output])
                                         for variables in (weights, averaged) if name in variables])

    def _run_init(self, sess: Session) -> None:
        begin, vectors_by_depth = time.monotonic(), dict[int, SubwordVectors]()
        for table, side in self._tables:
            depth = int(table.shape[1])
            if depth not in vectors_by_depth:
                vectors_by_depth[depth] = cooccurrence_vectors(self._data, depth, self._seed)
            vectors = getattr(vectors_by_depth[depth], side)
            values = sess.run(table)
            has_vector = _has_values(vectors)
            values[has_vector] = vectors[has_vector]
            table.load(values, sess)
        self._let_outputs_invert_values(sess)
        if not vectors_by_depth:
            return
        pairs = max(each.pairs for each in vectors_by_depth.values())
        logger.info(f"Initial embeddings: by the co-occurrence of subwords in {pairs:,} pairs, in "
                    f"{time.monotonic() - begin:.1f} s.")

    def _let_outputs_invert_values(self, sess: Session) -> None:
        """Make values and output of each cross-attention a random rotation and its inverse, as large as the values."""
        random = np.random.default_rng(self._seed)
        for copies in self._attentions:         # the weights, and their averages
            depth = int(copies[0][1].shape[0])
            with threadpool_limits(1):
                rotation = np.linalg.qr(random.standard_normal((depth, depth), np.float32))[0]
            for keys_and_values, output in copies:
                kernel = sess.run(keys_and_values)
                size = np.linalg.norm(kernel[:, depth:]) / depth ** 0.5
                kernel[:, depth:] = rotation * size
                keys_and_values.load(kernel, sess)
                output.load(rotation.T * size, sess)
