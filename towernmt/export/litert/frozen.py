"""A search with its weights as constants, in forms of its operations that LiteRT's converter knows."""

from __future__ import annotations

from typing import Any

from towernmt.core.tf_compat import tf, tf1
from towernmt.export.litert.copies import with_copies
from towernmt.export.litert.new_axes import with_expand_dims
from towernmt.export.search_graph import SearchGraph


def frozen_graph(search: SearchGraph) -> Any:
    """The `GraphDef` of a search, without variables; its tensors have the names that they had."""
    outputs = [tensor.op.name for tensor in search.outputs.values()]
    with search.graph.as_default():
        frozen = tf1.graph_util.convert_variables_to_constants(search.session, search.graph.as_graph_def(), outputs)
    for function in frozen.library.function:
        _gather_from_constants(function.node_def)
    with_copies(frozen)
    return with_expand_dims(frozen)


def _gather_from_constants(nodes: Any) -> None:
    """`ResourceGather` as `GatherV2`: TensorFlow leaves those in the bodies of loops as they were."""
    for node in [node for node in nodes if node.op == "ResourceGather"]:
        table, places = node.input[:2]
        axis = nodes.add(name=f"{node.name}/axis", op="Const", device=node.device)
        axis.attr["dtype"].type = tf.int32.as_datatype_enum
        axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(node.attr["batch_dims"].i, tf.int32))
        kept = {"Tparams": node.attr["dtype"], "Tindices": node.attr["Tindices"], "batch_dims": node.attr["batch_dims"]}
        kept = {name: type(value).FromString(value.SerializeToString()) for name, value in kept.items()}
        name, device = node.name, node.device
        node.Clear()
        node.name, node.op, node.device = name, "GatherV2", device
        node.input.extend([table, places, f"{axis.name}:output:0"])
        for attribute, value in kept.items():
            node.attr[attribute].CopyFrom(value)
        node.attr["Taxis"].type = tf.int32.as_datatype_enum
