"""Modules of these tests, and the tiny models of others, under names of their own: tests are no package."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
for _path in (_HERE / "decoding" / "toy_model.py", _HERE.parent / "models" / "tiny_models.py"):
    _spec = importlib.util.spec_from_file_location(f"towernmt_{_path.stem}", _path)
    assert _spec is not None and _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules.setdefault(_spec.name, _module)
    _spec.loader.exec_module(_module)

os.environ.setdefault("TOWERNMT_KEEP_GRAPHS", "0")    # to keep graphs takes seconds, which short runs do not win back
