"""Open trained models of every kind as runs: which system a path belongs to, exact weights, the cache, refusals."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.interop.importing import opus
from tests.interop.importing.opennmt_tf import test_opennmt_tf as opennmt_tf
from tests.interop.importing.thumt import test_thumt as thumt
from tests.interop.marian_npz import read_npz
from towernmt.checkpoint import checkpoint_files
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.packaged_run import open_run
from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.core.files import CACHE_VARIABLE
from towernmt.core.foreign_models import detect_system, import_advice
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.interop.foreign_model import ImportRequest
from towernmt.interop.import_formats import foreign_format
from towernmt.interop.marian_files import FLOAT16, INTGEMM8, MarianItem, binary_file, float_value, int8_items
from towernmt.interop.marian_import import read_marian
from towernmt.interop.starting_models import (
    open_starting_model,
    read_foreign_model,
    vocabulary_of_model,
    with_vocabulary_of,
)

Make = Callable[..., Path]


def write_bin(folder: Path) -> Path:
    """Replace the `.npz` file of a Marian folder by an 8-bit file in the layout of Mozilla's models."""
    parameters, options = read_npz(folder / "opus.model1.npz")
    largest = dict.fromkeys((name for name in parameters if "_W" in name or name.endswith("Wemb")), 3.0)
    items = int8_items(parameters, largest, yaml.safe_dump(options))
    (folder / "opus.model1.npz").unlink()
    (folder / "decoder.yml").unlink()
    (folder / "model.deen.intgemm.alphas.bin").write_bytes(binary_file(items))
    (folder / "lex.50.50.deen.s2t.bin").write_bytes(b"\xf5\x17\x34\x01")        # a shortlist is not a model
    return folder / "model.deen.intgemm.alphas.bin"


def test_the_files_of_a_path_tell_its_system(make_opus: Make, tmp_path: Path) -> None:
    folder = make_opus()
    assert detect_system(folder) == ("marian", folder)
    assert detect_system(folder / "opus.model1.npz") == ("marian", folder / "opus.model1.npz")
    assert detect_system(folder / "decoder.yml") == ("marian", folder)
    config = opennmt_tf.write_model(tmp_path / "onmt", opennmt_tf.random_values(shared=True))
    assert detect_system(config) == detect_system(config.parent) == ("opennmt-tf", config)
    assert detect_system(config.parent / "run" / "ckpt-7") == ("opennmt-tf", config.parent / "run" / "ckpt-7")
    train = thumt.write_model(tmp_path / "thumt" / "train", thumt.random_values({}), {})
    assert detect_system(train) == ("thumt", train)
    assert detect_system(train / "model.ckpt-7") == ("thumt", train / "model.ckpt-7")
    best = Path(shutil.copytree(train, train / "eval"))
    (best / "transformer.json").unlink()
    assert detect_system(best) == ("thumt", best)
    for other in (tmp_path, folder / "opus.vocab.yml", folder / "source.spm", tmp_path / "missing"):
        assert detect_system(other) is None


@pytest.mark.thorough
def test_a_model_of_another_system_is_imported_once_with_exactly_its_weights(make_opus: Make, cache: Path) -> None:
    location = str(make_opus())
    start = open_starting_model(location, "--start")
    assert start.name == location and Path(start.location).parent == cache / "imported"
    held, model = OpenCheckpoint(start.run.checkpoint()), read_marian(ImportRequest(Path(location)))
    assert set(held.shapes()) >= set(model.weights)
    for name, value in model.weights.items():
        np.testing.assert_array_equal(held.value(name), value)
    held.close()
    file = start.run.settings_file
    written = file.stat().st_mtime_ns
    assert open_starting_model(location, "--start").location == start.location
    assert file.stat().st_mtime_ns == written and len([*(cache / "imported").iterdir()]) == 1
    checkpoint = str(start.run.checkpoints / "step-0")
    assert open_starting_model(checkpoint, "--start").checkpoint == checkpoint and start.checkpoint is None
    file.write_text("damaged")
    assert open_starting_model(location, "--start").run.group("model", model.settings) == model.settings


@pytest.mark.thorough
def test_a_model_is_opened_where_no_cache_can_be_written(make_opus: Make, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    start = open_starting_model(str(make_opus()), "--start")
    temporary = start.run.path
    assert start.run.exists() and start.run.checkpoint()
    del start
    assert not temporary.exists()


@pytest.mark.thorough
def test_a_model_is_opened_if_the_disk_of_the_cache_fills_while_its_weights_are_written(
        make_opus: Make, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    flush = checkpoint_files.flush_to_disk

    def flush_elsewhere(path: Path) -> None:
        if path.is_relative_to(cache):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(path)

    monkeypatch.setattr(checkpoint_files, "flush_to_disk", flush_elsewhere)
    start = open_starting_model(str(make_opus()), "--start")
    assert not start.run.path.is_relative_to(cache) and Path(f"{start.run.checkpoint()}.index").is_file()
    assert "the cache for imported models cannot be written (No space left on device), so the model is" in caplog.text
    assert [*(cache / "imported").iterdir()] == []


def test_an_8_bit_model_is_read_back_within_half_a_step(make_opus: Make) -> None:
    folder = make_opus(options={"transformer-ffn-activation": "relu"})
    exact = read_marian(ImportRequest(folder))
    model = read_marian(ImportRequest(write_bin(folder).parent))
    assert model.settings == exact.settings and model.source.files() == exact.source.files()
    for name, value in exact.weights.items():
        half_a_step = 0.501 * np.abs(value).max() / 127 if name.endswith(("kernel", "embedding")) else 0.0
        of_values = 0.02 if name.endswith("attention/output/bias") else 0.0     # includes the product of a matrix
        np.testing.assert_allclose(model.weights[name], value, rtol=0, atol=half_a_step + of_values, err_msg=name)
    assert (model.weights["transformer/embedding"] != exact.weights["transformer/embedding"]).any()


def test_mozillas_names_tell_the_side_of_a_vocabulary(make_opus: Make) -> None:
    folder = make_opus()
    (folder / "decoder.yml").unlink()
    for name in ("trgvocab.yml", "srcvocab.yml"):
        (folder / name).write_text((folder / "opus.vocab.yml").read_text())
    (folder / "opus.vocab.yml").unlink()
    assert read_marian(ImportRequest(folder)).source.size > 4


@pytest.mark.parametrize(("item", "problem"), [
    (MarianItem("encoder_l1_self_Wq", 0x4301, (8, 8), bytes(68)), "type 0x4301, whose values are in the order of one"),
    (MarianItem("Wemb", INTGEMM8, (64, 64), np.eye(64, dtype=np.int8).tobytes() + np.float32(1).tobytes()),
     "8 bits of Wemb have a rounding error of 233% of its standard deviation, more than 10%")])
def test_an_8_bit_matrix_that_cannot_be_read_back_is_refused_by_name(
        item: MarianItem, problem: str, make_opus: Make) -> None:
    with pytest.raises(ValueError, match=problem):
        float_value(item)
    file = write_bin(make_opus())
    text = b"type: transformer\0"
    file.write_bytes(binary_file([item, MarianItem("special:model.yml", 0x101, (len(text),), text)]))
    with pytest.raises(SettingsError, match=f"{item.name}.*: import the .npz file from which it was made"):
        read_foreign_model(str(file), "--start")


def test_half_precision_is_read_back_exactly() -> None:
    values = np.array([[0.5, -1.25], [3.0, 0.0]], "<f2")
    np.testing.assert_array_equal(float_value(MarianItem("b", FLOAT16, (2, 2), values.tobytes())), values)


def test_a_binary_file_that_is_cut_off_is_refused(make_opus: Make) -> None:
    file = write_bin(make_opus())
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(CheckpointError, match="or the file is damaged .the file ends within"):
        read_foreign_model(str(file), "--start")


def test_a_binary_file_with_an_impossible_number_of_parameters_is_refused(make_opus: Make) -> None:
    file = write_bin(make_opus())
    content = bytearray(file.read_bytes())
    content[15] = 0xFF
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a Marian model .* or the file is damaged"):
        read_foreign_model(str(file), "--start")


def test_other_heads_than_those_of_the_model_are_refused(make_opus: Make, tmp_path: Path) -> None:
    config = opennmt_tf.write_model(tmp_path / "onmt", opennmt_tf.random_values(True, relative=True))
    train = thumt.write_model(tmp_path / "thumt", thumt.random_values({}), {})
    for system, path, heads in (("marian", make_opus(), opus.OPTIONS["transformer-heads"]),
                                ("opennmt-tf", config, opennmt_tf.HEADS), ("thumt", train, thumt.HEADS)):
        assert foreign_format(system).read(ImportRequest(path, heads=heads)).settings.heads == heads
        with pytest.raises(SettingsError, match=f"--heads 4: the model has {heads} attention heads: leave out --heads"):
            foreign_format(system).read(ImportRequest(path, heads=4))


def test_what_is_not_a_model_is_refused_with_what_it_is(tmp_path: Path, prepare_pairs: Callable[[Path], Path]) -> None:
    data = prepare_pairs(tmp_path)
    for location, problem in ((str(data), f"--start {data} is prepared data, not a model"),
                              (str(tmp_path / "none"), "none does not exist: pass the --logdir of a run"),
                              (str(tmp_path / "source"), "source is not a trained model")):
        with pytest.raises(SettingsError, match=problem):
            open_starting_model(location, "--start")


def test_a_model_of_another_system_instead_of_a_run_is_refused_with_the_command_that_imports_it(
        make_opus: Make, tmp_path: Path) -> None:
    folder = make_opus()
    config = opennmt_tf.write_model(tmp_path / "my onmt", opennmt_tf.random_values(shared=True))
    for location, model, system in ((folder, folder, "marian"), (config, config, "opennmt-tf"),
                                    (folder / "opus.model1.npz", folder / "opus.model1.npz", "marian"),
                                    (config.parent, config, "opennmt-tf")):
        with pytest.raises(SettingsError) as error:
            open_run(location).saved_settings()
        assert str(error.value).startswith(f"{location} looks like a model of another system: import it with `")
        _, command, _ = str(error.value).split("`")
        assert shlex.split(command) == ["towernmt", "import", str(model), "--from", system, "--output", "RUN"]


def test_an_export_with_a_similar_name_is_not_taken_for_a_model_of_another_system(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    (tmp_path / "towernmt.json").write_text('{"format": "ctranslate2"}')
    for location in (tmp_path, tmp_path / "model.bin"):
        assert import_advice(location) is None


@pytest.mark.parametrize(("path", "problem"), [
    ("settings.yaml", "is a file of the run {run}: pass this directory."),
    ("checkpoints", "contains checkpoints of a run: pass one of them, such as {run}/checkpoints/step-4, or the direc"),
    ("averages/last-2", "contains checkpoints of a run: pass one of them, such as {run}/averages/last-2/step-4, or"),
    ("checkpoints/step-4/model", "is a part of the checkpoint {run}/checkpoints/step-4: pass this directory."),
    ("checkpoints/step-4/model.index", "is a part of the checkpoint {run}/checkpoints/step-4: pass this directory."),
    ("../lost", "is a run whose settings.yaml is missing: restore this file."),
    ("../step-4", "is a checkpoint outside of its run: pass a checkpoint in the directory of its run.")])
@pytest.mark.parametrize("relative", [False, True])
def test_a_part_of_a_run_is_not_taken_for_a_model_of_opennmt_tf(
        path: str, problem: str, relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("run") if relative else tmp_path / "run"
    run.mkdir()
    (run / "settings.yaml").write_text("architecture: transformer\ndata: {seed: 1}\n")
    for checkpoint in (run / "checkpoints/step-4", run / "averages/last-2/step-4", run / "../lost/checkpoints/step-4",
                       run / "../step-4"):
        checkpoint.mkdir(parents=True)
        for name in ("model.index", "state.json"):
            (checkpoint / name).write_text("{}")
        (checkpoint.parent / "checkpoint").write_text('model_checkpoint_path: "step-4/model"\n')
    with pytest.raises(SettingsError) as error:
        open_starting_model(str(run / path), "--start")
    assert str(error.value).startswith(f"--start {run / path} {problem.format(run=run)}")
    with pytest.raises(SettingsError, match="--vocabulary-of .*run"), vocabulary_of_model(str(run / path)):
        pass


def test_a_run_without_its_vocabularies_is_one_clear_sentence(tmp_path: Path) -> None:
    """Runs of older versions have no fingerprint of their vocabularies."""
    checkpoint = tmp_path / "run" / "checkpoints" / "step-4"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run" / "settings.yaml").write_text("architecture: transformer\n")
    for name in ("model.index", "state.json"):
        (checkpoint / name).write_text("{}")
    settings = PrepareSettings(source="text", output="data")
    with vocabulary_of_model(str(tmp_path / "run")) as directory, pytest.raises(
            DataError, match=r"run/vocabulary contains no source vocabulary: restore the vocabularies of the model\."):
        with_vocabulary_of(settings, "run", directory)


def test_the_archive_of_a_model_has_to_be_unpacked(make_opus: Make, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "opus-2020"), "zip", make_opus()))
    with pytest.raises(SettingsError, match="opus-2020.zip is an archive of a Marian model: unpack it, and"):
        open_starting_model(str(archive), "--start")
    other = Path(shutil.make_archive(str(tmp_path / "other"), "zip", tmp_path, "opus/README.md"))
    with pytest.raises(CheckpointError, match="other.zip is not a package of towernmt"):
        open_starting_model(str(other), "--start")


def test_a_model_whose_files_need_options_is_imported_first(tmp_path: Path) -> None:
    config = opennmt_tf.write_model(tmp_path / "onmt", opennmt_tf.random_values(shared=True))
    with pytest.raises(SettingsError, match="`towernmt import --from opennmt-tf` has these options; import the model"):
        read_foreign_model(str(config.parent / "run"), "--start")


def test_the_vocabulary_of_another_systems_model_needs_no_run(make_opus: Make, cache: Path) -> None:
    folder = make_opus()
    with vocabulary_of_model(str(folder)) as directory:
        content = (directory / "source.model").read_bytes()
    assert content == read_marian(ImportRequest(folder)).source.files()[".model"]
    assert not directory.exists() and not cache.exists()


def test_a_model_of_divided_text_is_reported_before_its_text_is_prepared(
        make_opus: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = opennmt_tf.write_model(tmp_path / "onmt", opennmt_tf.random_values(False, relative=True))
    for location, is_reported in ((config, True), (make_opus(), False)):
        caplog.clear()
        with vocabulary_of_model(str(location)):
            pass
        assert (f"{location}: The model comes without a SentencePiece model" in caplog.text) == is_reported
