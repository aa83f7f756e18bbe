"""Whether a converted search does what the graph does that it comes from, shown on a few sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.dataflow.order.padding import pad_sentences
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK
from towernmt.export.search_graph import SearchGraph
from towernmt.models.interface import NMTModel

_LENGTHS = (3, 5, 5, 7, 8, 11, 1, 6)
"""Tokens of the sentences, EOS not counted."""
_NEAR = 1e-3
"""Scores that differ by less are the same, but for rounding; so another translation with such a score is as good."""
_MAY_DIFFER = len(_LENGTHS) // 4
"""Sentences where rounding may have led the search elsewhere."""


def run_litert(model: bytes, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a converted search gives for a batch, by the names of its tensors.

    Raises:
        SettingsError: `ai-edge-litert` is not installed.
        RuntimeError: LiteRT's own, for a model that it cannot run.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        raise SettingsError("LiteRT needs the package ai-edge-litert: pip install 'towernmt[litert]'.") from None
    interpreter = Interpreter(model_content=model)
    place = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}
    for name, array in inputs.items():
        interpreter.resize_tensor_input(place[name], array.shape)
    interpreter.allocate_tensors()
    for name, array in inputs.items():
        interpreter.set_tensor(place[name], array)
    interpreter.invoke()
    return {detail["name"]: interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()}


def check_same(model: bytes, search: SearchGraph, architecture: NMTModel) -> None:
    """Refuse a conversion whose translations score otherwise than those of the graph.

    Args:
        model: in float32.
        architecture: whose search it is.
    Raises:
        SettingsError: they do; or see `check_that_it_runs`.
    """
    inputs = _sentences(search, architecture)
    expected = search.session.run(search.outputs["scores"],
                                  {tensor: inputs[name] for name, tensor in search.inputs.items()})[:, 0]
    scores = _run(model, inputs)
    differ = np.sum(~(np.abs(scores - expected) <= _NEAR * np.maximum(np.abs(expected), 1.0)))
    if differ > _MAY_DIFFER:
        raise SettingsError(f"LiteRT's converter changed this search: {differ} of {len(_LENGTHS)} sentences come out "
                            "with another score. Search by fewer settings, or choose --format savedmodel.")


def check_that_it_runs(model: bytes, search: SearchGraph, architecture: NMTModel) -> None:
    """Refuse a conversion that LiteRT cannot run, or whose scores are no numbers.

    Raises:
        SettingsError: it is such a one; or `ai-edge-litert` is missing.
    """
    if not np.isfinite(_run(model, _sentences(search, architecture))).all():
        raise SettingsError("The scores of the converted search are no numbers: choose --precision float32.")


def _run(model: bytes, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The best score of each sentence."""
    try:
        return run_litert(model, inputs)["scores"][:, 0]
    except RuntimeError as error:
        raise SettingsError(f"LiteRT cannot run the converted search ({str(error).splitlines()[0]}): choose --format "
                            "savedmodel.") from error


def _sentences(search: SearchGraph, model: NMTModel) -> dict[str, np.ndarray]:
    """A batch of random words; further inputs are 0."""
    random = np.random.default_rng(1)
    words = [random.integers(len(SPECIAL_PIECES), model.source_vocab_size, length).tolist() for length in _LENGTHS]
    streams = 1 + model.source_factor_count
    source, length = pad_sentences(words if streams == 1 else [
        [(word, *[UNK] * (streams - 1)) for word in sentence] for sentence in words], streams)
    inputs: dict[str, Any] = {"source": source, "source_length": length}
    for name, tensor in search.inputs.items():
        if name not in inputs:
            shape = [len(words), *(size or 1 for size in tensor.shape.as_list()[1:])]
            inputs[name] = np.zeros(shape, tensor.dtype.as_numpy_dtype)
    return inputs
