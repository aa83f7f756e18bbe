"""From a predictor's graph to the kept one: the part that searches and restores, optimised once for all starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorflow.python.grappler import tf_optimizer
from tensorpack.predict import OfflinePredictor
from tensorpack.utils import logger

from towernmt.core.graph_state import BUILDING
from towernmt.core.session import session_config
from towernmt.core.terminal.stderr_noise import without_noise
from towernmt.core.terminal.terminal_log import DETAIL
from towernmt.core.tf_compat import tf, tf1
from towernmt.predict.kept.file import GraphNames, KeptGraph, write_graph
from towernmt.predict.trained_model import TrainedModel

_HIDDEN_STATE = ("PyFunc", "HashTable", "LookupTable", "VariableV2", "Iterator", "Barrier")
"""Parts of the types of operations that the graph alone does not make anew."""
_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def keep_graph(file: Path, predictor: OfflinePredictor, trained: TrainedModel, inputs: Sequence[str],
               outputs: Sequence[str], threads: int = 1) -> None:
    """Keep the graph of a predictor; where that cannot be, a detail of the log says why.

    Args:
        file: where.
        predictor: its graph is added to.
        trained: the model and its checkpoint, still open.
        inputs, outputs: the names of the predictor's.
        threads: how many threads run it at the same time.
    """
    try:
        with BUILDING, without_noise():
            kept = _kept(predictor, trained, inputs, outputs, threads)
        write_graph(file, kept)
    except (OSError, _NotKept, tf.errors.OpError) as error:
        logger.info(f"{file}: the graph is not kept for the next start: {error}", extra=DETAIL)


class _NotKept(Exception):
    """The graph needs more than itself and a checkpoint."""


def _kept(predictor: OfflinePredictor, trained: TrainedModel, inputs: Sequence[str],
          outputs: Sequence[str], threads: int) -> KeptGraph:
    values = trained.initial_values()
    with predictor.graph.as_default():
        values._setup_graph()
    names = GraphNames(
        {name: tensor.name for name, tensor in zip(inputs, predictor.input_tensors, strict=True)},
        {name: tensor.dtype.name for name, tensor in zip(inputs, predictor.input_tensors, strict=True)},
        {name: tensor.name for name, tensor in zip(outputs, predictor.output_tensors, strict=True)},
        values.saver_def.filename_tensor_name, values.saver_def.restore_op_name)
    definition = predictor.graph.as_graph_def()
    _refuse_hidden_state(tf1.graph_util.extract_sub_graph(definition, [_node(n) for n in names.outputs.values()]),
                         set(values.saver_variables()))
    config = session_config(threads, runs_in_caller=True)
    graph = _optimised(definition, names, config)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return KeptGraph(names, config.SerializeToString(), graph.SerializeToString(deterministic=True))


def _refuse_hidden_state(graph: Any, restored: set[str]) -> None:
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    for node in (node for nodes in bodies for node in nodes):
        if any(part in node.op for part in _HIDDEN_STATE) or node.op == "VarHandleOp" and node.name not in restored:
            raise _NotKept(f"it has {node.name} ({node.op})")


def _optimised(definition: Any, names: GraphNames, config: Any) -> Any:
    """What Grappler makes of the part that is run. It joins operations only where it knows their device."""
    ends = [*(_node(name) for name in names.outputs.values()), names.restore]
    part = tf1.graph_util.extract_sub_graph(definition, ends)
    for node in part.node:
        node.device = _DEVICE
    with tf.Graph().as_default() as graph:
        tf1.import_graph_def(part, name="")
        exported = tf1.train.export_meta_graph(graph=graph)
    asked = [*ends, *(_node(name) for name in names.inputs.values()), _node(names.prefix)]
    exported.collection_def["train_op"].node_list.value.extend(asked)
    return tf_optimizer.OptimizeGraph(config, exported)


def _node(tensor: str) -> str:
    return tensor.rpartition(":")[0]
