"""The architectures are listed without TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def loaded(program: str) -> set[str]:
    """Return the modules that a program loads."""
    output = subprocess.run([sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return set(output.split())


def test_the_architectures_by_name_load_no_tensorflow() -> None:
    modules = loaded("import towernmt.models")
    assert "towernmt.models" in modules and not {"tensorflow", "tensorpack"} & modules
    assert {name.split(".")[1] for name in modules if name.startswith("towernmt.")} == {"core", "models"}
