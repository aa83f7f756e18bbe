"""Makes the helpers beside this file importable by the tests here, as `towernmt_NAME`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

for _file in ("memory_estimate", "placement", "plain_model"):
    if f"towernmt_{_file}" not in sys.modules:
        _spec = importlib.util.spec_from_file_location(f"towernmt_{_file}", Path(__file__).with_name(f"{_file}.py"))
        assert _spec is not None and _spec.loader is not None
        sys.modules[f"towernmt_{_file}"] = _module = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(_module)
