"""Rules of the code base that reviewers would otherwise have to check."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "towernmt"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 600
PACKAGES = ("callbacks", "check", "checkpoint", "cli", "cluster", "dataflow", "documents", "evaluate", "input_source",
            "interop", "models", "models.layers", "optim", "plots", "predict", "run", "train")
"""Those that export names."""


@cache
def trees() -> list[tuple[str, ast.Module]]:
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES]


def test_every_module_is_short_enough_to_hold_one_concept() -> None:
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_every_module_says_what_it_is() -> None:
    examples = sorted((ROOT / "examples").glob("*.py"))
    modules = [*trees(), *((path.name, ast.parse(path.read_text(encoding="utf-8"))) for path in examples)]
    assert [name for name, tree in modules if not ast.get_docstring(tree)] == []


def test_public_classes_and_functions_have_docstrings() -> None:
    for name, tree in trees():
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_") and (
                    "overload" not in map(ast.unparse, node.decorator_list)):
                assert ast.get_docstring(node), f"{name}: {node.name}"


SHARED_NAMES = {
    "main": "each program has its own",
    "routes": "the server calls it for each interface",
    "write": "the registry of export formats calls it for each format",
}
"""Names that several modules may define, with the reason."""


def test_no_name_has_two_meanings() -> None:
    """Modules, top-level classes and public top-level functions have unique names in the whole package."""
    homes: dict[str, set[str]] = {}
    for path, tree in trees():
        module = Path(path)
        if module.stem != "__init__":
            homes.setdefault(module.name, set()).add(path)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) or isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(path)
    shared = {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in SHARED_NAMES} == {}
    assert set(SHARED_NAMES) <= set(shared)


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


ORDER = (("core",), ("farm",), ("dataflow",), ("documents",), ("input_source", "models"), ("check",), ("optim",),
         ("cluster",), ("checkpoint",), ("predict",), ("evaluate",), ("callbacks",), ("train",), ("run",),
         ("interop",), ("jobs",), ("plots",), ("serve",), ("cli",))
"""The packages, each importing only those before it; ARCHITECTURE.md shows the same order."""
LEVEL = {folder: level for level, folders in enumerate(ORDER) for folder in folders}


INSIDE = {
    "towernmt.dataflow": ("text", "vocabulary", "storage", "sources", "preparation", "batches"),
    "towernmt.predict": ("search", "lines", "ranges", ""),
}
"""The order of the packages inside a package; "" stands for its own modules."""


def imported_modules(tree: ast.Module) -> list[str]:
    """Return the modules of towernmt that a module imports anywhere, also in functions and for types."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "towernmt":
            found += [f"towernmt.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(str(node.module))
    return [module for module in found if module.startswith("towernmt.")]


def test_every_folder_has_its_level() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(LEVEL)
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_dependencies_point_one_way() -> None:
    backwards = set()
    for name, tree in trees():
        folder = name.split("/")[1]
        for module in imported_modules(tree):
            other = module.split(".")[1]
            if other in LEVEL and folder in LEVEL and other != folder and LEVEL[other] >= LEVEL[folder]:
                backwards.add(f"{name}: {module}")
    assert backwards == set()


@pytest.mark.parametrize("package", INSIDE)
def test_packages_inside_a_package_point_one_way(package: str) -> None:
    order = INSIDE[package]

    def level(module: str) -> int:
        inner = module.removeprefix(f"{package}.").split(".")[0]
        return order.index(inner if inner in order else "")

    backwards = set()
    for name, tree in trees():
        module = name.removesuffix(".py").replace("/", ".")
        if module.startswith(f"{package}.") and not module.endswith("__init__"):
            backwards |= {f"{name}: {other}" for other in imported_modules(tree)
                          if other.startswith(f"{package}.") and level(other) > level(module)}
    assert backwards == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {name.removesuffix(".py").replace("/", ".") for name, _ in trees()}
    imports = {}
    for name, tree in trees():
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        imports[name.removesuffix(".py").replace("/", ".")] = found & known
    left = {module: set(others) - {module} for module, others in imports.items()}
    while free := [module for module, others in left.items() if not others & set(left)]:
        for module in free:
            del left[module]
    while loose := [module for module in left if not any(module in others for others in left.values())]:
        for module in loose:
            del left[module]
    assert left == {}


WITHOUT_TENSORFLOW = (
    "towernmt", "towernmt.core.settings", "towernmt.dataflow.preparation.preparation",
    "towernmt.dataflow.batches.batches", "towernmt.cli.main", "towernmt.cli.translate", "towernmt.cli.train",
    "towernmt.run.run_settings", "towernmt.run.directory", "towernmt.checkpoint.saved_run",
    "towernmt.interop.ctranslate2_engine", "towernmt.plots.curve_page", "towernmt.plots.picture",
    "towernmt.serve.server", "towernmt.cli.server_commands")


@pytest.mark.processes
def test_what_needs_no_tensorflow_does_not_import_it() -> None:
    program = ("import importlib, sys\nfor module in sys.argv[1:]:\n    importlib.import_module(module)\n"
               "    'tensorflow' in sys.modules and sys.exit(module)")
    done = subprocess.run([sys.executable, "-c", program, *WITHOUT_TENSORFLOW], cwd=ROOT, text=True,
                          stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_exported_name_is_there() -> None:
    for package in PACKAGES:
        module = importlib.import_module(f"towernmt.{package}")
        for name in dir(module):
            getattr(module, name)


def test_a_star_imports_what_a_package_exports() -> None:
    for package in PACKAGES:
        found: dict[str, object] = {}
        exec(f"from towernmt.{package} import *", found)
        assert len(found) > 2 and set(importlib.import_module(f"towernmt.{package}").__all__) <= set(found)
