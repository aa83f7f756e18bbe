"""Embeddings from text files and matrices, for some or all subwords."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.checkpoint.embedding_rows import PretrainedEmbeddings, read_embeddings
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.optim.optimizer import AVERAGE_SUFFIX

VOCABULARY = WordVocabulary([*SPECIAL_PIECES, "haus", "baum", "tür"])


@pytest.mark.parametrize("header", ["", "4 3\n", "4 3\r\n"])
def test_a_text_file_gives_the_vectors_of_the_subwords_in_the_vocabulary(tmp_path, header):
    path = tmp_path / "vectors.txt"
    path.write_text(f"{header}tür 1 2 3\nandere 4 5 6\nhaus -0.5 1e-3 2 \ntür 7 8 9\n", encoding="utf-8")
    ids, vectors = read_embeddings(path, VOCABULARY, 3)
    assert ids.tolist() == [4, 6]
    np.testing.assert_allclose(vectors, [[-0.5, 1e-3, 2], [1, 2, 3]])


def test_a_matrix_has_a_row_for_every_subword(tmp_path):
    matrix = np.random.default_rng(0).normal(size=[7, 3])
    np.save(tmp_path / "vectors.npy", matrix)
    ids, vectors = read_embeddings(tmp_path / "vectors.npy", VOCABULARY, 3)
    assert ids.tolist() == list(range(7))
    np.testing.assert_array_equal(vectors, matrix.astype(np.float32))


@pytest.mark.parametrize("content, error, message", [
    ("haus 1 2 3\nbaum 1 2\n", DataError, "line 2: got 2 values"),
    ("haus 1 2 drei\n", DataError, "line 1: not a vector of numbers"),
    ("haus 1 2 nan\n", DataError, "line 1: a value is not finite"),
    ("10 300\n", SettingsError, "the vectors have 300 values"),
])
def test_damaged_text_is_refused_with_its_line(tmp_path, content, error, message):
    path = tmp_path / "vectors.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(error, match=message):
        read_embeddings(path, VOCABULARY, 3)


def test_a_matrix_of_other_sizes_is_refused(tmp_path):
    np.save(tmp_path / "vectors.npy", np.zeros([6, 3]))
    with pytest.raises(SettingsError, match=r"need floating-point numbers of shape \[7, 3\]"):
        read_embeddings(tmp_path / "vectors.npy", VOCABULARY, 3)
    for content in (b"no matrix", b"PK\x03\x04"):
        (tmp_path / "vectors.npy").write_bytes(content)
        with pytest.raises(DataError, match="NumPy"):
            read_embeddings(tmp_path / "vectors.npy", VOCABULARY, 3)
    with pytest.raises(DataError, match="cannot read"):
        read_embeddings(tmp_path / "nowhere.txt", VOCABULARY, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_matrix_with_a_value_that_is_not_finite_is_refused_with_its_row(tmp_path, value):
    matrix = np.zeros([7, 3])
    matrix[5, 1] = value
    np.save(tmp_path / "vectors.npy", matrix)
    with pytest.raises(DataError, match=r"row 5 \(counted from 0\) has a value that is not finite"):
        read_embeddings(tmp_path / "vectors.npy", VOCABULARY, 3)


def test_an_archive_of_matrices_is_refused(tmp_path):
    np.savez(tmp_path / "vectors.npz", np.zeros([7, 3]))
    (tmp_path / "vectors.npz").rename(tmp_path / "vectors.npy")
    with pytest.raises(DataError, match=r"holds several arrays \(.npz\), not one matrix"):
        read_embeddings(tmp_path / "vectors.npy", VOCABULARY, 3)


def test_a_table_begins_with_the_vectors_and_keeps_its_other_rows(graph, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("haus 1 2 3\n", encoding="utf-8")
    start = np.arange(21, dtype=np.float32).reshape(7, 3)
    table = tf1.get_variable("model/source_embedding", initializer=start, use_resource=True)
    average = tf1.get_variable(f"model/source_embedding{AVERAGE_SUFFIX}", initializer=start, use_resource=True,
                               trainable=False)
    tf1.get_variable("model/target_embedding", [9, 3])
    init = PretrainedEmbeddings({"source": path}, {"source": VOCABULARY})
    init._setup_graph()
    tf1.get_default_graph().finalize()
    with tf1.Session() as session:
        session.run([table.initializer, average.initializer])
        init._run_init(session)
        for got in session.run([table, average]):
            np.testing.assert_array_equal(got, [*start[:4], [1, 2, 3], *start[5:]])


def test_vectors_without_a_table_or_without_a_piece_are_refused(graph, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("andere 1 2 3\n", encoding="utf-8")
    init = PretrainedEmbeddings({"source": path}, {"source": VOCABULARY})
    with pytest.raises(SettingsError, match="0 source embedding tables"):
        init._setup_graph()
    tf1.get_variable("model/embedding", [7, 3], tf.float32)
    with pytest.raises(DataError, match="such as 'tür'"):
        init._setup_graph()
