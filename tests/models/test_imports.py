"""A model loads neither optimizers nor callbacks, and model settings do not load TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVERYTHING = '''
import importlib, pathlib
for path in sorted(pathlib.Path("towernmt/models").rglob("*.py")):
    importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
'''


def loaded(program: str) -> set[str]:
    """Return the modules that a program loads."""
    output = subprocess.run([sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return set(output.split())


def test_the_architectures_by_name_load_no_tensorflow() -> None:
    modules = loaded("import towernmt.models")
    assert "towernmt.models" in modules and not {"tensorflow", "tensorpack"} & modules
    assert {name.split(".")[1] for name in modules if name.startswith("towernmt.")} == {"core", "models"}


@pytest.mark.thorough
def test_no_module_of_models_loads_what_comes_after_them() -> None:
    modules = loaded(EVERYTHING)
    assert "towernmt.models.transformer" in modules
    assert {name.split(".")[1] for name in modules if name.startswith("towernmt.")} == {"core", "dataflow", "models"}
