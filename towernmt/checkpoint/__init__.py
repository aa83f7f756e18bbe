"""Checkpoints: files on disk, restoring, averaging, saved runs, and packages as runs."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "checkpoint_files": ["keep_last", "write_checkpoint"],
    "checkpoint_reader": ["OpenCheckpoint"],
    "embedding_rows": ["PretrainedEmbeddings"],
    "packaged_run": ["PackagedRun"],
    "restore": ["RestoreCheckpoint", "StartFrom", "initial_checkpoint"],
})
