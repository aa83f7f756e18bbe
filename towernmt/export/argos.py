"""Writes a package of Argos Translate: a zip of a CTranslate2 model, its SentencePiece model and metadata."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.files.fixed_zip import fixed_entry
from towernmt.export.ctranslate2.writer import write_model
from towernmt.export.job import ExportJob
from towernmt.export.languages import code_and_name
from towernmt.predict.trained_model import TrainedModel

ARGOS_VERSION = "1.9"
"""The oldest Argos Translate that reads it."""


def write(job: ExportJob) -> dict[str, Any]:
    """Write `translate-de_en.argosmodel`, by the codes of the languages.

    Returns:
        For `towernmt.json`: `package`, the file's name, and `positions`, as of the format ctranslate2.
    Raises:
        SettingsError: no languages, a vocabulary that Argos cannot have, or what CTranslate2 cannot express.
    """
    if job.languages is None:
        raise SettingsError("The format argos names its languages: give --source-language and --target-language, as "
                            "de:German.")
    (source, source_name), (target, target_name) = map(code_and_name, job.languages)
    pieces = _one_sentence_piece_model(job.trained)
    name = f"translate-{source}_{target}"
    metadata = {"package_version": "1.0", "argos_version": ARGOS_VERSION, "type": "translate",
                "from_code": source, "from_name": source_name, "to_code": target, "to_name": target_name}
    with tempfile.TemporaryDirectory(dir=job.directory) as model:
        told = write_model(job.trained, job.precision, Path(model))
        with zipfile.ZipFile(job.directory / f"{name}.argosmodel", "w", zipfile.ZIP_DEFLATED) as package:
            files = {"sentencepiece.model": pieces,
                     **{f"model/{file.name}": file for file in sorted(Path(model).iterdir())}}
            package.writestr(_entry(f"{name}/metadata.json"), json.dumps(metadata, indent=1, ensure_ascii=False))
            for inside, file in files.items():
                package.writestr(_entry(f"{name}/{inside}"), file.read_bytes())
    return {"package": f"{name}.argosmodel", **told}


def _entry(name: str) -> zipfile.ZipInfo:
    return fixed_entry(name, zipfile.ZIP_DEFLATED)


def _one_sentence_piece_model(trained: TrainedModel) -> Path:
    """The file of both sides' vocabulary; Argos has one for both."""
    source, target = (trained.run.vocabulary / f"{side}.model" for side in ("source", "target"))
    if not (source.is_file() and target.is_file()):
        raise SettingsError(f"{trained.run.vocabulary} holds no SentencePiece models, and Argos reads no others: train "
                            "with `towernmt prepare --vocab-kind unigram`, or export to ctranslate2.")
    if source.read_bytes() != target.read_bytes():
        raise SettingsError(f"{trained.run.vocabulary} holds two vocabularies, and Argos has one for both languages: "
                            "train with `towernmt prepare --shared-vocab`, or export to ctranslate2.")
    return source
