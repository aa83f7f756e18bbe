"""Initial embeddings by co-occurrence, compared with counts in loops and a complete decomposition."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.preparation.shards import PairBlock
from towernmt.models.layers.attention import AttentionInputs
from towernmt.models.layers.multi_head import CrossAttention
from towernmt.models.model_settings import Gains
from towernmt.optim.optimizer import AVERAGE_SUFFIX
from towernmt.run import cooccurrence
from towernmt.run.cooccurrence import SMOOTHING, WINDOW, CooccurrenceEmbeddings, cooccurrence_vectors
from towernmt.run.initial_values import initial_values
from towernmt.run.run_settings import InitSettings

SPECIAL = 4
AVERAGE = f"target_embedding{AVERAGE_SUFFIX}"
Sentences = list[tuple[list[int], list[int]]]


def drawn(pairs: int, source_size: int, target_size: int, seed: int = 1) -> Sentences:
    draw = np.random.default_rng(seed)
    return [(draw.integers(SPECIAL, source_size - 1, draw.integers(1, 7)).tolist(),     # the last subword never occurs
             draw.integers(SPECIAL, target_size - 1, draw.integers(1, 7)).tolist()) for _ in range(pairs)]


class Data:
    """Pairs in blocks, like prepared data."""

    def __init__(self, pairs: Sentences, sizes: tuple[int, int], shared: bool, blocks: int = 2) -> None:
        self.source_vocabulary, self.target_vocabulary = (SimpleNamespace(size=size) for size in sizes)
        self.shared_vocabulary, self.directory, self.num_blocks = shared, "data", blocks
        self._blocks = [pairs[number::blocks] for number in range(blocks)]

    def read_block(self, index: int) -> PairBlock:
        parts: list[Any] = []
        for side in range(2):
            sentences = [pair[side] for pair in self._blocks[index]]
            parts += [np.array(sum(sentences, []), np.uint16), np.cumsum([0, *map(len, sentences)])]
        return PairBlock(*parts)


def expected_cosines(pairs: Sentences, shift: int, size: int, depth: int) -> np.ndarray:
    """Return the cosines of all vectors, by loops and `numpy.linalg.svd`."""
    in_pairs, in_windows = np.zeros((size, size)), np.zeros((size, size))
    for source, other in pairs:
        target = [token + shift for token in other]
        for one, two in combinations(sorted({*source, *target}), 2):
            in_pairs[one, two] += 1
            in_pairs[two, one] += 1
        for sentence in (source, target):
            for (i, one), (j, two) in combinations(enumerate(sentence), 2):
                if j - i <= WINDOW:
                    in_windows[one, two] += 1 / (j - i)
                    in_windows[two, one] += 1 / (j - i)
    halves = []
    for counts, length in ((in_pairs, depth - depth // 2), (in_windows, depth // 2)):
        contexts = counts.sum(0) ** SMOOTHING
        with np.errstate(divide="ignore", invalid="ignore"):
            information = np.log(counts / (counts.sum(1)[:, None] * contexts / contexts.sum()))
        left, values, _ = np.linalg.svd(np.where(counts > 0, np.maximum(information, 0), 0))
        half = left[:, :length] * np.sqrt(values[:length])
        halves.append(half / np.maximum(np.linalg.norm(half, axis=1, keepdims=True), 1e-9))
    vectors = np.concatenate(halves, 1)
    used = np.array([any(token in source or token - shift in target for source, target in pairs)
                     for token in range(size)])
    vectors -= vectors[used].mean(0)
    vectors[~used] = 0
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return vectors @ vectors.T


@pytest.mark.parametrize("shared", [True, False])
def test_vectors_are_those_of_a_complete_decomposition(shared: bool) -> None:
    sizes = (18, 18) if shared else (18, 14)
    pairs = drawn(60, *sizes)
    found = cooccurrence_vectors(Data(pairs, sizes, shared), 8, seed=3)     # type: ignore[arg-type]
    vectors = found.source if shared else np.concatenate([found.source, found.target])
    shift = 0 if shared else sizes[0]
    expected = expected_cosines(pairs, shift, len(vectors), 8)
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=2e-4)
    assert found.pairs == 60 and found.target.shape == (sizes[1], 8)
    for special_or_absent in (0, 1, 2, 3, sizes[0] - 1):
        assert not found.source[special_or_absent].any()


def test_equal_data_and_seeds_give_equal_bits_and_other_seeds_rotate() -> None:
    data: Any = Data(drawn(40, 20, 20), (20, 20), True)
    first, again, other = (cooccurrence_vectors(data, 6, seed).source for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes()
    assert np.abs(first - other).max() > 0.1
    np.testing.assert_allclose(first @ first.T, other @ other.T, atol=2e-4)


def test_words_begin_near_their_translations() -> None:
    draw = np.random.default_rng(5)
    pairs = [(ids := draw.choice(np.arange(SPECIAL, 34), 5, replace=False).tolist(), [one for one in ids[::-1]])
             for _ in range(400)]
    found = cooccurrence_vectors(Data(pairs, (34, 34), False), 32, seed=1)     # type: ignore[arg-type]
    cosines = found.source[SPECIAL:] @ found.target[SPECIAL:].T
    assert np.diag(cosines).mean() > 0.4 + cosines.mean()


def test_contexts_and_pairs_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data: Any = Data(drawn(60, 18, 18), (18, 18), True)
    monkeypatch.setattr(cooccurrence, "MAX_CONTEXTS", 5)
    assert cooccurrence_vectors(data, 8, 1).pairs == 60
    monkeypatch.setattr(cooccurrence, "MAX_COUNTS", 1)
    assert cooccurrence_vectors(data, 8, 1).pairs == 30         # the first block


def test_a_sample_of_a_large_block_has_pairs_from_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of a block have the order of the text, whose end may have other words than its beginning."""
    pairs: Sentences = [([SPECIAL + 8 * number // 800], [SPECIAL + 8 * number // 800]) for number in range(800)]
    monkeypatch.setattr(cooccurrence, "_PAIRS_PER_CHUNK", 10)
    monkeypatch.setattr(cooccurrence, "MAX_COUNTS", 800)     # 4 for a pair of two subwords
    found = cooccurrence_vectors(Data(pairs, (13, 13), False, blocks=1), 32, 1)  # type: ignore[arg-type]
    assert found.pairs == 200
    lengths = np.linalg.norm(found.source[SPECIAL:SPECIAL + 8], axis=1)
    assert lengths[[0, 1, 6, 7]] == pytest.approx(1, abs=1e-5)


def test_data_without_pairs_keep_random_values() -> None:
    found = cooccurrence_vectors(Data([([], [])], (9, 9), True, blocks=1), 4, 1)    # type: ignore[arg-type]
    assert not found.source.any()


def test_tables_and_their_averages_get_the_vectors_and_other_rows_stay() -> None:
    data: Any = Data(drawn(60, 18, 14), (18, 14), False)
    with tf1.Graph().as_default(), tf1.Session() as session:
        for name, size in (("encoder/source_embedding", 18), ("target_embedding", 14), ("softmax_embedding", 14)):
            tf1.get_variable(name, [size, 8], initializer=tf1.constant_initializer(7.0))
        tf1.get_variable("softmax_bias", [14], initializer=tf1.zeros_initializer())
        tf1.get_variable(AVERAGE, [14, 8], initializer=tf1.constant_initializer(7.0), trainable=False)
        init = CooccurrenceEmbeddings(data, 3)
        init._setup_graph()
        session.run(tf1.global_variables_initializer())
        init._run_init(session)
        values = {v.op.name: session.run(v) for v in tf1.global_variables()}
    expected = cooccurrence_vectors(data, 8, 3)
    for name, vectors in (("encoder/source_embedding", expected.source), ("target_embedding", expected.target),
                          ("softmax_embedding", expected.target), (AVERAGE, expected.target)):
        np.testing.assert_array_equal(values[name], np.where(vectors.any(1, keepdims=True), vectors, 7.0))
    assert not values["softmax_bias"].any()


def test_cross_attention_begins_as_a_mean_of_the_source_vectors_that_it_attends_to() -> None:
    data: Any = Data(drawn(9, 18, 18), (18, 18), True)
    source = np.random.default_rng(2).standard_normal((1, 5, 8), np.float32)
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("embedding", [18, 8])
        kernels = []
        with tf1.variable_scope("decoder/layer_0/source_attention"):
            attention = CrossAttention(2, gains=Gains(outputs=0.0))
            inputs = AttentionInputs(source=attention.prepare(tf.constant(source)), source_bias=tf.zeros([1, 1, 1, 5]))
            # equal weights for all positions
            attended = attention.attend_sequence(tf.zeros([1, 3, 8]), inputs).output
        for kernel in tf1.trainable_variables()[1:]:
            kernels.append(tf1.get_variable(f"{kernel.op.name}{AVERAGE_SUFFIX}", initializer=kernel.initial_value,
                                            trainable=False))
        init = CooccurrenceEmbeddings(data, 3)
        init._setup_graph()
        session.run(tf1.global_variables_initializer())
        before = {v.op.name: session.run(v) for v in tf1.trainable_variables()}
        init._run_init(session)
        after = {v.op.name: session.run(v) for v in tf1.global_variables()}
        found = session.run(attended)
    keys_and_values = "decoder/layer_0/source_attention/kv/kernel"
    scale = np.linalg.norm(before[keys_and_values][:, 8:]) ** 2 / 8
    np.testing.assert_allclose(found, np.repeat(scale * source.mean(1, keepdims=True), 3, 1), atol=1e-5)
    np.testing.assert_array_equal(after[keys_and_values][:, :8], before[keys_and_values][:, :8])
    for kernel in kernels:
        np.testing.assert_array_equal(after[kernel.op.name], after[kernel.op.name.removesuffix(AVERAGE_SUFFIX)])


@pytest.mark.parametrize("name", ["kernel", "target_embedding"])
def test_a_model_without_tables_of_the_vocabulary_keeps_its_values(
        name: str, caplog: pytest.LogCaptureFixture) -> None:
    data: Any = Data(drawn(9, 18, 18), (18, 18), True)
    with tf1.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable(name, [2, 2], initializer=tf1.ones_initializer())
        init = CooccurrenceEmbeddings(data, 1)
        init._setup_graph()
        session.run(variable.initializer)
        init._run_init(session)
        assert session.run(variable).tolist() == [[1, 1], [1, 1]]
    assert "the model has no embedding table" in caplog.text


def test_a_cross_attention_of_a_custom_model_with_other_shapes_keeps_its_values() -> None:
    data: Any = Data(drawn(9, 18, 18), (18, 18), True)
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("embedding", [18, 8], initializer=tf1.zeros_initializer())
        kernels = [tf1.get_variable(f"source_attention/{name}/kernel", shape, initializer=tf1.ones_initializer())
                   for name, shape in (("kv", [8, 8]), ("output", [8, 8]))]      # as of a grouped attention
        init = CooccurrenceEmbeddings(data, 1)
        init._setup_graph()
        session.run(tf1.global_variables_initializer())
        init._run_init(session)
        assert all((session.run(kernel) == 1).all() for kernel in kernels)


def test_what_cannot_be_counted_is_refused() -> None:
    settings = InitSettings(embeddings="cooccurrence")
    with pytest.raises(SettingsError, match="unprepared text: prepare it, or use init.embeddings=random"):
        initial_values(settings, Data([], (9, 9), True), 1)     # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="would replace the embeddings of init.checkpoint=runs/a"):
        initial_values(InitSettings(embeddings="cooccurrence", checkpoint="runs/a"), Data([], (9, 9), True), 1)  # type: ignore[arg-type]
