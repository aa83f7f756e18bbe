"""What search writes in place as operations that copy, since LiteRT has no others."""

from __future__ import annotations

from typing import Any

from towernmt.core.tf_compat import tf


def with_copies(graph_def: Any) -> None:
    """Change a graph and the functions of its loops: `InplaceUpdate` to `TensorScatterUpdate`, `Empty` to `Fill`.

    Args:
        graph_def: a `GraphDef`; it is changed itself.
    """
    _rewrite(graph_def.node, "")
    for function in graph_def.library.function:
        updates = _rewrite(function.node_def, ":output:0")
        read = {f"{name}:y:0": f"{name}:output:0" for name in updates}      # the output has another name
        for node in function.node_def:
            for place, value in enumerate(node.input):
                node.input[place] = read.get(value, value)
        for name, value in function.ret.items():
            function.ret[name] = read.get(value, value)


def _rewrite(nodes: Any, output: str) -> list[str]:
    """Change the nodes of a graph or of a function.

    Args:
        output: what stands behind a node's name where its one output is read.
    Returns:
        The names of the updates.
    """
    updates = [node for node in nodes if node.op == "InplaceUpdate"]
    for node in updates:
        rows = nodes.add(name=f"{node.name}/rows", op="ExpandDims", device=node.device)
        rows.input.extend([node.input[1], _constant(nodes, f"{node.name}/axis", 1, tf.int32) + output])
        rows.attr["T"].type = rows.attr["Tdim"].type = tf.int32.as_datatype_enum
        node.op = "TensorScatterUpdate"
        node.input[1] = rows.name + output
        node.attr["Tindices"].type = tf.int32.as_datatype_enum
    for node in [node for node in nodes if node.op == "Empty"]:
        dtype = tf.as_dtype(node.attr["dtype"].type)
        node.input.insert(1, _constant(nodes, f"{node.name}/zero", 0, dtype) + output)
        node.op = "Fill"
        node.ClearField("attr")
        node.attr["T"].type = dtype.as_datatype_enum
        node.attr["index_type"].type = tf.int32.as_datatype_enum
    return [node.name for node in updates]


def _constant(nodes: Any, name: str, value: int, dtype: Any) -> str:
    node = nodes.add(name=name, op="Const")
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
    return name
