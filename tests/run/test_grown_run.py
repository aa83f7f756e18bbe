"""A trained model with a grown vocabulary: old subwords keep their rows, and new ones combine them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

from tests.interop.importing import opus
from tests.variables import assign_random, checkpoint_values
from towernmt.checkpoint.checkpoint_files import write_checkpoint
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.embedding_rows import (
    LEAST_BIAS,
    NEW_SUBWORD_PENALTY,
    RowOrigin,
    grow_checkpoint,
    origins_in_both,
    row_origins,
    side_of_table,
)
from towernmt.cli.main import main
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.settings import apply_overrides
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS, SPECIAL_PIECES, UNK, Vocabulary
from towernmt.dataflow.vocabulary.extension import extended
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.dataflow.vocabulary.vocabulary_files import same_pieces, save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.interop.foreign_model import IMPOSSIBLE_LOGIT
from towernmt.run.directory import RunDirectory, model_from_settings
from towernmt.run.grown_run import grow_vocabulary
from towernmt.run.run_settings import default_settings

pytestmark = pytest.mark.thorough

SOURCE, NEW_SOURCE = ["haus", "baum", "tür"], ["tür", "neu", "haus", "wort", "baum"]
TARGET, NEW_TARGET = ["house", "tree", "door"], ["house", "tree", "door", "word"]


def vocabulary(words: list[str]) -> WordVocabulary:
    return WordVocabulary([*SPECIAL_PIECES, *words])


def with_factors(words: list[str], factors: Sequence[list[str]]) -> Vocabulary:
    return FactoredVocabulary(vocabulary(words), [vocabulary(values) for values in factors]) if factors else (
        vocabulary(words))


def tensors(prefix: str) -> dict[str, np.ndarray]:
    return checkpoint_values(Path(prefix).parent)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return random_run(tmp_path_factory.mktemp("original") / "run")


@pytest.fixture
def run(original: RunDirectory, tmp_path: Path) -> RunDirectory:
    """Return a copy of the run, which a test may change."""
    return RunDirectory(shutil.copytree(original.path, tmp_path / "run"))


def random_run(directory: Path, factors: Sequence[list[str]] = (), tie: str = "none") -> RunDirectory:
    """Write a run with one checkpoint of random variables, and the moving average of one variable."""
    run = RunDirectory(directory)
    settings = apply_overrides(default_settings(), {
        "model.hidden_size": 8, "model.filter_size": 8, "model.heads": 2, "model.encoder_layers": 1,
        "model.decoder_layers": 1, "model.tie_embeddings": tie, "model.source_vocab_size": 7,
        "model.target_vocab_size": 7, "model.source_factor_vocab_sizes": [4 + len(values) for values in factors]})
    run.save_settings(settings)
    save_vocabularies(with_factors(SOURCE, factors), vocabulary(TARGET), run.vocabulary)
    random = np.random.default_rng(2)
    with tf.Graph().as_default(), tf1.Session() as session:
        model = model_from_settings(settings)
        with PredictTowerContext(""):
            model.build_graph(*[tf1.placeholder(spec.dtype, spec.shape) for spec in model.inputs()])
        tf1.get_variable("transformer/softmax_bias/ExponentialMovingAverage", [7], trainable=False)
        assign_random(session, random, 1.0, tf1.global_variables())
        write_checkpoint(tf1.train.Saver(), session, run.checkpoints, 5, {"step": 5, "position": None, "callbacks": {}})
    return run


def test_rows_of_common_pieces_are_kept_wherever_they_stand(run, tmp_path):
    save_vocabularies(vocabulary(NEW_SOURCE), vocabulary(NEW_TARGET), tmp_path / "new")
    grow_vocabulary(run, tmp_path / "new", tmp_path / "grown")
    grown = RunDirectory(tmp_path / "grown")
    assert grown.settings().model.source_vocab_size == 9
    assert [v.id_to_piece(4) for v in grown.vocabularies()] == ["tür", "house"]
    old, new = tensors(run.checkpoint()), tensors(grown.checkpoint())
    assert set(new) == {name for name in old if "ExponentialMovingAverage" not in name}
    kept = {"source": [0, 1, 2, 3, 6, None, 4, None, 5], "target": [*range(7), None]}
    for name, value in new.items():
        side = {"source_embedding": "source", "target_embedding": "target", "softmax_embedding": "target",
                "softmax_bias": "target"}.get(name.split("/")[-1])
        expected = old.get(f"{name}/ExponentialMovingAverage", old[name])
        if side is None:
            np.testing.assert_array_equal(value, expected)
            continue
        for row, place in enumerate(kept[side]):
            if place is not None:
                np.testing.assert_array_equal(value[row], expected[place])
            elif name.endswith("bias"):
                assert value[row] == -NEW_SUBWORD_PENALTY
            else:
                assert 0.0 < np.abs(value[row]).max() < 4 / np.sqrt(8)


def test_old_subwords_of_a_new_one_are_its_segmentation_by_the_old_vocabulary():
    old = learn_sentence_piece(["ab abc c", "ca b a", "abc"] * 20, "unigram", 12)
    pieces = [old.id_to_piece(id) for id in range(old.size)]
    [new] = extended([old], ["ca{b cabc", "xabca"] * 20, 40)
    origins = row_origins(old, new)
    assert origins[:old.size] == [RowOrigin([id]) for id in range(old.size)]
    assert all(origin.is_new for origin in origins[old.size:])
    ids = [origin.ids for origin in origins]
    for id in range(old.size, new.size):
        piece = new.id_to_piece(id)
        if {*piece} & {*"{x"}:
            assert ids[id] == []        # the old vocabulary does not know this character
        else:
            assert "".join(pieces[old_id] for old_id in ids[id]).lstrip("▁") == piece.lstrip("▁")
    within = [new.id_to_piece(id) for id in range(old.size, new.size) if ids[id] and new.id_to_piece(id)[0] != "▁"]
    assert within       # such subwords have no space mark, which their encoding would add
    for piece in within:
        assert ids[new.piece_to_id(piece)][0] != old.piece_to_id("▁")


def test_a_new_subword_begins_with_the_mean_of_its_old_ones(run, tmp_path):
    model, opened = model_from_settings(run.settings()), OpenCheckpoint(run.checkpoint())
    special = [RowOrigin([id]) for id in range(4)]
    origins = {"source": [*special, RowOrigin([4, 6], True), RowOrigin([5]), RowOrigin([], True)],
               "target": [*special, RowOrigin([4]), RowOrigin([6]), RowOrigin([5, 5, 6], True)]}
    old, new = tensors(run.checkpoint()), tensors(str(grow_checkpoint(
        opened, model, origins, tmp_path / "grown", 1, {}) / "model"))
    source, bias = old["transformer/source_embedding"], old["transformer/softmax_bias/ExponentialMovingAverage"]
    np.testing.assert_allclose(new["transformer/source_embedding"][4], (source[4] + source[6]) / 2, rtol=1e-6)
    np.testing.assert_allclose(new["transformer/softmax_bias"][6], (2 * bias[5] + bias[6]) / 3 - NEW_SUBWORD_PENALTY,
                               rtol=1e-6)
    assert new["transformer/softmax_bias"][5] == bias[6]
    assert 0 < np.abs(new["transformer/source_embedding"][6]).max() < 4 / np.sqrt(8)


def test_subwords_that_an_imported_model_never_writes_can_be_written_if_the_new_vocabulary_uses_them(tmp_path):
    imported, grown, again = (RunDirectory(tmp_path / name) for name in ("imported", "grown", "again"))
    assert main(["import", str(opus.write_opus(tmp_path / "opus", missing=16)), "--from", "marian", "--output",
                 str(imported.path)]) == 0
    for side, lines in (("source", opus.GERMAN[:3]), ("target", opus.ENGLISH)):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    assert main(["grow", "--model", str(imported.path), "--source", str(tmp_path / "source"), "--target",
                 str(tmp_path / "target"), "--vocab-size", "40", "--output", str(grown.path)]) == 0
    assert main(["grow", "--model", str(imported.path), "--vocabulary", str(grown.vocabulary), "--output",
                 str(again.path)]) == 0
    for run in (grown, again):
        assert_possible(imported, run)


def test_a_shared_table_of_models_that_normalise_differently_gets_the_subwords_of_both(tmp_path, caplog):
    imported, grown = RunDirectory(tmp_path / "imported"), RunDirectory(tmp_path / "grown")
    folder = opus.write_opus(tmp_path / "opus", normalizations=("nmt_nfkc_cf", "nmt_nfkc"))
    assert main(["import", str(folder), "--from", "marian", "--output", str(imported.path)]) == 0
    for side, line in (("source", "Die Eulen"), ("target", "The Owls")):
        (tmp_path / side).write_text(f"{line}\n" * 20)
    assert main(["grow", "--model", str(imported.path), "--source", str(tmp_path / "source"), "--target",
                 str(tmp_path / "target"), "--output", str(grown.path)]) == 0
    source, target = grown.vocabularies()
    assert same_pieces(source, target)
    assert source.decode(source.encode("Eulen Owls")) == "eulen owls"
    assert target.decode(target.encode("Eulen Owls")) == "Eulen Owls"
    assert "source: " in caplog.text and "target: " in caplog.text


def test_a_shared_row_begins_with_the_subwords_of_the_language_that_divides_it_less():
    source = [RowOrigin([4]), RowOrigin([5, 6, 5], True), RowOrigin([7, 8], True), RowOrigin([], True)]
    target = [RowOrigin([4]), RowOrigin([9, 10], True), RowOrigin([], True), RowOrigin([], True)]
    assert [origin.ids for origin in origins_in_both(source, target)] == [[4], [9, 10], [7, 8], []]


def assert_possible(imported: RunDirectory, grown: RunDirectory) -> None:
    """Assert that the grown model can write those subwords of its vocabulary that the imported model never writes."""
    old, new = imported.vocabularies()[1], grown.vocabularies()[1]
    before, after = (tensors(run.checkpoint())["transformer/softmax_bias"] for run in (imported, grown))
    impossible = [id for id in range(old.size) if before[id] < LEAST_BIAS]
    switched_on = [id for id in impossible if id > UNK and not new.is_unused(id)]
    assert BOS in impossible and 0 < len(switched_on) < len([id for id in impossible if id > UNK])
    possible = [id for id in range(old.size) if id not in impossible]
    assert before[impossible].max() < IMPOSSIBLE_LOGIT + 2
    np.testing.assert_array_equal(after[possible], before[possible])
    kept = [id for id in impossible if id not in switched_on]
    np.testing.assert_array_equal(after[kept], before[kept])
    others = [id for id in range(new.size) if id not in impossible]
    np.testing.assert_allclose(after[switched_on], np.median(after[others]) - NEW_SUBWORD_PENALTY, rtol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_the_command_adds_the_subwords_of_a_text(tmp_path, capsys, caplog, shared):
    run, texts = random_run(tmp_path / "run", tie="all" if shared else "none"), (["haus tür", "neu"], ["door key key"])
    if shared:
        save_vocabularies(vocabulary(SOURCE), vocabulary(SOURCE), run.vocabulary)
    for side, lines in zip(("source", "target"), texts, strict=True):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    text = ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    assert main(["grow", "--model", str(run.path), *text, "--output", str(tmp_path / "grown")]) == 0
    assert f"towernmt prepare --vocabulary-of {tmp_path / 'grown'} {' '.join(text)} " in capsys.readouterr().out
    source, target = RunDirectory(tmp_path / "grown").vocabularies()
    words = [[v.id_to_piece(id) for id in range(4, v.size)] for v in (source, target)]
    assert words == ([[*SOURCE, "key", "door", "neu"]] * 2 if shared else [[*SOURCE, "neu"], [*TARGET, "key"]])
    message = "source and target: 3 new subwords" if shared else "source: 1 new subwords, 8 in total"
    assert message in caplog.text
    assert main(["translate", "--model", str(tmp_path / "grown"), "--input", str(tmp_path / "source"), "--output",
                 str(tmp_path / "translations")]) == 0


@pytest.mark.parametrize(("options", "message"), [
    (["--source", "a"], "--source and --target belong together"),
    (["--vocabulary", "a", "--target", "a"], "--source and --target belong together"),
    (["--vocabulary", "a", "--vocab-size", "9"], "--vocab-size 9 belongs to --source and --target"),
    (["--source", "nowhere", "--target", "nowhere"], "nowhere: the file does not exist"),
    (["--source", "text", "--target", "blank"], "blank has no text: pass a file with one sentence per line."),
    (["--source", "text", "--target", "text", "--vocab-size", "4"], "--vocab-size 4 must be at least 5"),
    (["--source", "text", "--target", "text", "--vocab-size", "2147483648"], "and at most 10000000.")])
def test_wrong_texts_are_refused_and_nothing_is_written(run, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("haus\n")
    (tmp_path / "blank").write_text(" \n\n")
    assert main(["grow", "--model", str(run.path), "--output", "grown", *options]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "grown").exists()


def test_a_shortlist_does_not_forbid_the_new_subwords(run, tmp_path, caplog):
    run.save_settings(apply_overrides(run.settings(), {"search.shortlist": "old.lexicon", "search.beam_size": 3}))
    save_vocabularies(vocabulary(NEW_SOURCE), vocabulary(NEW_TARGET), tmp_path / "new")
    grow_vocabulary(run, tmp_path / "new", tmp_path / "grown")
    search = RunDirectory(tmp_path / "grown").settings().search
    assert (search.shortlist, search.beam_size) == ("", 3)
    assert "The grown run has no shortlist, because old.lexicon lacks the new subwords." in caplog.text


def test_rows_of_factors_are_kept_wherever_they_stand(tmp_path):
    run = random_run(tmp_path / "run", [["NOUN", "VERB"], ["x"]])
    save_vocabularies(with_factors(SOURCE, [["VERB", "ADJ", "NOUN"], ["x", "y"]]), vocabulary(TARGET), tmp_path / "new")
    grow_vocabulary(run, tmp_path / "new", tmp_path / "grown")
    grown = RunDirectory(tmp_path / "grown")
    assert grown.settings().model.source_factor_vocab_sizes == [7, 6]
    old, new = (tensors(r.checkpoint()) for r in (run, grown))
    first, second = "transformer/source_factor_1_embedding", "transformer/source_factor_2_embedding"
    np.testing.assert_array_equal(new[first][[0, 1, 2, 3, 4, 6]], old[first][[0, 1, 2, 3, 5, 4]])
    np.testing.assert_array_equal(new[second][:5], old[second])
    np.testing.assert_array_equal(new["transformer/source_embedding"], old["transformer/source_embedding"])
    assert new[first][5].any() and new[second][5].any()
    save_vocabularies(vocabulary(SOURCE), vocabulary(TARGET), tmp_path / "without")
    with pytest.raises(SettingsError, match="has 0 source factors and the run has 2"):
        grow_vocabulary(run, tmp_path / "without", tmp_path / "other")


def test_what_cannot_be_grown_is_refused(run, tmp_path):
    save_vocabularies(vocabulary(NEW_SOURCE), vocabulary(NEW_TARGET), tmp_path / "new")
    with pytest.raises(SettingsError, match="already contains a run"):
        grow_vocabulary(run, tmp_path / "new", run.path)
    tied = apply_overrides(run.settings(), {"model.tie_embeddings": "all"})
    run.save_settings(tied)
    with pytest.raises(SettingsError, match="--shared-vocab"):
        grow_vocabulary(run, tmp_path / "new", tmp_path / "grown")
    run.save_settings(apply_overrides(tied, {"model.tie_embeddings": "target", "model.encoder_layers": 2}))
    with pytest.raises(CheckpointError, match="another model"):
        grow_vocabulary(run, tmp_path / "new", tmp_path / "grown")
    assert not RunDirectory(tmp_path / "grown").exists()


def test_the_command_takes_the_vocabulary_of_prepared_data_and_says_how_to_go_on(run, tmp_path, capsys):
    save_vocabularies(vocabulary(NEW_SOURCE), vocabulary(NEW_TARGET), tmp_path / "data" / "vocabulary")
    arguments = ["grow", "--model", str(run.path), "--output", str(tmp_path / "grown"), "--vocabulary"]
    assert main([*arguments, str(tmp_path / "data")]) == 0
    assert f"towernmt train --start {tmp_path / 'grown'} " in capsys.readouterr().out
    assert RunDirectory(tmp_path / "grown").settings().model.source_vocab_size == 4 + len(NEW_SOURCE)


@pytest.mark.parametrize("checkpoint", ["step-5", "{run}/checkpoints/step-5", "{run}/checkpoints/step-5/model"])
def test_the_command_takes_a_checkpoint_by_name_path_or_prefix(run, tmp_path, checkpoint):
    save_vocabularies(vocabulary(NEW_SOURCE), vocabulary(NEW_TARGET), tmp_path / "new")
    shutil.copytree(run.checkpoints / "step-5", run.checkpoints / "step-6")
    (run.checkpoints / "step-6" / "model.index").write_text("damaged")
    assert main(["grow", "--model", str(run.path), "--checkpoint", checkpoint.format(run=run.path), "--vocabulary",
                 str(tmp_path / "new"), "--output", str(tmp_path / "grown")]) == 0


def test_the_command_refuses_a_vocabulary_that_is_not_there(run, tmp_path, capsys):
    assert main(["grow", "--model", str(run.path), "--output", str(tmp_path / "grown"), "--vocabulary",
                 str(tmp_path / "nowhere")]) == 1
    assert "nowhere: directory not found" in capsys.readouterr().err


def test_a_table_whose_rows_are_not_those_of_the_vocabulary_is_refused_with_its_name(run, tmp_path):
    model = model_from_settings(run.settings())
    opened = OpenCheckpoint(run.checkpoint())
    for source in (range(6), range(8), (0, 1, 2, 3, 4, 5, 7)):      # the tables have 7 rows
        rows = {"source": [RowOrigin([id]) for id in source], "target": [RowOrigin([id]) for id in range(7)]}
        with pytest.raises(CheckpointError, match="source_embedding' has shape .* and for these only"):
            grow_checkpoint(opened, model, rows, tmp_path / "grown", 1, {})


@pytest.mark.parametrize("name, side", [
    ("model/embedding", "source"), ("model/target_embedding", "target"), ("model/softmax_bias", "target"),
    ("model/source_factor_2_embedding", "source_factor_2"), ("model/gate/source", None), ("model/target", None),
    ("model/position_embedding", None), ("embedding/kernel", None)])
def test_only_tables_of_subwords_belong_to_a_vocabulary(name, side):
    assert side_of_table(name) == side
