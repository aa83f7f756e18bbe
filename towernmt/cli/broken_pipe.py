"""How a program ends whose reader has gone (`| head`)."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable

BROKEN_PIPE = 128 + int(getattr(signal, "SIGPIPE", 13))
"""The exit status of a program whose reader has gone, as a shell shows it of those that the signal ends."""


def until_the_reader_has_gone(command: Callable[[], int]) -> int:
    """The status of a command, or `BROKEN_PIPE` if whoever reads its output (`| head`) wants no more of it.

    Raises:
        BrokenPipeError: of another pipe or connection.
    """
    try:
        status = command()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        drop_output()
        return BROKEN_PIPE
    return status


def drop_output() -> None:
    """Lead standard output nowhere: what Python still holds of it is flushed once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _reader_has_gone() -> bool:
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(1, 0)     # errors are told in any case
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
