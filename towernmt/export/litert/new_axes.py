"""`x[:, None]` as `ExpandDims` in a graph, since LiteRT has no slice that makes new axes of four dimensions or more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from towernmt.core.tf_compat import tf, tf1

_KEPT = ("begin_mask", "end_mask")


def with_expand_dims(graph_def: Any) -> Any:
    """A graph with the same values, in which slices that only make new axes are `ExpandDims`.

    Args:
        graph_def: a `GraphDef`, with the functions of its loops.
    """
    changed = tf1.GraphDef()
    changed.CopyFrom(graph_def)
    _rewrite(changed.node, "")
    for function in changed.library.function:
        _rewrite(function.node_def, ":output:0")
    return changed


def _rewrite(nodes: Any, output: str) -> None:
    """Change the nodes of a graph or of a function in place.

    Args:
        output: what stands behind a node's name where its one output is read.
    """
    constants = {node.name + output: node for node in nodes if node.op == "Const"}
    for node in [node for node in nodes if node.op == "StridedSlice"]:
        axes = _new_axes(node, constants)
        if axes:
            _expand(nodes, node, axes, output)


def _new_axes(node: Any, constants: dict[str, Any]) -> list[int]:
    """The axes that a slice makes, in an order in which they can be made; none if it does anything else."""
    masks = {name: node.attr[name].i for name in (*_KEPT, "new_axis_mask", "ellipsis_mask", "shrink_axis_mask")}
    new, ellipsis = masks["new_axis_mask"], masks["ellipsis_mask"]
    strides = constants.get(node.input[3])
    if not new or masks["shrink_axis_mask"] or strides is None:
        return []
    steps = tf.make_ndarray(strides.attr["value"].tensor)
    free = new | ellipsis
    for place, step in enumerate(steps):
        bit = 1 << place
        if not free & bit and not (step == 1 and all(masks[name] & bit for name in _KEPT)):
            return []
    last = ellipsis.bit_length() - 1 if ellipsis else len(steps)
    before = [place for place in range(len(steps)) if new >> place & 1 and place < last]
    behind = [place - len(steps) for place in reversed(range(len(steps))) if new >> place & 1 and place > last]
    return behind + before


def _expand(nodes: Any, node: Any, axes: list[int], output: str) -> None:
    """Make a slice the last of a chain of `ExpandDims`."""
    value, dtype = node.input[0], node.attr["T"]
    for number, (axis, name) in enumerate(zip(axes, _names(node.name, len(axes)), strict=True)):
        place = nodes.add(name=f"{node.name}/axis_{number}", op="Const", device=node.device)
        place.attr["dtype"].type = tf.int32.as_datatype_enum
        place.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(axis, tf.int32))
        made = node if name == node.name else nodes.add(name=name, op="ExpandDims", device=node.device)
        if made is node:
            made.Clear()
            made.name, made.op = name, "ExpandDims"
        made.input.extend([value, place.name + output])
        made.attr["T"].CopyFrom(dtype)
        made.attr["Tdim"].type = tf.int32.as_datatype_enum
        value = name + output


def _names(last: str, count: int) -> Iterator[str]:
    yield from (f"{last}/expanded_{number}" for number in range(count - 1))
    yield last
