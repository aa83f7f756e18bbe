"""The server's log: a line of JSON for each request and event, on stderr, without what users wrote.

An error is logged by its kind and the places in the code, not by its message, which may quote a user's text.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

REQUESTS = "towernmt.serve.requests"
"""The logger of requests; what it logs has `fields`."""
_OURS = ("towernmt", "uvicorn.error")


class JSONLines(logging.Formatter):
    """A record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
                                + f".{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        line |= fields if fields is not None else {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            line |= _places(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Let our log, and uvicorn's of what it cannot read, go to stderr as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    for name in _OURS:
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.setLevel(logging.INFO)
        log.propagate = False


def _places(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {"error": type(error).__name__, "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]}
