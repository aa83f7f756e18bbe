"""Where the log goes on a terminal, told before tensorpack is imported, whose import takes seconds."""

from __future__ import annotations

import sys

_asked: list[bool] = []


def log_to_stderr() -> None:
    """Let tensorpack's log, which goes to stdout by itself, go to stderr: stdout is for the translations."""
    loaded = sys.modules.get("towernmt.core.terminal.terminal_log")
    if loaded is not None:
        loaded.move_to_stderr()
    else:
        _asked.append(True)


def asked_for_stderr() -> bool:
    """Whether the log was sent to stderr before there was one."""
    return bool(_asked)
