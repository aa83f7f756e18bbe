"""Each operation of a training step that is built for a GPU has a kernel there, as TensorFlow's list of kernels says.

This needs no compiler and no session. `test_training` counts the copies of steps that run.
"""

from __future__ import annotations

from typing import Any

import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from tests.gpu.placement import SCATTERED, copied_tensors, without_gpu_kernel
from tests.gpu.training import SIZES, VOCABULARY
from towernmt.core.graph_state import GraphSettings, graph_state
from towernmt.core.tf_compat import tf1
from towernmt.models import architecture

pytestmark = pytest.mark.thorough


def build_step(name: str, precision: str) -> None:
    """Build forward pass, backward pass and update on the first GPU, with the inputs on the CPU."""
    graph_state().settings = GraphSettings(precision=precision)
    kind = architecture(name)
    model = kind.model(kind.settings(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, **SIZES[name]))
    with tf1.device("/cpu:0"):
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
    with TrainTowerContext(""), tf1.device("/gpu:0"):
        optimizer = model.get_optimizer()
        optimizer.apply_gradients(optimizer.compute_gradients(model.build_graph(*inputs)))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [
    "transformer", *(pytest.param(name, marks=pytest.mark.slow) for name in ("seq2seq", "rnnsearch", "convs2s"))])
def test_a_step_could_run_on_a_gpu_alone(name: str, precision: str, graph: Any) -> None:
    build_step(name, precision)
    bodies = [function.graph for function in graph._functions.values()]     # of updates under a condition, and loops
    operations = [operation for part in [graph, *bodies] for operation in part.get_operations()
                  if "cpu" not in operation.device.lower()]
    assert [(operation.type, operation.inputs[0].dtype) for operation in without_gpu_kernel(operations)] == []
    assert [operation.name for operation in operations      # a trainer gives Adam dense gradients of sparse ones
            if operation.type in SCATTERED and not operation.name.startswith("Adam/")] == []
    crossing = [target for tensor, target in copied_tensors(graph.get_operations())
                if "/Initializer/" not in tensor.name]
    assert crossing.count("host") <= 30 and crossing.count("card") <= 30
