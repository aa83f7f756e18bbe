"""Write a TensorFlow SavedModel: the complete search as a graph with named inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.standard_streams import without_noise
from towernmt.core.tensors import Graph, Session, Tensor
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, UNK
from towernmt.interop.export import ExportJob
from towernmt.predict.search.decoding_tower import decoding_for, decoding_signature, decoding_tower, output_names
from towernmt.predict.search.lexical_table import Lexicon

_PYTHON_OPERATIONS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass(frozen=True)
class SearchGraph:
    """The graph of a search, with the weights of a checkpoint.

    Attributes:
        session: session that contains the weights.
        inputs: placeholders by name, in order: `source` int32 `[batch, source length]`, `source_length` int32
            `[batch]`, and further inputs that the model declares.
        outputs: tensors by name: `tokens` int32 `[batch, n_best, length]`, `scores` float32 `[batch, n_best]`.
    """

    session: Session
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def graph(self) -> Graph:
        """The TensorFlow graph of the search."""
        return self.session.graph

    def signature(self) -> dict[str, Any]:
        """Return the entries of `towernmt.json`: names, dtypes and shapes (None for any size), and special ids."""
        return {"inputs": _tensor_entries(self.inputs), "outputs": _tensor_entries(self.outputs),
                "special_ids": {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}}


def search_graph(job: ExportJob) -> SearchGraph:
    """Build the graph of a job's search.

    Raises:
        SettingsError: the graph calls a Python function, which other programs cannot run; or the shortlist belongs to
            other vocabularies.
        CheckpointError: the checkpoint is damaged or does not fit the model.
    """
    trained, search = job.trained, job.search
    if search.shortlist:
        Lexicon.load(search.shortlist).check_vocabularies(
            trained.source_vocabulary, trained.target_vocabulary, search.shortlist)
    decoding = decoding_for(search)
    signature, outputs = decoding_signature(trained.model, decoding), output_names(decoding)
    predictor = trained.predictor(decoding_tower(trained.model, decoding), signature, outputs)
    graph = SearchGraph(predictor.sess,
                        dict(zip((spec.name for spec in signature), predictor.input_tensors, strict=True)),
                        dict(zip(outputs, predictor.output_tensors, strict=True)))
    _refuse_python(graph.graph)
    return graph


def _refuse_python(graph: Graph) -> None:
    definition = graph.as_graph_def()
    bodies = [definition.node, *(function.node_def for function in definition.library.function)]
    calls = [node.name for nodes in bodies for node in nodes if node.op in _PYTHON_OPERATIONS]
    if calls:
        raise SettingsError(f"The graph of the model calls a Python function ({calls[0]}), which other programs cannot "
                            "run: write the function with TensorFlow operations to export the model.")


def _tensor_entries(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()} for name, tensor in tensors.items()}


SIGNATURE = "serving_default"
TAGS = ["serve"]


def write(job: ExportJob) -> dict[str, Any]:
    """Write `saved_model.pb` and `variables/`.

    Returns:
        Entries for `towernmt.json`: the name of the signature, the tags, the inputs and the outputs.

    Raises:
        SettingsError: see `search_graph`.
        CheckpointError: see `search_graph`.
    """
    search = search_graph(job)
    with search.graph.as_default(), without_noise():
        builder = tf1.saved_model.Builder(str(job.directory))
        signature = tf1.saved_model.predict_signature_def(dict(search.inputs), dict(search.outputs))
        builder.add_meta_graph_and_variables(search.session, TAGS, {SIGNATURE: signature}, clear_devices=True)
        for meta_graph in builder._saved_model.meta_graphs:     # clear_devices leaves those of functions, such as loops
            for function in meta_graph.graph_def.library.function:
                for node in function.node_def:
                    node.device = ""
        builder.save()
    return {"signature": SIGNATURE, "tags": TAGS, **search.signature()}
