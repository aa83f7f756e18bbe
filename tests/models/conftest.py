"""tests/models/tiny_models.py as `towernmt_tiny_models`: tests are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("towernmt_tiny_models", Path(__file__).with_name("tiny_models.py"))
_tiny_models = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault(_SPEC.name, _tiny_models)
_SPEC.loader.exec_module(_tiny_models)
