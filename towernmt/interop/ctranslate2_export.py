"""Write a Transformer as a CTranslate2 model or as an Argos Translate package."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.core.files import fixed_entry
from towernmt.core.temporary_directories import temporary_directory
from towernmt.dataflow.vocabulary.source_factors import factors_of
from towernmt.interop.ctranslate2_loader import import_ctranslate2, pieces_of_vocabulary
from towernmt.interop.ctranslate2_model_support import check_ctranslate2_support
from towernmt.interop.export import ExportJob, code_and_name
from towernmt.predict.trained_model import TrainedModel


def write_ctranslate2(job: ExportJob) -> dict[str, Any]:
    """Write a CTranslate2 model.

    Returns:
        Entry for `towernmt.json`: `positions`, the maximum number of tokens in a sentence, EOS included; None if
        unlimited.

    Raises:
        SettingsError: CTranslate2 cannot be loaded, or cannot express the model.
    """
    import_ctranslate2()
    from ctranslate2.specs.model_spec import visit_spec

    from towernmt.interop.ctranslate2_spec import position_rows, transformer_spec

    trained, precision = job.trained, job.precision
    settings = check_ctranslate2_support(trained)
    spec = transformer_spec(settings, trained.weight)
    if precision == "bfloat16":
        visit_spec(spec, _to_bfloat16)
    for vocabulary in (trained.source_vocabulary, *factors_of(trained.source_vocabulary)):
        spec.register_source_vocabulary(pieces_of_vocabulary(vocabulary))
    spec.register_target_vocabulary(pieces_of_vocabulary(trained.target_vocabulary))
    spec.validate()
    spec.optimize(quantization=precision)
    spec.save(str(job.directory))
    return {"positions": position_rows(settings)}


def _to_bfloat16(spec: Any, name: str, value: Any) -> None:
    """Convert an array with the NumPy type that comes with TensorFlow; CTranslate2's conversion needs PyTorch."""
    import ml_dtypes

    if isinstance(value, np.ndarray):
        setattr(spec, name.rsplit("/", 1)[-1], value.astype(ml_dtypes.bfloat16))


ARGOS_VERSION = "1.9"
"""The oldest version of Argos Translate that reads the package."""


def write_argos(job: ExportJob) -> dict[str, Any]:
    """Write an Argos Translate package, named by the language codes: `translate-de_en.argosmodel`.

    Returns:
        Entries for `towernmt.json`: `package`, the file name, and `positions`; see `write_ctranslate2`.

    Raises:
        SettingsError: the languages are not set, Argos Translate does not support the vocabularies, or CTranslate2
            cannot express the model.
    """
    if job.languages is None:
        raise SettingsError("The format argos needs the languages: pass --source-language and --target-language, such "
                            "as de:German.")
    (source, source_name), (target, target_name) = map(code_and_name, job.languages)
    pieces = _one_sentence_piece_model(job.trained)
    name = f"translate-{source}_{target}"
    metadata = {"package_version": "1.0", "argos_version": ARGOS_VERSION, "type": "translate",
                "from_code": source, "from_name": source_name, "to_code": target, "to_name": target_name}
    with temporary_directory("export to CTranslate2", job.directory) as model:
        details = write_ctranslate2(replace(job, directory=model))
        with zipfile.ZipFile(job.directory / f"{name}.argosmodel", "w", zipfile.ZIP_DEFLATED) as package:
            files = {"sentencepiece.model": pieces,
                     **{f"model/{file.name}": file for file in sorted(model.iterdir())}}
            package.writestr(_entry(f"{name}/metadata.json"), json.dumps(metadata, indent=1, ensure_ascii=False))
            for inside, file in files.items():
                package.writestr(_entry(f"{name}/{inside}"), file.read_bytes())
    return {"package": f"{name}.argosmodel", **details}


def _entry(name: str) -> zipfile.ZipInfo:
    return fixed_entry(name, zipfile.ZIP_DEFLATED)


def _one_sentence_piece_model(trained: TrainedModel) -> Path:
    """Return the SentencePiece model of both languages; Argos Translate supports one shared model only."""
    source, target = (trained.run.vocabulary / f"{side}.model" for side in ("source", "target"))
    if not (source.is_file() and target.is_file()):
        raise SettingsError(f"{trained.run.vocabulary} has no SentencePiece models, which Argos needs: prepare the "
                            "data with `towernmt prepare --vocab-kind unigram`, or export to ctranslate2.")
    if source.read_bytes() != target.read_bytes():
        raise SettingsError(f"{trained.run.vocabulary} has different vocabularies for source and target, and Argos "
                            "needs a shared one: prepare the data with `towernmt prepare --shared-vocab`, or export to "
                            "ctranslate2.")
    return source
