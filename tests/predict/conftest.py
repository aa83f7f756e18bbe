"""Runs of these tests do not cache graphs: writing a graph takes seconds, which short runs do not win back."""

from __future__ import annotations

import os

os.environ.setdefault("TOWERNMT_KEEP_GRAPHS", "0")
