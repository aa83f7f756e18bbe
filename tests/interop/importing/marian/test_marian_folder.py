"""The files of a Marian model in folders of every layout, and folders with models that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.foreign_models import detect_system
from towernmt.interop.foreign_model import ImportRequest
from towernmt.interop.marian_folder import find_marian_files
from towernmt.interop.starting_models import read_foreign_model


def folder_with(path: Path, *names: str, vocabularies: str = "") -> Path:
    """Make a folder with files, and with the options of `model.npz` that name vocabularies."""
    path.mkdir()
    for name in names:
        (path / name).write_text("x")
    if vocabularies:
        (path / "model.npz.decoder.yml").write_text(
            f"models:\n  - /old/model.npz\nvocabs: [{vocabularies}]\nbeam-size: 12\nrelative-paths: false\n")
    return path


STATES = ("model.npz", "model.iter200.npz", "model.npz.optimizer.npz", "model.npz.orig.npz", "model.npz.progress.yml",
          "model.npz.yml")
"""Files of a training directory of Marian."""


def test_a_training_directory_has_one_model_and_its_options(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", *STATES, "de.yml", "en.yml", vocabularies="/old/de.yml, data/en.yml")
    for path in (folder, folder / "model.npz"):
        files = find_marian_files(ImportRequest(path))
        assert files.model == folder / "model.npz" and files.decoder["beam-size"] == 12
        assert files.vocabularies == (folder / "de.yml", folder / "en.yml")
    assert find_marian_files(ImportRequest(folder)).copied_files == (folder / "model.npz.decoder.yml",)


def test_the_best_model_of_a_training_has_its_own_options(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", *STATES, "model.npz.best-bleu.npz", "de.yml", vocabularies="de.yml, de.yml")
    options = (folder / "model.npz.decoder.yml").read_text()
    (folder / "model.npz.best-bleu.npz.decoder.yml").write_text(options.replace("12", "5"))
    assert find_marian_files(ImportRequest(folder / "model.npz.best-bleu.npz")).decoder["beam-size"] == 5
    with pytest.raises(SettingsError, match=r"contains 2 \.npz files.*pass the path of the \.npz file"):
        find_marian_files(ImportRequest(folder))


def test_the_options_of_the_folder_come_before_those_of_the_training(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", *STATES, "de.yml", "new.yml", vocabularies="de.yml, de.yml")
    (folder / "decoder.yml").write_text("vocabs: [new.yml, new.yml]\n")
    assert find_marian_files(ImportRequest(folder)).vocabularies == (folder / "new.yml", folder / "new.yml")


def test_options_that_are_not_yaml_are_reported_with_the_line(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", *STATES)
    (folder / "decoder.yml").write_text("beam-size: 6\nvocabs: [a.yml\nmodels: b\n")
    with pytest.raises(DataError, match="decoder.yml: cannot read the file .* line 3.*: fix it, or remove it and pass"):
        find_marian_files(ImportRequest(folder))


def test_vocabularies_may_be_at_the_path_that_the_options_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = folder_with(tmp_path / "data", "de.spm", "en.spm")
    folder = folder_with(tmp_path / "run", *STATES, vocabularies=f"{data}/de.spm, data/en.spm")
    options = folder / "model.npz.decoder.yml"
    source, target = find_marian_files(ImportRequest(folder)).vocabularies
    assert source == data / "de.spm" and target.samefile(data / "en.spm")
    options.write_text(options.read_text().replace("data/en", "../data/en").replace("false", "true"))
    assert find_marian_files(ImportRequest(folder)).vocabularies[1] == folder / "../data/en.spm"


def test_an_earlier_state_is_a_model_if_the_last_one_is_missing(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", "model.iter200.npz", "vocab.yml")
    assert find_marian_files(ImportRequest(folder)).model == folder / "model.iter200.npz"


def test_a_missing_vocabulary_is_not_replaced_by_that_of_the_other_side(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", *STATES, "vocab.de.yml", vocabularies="vocab.de.yml, vocab.en.yml")
    with pytest.raises(SettingsError, match=r"contains vocab.de.yml, but not all vocabularies that decoder.yml names "
                                            r"\(vocab.de.yml, vocab.en.yml\): .* --vocabularies SOURCE TARGET"):
        find_marian_files(ImportRequest(folder))
    (folder / "vocab.de.yml").rename(folder / "vocab.a.yml")
    (folder / "vocab.b.yml").write_text("x")
    with pytest.raises(SettingsError, match="contains vocab.a.yml and vocab.b.yml, and no decoder.yml that says which"):
        find_marian_files(ImportRequest(folder))


@pytest.mark.parametrize(("names", "problem"), [
    (("pytorch_model.bin", "source.spm"), "pytorch_model.bin is a model in the format of Hugging Face.* archive"),
    (("model.safetensors", "config.json"), "model.safetensors is a model in the format of Hugging Face"),
    (("model.deen.intgemm.alphas.bin.gz", "vocab.deen.spm.gz"), "alphas.bin.gz is compressed: decompress all files"),
    (("model.npz", "vocab.deen.spm.gz"), "vocab.deen.spm.gz is compressed: decompress all files"),
    (("model.bin", "source_vocabulary.json"), "contains no Marian model: pass the .npz file of a model")])
def test_a_folder_without_marians_files_is_refused_with_the_cause(
        tmp_path: Path, names: tuple[str, ...], problem: str) -> None:
    folder = folder_with(tmp_path / "model", *names)
    for location in (folder, folder / names[0]):
        assert detect_system(location) == ("marian", location)
    with pytest.raises(SettingsError, match=problem):
        read_foreign_model(str(folder), "--start")


@pytest.mark.parametrize("name", ["opus-2020.zip", "model.tar.gz"])
def test_an_archive_is_not_imported_but_has_to_be_unpacked(tmp_path: Path, name: str) -> None:
    archive = folder_with(tmp_path / "downloads", name) / name
    for path in (archive, archive.parent):
        with pytest.raises(SettingsError, match=f"{name} is an archive: unpack it, and pass the folder of its files"):
            find_marian_files(ImportRequest(path))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "model.bin.gz"])
def test_a_file_in_another_format_is_refused_with_the_cause(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path / "model", name)
    with pytest.raises(SettingsError, match=f"{name} is (compressed|a model in the format of Hugging Face)"):
        read_foreign_model(str(folder / name), "--start")
