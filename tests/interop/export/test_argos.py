"""Packages of Argos Translate: their content, and refused exports."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import ctranslate2
import pytest
import sentencepiece

from towernmt.core.errors import SettingsError
from towernmt.interop.export import export_model
from towernmt.predict.trained_model import TrainedModel

LANGUAGES = ("de:German", "en")


@pytest.fixture
def trained(run_on_disk: Path, tmp_path: Path) -> Iterator[TrainedModel]:
    with TrainedModel(shutil.copytree(run_on_disk, tmp_path / "run"), "step-1") as model:
        yield model


def test_a_package_holds_metadata_vocabulary_and_a_model_that_translates(trained: TrainedModel, tmp_path: Path) -> None:
    path = export_model(trained, "argos", tmp_path / "out", languages=LANGUAGES)
    told = json.loads((path / "towernmt.json").read_text())
    assert (told["package"], told["precision"]) == ("translate-de_en.argosmodel", "int8")
    with zipfile.ZipFile(path / told["package"]) as package:
        package.extractall(tmp_path / "unpacked")
        assert {entry.date_time for entry in package.infolist()} == {(1980, 1, 1, 0, 0, 0)}  # the same bytes each time
    root, = (tmp_path / "unpacked").iterdir()
    metadata = json.loads((root / "metadata.json").read_text())
    assert {key: metadata[key] for key in ("from_code", "from_name", "to_code", "to_name", "type")} == {
        "from_code": "de", "from_name": "German", "to_code": "en", "to_name": "en", "type": "translate"}
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(root / "sentencepiece.model"))
    plain = export_model(trained, "ctranslate2", tmp_path / "plain", precision="int8")
    found = [ctranslate2.Translator(str(model)).translate_batch(
        [pieces.encode("der hund schläft", out_type=str)], beam_size=2, max_decoding_length=8)[0].hypotheses
        for model in (root / "model", plain)]
    assert found[0] == found[1] and found[0][0]


def test_what_argos_cannot_have_is_refused(trained: TrainedModel, tmp_path: Path) -> None:
    for languages, message in ((None, "--source-language"), (("German", "en"), "language 'German'")):
        with pytest.raises(SettingsError, match=message):
            export_model(trained, "argos", tmp_path / "out", languages=languages)
    target = trained.run.vocabulary / "target.model"
    target.write_bytes(target.read_bytes() + b"\n\0")
    with pytest.raises(SettingsError, match="--shared-vocab"):
        export_model(trained, "argos", tmp_path / "out", languages=LANGUAGES)
    target.unlink()
    with pytest.raises(SettingsError, match="no SentencePiece models"):
        export_model(trained, "argos", tmp_path / "out", languages=LANGUAGES)
    assert not (tmp_path / "out").exists()
