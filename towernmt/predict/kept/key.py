"""The key of a kept graph: everything that it depends on, so that a graph of another time is never taken."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import towernmt
from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.state import STATE
from towernmt.core.machine.processor import processor_flags, processors
from towernmt.predict.asked_search import AskedSearch
from towernmt.predict.kept.c_session import library_files

FORMAT = 1
"""Of the files of kept graphs."""
_VARIABLES = ("TF_", "ONEDNN_", "DNNL_", "MKL_", "XLA_")


def key_of(run: SavedRun, held: HeldCheckpoint, asked: AskedSearch) -> str:
    """32 hexadecimal digits.

    They tell of the run's settings and its copy of a model's code, of the index of the checkpoint (which has a checksum
    of each value), of the search, of the code of towernmt and of TensorFlow's library, of the processor and of the
    environment variables that TensorFlow reads.
    """
    prefix = Path(held.prefix)
    read = [run.settings_file, *_below(run.code), Path(f"{prefix}.index"), prefix.with_name(STATE)]
    seen = [*library_files(), *_below(Path(towernmt.__file__).parent, ".py")]
    parts = [
        str(FORMAT), repr(asked.search), asked.precision,
        repr((asked.log_probs, asked.attention, asked.threads, processors())),
        json.dumps(sorted(processor_flags())),
        *(f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(_VARIABLES)),
        *(hashlib.sha256(file.read_bytes()).hexdigest() for file in read if file.is_file()),
        *(f"{file} {(state := file.stat()).st_size} {state.st_mtime_ns}" for file in seen)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _below(directory: Path, suffix: str = "") -> Iterator[Path]:
    """The files of a directory, in an order that does not change."""
    for place, folders, names in os.walk(directory):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        yield from (Path(place, name) for name in sorted(names) if name.endswith(suffix))
