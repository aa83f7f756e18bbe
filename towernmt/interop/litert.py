"""Write the search as one LiteRT file of builtin operations, and compare its results with those of the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.core.session import session_config
from towernmt.core.standard_streams import without_noise
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK
from towernmt.interop.export import ExportJob
from towernmt.interop.savedmodel import SearchGraph, search_graph
from towernmt.models.interface import NMTModel


def replace_inplace_updates(graph_def: Any) -> None:
    """Replace `InplaceUpdate` by `TensorScatterUpdate` and `Empty` by `Fill`, in a `GraphDef` and its functions."""
    _rewrite_copies(graph_def.node, "")
    for function in graph_def.library.function:
        updates = _rewrite_copies(function.node_def, ":output:0")
        renamed = {f"{name}:y:0": f"{name}:output:0" for name in updates}      # the new operation renames the output
        for node in function.node_def:
            for index, value in enumerate(node.input):
                node.input[index] = renamed.get(value, value)
        for name, value in function.ret.items():
            function.ret[name] = renamed.get(value, value)


def _rewrite_copies(nodes: Any, output: str) -> list[str]:
    """Replace the nodes of a graph or a function.

    Args:
        nodes: the nodes, which are changed in place.
        output: suffix of a node's name where its output is read: "" in a graph, ":output:0" in a function.

    Returns:
        Names of the replaced updates.
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


def _constant(nodes: Any, name: str, value: int, dtype: Any, device: str = "") -> str:
    node = nodes.add(name=name, op="Const", device=device)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
    return name


_FULL_RANGE_MASKS = ("begin_mask", "end_mask")


def replace_new_axes(graph_def: Any) -> Any:
    """Return an equivalent `GraphDef` in which slices that only add axes are `ExpandDims`."""
    changed = tf1.GraphDef()
    changed.CopyFrom(graph_def)
    _rewrite_new_axes(changed.node, "")
    for function in changed.library.function:
        _rewrite_new_axes(function.node_def, ":output:0")
    return changed


def _rewrite_new_axes(nodes: Any, output: str) -> None:
    """Replace slices of a graph or a function in place; see `_rewrite_copies` for `output`."""
    constants = {node.name + output: node for node in nodes if node.op == "Const"}
    for node in [node for node in nodes if node.op == "StridedSlice"]:
        axes = _new_axes(node, constants)
        if axes:
            _expand(nodes, node, axes, output)


def _new_axes(node: Any, constants: dict[str, Any]) -> list[int]:
    """Return the axes that a slice adds, in an order in which they can be added; empty if it does anything else."""
    masks = {name: node.attr[name].i
             for name in (*_FULL_RANGE_MASKS, "new_axis_mask", "ellipsis_mask", "shrink_axis_mask")}
    new_axis_mask, ellipsis_mask = masks["new_axis_mask"], masks["ellipsis_mask"]
    strides = constants.get(node.input[3])
    if not new_axis_mask or masks["shrink_axis_mask"] or strides is None:
        return []
    steps = tf.make_ndarray(strides.attr["value"].tensor)
    ignored_mask = new_axis_mask | ellipsis_mask
    for index, step in enumerate(steps):
        bit = 1 << index
        if not ignored_mask & bit and not (step == 1 and all(masks[name] & bit for name in _FULL_RANGE_MASKS)):
            return []
    last = ellipsis_mask.bit_length() - 1 if ellipsis_mask else len(steps)
    new_axes = [index for index in range(len(steps)) if new_axis_mask >> index & 1]
    leading = [index for index in new_axes if index < last]
    trailing = [index - len(steps) for index in reversed(new_axes) if index > last]
    return trailing + leading


def _expand(nodes: Any, node: Any, axes: list[int], output: str) -> None:
    """Replace a slice by a chain of `ExpandDims`, the last of which has the name of the slice."""
    value, dtype = node.input[0], node.attr["T"]
    names = [*(f"{node.name}/expanded_{number}" for number in range(len(axes) - 1)), node.name]
    for number, (axis, name) in enumerate(zip(axes, names, strict=True)):
        axis_name = _constant(nodes, f"{node.name}/axis_{number}", axis, tf.int32, node.device)
        expanded = node if name == node.name else nodes.add(name=name, op="ExpandDims", device=node.device)
        if expanded is node:
            expanded.Clear()
            expanded.name, expanded.op = name, "ExpandDims"
        expanded.input.extend([value, axis_name + output])
        expanded.attr["T"].CopyFrom(dtype)
        expanded.attr["Tdim"].type = tf.int32.as_datatype_enum
        value = name + output


def frozen_graph(search: SearchGraph) -> Any:
    """Return the `GraphDef` of a search with constants in place of variables; tensors keep their names."""
    outputs = [tensor.op.name for tensor in search.outputs.values()]
    with search.graph.as_default():
        frozen = tf1.graph_util.convert_variables_to_constants(search.session, search.graph.as_graph_def(), outputs)
    for function in frozen.library.function:
        _gather_from_constants(function.node_def)
    replace_inplace_updates(frozen)
    return replace_new_axes(frozen)


def _gather_from_constants(nodes: Any) -> None:
    """Replace `ResourceGather` by `GatherV2`, because TensorFlow does not replace it in the bodies of loops."""
    for node in [node for node in nodes if node.op == "ResourceGather"]:
        table, indices = node.input[:2]
        axis = _constant(nodes, f"{node.name}/axis", node.attr["batch_dims"].i, tf.int32, node.device)
        attributes = {"Tparams": node.attr["dtype"], "Tindices": node.attr["Tindices"],
                      "batch_dims": node.attr["batch_dims"]}
        attributes = {name: type(value).FromString(value.SerializeToString()) for name, value in attributes.items()}
        name, device = node.name, node.device
        node.Clear()
        node.name, node.op, node.device = name, "GatherV2", device
        node.input.extend([table, indices, f"{axis}:output:0"])
        for attribute, value in attributes.items():
            node.attr[attribute].CopyFrom(value)
        node.attr["Taxis"].type = tf.int32.as_datatype_enum


_LENGTHS = (3, 5, 5, 7, 8, 11, 1, 6)
"""Lengths of the test sentences in tokens, EOS excluded."""
_SCORE_TOLERANCE = 1e-3
"""Smaller relative differences of scores come from rounding; translations with such scores are equally good."""
_MAX_DIFFERENCES = len(_LENGTHS) // 4
"""Maximum number of sentences in which rounding may lead to another translation."""


def run_litert(model: bytes, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a converted search for a batch, by tensor name.

    Raises:
        SettingsError: `ai-edge-litert` is not installed.
        RuntimeError: LiteRT cannot run the model.
    """
    interpreter = _interpreter_class()(model_content=model)
    index_of = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}
    for name, array in inputs.items():
        interpreter.resize_tensor_input(index_of[name], array.shape)
    interpreter.allocate_tensors()
    for name, array in inputs.items():
        interpreter.set_tensor(index_of[name], array)
    interpreter.invoke()
    return {detail["name"]: interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()}


def _interpreter_class() -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise SettingsError(f"LiteRT cannot be loaded ({error}): install it with `pip install 'towernmt[litert]'`."
                            ) from error
    return Interpreter


def check_scores(model: bytes, search: SearchGraph, architecture: NMTModel) -> None:
    """Check that the converted search returns the same scores as the graph.

    Args:
        model: content of the LiteRT file, in float32.
        search: the graph.
        architecture: the model of the search.

    Raises:
        SettingsError: the scores differ; or see `check_runnable`.
    """
    inputs = _random_inputs(search, architecture)
    expected = search.session.run(search.outputs["scores"],
                                  {tensor: inputs[name] for name, tensor in search.inputs.items()})[:, 0]
    scores = _run(model, inputs)
    differ = np.sum(~(np.abs(scores - expected) <= _SCORE_TOLERANCE * np.maximum(np.abs(expected), 1.0)))
    if differ > _MAX_DIFFERENCES:
        raise SettingsError(f"LiteRT's converter changed this search: {differ} of {len(_LENGTHS)} sentences have "
                            "other scores than in TensorFlow. Use fewer search settings, or the format savedmodel.")


def check_runnable(model: bytes, search: SearchGraph, architecture: NMTModel) -> None:
    """Check that LiteRT can run the converted search, and that its scores are finite.

    Raises:
        SettingsError: a check fails, or `ai-edge-litert` is not installed.
    """
    if not np.isfinite(_run(model, _random_inputs(search, architecture))).all():
        raise SettingsError("The scores of the converted search are not finite: choose the precision float32.")


def _run(model: bytes, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the best score of each sentence."""
    try:
        return run_litert(model, inputs)["scores"][:, 0]
    except RuntimeError as error:
        raise SettingsError(f"LiteRT cannot run the converted search ({str(error).splitlines()[0]}): choose the "
                            "format savedmodel.") from error


def _random_inputs(search: SearchGraph, model: NMTModel) -> dict[str, np.ndarray]:
    """Return a batch of random words; further inputs are 0."""
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


FILE = "model.tflite"
_UNSUPPORTED_OPERATION = re.compile(
    r"(?:TF Select|Custom) ops: ([^\n]*)|failed to legalize operation 'tf\.(\w+)'|'tf\.(\w+)' op")


def write(job: ExportJob) -> dict[str, Any]:
    """Write `model.tflite`.

    The float32 file and the graph are compared on a few sentences, since a conversion may fail without an error.

    Returns:
        Entries for `towernmt.json`: the file, its inputs and its outputs.

    Raises:
        SettingsError: LiteRT lacks an operation of the search, the converted search returns other translations, or
            `ai-edge-litert` is not installed.
        CheckpointError: see `search_graph`.
    """
    if job.search.selection == "sampling":
        raise SettingsError("selection=sampling: LiteRT lacks the 64-bit operations of the random numbers; export a "
                            "beam search, or choose the format savedmodel.")
    _interpreter_class()    # before the conversion, which takes minutes for a large model
    search = search_graph(job)
    with without_noise():
        frozen = frozen_graph(search)
        converted = _convert(frozen, search, "float32")
        check_scores(converted, search, job.trained.model)
        if job.precision != "float32":
            converted = _convert(frozen, search, job.precision)
            check_runnable(converted, search, job.trained.model)
    (job.directory / FILE).write_bytes(converted)
    return {"file": FILE, **search.signature()}


def _convert(frozen: Any, search: SearchGraph, precision: str) -> bytes:
    with tf.Graph().as_default(), tf1.Session(config=session_config(on_cpu=True)) as session:
        inputs = {name: tf1.placeholder(tensor.dtype, tensor.shape, name) for name, tensor in search.inputs.items()}
        tensors = tf1.import_graph_def(frozen, {search.inputs[name].name: tensor for name, tensor in inputs.items()},
                                       [tensor.name for tensor in search.outputs.values()], name="search")
        outputs = [tf.identity(tensor, name) for tensor, name in zip(tensors, search.outputs, strict=True)]
        converter = tf1.lite.TFLiteConverter.from_session(session, list(inputs.values()), outputs)
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            converted: bytes = converter.convert()
        except MemoryError:
            raise
        except Exception as error:      # its class is not public
            raise SettingsError(_conversion_error_message(str(error))) from error
    return converted


def _conversion_error_message(problem: str) -> str:
    names = {name for groups in _UNSUPPORTED_OPERATION.findall(problem) for group in groups
             for name in group.split(", ") if name}
    listed = ", ".join(sorted(names)) or (problem.strip().splitlines() or ["it names none"])[-1]
    return (f"LiteRT's converter does not support operations of this model or its search: {listed}. Choose the "
            "format savedmodel, which supports all models.")
