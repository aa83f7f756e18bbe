"""TensorFlow's threads do not live on in a forked process: refuse to use TensorFlow there."""

from __future__ import annotations

import os

from towernmt.core.errors import SettingsError

_first_process: int | None = None
"""The process that made the first session, here or in a process that this one was forked from."""


def refuse_second_process() -> None:
    """Refuse to make a session in a process that was forked from one that has made one.

    Raises:
        SettingsError: it was.
    """
    global _first_process
    _first_process = _first_process or os.getpid()
    refuse_forked(_first_process)


def refuse_forked(process: int) -> None:
    """Refuse to use TensorFlow in a process that was forked from one that had used it: it would wait for ever.

    The child process does not have TensorFlow's threads.

    Args:
        process: the one in which TensorFlow was used.
    Raises:
        SettingsError: this is another process.
    """
    if os.getpid() != process:
        raise SettingsError("TensorFlow was used before this process was forked, and cannot be used in it: use it in "
                            'one of the two only, or start processes by multiprocessing.get_context("spawn").')
