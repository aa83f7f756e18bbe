"""Which workers train together, and which of them this process is: `TF_CONFIG`, or what SLURM sets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from towernmt.core.errors import SettingsError

TF_CONFIG = "TF_CONFIG"
EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
SLURM_TASKS = "SLURM_STEP_NUM_TASKS"
"""How many tasks `srun` started together; an allocation without a step of its own, or a batch script, has none."""
SLURM_PORT = "TOWERNMT_PORT"
"""The first port under SLURM, where workers of one node take ports that follow each other; 23456 if it is not set."""


@dataclass(frozen=True)
class Cluster:
    """The workers that train one model, and the place of this process among them.

    Args:
        workers: the address of each, `host:port`, in the same order in every process. The first is the chief.
        index: of this process.
    Raises:
        SettingsError: an address that is none, the same address twice, or an index of no worker.
    """

    workers: tuple[str, ...]
    index: int

    def __post_init__(self) -> None:
        for address in self.workers:
            found = _ADDRESS.fullmatch(address)
            if found is None or not 0 < int(found[2]) < 65536:
                raise SettingsError(f"The worker {address!r} is no address: write host:port, with a port from 1 to "
                                    "65535.")
        twice = sorted({address for address in self.workers if self.workers.count(address) > 1})
        if twice:
            raise SettingsError(f"The worker {twice[0]} stands twice in the cluster: give each worker a port of its "
                                "own.")
        if not 0 <= self.index < len(self.workers):
            raise SettingsError(f"There is no worker {self.index} in a cluster of {len(self.workers)}: number them "
                                f"from 0 to {len(self.workers) - 1}.")


def cluster_from_environment(environment: Mapping[str, str]) -> Cluster | None:
    """The cluster that `TF_CONFIG` names, or else SLURM; None where neither names more than one worker.

    Args:
        environment: such as `os.environ`.
    Raises:
        SettingsError: a description that cannot be understood.
    """
    if environment.get(TF_CONFIG, "").strip():
        cluster = _from_tf_config(environment[TF_CONFIG])
    elif environment.get(SLURM_TASKS, "1") != "1":
        cluster = _from_slurm(environment)
    else:
        return None
    return cluster if len(cluster.workers) > 1 else None


def _from_tf_config(text: str) -> Cluster:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{TF_CONFIG} is no JSON ({error}): write it as {EXAMPLE}.") from None
    jobs, task = _part(content, "cluster"), _part(content, "task")
    unknown = sorted(set(jobs) - {"chief", "worker"})
    if unknown:
        raise SettingsError(f"{TF_CONFIG}: the cluster has the job {unknown[0]!r}, and training knows chief and worker "
                            "only (there are no parameter servers or evaluators): leave it out.")
    for job, addresses in jobs.items():
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise SettingsError(f"{TF_CONFIG}: cluster.{job} must be a list of addresses, as in {EXAMPLE}.")
    chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
    if len(chiefs) > 1:
        raise SettingsError(f"{TF_CONFIG}: the cluster has {len(chiefs)} chiefs; name one, or workers only.")
    kind, index = task.get("type"), task.get("index")
    if not isinstance(kind, str) or kind not in jobs:
        raise SettingsError(f"{TF_CONFIG}: task.type is {kind!r}, which is no job of the cluster "
                            f"({', '.join(sorted(jobs)) or 'none'}): write it as {EXAMPLE}.")
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool):
        raise SettingsError(f"{TF_CONFIG}: task.index is {index!r}; number the workers from 0, as in {EXAMPLE}.")
    if not 0 <= index < len(jobs[kind]):
        raise SettingsError(f"{TF_CONFIG}: task.index is {index}, and the cluster has {len(jobs[kind])} of the job "
                            f"{kind}: number them from 0 to {len(jobs[kind]) - 1}.")
    return Cluster((*chiefs, *workers), index + (len(chiefs) if kind == "worker" else 0))


def _part(content: Any, name: str) -> dict[str, Any]:
    part = content.get(name) if isinstance(content, dict) else None
    if not isinstance(part, dict):
        raise SettingsError(f"{TF_CONFIG} has no {name!r}: write it as {EXAMPLE}.")
    return part


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    """What `srun` sets in each task: tasks are numbered node by node, as `--distribution=block` does."""
    tasks, index = _number(environment, SLURM_TASKS), _number(environment, "SLURM_PROCID")
    port = _number(environment, SLURM_PORT) if SLURM_PORT in environment else 23456
    hosts = expand_hosts(_present(environment, "SLURM_STEP_NODELIST"))
    counts = _tasks_per_node(_present(environment, "SLURM_STEP_TASKS_PER_NODE"))
    if len(hosts) != len(counts) or sum(counts) != tasks:
        raise SettingsError(f"SLURM's variables do not fit together: {len(hosts)} nodes, tasks on {len(counts)} of "
                            f"them, {sum(counts)} tasks of {tasks}: set {TF_CONFIG} instead, as {EXAMPLE}.")
    if "cyclic" in environment.get("SLURM_DISTRIBUTION", ""):
        raise SettingsError("SLURM deals tasks to nodes in turn (--distribution=cyclic), so their places are not "
                            "known: pass --distribution=block to srun.")
    workers = [f"{host}:{port + i}" for host, count in zip(hosts, counts, strict=True) for i in range(count)]
    return Cluster(tuple(workers), index)


def _present(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise SettingsError(f"{name} is not set in this step of SLURM: start the workers by srun, or set {TF_CONFIG}.")
    return environment[name]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _present(environment, name)
    if not text.isdecimal():
        raise SettingsError(f"{name}={text} is no whole number.")
    return int(text)


def _tasks_per_node(text: str) -> list[int]:
    """`"2(x3),1"` as `[2, 2, 2, 1]`."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise SettingsError(f"SLURM_STEP_TASKS_PER_NODE={text} is not understood: set {TF_CONFIG}, as {EXAMPLE}.")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def expand_hosts(text: str) -> list[str]:
    """SLURM's short form of host names: `"a[1-2,07],b"` as `["a1", "a2", "a07", "b"]`.

    Raises:
        SettingsError: brackets that do not close, or ranges that are none.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+|[\[\]]", text):
        hosts += _expanded(part, text)
    return hosts


def _expanded(part: str, whole: str) -> list[str]:
    found = re.fullmatch(r"([^\[\]]*)\[([^\]]*)\](.*)", part)
    if found is None:
        if not re.fullmatch(r"[^\[\]\s]+", part):
            raise SettingsError(f"The hosts {whole} are not understood: set {TF_CONFIG} instead, as {EXAMPLE}.")
        return [part]
    before, ranges, after = found.groups()
    names: list[str] = []
    for span in ranges.split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", span)
        if ends is None:
            raise SettingsError(f"The hosts {whole} are not understood: set {TF_CONFIG} instead, as {EXAMPLE}.")
        first, last = ends[1], ends[2] or ends[1]
        names += [f"{before}{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
    return [name + rest for name in names for rest in (_expanded(after, whole) if after else [""])]
