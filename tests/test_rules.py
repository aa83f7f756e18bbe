"""Rules of the house that a reader would otherwise have to look after."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "towernmt"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 420


def trees() -> list[tuple[str, ast.Module]]:
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES]


def test_every_module_is_short_enough_to_hold_one_concept() -> None:
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_every_module_says_what_it_is() -> None:
    examples = sorted((ROOT / "examples").glob("*.py"))
    silent = [path for path in [*MODULES, *examples] if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_public_classes_and_functions_have_docstrings() -> None:
    for name, tree in trees():
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{name}: {node.name}"


def test_nothing_is_imported_by_a_star() -> None:
    stars = [name for name, tree in trees() for node in ast.walk(tree)
             if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)]
    assert stars == []


def test_users_mistakes_are_errors_and_not_asserts() -> None:
    assert [name for name, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Assert)] == []


def test_towers_use_no_layers_that_break_the_rules_of_tower_functions() -> None:
    forbidden = re.compile(r"tf1?\.layers|keras|rnn_cell|tf1?\.random\.(uniform|normal)|tf1?\.nn\.dropout")
    for path in (PACKAGE / "models").rglob("*.py"):
        assert not forbidden.search(path.read_text(encoding="utf-8")), path.name


def test_dependencies_point_one_way() -> None:
    """Who may import whom; ARCHITECTURE.md says it in words."""
    forbidden = {
        "dataflow": {"input_source", "models", "train", "callbacks", "predict", "cli"},
        "input_source": {"models", "train", "callbacks", "predict", "cli"},
        "models": {"input_source", "callbacks", "predict", "cli"},
        "predict": {"input_source", "callbacks", "cli"},
        "callbacks": {"cli"},
        "train": {"cli"},
    }
    for name, tree in trees():
        folder = name.split("/")[1]
        for node in ast.walk(tree):
            module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
            if module.startswith("towernmt."):
                assert module.split(".")[1] not in forbidden.get(folder, ()), f"{name}: {module}"


@pytest.mark.parametrize("module", [
    "towernmt", "towernmt.settings", "towernmt.dataflow.prepare", "towernmt.dataflow.batches",
    "towernmt.cli.main", "towernmt.cli.translate", "towernmt.cli.train", "towernmt.train.settings",
    "towernmt.train.run_directory"])
def test_what_needs_no_tensorflow_does_not_import_it(module: str) -> None:
    program = f"import sys, {module}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_every_exported_name_is_there() -> None:
    for package in ("callbacks", "dataflow", "input_source", "models", "predict", "train"):
        module = importlib.import_module(f"towernmt.{package}")
        for name in dir(module):
            getattr(module, name)


def test_a_star_imports_what_a_package_exports() -> None:
    for package in ("callbacks", "dataflow", "input_source", "models", "predict", "train"):
        found: dict[str, object] = {}
        exec(f"from towernmt.{package} import *", found)
        assert len(found) > 4 and set(importlib.import_module(f"towernmt.{package}").__all__) <= set(found)
