"""A process that ends with the one that started it, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """From now on this process, started by `multiprocessing`, ends when its parent does."""
    threading.Thread(target=_wait, name="parent", daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
