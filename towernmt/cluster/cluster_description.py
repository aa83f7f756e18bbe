"""The workers that train together and the index of this process, from `TF_CONFIG` or SLURM's variables."""

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
"""Number of tasks that `srun` started together; not set in a batch script or an allocation without a step."""
SLURM_PORT = "TOWERNMT_PORT"
"""The first port under SLURM, 23456 by default; the workers of a node use consecutive ports."""


@dataclass(frozen=True)
class Cluster:
    """The workers that train one model, and the index of this process.

    Args:
        workers: the address `host:port` of each worker, in the same order in every process. The first is the chief.
        index: the index of this process.

    Raises:
        SettingsError: an address is invalid or duplicate, or the index is out of range.
    """

    workers: tuple[str, ...]
    index: int

    def __post_init__(self) -> None:
        for address in self.workers:
            match = _ADDRESS.fullmatch(address)
            if match is None or not 0 < int(match[2]) < 65536 or not _is_host(match[1]):
                raise SettingsError(f"The worker {address!r} is not an address: write host:port, with a port from 1 to "
                                    "65535.")
        duplicates = sorted({address for address in self.workers if self.workers.count(address) > 1})
        if duplicates:
            raise SettingsError(f"The worker {duplicates[0]} occurs twice in the cluster: give each worker a different "
                                "port.")
        if not 0 <= self.index < len(self.workers):
            raise SettingsError(f"A cluster of {len(self.workers)} has no worker {self.index}: number the workers "
                                f"from 0 to {len(self.workers) - 1}.")


def _is_host(text: str) -> bool:
    """Return whether the text may be the name of a host: sockets raise UnicodeError for others, such as `a..b`."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True


def cluster_from_environment(environment: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that `TF_CONFIG` or else SLURM describes; None if it has only one worker.

    Args:
        environment: the environment variables, such as `os.environ`.

    Raises:
        SettingsError: the description is invalid.
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
        raise SettingsError(f"{TF_CONFIG} is not JSON ({error}): write it as {EXAMPLE}.") from None
    jobs, task = _required_mapping(content, "cluster"), _required_mapping(content, "task")
    unknown = sorted(set(jobs) - {"chief", "worker"})
    if unknown:
        raise SettingsError(f"{TF_CONFIG}: the cluster has the job {unknown[0]!r}, but only chief and worker are "
                            "supported (no parameter servers or evaluators): remove it.")
    for job, addresses in jobs.items():
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise SettingsError(f"{TF_CONFIG}: cluster.{job} must be a list of addresses, as in {EXAMPLE}.")
    chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
    if len(chiefs) > 1:
        raise SettingsError(f"{TF_CONFIG}: the cluster has {len(chiefs)} chiefs: name one chief, or only workers.")
    kind, index = task.get("type"), task.get("index")
    if not isinstance(kind, str) or kind not in jobs:
        raise SettingsError(f"{TF_CONFIG}: task.type is {kind!r}, which is not a job of the cluster "
                            f"({', '.join(sorted(jobs)) or 'none'}): write it as {EXAMPLE}.")
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool):
        raise SettingsError(f"{TF_CONFIG}: task.index is {index!r}: number the workers from 0, as in {EXAMPLE}.")
    if not 0 <= index < len(jobs[kind]):
        raise SettingsError(f"{TF_CONFIG}: task.index is {index}, but the job {kind} has {len(jobs[kind])} workers: "
                            f"number them from 0 to {len(jobs[kind]) - 1}.")
    return Cluster((*chiefs, *workers), index + (len(chiefs) if kind == "worker" else 0))


def _required_mapping(content: Any, name: str) -> dict[str, Any]:
    part = content.get(name) if isinstance(content, dict) else None
    if not isinstance(part, dict):
        raise SettingsError(f"{TF_CONFIG} has no {name!r}: write it as {EXAMPLE}.")
    return part


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    """Return the cluster of `srun`, with tasks numbered node by node as by `--distribution=block`."""
    tasks, index = _required_integer(environment, SLURM_TASKS), _required_integer(environment, "SLURM_PROCID")
    port = _required_integer(environment, SLURM_PORT) if SLURM_PORT in environment else 23456
    hosts = expand_hosts(_required_variable(environment, "SLURM_STEP_NODELIST"))
    counts = _tasks_per_node(_required_variable(environment, "SLURM_STEP_TASKS_PER_NODE"))
    if len(hosts) != len(counts) or sum(counts) != tasks:
        raise SettingsError(f"SLURM's variables contradict each other ({len(hosts)} nodes, tasks on {len(counts)} of "
                            f"them, {sum(counts)} tasks of {tasks}): set {TF_CONFIG} instead, as {EXAMPLE}.")
    if "cyclic" in environment.get("SLURM_DISTRIBUTION", ""):
        raise SettingsError("SLURM distributes tasks to nodes in turn (--distribution=cyclic), which towernmt does "
                            "not support: pass --distribution=block to srun.")
    workers = [f"{host}:{port + i}" for host, count in zip(hosts, counts, strict=True) for i in range(count)]
    return Cluster(tuple(workers), index)


def _required_variable(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise SettingsError(f"{name} is not set in this step of SLURM: start the workers with srun, or set "
                            f"{TF_CONFIG}.")
    return environment[name]


def _required_integer(environment: Mapping[str, str], name: str) -> int:
    text = _required_variable(environment, name)
    if not text.isdecimal():
        raise SettingsError(f"{name}={text} is not a whole number.")
    return int(text)


def _tasks_per_node(text: str) -> list[int]:
    """Return `[2, 2, 2, 1]` for `"2(x3),1"`."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise SettingsError(f"SLURM_STEP_TASKS_PER_NODE={text} is invalid: set {TF_CONFIG}, as {EXAMPLE}.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_hosts(text: str) -> list[str]:
    """Expand SLURM's host names: `"a[1-2,07],b"` to `["a1", "a2", "a07", "b"]`.

    Raises:
        SettingsError: a bracket is not closed, or a range is invalid.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+|[\[\]]", text):
        hosts += _expand_range(part, text)
    return hosts


def _expand_range(part: str, text: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\]]*)\](.*)", part)
    if match is None:
        if not re.fullmatch(r"[^\[\]\s]+", part):
            raise SettingsError(f"The hosts {text} are invalid: set {TF_CONFIG} instead, as {EXAMPLE}.")
        return [part]
    prefix, ranges, suffix = match.groups()
    names: list[str] = []
    for bounds in ranges.split(","):
        match_bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", bounds)
        if match_bounds is None:
            raise SettingsError(f"The hosts {text} are invalid: set {TF_CONFIG} instead, as {EXAMPLE}.")
        first, last = match_bounds[1], match_bounds[2] or match_bounds[1]
        names += [f"{prefix}{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
    return [name + rest for name in names for rest in (_expand_range(suffix, text) if suffix else [""])]
