"""Search with a cached graph of the run, executed by TensorFlow's C library without its Python modules."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import towernmt
from towernmt.checkpoint.checkpoint_files import STATE
from towernmt.checkpoint.checkpoint_reader import HeldCheckpoint
from towernmt.checkpoint.records import check_vocabulary_of
from towernmt.checkpoint.saved_run import SavedRun, hold_checkpoint
from towernmt.core.errors import DataError
from towernmt.core.machine import processor_flags, processors
from towernmt.predict.cached_graph import CSession, CSessionError, KeptGraph, graph_file, library_files, read_graph
from towernmt.predict.line_translator import SearchArguments, SearchTowers
from towernmt.predict.lines.hypotheses import Found
from towernmt.predict.stream import uses_gpu

FORMAT = 1
"""Suffix of the files of cached graphs."""
_VARIABLES = ("TF_", "ONEDNN_", "DNNL_", "MKL_", "XLA_")


def key_of(run: SavedRun, held: HeldCheckpoint, arguments: SearchArguments) -> str:
    """Return the key of a cached graph, 32 hexadecimal digits.

    It depends on the run's settings and its copy of a model's code, of the index of the checkpoint (which has a
    checksum of each value), of the search, of the code of towernmt and of TensorFlow's library, of the processor and of
    the environment variables that TensorFlow reads.
    """
    prefix = Path(held.prefix)
    read = [run.settings_file, *_below(run.code), Path(f"{prefix}.index"), prefix.with_name(STATE)]
    seen = [*library_files(), *_below(Path(towernmt.__file__).parent, ".py")]
    parts = [
        str(FORMAT), repr(arguments.search), arguments.precision,
        repr((arguments.log_probs, arguments.attention, arguments.threads, processors())),
        json.dumps(sorted(processor_flags())),
        *(f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(_VARIABLES)),
        *(hashlib.sha256(file.read_bytes()).hexdigest() for file in read if file.is_file()),
        *(f"{file} {(state := file.stat()).st_size} {state.st_mtime_ns}" for file in seen)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _below(directory: Path, suffix: str = "") -> Iterator[Path]:
    """Yield the files of a directory and its subdirectories in a fixed order."""
    for place, folders, names in os.walk(directory):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        yield from (Path(place, name) for name in sorted(names) if name.endswith(suffix))


log = logging.getLogger(__name__)

GRAPHS = "graphs"
"""Directory of a run for cached graphs."""


def open_towers(arguments: SearchArguments, keep: bool) -> SearchTowers:
    """Open the towers of a search from the cached graph, or build them and cache the graph.

    Args:
        arguments: arguments of the search.
        keep: whether to read and write cached graphs.

    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: an invalid value, not a run, or a missing GPU.
    """
    if not (keep and _can_be_cached(arguments)):
        return _built(arguments)
    run, held = arguments.runs[0], hold_checkpoint(arguments.runs[0], arguments.checkpoints[0])
    arguments = dataclasses.replace(arguments, checkpoints=[held])
    file = graph_file(run.path / GRAPHS, key_of(run, held, arguments))
    try:
        return CachedTowers(arguments, held, read_graph(file))
    except FileNotFoundError:
        pass
    except (OSError, DataError, CSessionError) as error:
        log.info("%s: the cached graph cannot be used, so it is built again: %s", file, error)
    return _built(arguments, file)


def _built(arguments: SearchArguments, file: Path | None = None) -> SearchTowers:
    from towernmt.predict.search_towers import build_towers  # imports TensorFlow

    return build_towers(arguments, file)


def _can_be_cached(arguments: SearchArguments) -> bool:
    """Return whether the search uses a single run without custom code on a CPU, so that its graph can be cached."""
    alone = len(arguments.runs) == len(arguments.checkpoints) == len(arguments.models) == 1
    ours = arguments.models[0] is None and not arguments.processors and not arguments.search.shortlist
    return alone and ours and not uses_gpu(arguments.device) and bool(library_files())


class CachedTowers:
    """Search towers with a cached graph; see `SearchTowers`.

    The first request for another search, or for the predictor, builds all towers and releases the cached graph, so that
    memory holds the weights only once.

    Args:
        arguments: arguments of the search.
        held: checkpoint with the weights; it stays open in case the towers must be built.
        kept: cached graph of the plain search.

    Raises:
        CSessionError: the graph cannot be used, or does not match the checkpoint.
        SettingsError: the vocabulary does not belong to the run.
    """

    def __init__(self, arguments: SearchArguments, held: HeldCheckpoint, kept: KeptGraph) -> None:
        self._arguments, self._names = arguments, kept.names
        if arguments.runs[0].code.is_dir():     # a graph of untrusted code is refused, too
            arguments.runs[0].architecture_to_load()
        self.checkpoint = held.original
        self.source_vocabulary, self.target_vocabulary = arguments.runs[0].vocabularies()
        check_vocabulary_of(held, arguments.runs[0].vocabulary)
        self._session: CSession | None = CSession(kept.graph, kept.config)
        self._session.run({kept.names.prefix: held.prefix}, [], [kept.names.restore])
        self._all: SearchTowers | None = None
        self._building = threading.Lock()

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch of inputs by name."""
        session = self._session
        if session is None or set(inputs) != set(self._names.inputs):
            return self._all_towers()(**inputs)
        feeds = {tensor: np.asarray(inputs[name], self._names.dtypes[name])
                 for name, tensor in self._names.inputs.items()}
        return Found(**dict(zip(self._names.outputs, session.run(feeds, list(self._names.outputs.values())),
                                strict=True)))

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """Return a search with some settings changed."""
        dataclasses.replace(self._arguments.search, **changed)      # raises an error for an invalid value
        return lambda **inputs: self._all_towers().with_settings(changed)(**inputs)

    @property
    def predictor(self) -> Any:
        """The plain search as tensorpack's `OfflinePredictor`."""
        return self._all_towers().predictor

    def _all_towers(self) -> SearchTowers:
        with self._building:
            if self._all is None:
                self._all = _built(self._arguments)
                self._session = None
            return self._all
