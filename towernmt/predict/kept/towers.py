"""The plain search by a kept graph, in TensorFlow's C library; all others are built when they are first asked for."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.provenance import check_vocabulary_of
from towernmt.checkpoint.saved_run import hold_checkpoint
from towernmt.core.errors import DataError
from towernmt.predict.asked_search import AskedSearch, SearchTowers
from towernmt.predict.hypotheses import Found
from towernmt.predict.kept.c_session import CSession, CSessionError, library_files
from towernmt.predict.kept.file import KeptGraph, graph_file, read_graph
from towernmt.predict.kept.key import key_of

log = logging.getLogger(__name__)

GRAPHS = "graphs"
"""The directory of a run with its kept graphs."""


def open_towers(asked: AskedSearch, keep: bool) -> SearchTowers:
    """What an `AskedSearch` asks for: by a kept graph if there is one, else built, and its graph kept.

    Args:
        keep: whether graphs may be read and written.
    Raises:
        CheckpointError: there is no such checkpoint, or it does not fit the run's settings.
        SettingsError: a value that cannot work, no run, or a GPU that is not there.
    """
    if not (keep and _can_be_kept(asked)):
        return _built(asked)
    run, held = asked.runs[0], hold_checkpoint(asked.runs[0], asked.checkpoints[0])
    asked = dataclasses.replace(asked, checkpoints=[held])
    file = graph_file(run.path / GRAPHS, key_of(run, held, asked))
    try:
        return KeptTowers(asked, held, read_graph(file))
    except FileNotFoundError:
        pass
    except (OSError, DataError, CSessionError) as error:
        log.info("%s: this graph cannot be used, and is built anew: %s", file, error)
    return _built(asked, file)


def _built(asked: AskedSearch, file: Path | None = None) -> SearchTowers:
    from towernmt.predict.towers import build_towers  # imports TensorFlow

    return build_towers(asked, file)


def _can_be_kept(asked: AskedSearch) -> bool:
    """One run, found by what its directory holds, on a processor."""
    alone = len(asked.runs) == len(asked.checkpoints) == len(asked.models) == 1
    ours = asked.models[0] is None and not asked.processors and not asked.search.shortlist
    return alone and ours and asked.device in (None, "cpu") and not has_gpu_driver() and bool(library_files())


def has_gpu_driver() -> bool:
    """Whether this machine has the devices of a GPU's driver."""
    devices = Path("/dev")
    return any((devices / name).exists() for name in ("dxg", "kfd")) or any(devices.glob("nvidia[0-9]*"))


class KeptTowers:
    """The searches of a translator. See `SearchTowers`.

    Once another search than the plain one is asked for, or the predictor, all are built, and the kept graph is let go:
    the weights are in memory once.
    """

    def __init__(self, asked: AskedSearch, held: HeldCheckpoint, kept: KeptGraph) -> None:
        """
        Args:
            asked: whose search the graph is.
            held: the checkpoint with the weights; open as long as something may have to be built.
            kept: the graph of the plain search.
        Raises:
            CSessionError: the graph cannot be used, or the checkpoint does not fit it.
            SettingsError: the vocabulary is not the run's.
        """
        self._asked, self._names = asked, kept.names
        if asked.runs[0].code.is_dir():     # a graph made by code that may not be loaded now is not taken either
            asked.runs[0].architecture_to_load()
        self.checkpoint = held.original
        self.source_vocabulary, self.target_vocabulary = asked.runs[0].vocabularies()
        check_vocabulary_of(held, asked.runs[0].vocabulary)
        self._session: CSession | None = CSession(kept.graph, kept.config)
        self._session.run({kept.names.prefix: held.prefix}, [], [kept.names.restore])
        self._all: SearchTowers | None = None
        self._building = threading.Lock()

    def __call__(self, **inputs: np.ndarray) -> Found:
        """Translate a batch, by the inputs' names."""
        session = self._session
        if session is None or set(inputs) != set(self._names.inputs):
            return self._everything()(**inputs)
        feeds = {tensor: np.asarray(inputs[name], self._names.dtypes[name])
                 for name, tensor in self._names.inputs.items()}
        return Found(**dict(zip(self._names.outputs, session.run(feeds, list(self._names.outputs.values())),
                                strict=True)))

    def with_settings(self, changed: Mapping[str, Any]) -> Callable[..., Found]:
        """The same, with some settings of the search changed."""
        dataclasses.replace(self._asked.search, **changed)      # refused at once
        return lambda **inputs: self._everything().with_settings(changed)(**inputs)

    @property
    def predictor(self) -> Any:
        """The plain search as tensorpack's `OfflinePredictor`."""
        return self._everything().predictor

    def _everything(self) -> SearchTowers:
        with self._building:
            if self._all is None:
                self._all = _built(self._asked)
                self._session = None
            return self._all
