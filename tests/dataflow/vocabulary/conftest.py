"""A module of these tests under a name of its own: tests are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("towernmt_drawn_probabilities",
                                               Path(__file__).with_name("drawn_probabilities.py"))
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules.setdefault(_spec.name, _module)
_spec.loader.exec_module(_module)
