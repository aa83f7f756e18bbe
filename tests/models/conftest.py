"""Modules of these tests under names of their own: tests are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

for _name in ("tiny_models", "overfitting", "styles"):
    _spec = importlib.util.spec_from_file_location(f"towernmt_{_name}", Path(__file__).with_name(f"{_name}.py"))
    assert _spec is not None and _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules.setdefault(_spec.name, _module)
    _spec.loader.exec_module(_module)
