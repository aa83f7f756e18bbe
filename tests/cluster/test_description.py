"""The cluster in the environment: `TF_CONFIG`, SLURM, and all invalid forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from towernmt.cluster.cluster_description import Cluster, cluster_from_environment, expand_hosts
from towernmt.core.errors import SettingsError

TWO = {"worker": ["a:1", "b:2"]}


def described(cluster: Any, task: Any) -> Cluster | None:
    return cluster_from_environment({"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})})


def test_tf_config_names_the_workers_and_the_place_among_them() -> None:
    assert described(TWO, {"type": "worker", "index": 1}) == Cluster(("a:1", "b:2"), 1)
    assert described(TWO, {"type": "worker", "index": "1"}) == Cluster(("a:1", "b:2"), 1)   # as operators write it


def test_a_chief_stands_before_the_workers() -> None:
    cluster = {"worker": ["b:2", "[::1]:3"], "chief": ["a:1"]}
    assert described(cluster, {"type": "worker", "index": 1}) == Cluster(("a:1", "b:2", "[::1]:3"), 2)
    assert described(cluster, {"type": "chief", "index": 0}) == Cluster(("a:1", "b:2", "[::1]:3"), 0)


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"SLURM_STEP_NUM_TASKS": "1"},
                                         {"SLURM_NTASKS": "4"}])
def test_one_process_alone_has_no_cluster(environment: dict[str, str]) -> None:
    assert cluster_from_environment(environment) is None
    assert described({"worker": ["a:1"]}, {"type": "worker", "index": 0}) is None


@pytest.mark.parametrize("cluster, task, sentence", [
    (TWO, {"type": "evaluator", "index": 0}, "task.type is 'evaluator'"),
    (TWO, {"type": ["worker"], "index": 0}, "task.type is ['worker']"),
    (TWO, {"index": 0}, "task.type is None"),
    (TWO, {"type": "worker"}, "task.index is None"),
    (TWO, {"type": "worker", "index": True}, "task.index is True"),
    (TWO, {"type": "worker", "index": 2}, "from 0 to 1"),
    (TWO, {"type": "worker", "index": -1}, "from 0 to 1"),
    ({"worker": ["a:1", "a:1"]}, {"type": "worker", "index": 0}, "a:1 occurs twice"),
    ({"worker": ["a:1", "b"]}, {"type": "worker", "index": 0}, "'b' is not an address"),
    ({"worker": ["a:1", "b:0"]}, {"type": "worker", "index": 0}, "'b:0' is not an address"),
    ({"worker": ["a:1", "b:70000"]}, {"type": "worker", "index": 0}, "'b:70000' is not an address"),
    ({"worker": ["a:1", "b..c:2"]}, {"type": "worker", "index": 0}, "'b..c:2' is not an address"),
    ({"worker": "a:1"}, {"type": "worker", "index": 0}, "cluster.worker must be a list"),
    ({"worker": ["a:1"], "ps": ["b:2"]}, {"type": "worker", "index": 0}, "the job 'ps'"),
    ({"worker": ["a:1"], "chief": ["b:2", "c:3"]}, {"type": "worker", "index": 0}, "2 chiefs"),
    (None, {"type": "worker", "index": 0}, "has no 'cluster'"),
    (TWO, None, "has no 'task'"),
])
def test_a_wrong_description_is_one_sentence(cluster: Any, task: Any, sentence: str) -> None:
    with pytest.raises(SettingsError) as raised:
        described(cluster, task)
    assert sentence in str(raised.value)


def test_what_is_no_json_is_said_to_be_none() -> None:
    with pytest.raises(SettingsError, match="TF_CONFIG is not JSON"):
        cluster_from_environment({"TF_CONFIG": "{worker}"})


SLURM = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "n[08-09]",
         "SLURM_STEP_TASKS_PER_NODE": "2,1"}


def test_slurm_numbers_tasks_node_by_node_and_each_on_a_node_has_a_port() -> None:
    assert cluster_from_environment(SLURM) == Cluster(("n08:23456", "n08:23457", "n09:23456"), 2)
    assert cluster_from_environment({**SLURM, "TOWERNMT_PORT": "7000"}) == Cluster(("n08:7000", "n08:7001", "n09:7000"),
                                                                                   2)


def test_tf_config_comes_before_slurm() -> None:
    config = json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 0}})
    assert cluster_from_environment({**SLURM, "TF_CONFIG": config}) == Cluster(("a:1", "b:2"), 0)


@pytest.mark.parametrize("changed, sentence", [
    ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "4 tasks of 3"),
    ({"SLURM_STEP_TASKS_PER_NODE": "many"}, "is invalid"),
    ({"SLURM_PROCID": "two"}, "SLURM_PROCID=two is not a whole number"),
    ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not set"),
    ({"SLURM_STEP_NODELIST": "n[08-09"}, "The hosts n"),
    ({"SLURM_DISTRIBUTION": "cyclic"}, "--distribution=block"),
])
def test_variables_of_slurm_that_cannot_be_are_one_sentence(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError) as raised:
        cluster_from_environment({**SLURM, **changed})
    assert sentence in str(raised.value)


@pytest.mark.parametrize("text, hosts", [
    ("a", ["a"]), ("a,b", ["a", "b"]), ("a[1-2,07],b", ["a1", "a2", "a07", "b"]),
    ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]), ("n[098-101].x", ["n098.x", "n099.x", "n100.x", "n101.x"]),
])
def test_slurms_short_form_of_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts
