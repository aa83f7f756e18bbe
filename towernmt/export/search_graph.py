"""The search of an export as a graph in a session, from ids to ids, with a name for each tensor that goes in or out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Graph, Session, Tensor
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, UNK
from towernmt.export.job import ExportJob
from towernmt.predict.decoding.assembly import decoding_for
from towernmt.predict.decoding.inputs import decoding_signature
from towernmt.predict.decoding.search import decoding_tower, output_names
from towernmt.predict.lexical.lexicon import Lexicon

_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass(frozen=True)
class SearchGraph:
    """A search with the weights of a checkpoint.

    Attributes:
        session: holds the weights.
        inputs: placeholders by name, in their order: `source` int32 `[batch, source length]`, `source_length` int32
            `[batch]`, and what else the model declares.
        outputs: by name: `tokens` int32 `[batch, n_best, length]`, `scores` float32 `[batch, n_best]`.
    """

    session: Session
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def graph(self) -> Graph:
        """The graph of all these tensors."""
        return self.session.graph

    def signature(self) -> dict[str, Any]:
        """What `towernmt.json` tells of it: names, dtypes and shapes (None where any size will do), special ids."""
        return {"inputs": _described(self.inputs), "outputs": _described(self.outputs),
                "special_ids": {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}}


def search_graph(job: ExportJob) -> SearchGraph:
    """Build the search that a job asks for.

    Raises:
        SettingsError: the model calls Python in its graph, which no other program can; or a shortlist is for other
            vocabularies.
        CheckpointError: the checkpoint is damaged, or does not fit the model.
    """
    trained, search = job.trained, job.search
    if search.shortlist:
        Lexicon.load(search.shortlist).check_vocabularies(
            trained.source_vocabulary, trained.target_vocabulary, search.shortlist)
    decoding = decoding_for(search)
    signature, outputs = decoding_signature(trained.model, decoding), output_names(decoding)
    predictor = trained.predictor(decoding_tower(trained.model, decoding), signature, outputs)
    found = SearchGraph(predictor.sess,
                        dict(zip((spec.name for spec in signature), predictor.input_tensors, strict=True)),
                        dict(zip(outputs, predictor.output_tensors, strict=True)))
    _refuse_python(found.graph)
    return found


def _refuse_python(graph: Graph) -> None:
    definition = graph.as_graph_def()
    bodies = [definition.node, *(function.node_def for function in definition.library.function)]
    calls = [node.name for nodes in bodies for node in nodes if node.op in _PYTHON]
    if calls:
        raise SettingsError(f"The model calls a Python function in its graph ({calls[0]}), which only Python with that "
                            "function can run: write it with TensorFlow's operations to export it.")


def _described(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()} for name, tensor in tensors.items()}
