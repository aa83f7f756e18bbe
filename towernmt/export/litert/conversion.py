"""LiteRT: the whole search in one file of builtin operations, for phones and small computers."""

from __future__ import annotations

import re
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.terminal.stderr_noise import without_noise
from towernmt.core.tf_compat import tf, tf1
from towernmt.export.job import ExportJob
from towernmt.export.litert.check import check_same, check_that_it_runs
from towernmt.export.litert.frozen import frozen_graph
from towernmt.export.search_graph import SearchGraph, search_graph

FILE = "model.tflite"
_MISSING = re.compile(r"(?:TF Select|Custom) ops: ([^\n]*)|failed to legalize operation 'tf\.(\w+)'|'tf\.(\w+)' op")


def write(job: ExportJob) -> dict[str, Any]:
    """Write `model.tflite`.

    The file in float32 is run on a few sentences beside the graph that it comes from, since a conversion may go wrong
    without a word.

    Returns:
        For `towernmt.json`: the file, its inputs and outputs.
    Raises:
        SettingsError: LiteRT has no operation for something in the search; the conversion gives other translations; or
            `ai-edge-litert` is missing.
        CheckpointError: see `search_graph`.
    """
    if job.search.selection == "sampling":
        raise SettingsError("selection=sampling: LiteRT has no 64-bit arithmetic to draw with; export a beam, or "
                            "choose --format savedmodel.")
    search = search_graph(job)
    with without_noise():
        frozen = frozen_graph(search)
        converted = _convert(frozen, search, "float32")
        check_same(converted, search, job.trained.model)
        if job.precision != "float32":
            converted = _convert(frozen, search, job.precision)
            check_that_it_runs(converted, search, job.trained.model)
    (job.directory / FILE).write_bytes(converted)
    return {"file": FILE, **search.signature()}


def _convert(frozen: Any, search: SearchGraph, precision: str) -> bytes:
    with tf.Graph().as_default(), tf1.Session() as session:
        inputs = {name: tf1.placeholder(tensor.dtype, tensor.shape, name) for name, tensor in search.inputs.items()}
        found = tf1.import_graph_def(frozen, {search.inputs[name].name: tensor for name, tensor in inputs.items()},
                                     [tensor.name for tensor in search.outputs.values()], name="search")
        outputs = [tf.identity(tensor, name) for tensor, name in zip(found, search.outputs, strict=True)]
        converter = tf1.lite.TFLiteConverter.from_session(session, list(inputs.values()), outputs)
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            converted: bytes = converter.convert()
        except Exception as error:      # its class is not public
            raise SettingsError(_refusal(str(error))) from error
    return converted


def _refusal(problem: str) -> str:
    found = {name for groups in _MISSING.findall(problem) for names in groups for name in names.split(", ") if name}
    named = ", ".join(sorted(found)) or problem.strip().splitlines()[-1]
    return (f"LiteRT's converter cannot take this model or its search: {named}. Recurrent models, and what needs such "
            "operations, go out with --format savedmodel.")
