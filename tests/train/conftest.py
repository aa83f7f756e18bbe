"""Makes `plain_model` beside this file importable by the tests here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_NAME = "towernmt_plain_model"
if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_NAME, Path(__file__).with_name("plain_model.py"))
    sys.modules[_NAME] = _module = importlib.util.module_from_spec(_spec)
    assert _spec.loader is not None
    _spec.loader.exec_module(_module)
