"""TensorFlow's SavedModel: the whole search, run by plain TensorFlow without towernmt."""

from __future__ import annotations

from typing import Any

from towernmt.core.terminal.stderr_noise import without_noise
from towernmt.core.tf_compat import tf1
from towernmt.export.job import ExportJob
from towernmt.export.search_graph import search_graph

SIGNATURE = "serving_default"
TAGS = ["serve"]


def write(job: ExportJob) -> dict[str, Any]:
    """Write `saved_model.pb` and `variables/`.

    Returns:
        For `towernmt.json`: the signature's name and the model's tags, its inputs and outputs.
    Raises:
        SettingsError, CheckpointError: see `search_graph`.
    """
    search = search_graph(job)
    with search.graph.as_default(), without_noise():
        builder = tf1.saved_model.Builder(str(job.directory))
        signature = tf1.saved_model.predict_signature_def(dict(search.inputs), dict(search.outputs))
        builder.add_meta_graph_and_variables(search.session, TAGS, {SIGNATURE: signature}, clear_devices=True)
        builder.save()
    return {"signature": SIGNATURE, "tags": TAGS, **search.signature()}
