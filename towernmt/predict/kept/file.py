"""The file of a kept graph: a line of JSON with its checksum, and the graph as TensorFlow serialises it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.core.files.json_files import checked

KEPT_GRAPHS = 8
"""Files in a directory at most; the oldest give way."""


@dataclass(frozen=True)
class GraphNames:
    """What is called how in a kept graph.

    Attributes:
        inputs: tensors by the inputs' names.
        dtypes: NumPy's, by the inputs' names.
        outputs: tensors by the outputs' names.
        prefix: the tensor that takes the checkpoint's prefix.
        restore: the operation that reads the checkpoint.
    """

    inputs: dict[str, str]
    dtypes: dict[str, str]
    outputs: dict[str, str]
    prefix: str
    restore: str


@dataclass(frozen=True)
class KeptGraph:
    """A graph and how to run it.

    Attributes:
        names: of tensors and operations.
        config: a serialised `ConfigProto`.
        graph: a serialised `GraphDef`, without the weights.
    """

    names: GraphNames
    config: bytes
    graph: bytes


def graph_file(directory: Path, key: str) -> Path:
    """Where the graph of a key is kept."""
    return directory / f"search-{key}.graph"


def read_graph(file: Path) -> KeptGraph:
    """Read what `write_graph` wrote.

    Raises:
        OSError: it is not there or cannot be read.
        DataError: it is damaged.
    """
    head, _, content = file.read_bytes().partition(b"\n")
    try:
        told = json.loads(head)
        if hashlib.sha256(content).hexdigest() != told.pop("sha256"):
            raise ValueError("its checksum is another")
        config = base64.b64decode(told.pop("config"))
        return KeptGraph(checked(told, GraphNames), config, content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file}: the kept graph is damaged ({error}).") from error


def write_graph(file: Path, kept: KeptGraph) -> None:
    """Write a graph, whole or not at all, whoever else writes the same one meanwhile; drop the oldest others.

    Raises:
        OSError: it cannot be written.
    """
    head = {"sha256": hashlib.sha256(kept.graph).hexdigest(), "config": base64.b64encode(kept.config).decode(),
            **asdict(kept.names)}
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_name(f"{file.name}.{secrets.token_hex(8)}.tmp")
    try:
        unfinished.write_bytes(json.dumps(head).encode() + b"\n" + kept.graph)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    for old in sorted(file.parent.glob("search-*"), key=_age)[KEPT_GRAPHS:]:
        with suppress(OSError):     # another process dropped it, or may not
            old.unlink()


def _age(file: Path) -> float:
    try:
        return -os.stat(file).st_mtime
    except OSError:     # another process dropped it
        return 0.0
