"""Writes a model in CTranslate2's format: `model.bin`, `config.json` and vocabularies of its own kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import factors_of
from towernmt.export.ctranslate2.expressible import check_expressible
from towernmt.export.job import ExportJob
from towernmt.predict.trained_model import TrainedModel

PRECISIONS = ("float32", "bfloat16", "float16", "int16", "int8")
MISSING = "The format ctranslate2 needs CTranslate2: install it with `pip install 'towernmt[ctranslate2]'`."


def write(job: ExportJob) -> dict[str, Any]:
    """Write the model.

    Returns:
        For `towernmt.json`: `positions`, the tokens that a sentence can have at most, EOS counted; None for any number.
    Raises:
        SettingsError: CTranslate2 is not installed, or cannot express the model.
    """
    return write_model(job.trained, job.precision, job.directory)


def write_model(trained: TrainedModel, precision: str, directory: Path) -> dict[str, Any]:
    """Write a model's files; see `write`.

    Args:
        precision: one of `PRECISIONS`.
        directory: is there.
    """
    try:
        from ctranslate2.specs.model_spec import visit_spec

        from towernmt.export.ctranslate2.model_spec import position_rows, transformer_spec
    except ImportError:
        raise SettingsError(MISSING) from None
    settings = check_expressible(trained)
    spec = transformer_spec(settings, trained.weights())
    if precision == "bfloat16":
        visit_spec(spec, _to_bfloat16)
    for vocabulary in (trained.source_vocabulary, *factors_of(trained.source_vocabulary)):
        spec.register_source_vocabulary(pieces_of(vocabulary))
    spec.register_target_vocabulary(pieces_of(trained.target_vocabulary))
    spec.validate()
    spec.optimize(quantization=precision)
    spec.save(str(directory))
    return {"positions": position_rows(settings)}


def pieces_of(vocabulary: Vocabulary) -> list[str]:
    """The written form of each id, in order."""
    return [vocabulary.id_to_piece(id) for id in range(vocabulary.size)]


def _to_bfloat16(spec: Any, name: str, value: Any) -> None:
    """CTranslate2 itself would need PyTorch for this; the type of NumPy's comes with TensorFlow."""
    import ml_dtypes

    if isinstance(value, np.ndarray):
        setattr(spec, name.rsplit("/", 1)[-1], value.astype(ml_dtypes.bfloat16))
