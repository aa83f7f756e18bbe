"""The benchmark of a step's parts: which operation belongs to which part, and the record of a traced training."""

from __future__ import annotations

import json

import pytest
import step_parts


@pytest.mark.parametrize(("operation", "name"), [
    ("transformer/encoder/layer_0/attention/MatMul", "forward"),
    ("tower1/transformer_1/decoder/layer_0/attention/MatMul", "forward"),
    ("GeneralQueueInput/dequeue", "forward"),
    ("gradients/transformer/encoder/layer_0/MatMul_grad/MatMul", "gradients"),
    ("tower0/gradients/AddN_4", "gradients"),
    ("sum_over_towers/AddN_3", "reduction"),
    ("Muon/cond/MatMul_5", "directions"),
    ("Muon/MatMul_5", "directions"),
    ("Muon/AssignSubVariableOp_2", "update"),
    ("Adam/update_transformer/embedding/ResourceApplyAdam", "update"),
    ("train_op/update_transformer/embedding/ResourceApplyAdam", "update"),
])
def test_an_operation_belongs_to_a_part_by_its_name(operation: str, name: str) -> None:
    assert step_parts.part(operation) == name


@pytest.mark.thorough
@pytest.mark.parametrize(("optimizer", "towers", "further"), [
    ("muon", 1, {"directions_ms"}), ("adam", 2, {"reduction_ms"})])
def test_a_record_has_each_part_and_the_step(capsys: pytest.CaptureFixture[str], optimizer: str, towers: int,
                                             further: set[str]) -> None:
    step_parts.main(["--optimizer", optimizer, "--towers", str(towers), "--batch-tokens", "100", "--steps", "2"])
    record = json.loads(capsys.readouterr().out)
    parts = {key for key in record if key.endswith("_ms")} - {"step_ms"}
    assert parts == {"forward_ms", "gradients_ms", "update_ms"} | further
    assert all(record[name] > 0 for name in parts)
